# Tests: tests/simulator
"""The simulator: disk, threads, network and clocks in one process, driven by a seed.

docs/simulator.rst describes the model. Only tests and the benchmarks import this package.
"""
