# Tests: tests/codecs
"""Bytes to values and back, one module or package per wire format: no I/O, no clock, no Twisted."""
