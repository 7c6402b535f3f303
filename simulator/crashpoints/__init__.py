# Tests: tests/simulator/test_crashpoints.py
"""Crash a fixed workload at every disk call, by each crash model.

docs/simulator.rst, section "Crash at every disk call", lists the checks.
"""
