# Tests: tests/spark/test_source.py
"""The format ``brokerd`` of Apache Spark: docs/spark.rst.

Spark makes these objects in Python workers of the driver's machine, and the readers go from there
to the executors by pickling.

No reader asks for the conditions of a query (``pushFilters``): Spark 4.3 keeps what was planned
with the conditions of one use of a DataFrame, and takes it for all other uses, in the same query
too, whose rows would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from brokerd.archive.contract.layout import RECORDS
from brokerd.spark.clock import now_us
from brokerd.spark.errors import told_plainly
from brokerd.spark.location import Location, open_place
from brokerd.spark.options import BadOption, Options, batch_request, parse_options
from brokerd.spark.plan.plan import Request, plan
from brokerd.spark.read.rows import Piece, Rows, rows_of
from brokerd.spark.read.tables import plan_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

FORMAT = "brokerd"


class LogReader(DataSourceReader):
    """A batch."""

    def __init__(self, place: Location, request: Request, rows: Rows, schema: StructType) -> None:
        self._place = place
        self._request = request
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with told_plainly():
            planned = plan(self._place, self._rows.needed(self._request), now_us())
        return [Piece(split) for split in planned.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition, self._schema)


class TableReader(DataSourceReader):
    """One of the archive's other tables."""

    def __init__(self, options: Options, rows: Rows, schema: StructType) -> None:
        self._archive = _place_of(options).archive
        self._options = options
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        table, request = self._options.table, self._options.request
        with told_plainly():
            splits = plan_table(self._archive, table, request.columns, request.partition_bytes)
        return [Piece(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition, self._schema)


class LogSource(DataSource):
    """A log."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with told_plainly():
            options = parse_options(self.options)
            place = _place_of(options)
            if options.table != RECORDS.name:
                plan_table(place.archive, options.table, (), 1)  # it is told now if there is none
            return rows_of(options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        with told_plainly():
            options = parse_options(self.options)
            rows = rows_of(options)
            rows.check(schema)
            if options.table != RECORDS.name:
                return TableReader(options, rows, schema)
            return LogReader(_place_of(options), batch_request(options), rows, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from brokerd.spark.streaming import LogStreamReader
        except ImportError as error:
            raise BadOption(
                f"streams of brokerd need Spark 4.2 or later, and this is {spark_version}: "
                "upgrade pyspark, or use spark.read"
            ) from error
        return LogStreamReader(self.options, schema)


def _place_of(options: Options) -> Location:
    return open_place(options.path, options.archive)
