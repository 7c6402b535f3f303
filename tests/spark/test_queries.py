"""Streaming queries of Spark over the log: restarts, killed processes, clear errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.archive.test_with_broker import brokerctl
from tests.cross.rolling import roll_up_all
from tests.spark.brokers import (
    PAYLOADS,
    SECONDS,
    append,
    as_flymq,
    fill,
    let_go,
    read_by_flymq,
    serving,
    wait_until,
)
from tests.spark.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

Value = tuple[str, int, int, bytes]
"""Topic, partition, offset and value."""


class Query:
    """A streaming query that is begun again and again with one checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path, place: Path, **options: str) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self.place = place
        self.options = options
        self.batches: dict[int, list[Value]] = {}
        """What each micro-batch had, by its id."""

    def take(self, frame: Any, batch_id: int) -> None:
        rows = frame.select("topic", "partition", "offset", "value").collect()
        self.batches[batch_id] = [(*row[:3], bytes(row[3])) for row in rows]

    def taken(self) -> list[Value]:
        """All that came yet."""
        return [value for values in list(self.batches.values()) for value in values]

    def run(self, **options: str) -> list[Value]:
        """Take what is there now, with a query of its own; what was new."""
        before = set(self.batches)
        loaded = self.spark.readStream.format("brokerd").options(**{**self.options, **options})
        query = (
            loaded.load(str(self.place))
            .writeStream.foreachBatch(self.take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(
            value for batch_id in set(self.batches) - before for value in self.batches[batch_id]
        )

    def offset(self) -> dict[str, Any]:
        """The newest offset in the checkpoint."""
        offsets = self.checkpoint / "offsets"
        newest = max(offsets.glob("[0-9]*"), key=lambda path: int(path.name))
        found: dict[str, Any] = json.loads(newest.read_text().splitlines()[-1])
        return found


@pytest.fixture
def query(source: SparkSession, log: Log, tmp_path: Path) -> Query:
    return Query(source, tmp_path / "checkpoint", log.path)


def new(log: Log, before: int = 0) -> list[Value]:
    """What was appended since there were so many records."""
    rows = log.rows[before:]
    return sorted((row.topic, row.partition, row.offset, row.value) for row in rows)


def test_each_record_comes_once_across_restarts_and_rollups(log: Log, query: Query) -> None:
    """What was read from the open file is in the archive alone by then."""
    assert query.run() == new(log)
    count = len(log.rows)
    log.append(3, 0, b"in the archive", b"too")
    log.seal()
    log.publish()
    log.roll_up()
    log.delete_archived()
    log.append(1, 1, b"in the open file")
    assert query.run() == new(log, count)
    assert query.run() == []
    offset = query.offset()
    assert {"first_lsn", "log_id", "lost", "lsn", "next", "segment", "version"} == set(offset)
    assert offset["version"] == 2


def test_what_is_wrong_is_said_in_one_piece(log: Log, query: Query) -> None:
    """An option that is not for streams, and a checkpoint that is of another log."""
    with pytest.raises(Exception, match="BadOption: to is for batches") as refused:
        query.run(to="5")
    assert "Traceback" not in str(refused.value)
    query.run()
    offsets = query.checkpoint / "offsets" / "0"
    *first, last = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*first, json.dumps({**json.loads(last), "log_id": "f" * 32})]))
    (query.checkpoint / "offsets" / ".0.crc").unlink()
    with pytest.raises(Exception, match="BadCheckpoint: the stream's checkpoint is of") as refused:
        query.run()
    assert "Traceback" not in str(refused.value)


def test_a_query_that_runs_takes_what_comes(source: SparkSession, tmp_path: Path) -> None:
    """In micro-batches, as long as nobody stops it; what comes then is for the next one."""
    data_dir = tmp_path / "data"
    query = Query(source, tmp_path / "checkpoint", data_dir)
    with serving(data_dir):
        append(data_dir, "orders", 10)
        wait_until((data_dir / "state" / "bounds").exists)
        reader = source.readStream.format("brokerd").load(str(data_dir))
        running = (
            reader.writeStream.foreachBatch(query.take)
            .option("checkpointLocation", str(query.checkpoint))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            for number in range(1, 4):
                wait_until(lambda count=10 * number: len(query.taken()) == count)
                append(data_dir, "orders", 10)
            wait_until(lambda: len(query.taken()) == 40)
        finally:
            running.stop()
        assert running.exception() is None
        assert sorted(value[2] for value in query.taken()) == list(range(40))
        append(data_dir, "orders", 1)
        assert [value[2] for value in query.run()] == [40]


def test_killed_processes_lose_and_repeat_nothing(source: SparkSession, tmp_path: Path) -> None:
    """Spark, Java and all, in the middle of a batch, while broker and rollup go on as they do."""
    data_dir, output = tmp_path / "data", tmp_path / "output"
    checkpoint = tmp_path / "checkpoint"

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.streamer"]
        places = [data_dir, output, checkpoint, tmp_path / "work"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen([*command, *places], env=environment, start_new_session=True)

    def is_in_batch(number: int) -> bool:
        has_begun = (checkpoint / "offsets" / str(number)).exists()
        assert not (checkpoint / "commits" / str(number + 10)).exists()
        return has_begun

    with serving(data_dir) as restart:
        fill(data_dir)
        for number in (2, 6):
            process = start()
            try:
                wait_until(lambda number=number: is_in_batch(number))
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            append(data_dir, "orders", 500)
            brokerctl(data_dir, "archive", "seal")
            roll_up_all(data_dir)
            let_go(data_dir, restart)
        assert start().wait(5 * SECONDS) == 0
        rows = source.read.parquet(str(output)).collect()
        found = as_flymq(rows)
        assert len(found) == sum(1 for row in rows if row["topic"])
        assert found == read_by_flymq(data_dir)
        assert sum(1 for row in rows if not row["topic"]) == len(PAYLOADS)
