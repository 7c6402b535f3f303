# Tests: tests/test_package.py
"""brokerd: many wire formats over one durable log."""

__version__ = "0.1.0"
