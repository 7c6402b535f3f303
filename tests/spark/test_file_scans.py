"""Which files of the archive Spark reads itself, and which conditions their rows need.

`test_log_snapshot.py` checks that the rows are right, whatever happens to a log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerd.archive.contract.view import DamagedArchive
from brokerd.archive.parquet.column_facts import Text
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.store import open_store
from brokerd.spark.location import Location
from brokerd.spark.plan import file_scans, query_plan
from brokerd.spark.plan.file_scans import FileScan
from brokerd.spark.plan.predicate import UNBOUNDED, Interval
from tests.archive.making import damage
from tests.spark.logs import NOW_US, Log, scanned_rows

NO_CONDITION = FileScan((), 0)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Topics 1 to 20, two partitions each; 1 and 17 share files, 4 and 20 too."""
    log = Log(tmp_path / "data")
    for number in range(1, 21):
        log.create(f"t{number}")
    batches: list[tuple[int, int, list[bytes]]] = []
    for topic_id in range(1, 21):
        if topic_id in (3, 4):
            log.append(topic_id, 0, b"a", b"b", b"c", expires_at=NOW_US)
        else:
            batches.append((topic_id, 0, [b"a", b"b", b"c"]))
        batches.append((topic_id, 1, [b"d"]))
    log.together(*batches)
    log.seal()
    log.publish()
    log.roll_up()
    return log


def split_up(log: Log, *topic_ids: int) -> None:
    """Append to each topic, and give each partition of their files a file of its own."""
    log.together(*((topic_id, number, [b"later"]) for topic_id in topic_ids for number in (0, 1)))
    log.seal()
    log.publish()
    log.roll_up()
    log.merge(own_bytes=1)


def scans_of(log: Log, **request: Any) -> list[FileScan]:
    """Return the scans of a plan, after a check of its rows."""
    plan = log.plan(has_scans=True, **request)
    assert scanned_rows(log.root, plan) == log.read(**request)
    assert plan.files == log.plan(**request).files
    return list(plan.scans)


def conditions(scan: FileScan) -> FileScan:
    return scan._replace(paths=(), records=0, texts=(), topics={})


def buckets(scan: FileScan) -> set[int]:
    return {int(path.split("/")[0].removeprefix("bucket=")) for path in scan.paths}


def test_a_file_needs_no_condition_unless_a_row_may_be_left_out(log: Log) -> None:
    """Expiring records need one, and their files are apart."""
    plain, shared, expiring = scans_of(log)
    plain = plain._replace(paths=plain.paths + shared.paths, records=plain.records + shared.records)
    assert conditions(plain) == NO_CONDITION
    assert conditions(expiring) == NO_CONDITION._replace(now_us=NOW_US)
    assert buckets(expiring) == {3, 4}
    assert buckets(plain) == set(range(16)) - {3, 4}
    assert plain.records + expiring.records == 80


def test_topics_are_a_condition_where_others_share_a_file(log: Log) -> None:
    log.delete(17)
    _, plain, some = scans_of(log)
    assert some.topic_ids is not None and {1, 4, 20} <= set(some.topic_ids)
    assert buckets(some) == {1, 3, 4} and 1 not in buckets(plain)
    (one,) = scans_of(log, topics=("t1",))
    assert one.topic_ids == (1,) and buckets(one) == {1}
    (two,) = scans_of(log, topics=("t2", "t18"))
    assert conditions(two) == NO_CONDITION


def test_a_start_offset_is_a_condition_of_the_files_that_may_have_its_partition(log: Log) -> None:
    log.trim(17, 0, 1)
    *_, bounded = scans_of(log)
    assert bounded.partition_offsets == {(17, 0): Interval(1)}
    assert buckets(bounded) == {1}
    split_up(log, 2, 17)
    *_, bounded = scans_of(log)
    assert [path.split("-")[:3] for path in bounded.paths] == [["bucket=1/p", "17", "0"]]
    plain, own = scans_of(log, from_offsets={"t2": {1: 0}, "t18": {0: 2}}, topics=("t18",))
    assert own.partition_offsets == {(18, 0): Interval(2)}
    assert conditions(plain) == NO_CONDITION and len(plain.paths) == len(own.paths) == 1


def test_limits_of_offsets_and_times_are_conditions_of_the_files_across_them(log: Log) -> None:
    split_up(log, 5)
    (one,) = scans_of(log, topics=("t5",), from_offset=1)
    assert one.offsets.first == 1 and len(one.paths) == 2
    (two,) = scans_of(log, topics=("t5",), to_offset=4)
    assert conditions(two) == NO_CONDITION and len(two.paths) == 2
    first = min(row.time_us for row in log.rows)
    assert all(scan.times_us == UNBOUNDED for scan in scans_of(log, from_time_us=first))
    time_us = log.rows[-1].time_us
    (three,) = scans_of(log, topics=("t5",), from_time_us=time_us)
    assert three.times_us.first == time_us and len(three.paths) == 2


def test_a_scan_has_one_topic_a_bucket(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which Spark leaves out the files of other topics if a condition names one."""
    first, *_ = scans_of(log)
    assert first.topics == {one: (one or 16, f"t{one or 16}") for one in buckets(first)}
    assert buckets(first) == {0, *range(5, 16)}
    split_up(log, 1, 17, 2, 18)
    own = [scan for scan in scans_of(log) if scan.topics]
    assert [sorted(scan.topics) for scan in own] == [[0, 1, 2, *range(5, 16)]]
    monkeypatch.setattr(file_scans, "TOPIC_BYTES", 1)
    own = [scan for scan in scans_of(log) if scan.topics]
    assert [sorted(scan.topics) for scan in own] == [[0, 1, 2, *range(5, 16)], [1, 2]]
    assert {scan.topics[1][0] for scan in own} == {1, 17}
    monkeypatch.setattr(file_scans, "TOPIC_SCANS_MAX", 0)
    assert not [scan for scan in scans_of(log) if scan.topics]


def test_a_scan_knows_which_files_have_text_alone(tmp_path: Path) -> None:
    log = Log(tmp_path / "data")
    for number, encodings in enumerate(([0, 1], [0, 0], [1, 2])):
        values = [[b"text", "\u00e4".encode()], [b"text", b"\xff"], [b"text", b"\xa1t"]][number]
        log.log.append(log.create(f"t{number}"), 0, values, encodings=encodings)
        log._written()
    log.seal()
    log.publish()
    log.roll_up()
    (scan,) = log.plan(has_scans=True).scans
    assert [path.split("/")[0] for path in scan.paths] == ["bucket=1", "bucket=2", "bucket=3"]
    assert scan.texts == (Text.UTF8, Text.NO_MSGPACK, Text.UNKNOWN)


def test_brokerd_reads_what_spark_cannot(log: Log) -> None:
    """Topics that are known by their names alone."""
    expected = log.read()
    log.place = Location(None, str(log.root))
    plan = log.plan(has_scans=True)
    assert plan.scans == () and scanned_rows(log.root, plan) == expected == log.read()


def test_a_damaged_footer_in_a_bucket_is_an_error_of_the_plan(
    tmp_path: Path, bucket: ObjectAddress
) -> None:
    remote = Log(tmp_path / "remote", bucket)
    remote.append(remote.create("one"), 0, b"a")
    remote.seal()
    remote.publish()
    remote.roll_up()
    (scan,) = remote.plan(has_scans=True).scans
    assert scan.topics == {1: (1, "one")}
    store = open_store(bucket / "records")
    (path,) = scan.paths
    content = bytearray(store.read(path, 1 << 20))
    content[-50] ^= 1
    store.put(path, bytes(content))
    with pytest.raises(DamagedArchive, match="the checksum of its footer"):
        remote.plan(has_scans=True)


def test_a_damaged_footer_is_an_error_of_the_plan(log: Log) -> None:
    """Spark would believe it."""
    (path,) = (log.root / "records" / "bucket=5").iterdir()
    damage(path, path.stat().st_size - 100)
    assert log.plan().scans == ()
    with pytest.raises(DamagedArchive, match=f"{path} is damaged: the checksum of its footer"):
        log.plan(has_scans=True)


def test_a_file_that_goes_meanwhile_is_planned_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.together((5, 0, [b"more"]), (5, 1, [b"more"]))
    log.seal()
    log.publish()
    log.roll_up()
    real = query_plan.check_footers
    seen: list[int] = []

    def meanwhile(*args: Any) -> None:
        seen.append(1)
        if len(seen) == 1:
            log.merge()
            log.vacuum()
        real(*args)

    monkeypatch.setattr(query_plan, "check_footers", meanwhile)
    assert scanned_rows(log.root, log.plan(has_scans=True)) == log.expected()
    assert len(seen) == 2


@pytest.mark.parametrize("only", ["archive", "journal"])
def test_one_of_both_can_be_read_alone(log: Log, only: str) -> None:
    archived = log.read()
    log.append(5, 1, b"new")
    request = {"archived": only == "archive", "unarchived": only == "journal"}
    plan = log.plan(has_scans=True, **request)
    rows = log.read(**request)
    assert scanned_rows(log.root, plan) == rows
    assert rows == (archived if only == "archive" else [log.rows[-1]])
    assert (plan.files.read == 0) == (only == "journal")
    assert (plan.segments.read == 0) == (only == "archive")
