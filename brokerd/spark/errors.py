# Tests: tests/spark/test_source.py
"""Errors as a user of Spark sees them: one text that says what is wrong and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from brokerd.errors import BrokerdError


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Make Spark show a `BrokerdError` as its text, without a traceback.

    Use it only in Spark's Python workers. A worker reports one error, in the form that this
    variable sets, and ends (pyspark.util.handle_worker_exception).
    """
    try:
        yield
    except BrokerdError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
