# Tests: tests/spark/test_source.py
"""Shows errors to a user of Spark as one text, with the problem and its remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from brokerd.errors import BrokerdError


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Make Spark show a `BrokerdError` as its text, without a traceback.

    Only Spark's Python workers may use it. A worker reports one error and ends. The environment
    sets the form of the error (pyspark.util.handle_worker_exception).
    """
    try:
        yield
    except BrokerdError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
