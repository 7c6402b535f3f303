"""Which pieces of journal files a query reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from brokerd.spark.plan.journal import read_journal
from brokerd.spark.plan.predicate import Interval, Predicate
from brokerd.spark.plan.segment_parts import SegmentPart, split_segment
from tests.spark.logs import Log, make_predicate


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "data")
    for name in ("one", "two"):
        topic_id = log.create(name)
        for number in range(10):
            log.append(topic_id, 0, b"%s %d" % (name.encode(), number), b"x" * 100)
    return log


def _parts(log: Log, predicate: Predicate, part_bytes: int = 1 << 20) -> list[SegmentPart]:
    found = read_journal(log.wal, log.bounds, 0, True)
    (file,) = found.files
    return split_segment(file, found.scans.get(file.path), predicate, part_bytes)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_part_has_what_is_wanted_and_says_how_much(log: Log, sealed: bool) -> None:
    if sealed:
        log.seal()
    (part,) = _parts(log, make_predicate(1, 2))
    assert (part.records, part.topic_ids) == (40, (1, 2))
    (part,) = _parts(log, make_predicate(2, partition_offsets={(2, 0): Interval(5, 7)}))
    assert (part.records, part.topic_ids) == (4, (2,))
    assert _parts(log, make_predicate(3)) == []
    assert _parts(log, make_predicate(1, partitions=frozenset([1]))) == []


@pytest.mark.parametrize("sealed", [False, True])
def test_times_and_lsns_leave_out_batches(log: Log, sealed: bool) -> None:
    if sealed:
        log.seal()
    times = sorted({row.time_us for row in log.rows})
    (part,) = _parts(log, make_predicate(1, 2, times_us=Interval(times[3], times[6])))
    assert part.records == 6
    first, end = _parts(log, make_predicate(1, 2), 1)[4].lsns
    (part,) = _parts(log, make_predicate(1, 2, lsns=Interval(first, end)))
    assert part.records == 2


@pytest.mark.parametrize("sealed", [False, True])
def test_parts_of_a_size_are_together_all_of_the_file(log: Log, sealed: bool) -> None:
    if sealed:
        log.seal()
    for size in (1, 400, 1000):
        parts = _parts(log, make_predicate(1, 2), size)
        assert sum(part.records for part in parts) == 40
        assert all(a.end <= b.first for a, b in pairwise(parts))
    assert len(_parts(log, make_predicate(1, 2), 1)) == 20


def test_a_part_of_a_file_with_an_index_ends_with_what_is_wanted(log: Log) -> None:
    """All of a part is fetched where the file is in a bucket."""
    log.seal()
    everything = _parts(log, make_predicate(1, 2), 1)
    for predicate, wanted in (
        (make_predicate(1), everything[:10]),
        (make_predicate(2, partition_offsets={(2, 0): Interval(4, 6)}), everything[12:13]),
    ):
        (part,) = _parts(log, predicate)
        assert (part.first, part.end) == (wanted[0].first, wanted[-1].end)
    assert all(part.end - part.first == part.bytes for part in everything)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_frame_of_several_batches_is_read_in_whatever_parts(log: Log, sealed: bool) -> None:
    """Without an index a frame is walked from its beginning."""
    for number in range(3):
        log.together(*((topic_id, 0, [b"%d" % number] * 3) for topic_id in (1, 2, 1, 2)))
    log.append(1, 0, b"last")
    if sealed:
        log.seal()
    for size in (1, 300, 700, 1 << 20):
        assert log.read(partition_bytes=size) == log.expected()
        assert log.read(partition_bytes=size, topics=("two",)) == [
            row for row in log.expected() if row.topic == "two"
        ]
