"""Delta Spark reads and follows the archive: rows, skipped files, streams across maintenance.

`make test-older-spark` runs these tests, on a Spark for which there is a Delta Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerd.archive.maintain.clean import clean
from tests.archive.world import World, record
from tests.conftest import DELTA_JARS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DELTA_JARS,
        reason="make test-older-spark runs this, on a Spark that Delta Spark supports",
    ),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return an archive with four small files of topic 1, each with one record."""
    world = World(tmp_path, None)
    world.topic(1, (0, 0))
    for offset in range(4):
        roll(world, record(offset, lsn=world.lsn + 50))
    return world


def roll(world: World, row: dict[str, Any]) -> None:
    """Archive a record in a file of its own."""
    world.lsn += 100
    world.roll_records([[row]], world.lsn)


class Stream:
    """A stream over a table of the archive. Each run is a query of its own, on one checkpoint."""

    def __init__(self, spark: SparkSession, world: World, directory: Path) -> None:
        self.spark = spark
        self.place = str(world.root / "records")
        self.checkpoint = str(directory / "checkpoint")
        self.rows: list[tuple[int, int]] = []

    def run(self, **options: str) -> None:
        """Add the topic and the offset of each row that is new for the stream."""

        def keep(frame: Any, _batch: int) -> None:
            self.rows += [tuple(row) for row in frame.select("topic_id", "offset").collect()]

        frame = self.spark.readStream.format("delta").options(**options).load(self.place)
        writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", self.checkpoint).start()
        query.awaitTermination()


def test_rows_are_those_of_the_archive(spark: SparkSession, world: World) -> None:
    frame = spark.read.format("delta").load(str(world.root / "records"))
    names = ("topic", "offset", "lsn", "value")
    expected = [tuple(row[name] for name in names) for row in world.rows("records")]
    got = [(row[0], row[1], row[2], bytes(row[3])) for row in frame.select(*names).collect()]
    assert sorted(got) == sorted(expected)
    assert len(got) == 4


@pytest.mark.parametrize(
    ("condition", "files"),
    [("offset >= 2", 2), ("topic = 't2'", 0), ("topic_id = 99", 0), ("topic = 't1'", 4)],
)
def test_files_without_matching_rows_are_skipped(
    spark: SparkSession, world: World, condition: str, files: int
) -> None:
    frame = spark.read.format("delta").load(str(world.root / "records")).where(condition)
    assert len(frame.inputFiles()) == files


def test_a_stream_goes_on_across_a_merge(spark: SparkSession, world: World, tmp_path: Path) -> None:
    stream = Stream(spark, world, tmp_path)
    stream.run()
    world.lsn += 100
    clean(world.run())
    assert len(world.files("records")) == 1
    roll(world, record(4, lsn=world.lsn + 50))
    stream.run()
    assert sorted(stream.rows) == [(1, offset) for offset in range(5)]


def test_a_stream_passes_over_removed_rows_with_skip_change_commits_alone(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    stream = Stream(spark, world, tmp_path)
    stream.run()
    world.topic(1, (3, 3))
    world.lsn += 100
    clean(world.run())
    assert [row["offset"] for row in world.rows("records")] == [3]
    roll(world, record(4, lsn=world.lsn + 50))
    with pytest.raises(StreamingQueryException, match="Detected deleted data"):
        stream.run()
    stream.run(skipChangeCommits="true")
    assert sorted(stream.rows) == [(1, offset) for offset in range(5)]
