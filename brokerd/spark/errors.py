# Tests: tests/spark/test_source.py
"""Errors as the user of Spark is to see them: one text that says what is wrong and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from brokerd.errors import BrokerdError


@contextmanager
def told_plainly() -> Iterator[None]:
    """Have Spark show an error that was raised on purpose as its text, without a traceback.

    Only for what Spark calls in its Python workers: each of them tells of an error in the form
    that this variable asks for, and ends (pyspark.util.handle_worker_exception and its callers).
    """
    try:
        yield
    except BrokerdError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
