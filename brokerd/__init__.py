# Tests: tests/test_package.py
"""brokerd: five wire formats over one durable log."""

__version__ = "0.1.0"
