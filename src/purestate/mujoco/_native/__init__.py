"""Steps of MuJoCo as an operation of XLA: no Python and no lock while all goes well.

One handler, compiled by numba once per process, steps every model. From the bottom up:
`library` finds MuJoCo's functions, `guard` keeps its fatal errors from ending the
process, `table` knows the models that programs name by number, `steps` is the handler,
`engine` what a `MujocoSim` asks for. Whatever goes wrong in a step is left to Python:
the whole call is done again there, with its checks and its errors.
"""
