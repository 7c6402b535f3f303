# Tests: tests/spark/test_reading.py
"""Reads what a split says. No pyspark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from brokerd.archive.layout import RECORDS, arrow_schema
from brokerd.spark.planning import Request, Split


def schema_of(request: Request) -> pa.Schema:
    """The columns that were asked for, with the types of the table ``records``."""
    whole = arrow_schema(RECORDS)
    return pa.schema([whole.field(name) for name in request.columns])


def read_split(split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of a split, in the schema of `schema_of`.

    :raises BrokerdError: something cannot be read, or is damaged.
    """
    raise NotImplementedError
