"""``brokerd.spark.log``: the same rows as the format, most of them by Spark's own reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow.parquet as pq
import pytest

import brokerd.spark
from benchmarks.engines import opened_files
from brokerd.archive.storage.address import ObjectAddress
from brokerd.spark.location import BadLocation
from brokerd.spark.log_frame import NoFileSystem
from brokerd.spark.options import BadOption
from brokerd.spark.plan import file_scans
from tests.archive.making import damage
from tests.spark.logs import Log
from tests.spark.test_source import WHOLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = pytest.mark.slow


@pytest.fixture
def big(log: Log, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Two archived topics, of which one is trimmed, one that is partly archived, and a new one."""
    log.append(3, 0, b"expired", expires_at=1)
    log.seal()
    log.publish()
    log.roll_up()
    log.delete_archived()
    log.trim(1, 0, 1)
    log.append(3, 1, b"in the journal")
    log.append(log.create("four"), 0, b"new")
    log.publish()
    monkeypatch.setattr(file_scans, "TOPIC_BYTES", 1)
    return log


def rows(frame: DataFrame) -> list[Any]:
    """Return the rows in an order, and check that none is there twice."""
    found = frame.collect()
    assert len({tuple(row) for row in found}) == len(found)
    return sorted(found, key=repr)


def by_format(source: SparkSession, place: object, **options: object) -> DataFrame:
    texts = {name: str(value).lower() for name, value in options.items()}
    return source.read.format("brokerd").options(**texts).load(str(place))


def test_rows_columns_and_types_are_those_of_the_format(source: SparkSession, big: Log) -> None:
    """With any option; only the archive's columns may be null for Spark."""
    whole = brokerd.spark.log(source, str(big.path))
    assert whole.schema.simpleString() == WHOLE
    assert len(rows(whole)) == len(big.expected(1 << 60)) == 10
    everything: list[dict[str, object]] = [
        {},
        {"topics": "one,three", "columns": "value,topic,offset"},
        {"from": 1, "topics": "t*"},
        {"from": '{"one": {"0": 1}, "two": {"0": 1}}'},
        {"only": "archive"},
        {"only": "journal", "columns": "topic_id,value"},
        {"topics": "none*"},
    ]
    for options in everything:
        frame, other = (
            brokerd.spark.log(source, str(big.path), **options),
            by_format(source, big.path, **options),
        )
        assert frame.dtypes == other.dtypes, options
        found = rows(frame)
        assert found == rows(other), options
        assert bool(found) == (options != {"topics": "none*"}), options


def test_times_that_cut_a_file(source: SparkSession, tmp_path: Path) -> None:
    """A time that has no limit is in no calendar, and Java refused it."""
    log = Log(tmp_path / "data")
    topic_id = log.create("one")
    for _ in range(6):
        log.append(topic_id, 0, b"x")
        log.log.time_us += 1_000_000
    log.seal()
    log.publish()
    log.roll_up()
    times = [datetime.fromtimestamp(row.time_us / 1e6, UTC) for row in log.expected()]
    texts = [time.isoformat() for time in sorted(times)]
    for options, offsets in (
        ({"from": texts[2]}, range(2, 6)),
        ({"to": texts[2]}, range(2)),
        ({"from": texts[2], "to": texts[4]}, range(2, 4)),
        ({"to": "0001-01-01"}, range(0)),
        ({"from": "9999-12-31"}, range(0)),
    ):
        frame = brokerd.spark.log(source, str(log.path), **options)
        assert sorted(row["offset"] for row in frame.collect()) == list(offsets), options
        assert rows(frame) == rows(by_format(source, log.path, **options))


def test_payloads_are_converted_as_by_the_format(source: SparkSession, log: Log) -> None:
    """Text by Spark, MessagePack by brokerd."""
    for encoding, value in (
        (0, b"\xff"),
        (0, b"\xed\xa0\x80"),
        (1, "ä".encode()),
        (2, msgpack.packb({"n": [1, None]})),
        (2, msgpack.packb(b"binary")),
        (2, b"\xc1"),
        (0, b"x" * 70_000),
    ):
        packed = [msgpack.packb({"m": encoding})]
        log.log.append(1, 0, [value], encodings=[encoding], metadata=packed)
        log._written()
    log.seal()
    log.publish()
    log.roll_up()
    for payload in ("json", "msgpack"):
        frame = brokerd.spark.log(source, str(log.path), payload=payload)
        other = by_format(source, log.path, payload=payload)
        assert frame.dtypes == other.dtypes
        assert rows(frame) == rows(other)
        assert len(frame.inputFiles()) == 3
    texts = brokerd.spark.log(source, str(log.path), payload="json", columns="value").collect()
    values = [row["value"] for row in texts]
    assert '{"n": [1, null]}' in values and "ä" in values and values.count(None) == 4


def test_a_frame_is_the_log_as_it_was_when_it_was_made(source: SparkSession, big: Log) -> None:
    """Whatever rollup and broker do before it is used: none is missing, and none there twice."""
    expected = rows(by_format(source, big.path))
    frame = brokerd.spark.log(source, str(big.path))
    big.append(2, 0, b"since")
    big.seal()
    big.publish()
    big.roll_up()
    big.delete_archived()
    big.merge(own_bytes=1)
    assert rows(frame) == expected
    assert frame.count() == len(expected)
    assert len(rows(brokerd.spark.log(source, str(big.path)))) == len(expected) + 1


def test_none_is_lost_or_there_twice_while_rollups_run(source: SparkSession, log: Log) -> None:
    """Between any two steps of a query, the journal may become archive."""
    ended = threading.Event()
    failed: list[BaseException] = []
    runs: list[int] = []
    written = [len(log.rows)]

    def go_on() -> None:
        try:
            while not ended.is_set():
                number = len(log.rows)
                log.together(*((id, number % 2, [b"%d" % number, b"more"]) for id in (1, 2, 3)))
                written.append(len(log.rows))
                log.seal()
                log.publish()
                log.roll_up()
                log.delete_archived()
                log.merge(own_bytes=1)
                runs.append(number)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for _ in range(8):
            before = {(row.topic, row.partition, row.offset) for row in log.rows[: written[-1]]}
            frame = brokerd.spark.log(source, str(log.path), columns="topic,partition,offset")
            run = len(runs)
            after = {(row.topic, row.partition, row.offset) for row in log.rows.copy()}
            while len(runs) < run + 2 and not failed:
                time.sleep(0.01)
            found = [tuple(row) for row in rows(frame)]
            assert before <= set(found) <= after
    finally:
        ended.set()
        thread.join()
    assert not failed
    assert len(runs) >= 16


@pytest.fixture
def lenient(source: SparkSession) -> Iterator[None]:
    """A session that passes over files that are missing or damaged."""
    names = ["spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"]
    for name in names:
        source.conf.set(name, "true")
    yield
    for name in names:
        source.conf.unset(name)


@pytest.mark.usefixtures("lenient")
def test_a_file_that_is_gone_is_an_error(source: SparkSession, big: Log) -> None:
    """Vacuum deletes no file that was replaced less than a day ago."""
    frame = brokerd.spark.log(source, str(big.path))
    (path,) = (big.root / "records" / "bucket=2").iterdir()
    path.unlink()
    with pytest.raises(Exception, match=path.name):
        frame.collect()
    assert len(rows(frame.where("topic = 'one'"))) == 2, "it is of another topic"


@pytest.mark.usefixtures("lenient")
def test_a_damaged_page_is_an_error(source: SparkSession, big: Log) -> None:
    (path,) = (big.root / "records" / "bucket=2").iterdir()
    group = pq.read_metadata(path).row_group(0)
    (values,) = (
        group.column(at)
        for at in range(group.num_columns)
        if group.column(at).path_in_schema == "value"
    )
    damage(path, values.data_page_offset + values.total_compressed_size - 1)
    frame = brokerd.spark.log(source, str(big.path))
    with pytest.raises(Exception, match=r"(?i)checksum|crc"):
        frame.collect()


def test_conditions_leave_out_topics_and_reach_the_reader(
    source: SparkSession, big: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = brokerd.spark.log(source, str(big.path))
    assert len(frame.inputFiles()) == 3
    assert len(frame.where("topic = 'two'").inputFiles()) == 1
    assert frame.where("topic_id = 4").inputFiles() == []
    narrow = frame.where(
        "topic = 'two' AND partition = 1 AND offset < 9 AND append_time > timestamp '2020-01-01'"
    ).select("value")
    assert [bytes(row["value"]) for row in narrow.collect()] == [b"c of two"]
    capsys.readouterr()
    narrow.explain("formatted")
    plan = capsys.readouterr().out
    for pushed in ("EqualTo(partition,1)", "LessThan(offset,9)", "GreaterThan(append_time,"):
        assert pushed in plan, pushed
    assert (
        "ReadSchema: struct<partition:int,offset:bigint,append_time:timestamp,value:binary>" in plan
    )


def test_files_of_other_topics_are_not_opened(source: SparkSession, log: Log) -> None:
    """Though one scan has the files of both topics: their buckets tell."""
    log.roll_up()
    log.delete_archived()
    place = log.root / "records"
    frame = brokerd.spark.log(source, str(log.path), only="archive")
    for condition, files in (
        ("topic = 'two'", 1),
        ("topic_id = 1", 1),
        ("topic IN ('one', 'two')", 2),
        ("topic LIKE 't%' AND offset < 9", 1),
        ("offset < 9", 2),
    ):
        narrow = frame.where(condition)
        assert opened_files(place, narrow.collect) == (files, 2), condition
        assert len(narrow.collect()) == 3 * files
    assert opened_files(place, frame.where("topic = 'three'").collect) == (0, 2)


def test_what_is_wrong_is_an_error_of_brokerd(source: SparkSession, big: Log) -> None:
    place = str(big.path)
    with pytest.raises(BadOption, match="unknown option 'topic'"):
        brokerd.spark.log(source, place, topic="x")
    with pytest.raises(BadOption, match="only='both' is unknown: give archive or journal"):
        brokerd.spark.log(source, place, only="both")
    with pytest.raises(BadOption, match=r"log\(\) has the table records: read deliveries by"):
        brokerd.spark.log(source, place, table="deliveries")
    with pytest.raises(BadLocation, match="does not exist"):
        brokerd.spark.log(source, "/nowhere")
    with pytest.raises(Exception, match="BadSplits: the option splits is for brokerd"):
        reader = source.read.format("brokerd").schema(WHOLE[7:-1].replace(":", " "))
        reader.option("splits", "x").load().count()


def test_an_archive_in_a_bucket_is_read_in_python(
    source: SparkSession, tmp_path: Path, bucket: ObjectAddress
) -> None:
    log = Log(tmp_path / "data", bucket)
    log.append(log.create("one"), 0, b"a", b"b")
    log.seal()
    log.publish()
    log.roll_up()
    log.append(1, 0, b"c")
    for place, count in ((str(bucket), 2), (str(log.path), 3)):
        options = {} if place == str(bucket) else {"archive": str(bucket)}
        frame = brokerd.spark.log(source, place, **options)
        assert frame.inputFiles() == []
        assert len(rows(frame)) == count


def test_a_bucket_needs_the_jars_of_its_scheme(
    source: SparkSession, tmp_path: Path, bucket: ObjectAddress
) -> None:
    """Which this session lacks. `test_s3a.py` has them."""
    log = Log(tmp_path / "data", bucket)
    log.append(log.create("one"), 0, b"a")
    log.seal()
    log.publish()
    log.roll_up()
    with pytest.raises(NoFileSystem, match=r"Spark has no file system for s3a: .*hadoop-aws"):
        brokerd.spark.log(source, str(log.path), archive=str(bucket), bucketScheme="s3a")
    with pytest.raises(BadOption, match="bucketScheme='s3a:' is no scheme"):
        brokerd.spark.log(source, str(bucket), bucketScheme="s3a:")
    with pytest.raises(BadOption, match="bucketScheme is for an archive in a bucket"):
        brokerd.spark.log(source, str(Log(tmp_path / "other").path), BUCKETSCHEME="s3a")


def test_paths_are_no_patterns(source: SparkSession, tmp_path: Path) -> None:
    """Spark takes brackets and the like in a path for a pattern."""
    log = Log(tmp_path / "a [b]{c,d} %20*?\\x" / "data")
    log.append(log.create("one"), 0, b"a")
    log.seal()
    log.publish()
    log.roll_up()
    frame = brokerd.spark.log(source, str(log.path))
    assert len(frame.inputFiles()) == 1
    assert len(rows(frame)) == 1
