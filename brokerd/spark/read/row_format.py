# Tests: tests/spark/test_source.py
"""The format of rows in Spark: their schema, and the payload format that the user chose."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from brokerd.archive.contract.schemas import StoredSchema
from brokerd.archive.typed.topic_schema import ERROR, RESERVED, VERSION, TopicSchema
from brokerd.archive.typed.types import struct_of
from brokerd.errors import BrokerdError
from brokerd.spark.errors import hide_traceback
from brokerd.spark.location import Location
from brokerd.spark.options import BadOption, Options, Payload
from brokerd.spark.plan.query_plan import Split
from brokerd.spark.plan.schemas import read_topic_schemas
from brokerd.spark.read.column_types import arrow_schema_of, spark_type
from brokerd.spark.read.payload import ENCODING, METADATA, VALUE, columns_to_read, convert_columns
from brokerd.spark.read.split_reader import read_split
from brokerd.spark.read.tables import TableSplit, read_table
from brokerd.spark.request import Request

_OF_SCHEMA = ("value", "encoding", "append_time")
"""Columns of records that ``payload=schema`` needs."""
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

    def __init__(
        self, split: Split | TableSplit, versions: Sequence[StoredSchema] | None = None
    ) -> None:
        self.pickled = pickle.dumps(split)
        self.pickled_versions = pickle.dumps(versions)
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

    def versions(self) -> list[StoredSchema] | None:
        """Load the versions of the topic's schema, for ``payload=schema``. Call `split` first."""
        versions: list[StoredSchema] | None = pickle.loads(self.pickled_versions)
        return versions


class RowFormat(NamedTuple):
    """The columns of rows, and the format of their payloads."""

    layout: Layout
    columns: tuple[str, ...]
    payload: Payload
    topic: str = ""
    """The topic with ``payload=schema``."""
    kind: pa.StructType | None = None
    """The columns of its schema; None if a user's or a table's schema has them."""

    def schema(self) -> StructType:
        """Return the schema for Spark."""
        if self.payload == "schema":
            return self._typed_schema()
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
        if self.payload == "schema":
            return  # a table keeps the columns of its creation, and a stream those of its start
        wanted = [(field.name, field.dataType) for field in schema.fields]
        if wanted != [(field.name, field.dataType) for field in self.schema().fields]:
            raise BadOption(
                f"schema({schema.simpleString()}) differs from the schema of the rows: leave it "
                "out, also in CREATE TABLE, and select columns with the option columns"
            )

    def add_columns(self, request: Request) -> Request:
        """Return a request with the columns that this format needs."""
        if self.payload == "schema":
            names = [name.lower() for name in self.columns] or request.columns
            own = [name for name in names if name in request.columns]
            columns = tuple(dict.fromkeys((*own, *_OF_SCHEMA)))
        else:
            columns = columns_to_read(self.columns, self.payload)
        return request._replace(columns=columns)

    def partitions(
        self, splits: Iterable[Split | TableSplit], location: Location
    ) -> list[InputPartition]:
        """Return a partition for each split of a plan.

        The schemas are read after the plan, so they include those of all its records.
        """
        versions = None
        if self.payload == "schema":
            versions = read_topic_schemas(location, self.topic)
        return [SplitPartition(split, versions) for split in splits]

    def read(self, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a `SplitPartition`.

        For a plan without partitions, Spark passes a partition of another type. It has no rows.

        :param schema: a schema that passed `check`.
        """
        if not isinstance(partition, SplitPartition):
            return
        with hide_traceback():
            split = partition.split()
            versions = partition.versions()
            if isinstance(split, Split) and versions is not None:
                yield from _typed_rows(split, versions, schema)
                return
            arrow = self._arrow_schema(schema)
            if isinstance(split, TableSplit):
                for batch in read_table(split):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow)
                return
            for batch in read_split(split):
                columns = convert_columns(batch, self.columns, self.payload)
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)

    def _typed_schema(self) -> StructType:
        """Return the schema with the columns of a topic's schema."""
        kind = self.kind if self.kind is not None else struct_of({})
        typed = {one.name: spark_type(one.type) for one in kind.fields}
        by_name = {one.name: one for one in _record_fields()}
        by_name |= {name: StructField(name, one, True) for name, one in typed.items()}
        found = {name.lower(): one for name, one in by_name.items()}
        names = self.columns or (*(one for one in by_name if one != VALUE),)
        fields = []
        for name in names:
            field = found.get(name.lower())
            if field is None or field in fields:
                problem = "is given twice" if field else "is not a column"
                raise BadOption(
                    f"columns: {name!r} {problem}; the columns are {', '.join(by_name)}"
                )
            fields.append(field)
        return StructType(fields)

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


def _record_fields() -> list[StructField]:
    """Return the columns of a record, and those of its schema."""
    layout = LAYOUTS["records"].file_columns()
    fields = [StructField(one.name, _TYPES[one.type], one.nullable) for one in layout]
    version = StructField(VERSION, IntegerType(), True)
    return [*fields, version, StructField(ERROR, StringType(), True)]


def _typed_rows(
    split: Split, versions: Sequence[StoredSchema], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split with the columns of a schema."""
    arrow = arrow_schema_of(schema)
    kind = struct_of({one.name: one.type for one in arrow if one.name not in RESERVED})
    topic = TopicSchema(versions, kind)
    for batch in read_split(split):
        times = batch.column("append_time").view(pa.int64())
        first = 0
        for rows in topic.convert(batch.column(VALUE), batch.column(ENCODING), times):
            part = batch.slice(first, len(rows.versions))
            first += len(part)
            typed = dict(zip(kind.names, rows.columns.flatten(), strict=True))
            typed |= {VERSION: rows.versions, ERROR: rows.errors}
            columns = [typed[name] if name in typed else part.column(name) for name in arrow.names]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def row_format(options: Options, location: Location | None = None) -> RowFormat:
    """Return the format that a user's options select.

    :param location: the log, to read the columns of a topic's schema.
    :raises BrokerdError: the schema cannot be read.
    """
    if options.payload == "schema":
        kind = None
        if location is not None:
            kind = TopicSchema(read_topic_schemas(location, options.topic)).stored_kind
        columns = options.typed_columns or ()
        return RowFormat(LAYOUTS[options.table], columns, "schema", options.topic, kind)
    return RowFormat(LAYOUTS[options.table], options.request.columns, options.payload)
