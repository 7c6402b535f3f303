# Tests: tests/spark/test_registering.py
"""The format ``brokerd`` for Spark sessions that import nothing: docs/spark.rst.

Spark looks through all top-level modules named ``pyspark_...`` when a session first uses a Python
data source, and registers their ``DefaultSource``.
"""

from __future__ import annotations

from contextlib import suppress

__all__ = ["DefaultSource"]

with suppress(ImportError):  # Spark's worker has not the packages that the source needs
    from brokerd.spark.source import LogSource as DefaultSource
