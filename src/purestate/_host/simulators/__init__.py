"""Simulators and environments.

From the bottom up: `simulator` holds what a person gave to `ps.HostSim`, `host_sim`
makes pure functions of it, `spaces` says what an environment's spaces hold, and
`host_env` lets programs act on a live environment.
"""
