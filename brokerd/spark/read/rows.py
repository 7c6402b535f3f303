# Tests: tests/spark/test_source.py
"""What rows look like for Spark, and how those of a split become what was asked for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
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
from brokerd.spark.errors import told_plainly
from brokerd.spark.options import BadOption, Options, Payload
from brokerd.spark.plan.plan import Request, Split
from brokerd.spark.read.payload import METADATA, VALUE, needed, shown
from brokerd.spark.read.read import read_split
from brokerd.spark.read.tables import TableSplit, read_table

_TYPES: dict[str, DataType] = {
    "byte": ByteType(),
    "integer": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
}


class Piece(InputPartition):
    """What one task reads: as bytes, as another brokerd may not know what is in them."""

    def __init__(self, split: Split | TableSplit) -> None:
        self.pickled = pickle.dumps(split)
        self.package = package()
        """The brokerd that planned it, which is on the driver's machine."""

    def split(self) -> Split | TableSplit:
        """What was planned. Raises `OtherVersion` where another brokerd runs."""
        if package() != self.package:
            raise OtherVersion(
                f"an executor has brokerd {package()}, and {self.package} has planned the query: "
                "send that one along with --py-files (docs/spark-cluster.rst)"
            )
        split: Split | TableSplit = pickle.loads(self.pickled)
        return split


class OtherVersion(BrokerdError):
    """An executor has another brokerd than the driver's machine."""


class Rows(NamedTuple):
    """Which columns rows have, and in which form."""

    layout: Layout
    columns: tuple[str, ...]
    payload: Payload

    def schema(self) -> StructType:
        """What they look like for Spark."""
        fields = []
        for column in map(self._column, self.columns):
            fields.append(StructField(column.name, _TYPES[column.type], column.nullable))
        return StructType(fields)

    def check(self, schema: StructType) -> None:
        """Raise `BadOption` unless rows look like this, which somebody may have asked for."""
        wanted = [(field.name, field.dataType) for field in schema.fields]
        if wanted != [(field.name, field.dataType) for field in self.schema().fields]:
            raise BadOption(
                f"schema({schema.simpleString()}) is not what the rows are: leave it out, and name "
                "the columns that you want in the option columns"
            )

    def needed(self, request: Request) -> Request:
        """A request for the columns that have to be read."""
        return request._replace(columns=needed(self.columns, self.payload))

    def read(self, piece: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
        """The rows of a `Piece`, in the schema that Spark expects, which passed `check`.

        Where there is no piece at all, Spark makes one up.
        """
        if not isinstance(piece, Piece):
            return
        arrow = self._arrow_schema(schema)
        with told_plainly():
            split = piece.split()
            if isinstance(split, TableSplit):
                for batch in read_table(split):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow)
                return
            for batch in read_split(split):
                columns = shown(batch, self.columns, self.payload)
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)

    def _arrow_schema(self, schema: StructType) -> pa.Schema:
        """Spark compares all of it, also what may be null."""
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


def rows_of(options: Options) -> Rows:
    """What a user asked for."""
    return Rows(LAYOUTS[options.table], options.request.columns, options.payload)
