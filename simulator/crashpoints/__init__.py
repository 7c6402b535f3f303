# Tests: tests/simulator/test_crashpoints.py
"""Crash at every disk call: a fixed workload, cut off at each moment, in each way.

docs/simulator.rst, section "Crash at every disk call", says what is checked and what is not.
"""
