# Tests: tests/simulator
"""The simulator: disk, threads, network and clocks in one process, driven by a seed.

docs/simulator.rst says what is modelled. Nothing outside tests imports this room.
"""
