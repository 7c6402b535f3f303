"""A fault of Spark because of which the source accepts no conditions: does it persist?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SETTING = "spark.sql.python.filterPushdown.enabled"


def test_spark_reuses_the_conditions_of_one_use_for_others(source: SparkSession) -> None:
    """When this fails, Spark has mended it.

    Then let ``LogReader`` of brokerd/spark/source.py narrow its plan by conditions, and change
    docs/spark.rst, section "Reading less".
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.wanted = [1, 2, 3]

        def pushFilters(self, filters):  # type: ignore[no-untyped-def]
            for one in filters:
                if isinstance(one, EqualTo):
                    self.wanted = [number for number in self.wanted if number == one.value]
                yield one  # Spark is to check it, too

        def partitions(self):  # type: ignore[no-untyped-def]
            return [InputPartition(number) for number in self.wanted]

        def read(self, partition):  # type: ignore[no-untyped-def]
            yield (partition.value,)

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema):  # type: ignore[no-untyped-def]
            return Reader()

    source.dataSource.register(Numbers)
    source.conf.set(SETTING, "true")
    try:
        frame = source.read.format("numbers").load()
        assert frame.where("n = 2").count() == 1
        assert frame.count() == 1, "Spark has mended it: see above"
    finally:
        source.conf.unset(SETTING)
