# Tests: tests/spark/test_source.py
"""The format of rows in Spark: their schema, and the payload format that the user chose."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from brokerd.archive.cluster.shipping import package
from brokerd.archive.contract.layout import LAYOUTS, Column, Layout, arrow_schema
from brokerd.errors import BrokerdError
from brokerd.spark.errors import hide_traceback
from brokerd.spark.options import BadOption, Options, Payload
from brokerd.spark.plan.query_plan import Split
from brokerd.spark.read.payload import METADATA, VALUE, columns_to_read, convert_columns
from brokerd.spark.read.split_reader import read_split
from brokerd.spark.read.tables import TableSplit, read_table
from brokerd.spark.request import Request

_OPTIONS = "brokerd"
"""The key of the options in the metadata of the first column."""
_TYPES: dict[str, DataType] = {
    "byte": ByteType(),
    "integer": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
}


class VersionMismatch(BrokerdError):
    """An executor has a different brokerd than the driver's machine."""


class SplitPartition(InputPartition):
    """The input of one task. It stays pickled, because a different brokerd may fail to load it."""

    def __init__(self, split: Split | TableSplit) -> None:
        self.pickled = pickle.dumps(split)
        self.package = package()
        """The brokerd that made the plan, on the driver's machine."""

    def split(self) -> Split | TableSplit:
        """Load the split. Raises `VersionMismatch` if a different brokerd runs here."""
        if package() != self.package:
            raise VersionMismatch(
                f"an executor has brokerd {package()}, and brokerd {self.package} planned the "
                "query: send the latter with --py-files (docs/spark-cluster.rst)"
            )
        split: Split | TableSplit = pickle.loads(self.pickled)
        return split


class RowFormat(NamedTuple):
    """The columns of rows, and the format of their payloads."""

    layout: Layout
    columns: tuple[str, ...]
    payload: Payload

    def schema(self) -> StructType:
        """Return the schema for Spark."""
        fields = []
        for column in map(self._column, self.columns):
            fields.append(StructField(column.name, _TYPES[column.type], column.nullable))
        return StructType(fields)

    def table_schema(self, given: Mapping[str, str]) -> StructType:
        """Return the schema for a table of Spark's catalog, with the user's options in it.

        Spark 4.3 keeps the schema of such a table, and passes no options when the table is read.
        """
        schema = self.schema()
        schema.fields[0].metadata = {_OPTIONS: dict(given)}
        return schema

    def check(self, schema: StructType) -> None:
        """Raise `BadOption` if a user's schema differs from the schema of the rows."""
        wanted = [(field.name, field.dataType) for field in schema.fields]
        if wanted != [(field.name, field.dataType) for field in self.schema().fields]:
            raise BadOption(
                f"schema({schema.simpleString()}) differs from the schema of the rows: leave it "
                "out, also in CREATE TABLE, and select columns with the option columns"
            )

    def add_columns(self, request: Request) -> Request:
        """Return a request with the columns that this format needs."""
        return request._replace(columns=columns_to_read(self.columns, self.payload))

    def read(self, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a `SplitPartition`.

        For a plan without partitions, Spark passes a partition of another type. It has no rows.

        :param schema: a schema that passed `check`.
        """
        if not isinstance(partition, SplitPartition):
            return
        arrow = self._arrow_schema(schema)
        with hide_traceback():
            split = partition.split()
            if isinstance(split, TableSplit):
                for batch in read_table(split):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow)
                return
            for batch in read_split(split):
                columns = convert_columns(batch, self.columns, self.payload)
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)

    def _arrow_schema(self, schema: StructType) -> pa.Schema:
        """Return the Arrow schema. Spark compares the whole schema, including nullability."""
        types = {field.name: field.type for field in arrow_schema(self.layout)}
        fields = []
        for field in schema.fields:
            is_text = isinstance(field.dataType, StringType)
            kind = pa.string() if is_text else types[field.name]
            fields.append(pa.field(field.name, kind, nullable=field.nullable))
        return pa.schema(fields)

    def _column(self, name: str) -> Column:
        if self.payload == "json" and name in (VALUE, METADATA):
            return Column(name, "string", nullable=True)
        (column,) = (one for one in self.layout.columns if one.name == name)
        return column


def table_options(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a query, with those that `RowFormat.table_schema` put in a schema."""
    kept = [field.metadata.get(_OPTIONS) for field in schema.fields[:1] if field.metadata]
    return {**(kept[0] or {} if kept else {}), **given}


def row_format(options: Options) -> RowFormat:
    """Return the format that a user's options select."""
    return RowFormat(LAYOUTS[options.table], options.request.columns, options.payload)
