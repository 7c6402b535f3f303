# Tests: tests/spark/test_source.py
"""The format ``brokerd`` of Apache Spark: docs/spark.rst, docs/spark-sink.rst.

Spark creates these objects in Python workers on the driver's machine, and pickles the readers for
the executors.

No reader accepts filters (``pushFilters``). Spark 4.3 caches the plan with the filters of one use
of a DataFrame, and reuses it for other uses, which would then lack rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from brokerd.archive.contract.layout import RECORDS
from brokerd.spark.clock import now_us
from brokerd.spark.errors import hide_traceback
from brokerd.spark.location import Location, open_location
from brokerd.spark.options import BadOption, Options, batch_request, is_of_catalog, parse_options
from brokerd.spark.plan.query_plan import Split, plan_query
from brokerd.spark.plan.split_text import decode_splits
from brokerd.spark.read.row_format import RowFormat, SplitPartition, row_format, table_options
from brokerd.spark.read.tables import plan_table
from brokerd.spark.request import Request
from brokerd.spark.sink.writer import batch_sink, stream_sink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

FORMAT = "brokerd"
SPLITS = "splits"
"""An option of `brokerd.spark.log`: the splits of its plan."""


class LogReader(DataSourceReader):
    """Reads the records of a log in a batch."""

    def __init__(
        self, location: Location, request: Request, rows: RowFormat, schema: StructType
    ) -> None:
        self._location = location
        self._request = request
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with hide_traceback():
            request = self._rows.add_columns(self._request)
            plan = plan_query(self._location, request, now_us())
            return self._rows.partitions(plan.splits, self._location)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition, self._schema)


class SplitReader(DataSourceReader):
    """Reads the splits of a plan."""

    def __init__(self, splits: Sequence[Split], rows: RowFormat, schema: StructType) -> None:
        self._splits = splits
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [SplitPartition(split) for split in self._splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition, self._schema)


class TableReader(DataSourceReader):
    """Reads an archive's table other than ``records``."""

    def __init__(self, options: Options, rows: RowFormat, schema: StructType) -> None:
        self._archive = _location(options).archive
        self._options = options
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        table, request = self._options.table, self._options.request
        with hide_traceback():
            splits = plan_table(self._archive, table, request.columns, request.partition_bytes)
        return [SplitPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition, self._schema)


class _NoStream(DataSourceStreamReader):
    """Refuses streams on Spark 4.1, which replaces an error of `streamReader` by one of its own."""

    def initialOffset(self) -> dict[str, object]:
        """Raise BadOption."""
        return self.read(None)

    def latestOffset(self, *arguments: object) -> dict[str, object]:
        """Raise BadOption."""
        return self.read(None)

    def read(self, partition: object) -> NoReturn:
        """Raise BadOption."""
        raise BadOption(
            f"streams of brokerd need Spark 4.2 or later, and this is {spark_version}: "
            "upgrade pyspark, or use spark.read"
        )


class LogSource(DataSource):
    """The data source ``brokerd``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with hide_traceback():
            options = parse_options(self.options)
            location = _location(options)
            if options.table != RECORDS.name:
                plan_table(location.archive, options.table, (), 1)  # raises if the table is absent
            rows = row_format(options, location)
            return rows.table_schema(self.options) if is_of_catalog(self.options) else rows.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        with hide_traceback():
            given = table_options(schema, self.options)
            splits = given.pop(SPLITS, None)
            options = parse_options(given)
            rows = row_format(options)
            rows.check(schema)
            if splits is not None:
                return SplitReader(decode_splits(splits), rows, schema)
            if options.table != RECORDS.name:
                return TableReader(options, rows, schema)
            return LogReader(_location(options), batch_request(options), rows, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from brokerd.spark.streaming import LogStreamReader
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            return _NoStream()
        return LogStreamReader(table_options(schema, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with hide_traceback():
            return batch_sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with hide_traceback():
            return stream_sink(self.options, schema, overwrite)


def _location(options: Options) -> Location:
    return open_location(options.path, options.archive)
