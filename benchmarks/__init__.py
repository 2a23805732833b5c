"""Speed of purestate against other libraries; each `bench_*` file is a script."""
