"""Rows of the source are what a client reads by a wire format: of every topic, at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pytest
from deltalake import DeltaTable

from tests.archive.test_with_broker import brokerctl, rollup
from tests.cross.rolling import roll_up_all
from tests.spark.brokers import (
    COMPACTED,
    PAYLOADS,
    append,
    as_flymq,
    as_mamamia,
    compact,
    fill,
    let_go,
    load,
    load_log,
    read_by_flymq,
    read_by_mamamia,
    serving,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Served(NamedTuple):
    """A broker that runs."""

    data_dir: Path
    restart: Callable[[], None]


@pytest.fixture(scope="module")
def served(source: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker that runs, with topics of every kind."""
    data_dir = tmp_path_factory.mktemp("same") / "data"
    with serving(data_dir) as restart:
        fill(data_dir)
        yield Served(data_dir, restart)


@pytest.fixture
def filled(served: Served) -> Path:
    """Its data directory."""
    return served.data_dir


def check_same(source: SparkSession, data_dir: Path, group: str) -> list[Any]:
    """Spark and the wire formats read the same now; the rows."""
    rows = load(source, data_dir)
    assert load_log(source, data_dir) == rows
    assert as_flymq(rows) == read_by_flymq(data_dir)
    for topic in ("of mamamia", ""):
        assert as_mamamia(rows, topic) == read_by_mamamia(data_dir, topic, group)
    return rows


@pytest.mark.slow
def test_before_and_after_a_rollup_and_when_the_journal_is_gone(
    source: SparkSession, served: Served
) -> None:
    """Of every topic that a client can name, and of what it can say of a record."""
    filled = served.data_dir
    rows = check_same(source, filled, "before")
    topics = {row["topic"] for row in rows}
    assert {"", "again", "later", "dead", "dead.dlq", "of mamamia", "orders"} <= topics
    assert not {"deleted"} & topics
    assert not any(topic.startswith("__brokerd.") for topic in topics)
    brokerctl(filled, "archive", "seal")
    assert check_same(source, filled, "sealed") == rows
    roll_up_all(filled)
    assert check_same(source, filled, "rolled up") == rows
    append(filled, "orders", 300)
    compact(filled)
    brokerctl(filled, "archive", "seal")
    append(filled, "orders", 200)
    more = check_same(source, filled, "further")
    assert len(more) == len(rows) + 500 + 40
    roll_up_all(filled)
    let_go(filled, served.restart)
    left = check_same(source, filled, "let go")
    assert [row for row in left if row["topic"] != "filler"] == more


@pytest.mark.slow
def test_formats_and_times_of_records_are_there(source: SparkSession, filled: Path) -> None:
    """Which format wrote a record, when, and when its producer says; nulls are nulls."""
    now_us = time.time_ns() // 1000
    by_topic: dict[str, list[Any]] = {}
    for row in source.read.format("brokerd").load(str(filled)).collect():
        by_topic.setdefault(row["topic"], []).append(row)
        assert now_us - 600_000_000 < row["append_time"].timestamp() * 1e6 < now_us + 60_000_000
    formats = {"of mamamia": 1, "of flymq": 2, "of blipmq": 3, "of rustlog": 4, "of-mega": 5}
    for topic, number in formats.items():
        assert {row["producer_format"] for row in by_topic[topic]} == {number}
    times = sorted(row["producer_time"] for row in by_topic["of-mega"])
    assert times == [-5, 0, 1 << 40]
    assert {row["producer_time"] for row in by_topic["of flymq"]} == {None}
    assert {row["expires_at"] for row in by_topic["expired"]} == {0}
    quality = {row["offset"]: row["metadata"] for row in by_topic["of blipmq"]}
    assert quality == {0: msgpack.packb({"qos": 0}), 1: None}


def test_payloads_are_json_or_msgpack_as_asked(source: SparkSession, filled: Path) -> None:
    """Of the same records; columns are those that were named, in that order."""
    named = {"topics": "of mamamia", "columns": "offset,metadata,value"}
    shown = {row["offset"]: row["value"] for row in load_columns(source, filled, "json", **named)}
    assert [shown[offset] for offset in range(len(PAYLOADS))] == [
        "null",
        "true",
        "-7",
        str(1 << 63),
        "1.5",
        "text",
        "",
        None,
        "",
        None,
        '{"n": 1, "list": []}',
        None,
    ]
    packed = {
        row["offset"]: msgpack.unpackb(row["value"])
        for row in load_columns(source, filled, "msgpack", **named)
    }
    assert [packed[offset] for offset in range(len(PAYLOADS))] == PAYLOADS
    metadata = [row["metadata"] for row in load_columns(source, filled, "json", **named)]
    assert sorted(set(metadata), key=str) == [
        None,
        *(f'{{"trace": {n}}}' for n in (11, 2, 5, 8)),
        "{}",
    ]


def load_columns(source: SparkSession, data_dir: Path, payload: str, **options: str) -> list[Any]:
    frame = source.read.format("brokerd").option("payload", payload).options(**options)
    loaded = frame.load(str(data_dir))
    assert loaded.columns == options["columns"].split(",")
    return loaded.collect()


def test_options_choose_the_records_that_they_name(source: SparkSession, filled: Path) -> None:
    """Topics by name and pattern, offsets and times; conditions and options agree."""
    everything = load(source, filled)

    def count(**options: str) -> int:
        return len(load(source, filled, **options))

    def matching(condition: Any) -> int:
        return sum(map(condition, everything))

    assert count(topics="of flymq") == 35
    assert count(topics="of*,trimmed") == matching(
        lambda row: row["topic"].startswith("of") or row["topic"] == "trimmed"
    )
    assert count(topics='[""]') == len(PAYLOADS)
    assert count(**{"from": "7990", "to": "8010"}) == matching(
        lambda row: 7990 <= row["offset"] < 8010
    )
    offsets = '{"orders": {"0": 7990}, "of flymq": {"1": 100000}}'
    assert count(topics="orders", **{"from": offsets}) == matching(
        lambda row: row["topic"] == "orders" and row["offset"] >= 7990
    )
    middle = sorted(row["append_time"] for row in everything)[len(everything) // 2]
    said = middle.isoformat()
    before, after = count(to=said), count(**{"from": said})
    assert before + after == len(everything)
    assert after == matching(lambda row: row["append_time"] >= middle)
    frame = source.read.format("brokerd").load(str(filled))
    assert frame.where(frame["append_time"] >= middle).count() == after
    chosen = frame.where(
        "topic in ('orders', 'trimmed') and offset between 5 and 7 and partition = 0"
    )
    assert chosen.count() == 6
    lsn = max(row["lsn"] for row in everything)
    assert frame.where(f"lsn >= {lsn}").count() == matching(lambda row: row["lsn"] == lsn)


def test_a_topic_that_is_not_there_is_an_error_unless_it_is_a_pattern(
    source: SparkSession, filled: Path
) -> None:
    reader = source.read.format("brokerd")
    with pytest.raises(Exception, match="odrers"):
        reader.option("topics", "odrers").load(str(filled)).count()
    assert reader.option("topics", "odrers*").load(str(filled)).count() == 0


@pytest.mark.slow
def test_while_rollups_run(source: SparkSession, tmp_path: Path) -> None:
    """With Spark, in lots of one file, and with records coming: none is missing or there twice."""
    data_dir = tmp_path / "data"
    ended = threading.Event()
    failed: list[BaseException] = []

    def roll_up_again_and_again() -> None:
        try:
            while not ended.is_set():
                rollup(data_dir, "--seal", "--set", "archive.lot_bytes=1MiB")
        except BaseException as error:
            failed.append(error)

    with serving(data_dir) as restart:
        fill(data_dir)
        compact(data_dir)
        thread = threading.Thread(target=roll_up_again_and_again)
        thread.start()
        try:
            looks = 0
            reached: set[int] = set()
            end = time.monotonic() + 300
            while (len(reached) < 3 or looks < 10) and time.monotonic() < end and not failed:
                before = without_compacted(read_by_flymq(data_dir))
                rows = (load, load_log)[looks % 2](source, data_dir)
                append(data_dir, "orders", 1_000)
                after = without_compacted(read_by_flymq(data_dir))
                read = without_compacted(as_flymq(rows))
                assert before.items() <= read.items() <= after.items()
                looks += 1
                reached.add(brokerctl(data_dir, "archive", "status")["records_lsn"])
        finally:
            ended.set()
            thread.join()
        assert not failed
        assert len(reached) >= 3
        let_go(data_dir, restart)
        assert as_flymq(load(source, data_dir)) == read_by_flymq(data_dir)
        assert as_flymq(load_log(source, data_dir)) == read_by_flymq(data_dir)
        check_joins(source, data_dir)


def check_joins(source: SparkSession, data_dir: Path) -> None:
    """What became of records, beside the records: dead letters, in the group ``workers``."""
    files = DeltaTable(str(data_dir / "archive" / "deliveries")).file_uris()
    records = source.read.format("brokerd").option("topics", "dead").load(str(data_dir))
    deliveries = source.read.parquet(*files).drop("topic", "lsn")
    joined = records.join(deliveries, ["topic_id", "partition", "offset"]).collect()
    found = sorted((bytes(row["value"]), row["group_name"], row["outcome"]) for row in joined)
    assert found == [(b"0", "workers", "dead"), (b"1", "workers", "dead")]


def without_compacted(found: dict[Any, Any]) -> dict[Any, Any]:
    """Without a topic of which the archive has less than the journal has for a while."""
    return {place: read for place, read in found.items() if place[0] != COMPACTED}
