# Tests: tests/spark/test_log_frame.py
"""The log as a DataFrame: `brokerd.spark.log`.

One plan of one snapshot has archive files and splits. Spark's own reader scans the files, column by
column and without Python. Tasks in Python read the splits: the journal, and the files that need
conditions of brokerd. The union of both has each record once (docs/spark-reading.rst).

This module uses only public names of Spark, so it also works with Spark Connect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from brokerd.archive.cluster.scan_options import SCAN_OPTIONS
from brokerd.archive.contract.layout import BUCKET, RECORDS
from brokerd.archive.parquet.column_facts import Text
from brokerd.archive.storage.address import ObjectAddress, Place
from brokerd.errors import BrokerdError
from brokerd.spark.clock import now_us
from brokerd.spark.location import open_location
from brokerd.spark.options import BadOption, Payload, batch_request, option_texts, parse_options
from brokerd.spark.plan.archive_files import records_table
from brokerd.spark.plan.file_scans import FileScan
from brokerd.spark.plan.predicate import UNBOUNDED, Interval, Key
from brokerd.spark.plan.query_plan import Plan, plan_query
from brokerd.spark.plan.split_text import encode_splits
from brokerd.spark.read.payload import (
    ENCODING,
    METADATA,
    VALUE,
    msgpack_as_json,
    value_as_msgpack,
)
from brokerd.spark.read.row_format import RowFormat, row_format
from brokerd.spark.source import FORMAT, SPLITS
from brokerd.values import Encoding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKET_SCHEME = "bucketScheme"
"""The option of `brokerd.spark.log` that lets Spark's own reader scan an archive in a bucket."""

_GLOB = re.compile(r"([{}\[\]*?\\])")
"""Characters of a path that Spark would take for a pattern."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_NO_FILE_SYSTEM = ("No FileSystem for scheme", "ClassNotFoundException", "NoClassDefFoundError")
"""Parts of the texts of Java's errors."""
_FIRST, _END = "__first", "__end"
_udf: Any = vars(F)["arrow_udf"]  # pyspark exports no type of it


class NoFileSystem(BrokerdError):
    """Spark lacks the jars that read a bucket."""


def read_log(spark: SparkSession, place: str, options: Mapping[str, object]) -> DataFrame:
    """Plan a query, and return its rows: `brokerd.spark.log`."""
    texts = option_texts(options)
    scheme = _pop_scheme(texts)
    parsed = parse_options({**texts, "path": place})
    if parsed.table != RECORDS.name:
        raise BadOption(
            f"log() has the table {RECORDS.name}: read {parsed.table} by "
            "spark.read.format('brokerd')"
        )
    if parsed.payload == "schema":
        return spark.read.format(FORMAT).options(**texts).load(place)
    rows = row_format(parsed)
    location = open_location(parsed.path, parsed.archive)
    request = rows.add_columns(batch_request(parsed))
    table = records_table(location.archive)
    is_bucket = isinstance(table, ObjectAddress)
    if scheme and not is_bucket:
        raise BadOption(f"{BUCKET_SCHEME} is for an archive in a bucket, and {table} is none")
    plan = plan_query(location, request, now_us(), has_scans=bool(scheme) or not is_bucket)
    frames = [*_scanned(spark, _Uris(table, scheme), plan, rows)]
    if plan.splits:
        frames.append(_split_rows(spark, plan, rows))
    if not frames:
        return spark.createDataFrame([], rows.schema())
    return reduce(lambda one, two: one.unionByName(two), frames)


def _pop_scheme(texts: dict[str, str]) -> str:
    """Remove the option ``bucketScheme`` and return its value, or "". Raises `BadOption`."""
    for name in [one for one in texts if one.lower() == BUCKET_SCHEME.lower()]:
        scheme = texts.pop(name)
        if not _SCHEME.fullmatch(scheme):
            raise BadOption(f"{BUCKET_SCHEME}={scheme!r} is no scheme: give s3a, for example")
        return scheme
    return ""


# -- Splits --------------------------------------------------------------------------------------


def _split_rows(spark: SparkSession, plan: Plan, rows: RowFormat) -> DataFrame:
    """Return the rows of the splits of a plan, by the format ``brokerd``."""
    options = {
        SPLITS: encode_splits(plan.splits),
        "columns": ",".join(rows.columns),
        "payload": rows.payload,
    }
    return spark.read.format(FORMAT).options(**options).schema(rows.schema()).load()


# -- Scans ---------------------------------------------------------------------------------------


class _Uris(NamedTuple):
    """The addresses of the table's files for Spark."""

    table: Place
    scheme: str
    """The scheme for a bucket."""

    def root(self) -> str:
        """Return the address of the table."""
        if isinstance(self.table, ObjectAddress):
            return str(self.table._replace(scheme=self.scheme))
        return f"file://{self.table}"

    def file(self, path: str) -> str:
        """Return the address of a file. Spark takes it for a pattern, so it is escaped."""
        return _GLOB.sub(r"\\\1", f"{self.root()}/{path}")


def _scanned(spark: SparkSession, uris: _Uris, plan: Plan, rows: RowFormat) -> Iterator[DataFrame]:
    """Yield the rows of each scan."""
    file_schema = RowFormat(rows.layout, _file_columns(rows), "bytes").schema()
    file_schema = file_schema.add(BUCKET, "integer")
    options = {**SCAN_OPTIONS, "basePath": uris.root()}
    is_converted = rows.payload == "json" and VALUE in rows.columns
    for scan in plan.scans:
        for text, paths in _by_text(scan) if is_converted else [(Text.UNKNOWN, scan.paths)]:
            reader = spark.read.schema(file_schema).options(**options)
            with _told_of_jars(uris.scheme):
                frame = reader.parquet(*map(uris.file, paths))
            frame = _filtered(spark, frame, scan)
            if scan.topics:
                frame = frame.withColumns(_topic_columns(scan.topics))
            yield from _converted(frame, rows, text)


def _by_text(scan: FileScan) -> list[tuple[Text, list[str]]]:
    """Return the paths of a scan, divided by what all values of a file are."""
    paths: dict[Text, list[str]] = {}
    for path, text in zip(scan.paths, scan.texts, strict=True):
        paths.setdefault(text, []).append(path)
    return sorted(paths.items())


def _topic_columns(topics: Mapping[int, tuple[int, str]]) -> dict[str, Column]:
    """Return the topic and the topic id by bucket.

    The files' own columns have the same values. But Spark reads no file to evaluate a condition on
    the bucket, because that is in the paths: it skips files whose bucket has another topic.
    """
    names = {bucket: F.lit(name) for bucket, (_, name) in topics.items()}
    ids = {bucket: F.lit(topic_id).cast("long") for bucket, (topic_id, _) in topics.items()}
    return {"topic": _by_bucket(names), "topic_id": _by_bucket(ids)}


def _by_bucket(values: Mapping[int, Column]) -> Column:
    """Return a column with the value of each bucket. It is a constant if there is one bucket."""
    *others, last = values
    cases: Any = F
    for bucket in others:
        cases = cases.when(F.col(BUCKET) == bucket, values[bucket])
    found: Column = cases.otherwise(values[last]) if others else values[last]
    return found


def _file_columns(rows: RowFormat) -> tuple[str, ...]:
    """Return all columns of a file. Spark reads those that a query needs."""
    return tuple(column.name for column in rows.layout.file_columns())


@contextmanager
def _told_of_jars(scheme: str) -> Iterator[None]:
    """Raise `NoFileSystem` in place of Java's error if Spark lacks the scheme's file system."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if not scheme or not any(one in text for one in _NO_FILE_SYSTEM):
            raise
        raise NoFileSystem(
            f"Spark has no file system for {scheme}: start the session with its jars, for s3a "
            "spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION with the version of Spark's "
            f"hadoop-client-api, or leave out {BUCKET_SCHEME}, so that Python reads the archive "
            "(docs/spark.rst)"
        ) from error


def _filtered(spark: SparkSession, frame: DataFrame, scan: FileScan) -> DataFrame:
    """Return the rows that meet the conditions of a scan."""
    if scan.topic_ids is not None:
        # As text, because each value would be a call to Java.
        frame = frame.where(f"topic_id IN ({', '.join(map(str, scan.topic_ids)) or 'NULL'})")
    if scan.times_us != UNBOUNDED:
        frame = frame.where(_is_in_times(scan.times_us))
    if scan.now_us is not None:
        expires = F.col("expires_at")
        frame = frame.where((expires == 0) | (expires > scan.now_us))
    if scan.partition_offsets:
        bounds = _bounds(spark, scan.partition_offsets)
        frame = frame.join(F.broadcast(bounds), ["topic_id", "partition"], "left")
        first, end = (
            F.coalesce(F.col(name), F.lit(default).cast("long"))
            for name, default in zip((_FIRST, _END), scan.offsets, strict=True)
        )
        return frame.where(_is_between("offset", first, end))
    if scan.offsets != UNBOUNDED:
        first, end = (F.lit(one).cast("long") for one in scan.offsets)
        return frame.where(_is_between("offset", first, end))
    return frame


def _is_in_times(times_us: Interval) -> Column:
    """Return the condition for append times. Java cannot express the time of no limit."""
    column, found = F.col("append_time"), F.lit(True)
    if times_us.first != UNBOUNDED.first:
        found = column >= F.timestamp_micros(F.lit(times_us.first).cast("long"))
    if times_us.end != UNBOUNDED.end:
        found = found & (column < F.timestamp_micros(F.lit(times_us.end).cast("long")))
    return found


def _is_between(name: str, first: Column, end: Column) -> Column:
    """Return the condition that a column is in an interval, whose end is exclusive."""
    column = F.col(name)
    return (column >= first) & (column < end)


def _bounds(spark: SparkSession, offsets: Mapping[Key, Interval]) -> DataFrame:
    """Return a table with the first and the end offset of each partition."""
    rows = [(*key, *interval) for key, interval in offsets.items()]
    types = {"topic_id": pa.int64(), "partition": pa.int32(), _FIRST: pa.int64(), _END: pa.int64()}
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), types.values(), strict=True)
    ]
    return spark.createDataFrame(pa.table(columns, names=list(types)))


# -- Payloads ------------------------------------------------------------------------------------


def _converted(frame: DataFrame, rows: RowFormat, known: Text) -> Iterator[DataFrame]:
    """Yield all rows of a scan in the format of the query. Only MessagePack is converted in Python.

    For JSON, MessagePack and text are read apart: the dictionaries of ``encoding`` leave out the
    row groups without MessagePack, and text never goes to Python. Where the Delta log says that
    all values are text, Spark neither looks at ``encoding`` nor validates UTF-8.

    :param known: what all values of the scan are.
    """
    if rows.payload != "json" or VALUE not in rows.columns:
        yield frame.select(*(_column(name, rows.payload) for name in rows.columns))
        return
    is_packed = F.col(ENCODING) == int(Encoding.MSGPACK)
    text = F.col(VALUE).cast("string")
    if known is not Text.UTF8:
        text = F.try_validate_utf8(text)
    branches = [(F.lit(True), text)]
    if known is Text.UNKNOWN:
        is_text = ~F.coalesce(is_packed, F.lit(False))
        branches = [(is_text, text), (is_packed, _msgpack_to_json(F.col(VALUE)))]
    for condition, value in branches:
        columns = (
            value.alias(name) if name == VALUE else _column(name, rows.payload)
            for name in rows.columns
        )
        yield frame.where(condition).select(*columns)


def _column(name: str, payload: Payload) -> Column:
    """Return a column in the format of the query, except for values as JSON."""
    column = F.col(name)
    if payload == "json" and name == METADATA:
        return _msgpack_to_json(column).alias(name)
    if payload == "msgpack" and name == VALUE:
        converted: Column = _udf(value_as_msgpack, "binary")(column, F.col(ENCODING))
        return converted.alias(name)
    return column


def _msgpack_to_json(column: Column) -> Column:
    """Return a column of MessagePack as JSON."""
    converted: Column = _udf(msgpack_as_json, "string")(column)
    return converted
