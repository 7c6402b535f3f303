"""What is archived in one go: every batch that somebody may still read, once, in files that fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.bounds import Bounds, DamagedPlace, PartitionBounds, TopicBounds
from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest.plan import Lot, LotLimits, RecordsSplit, plan_lot
from brokerd.archive.journal.sealed import batches_of, open_sealed
from tests.archive.making import LOG_ID, LogMaker, topic_entry

MIB = 1 << 20


def bounds(*topics: TopicBounds, lsn: int = 1 << 40, **changes: Any) -> Bounds:
    highest = max((topic.id for topic in topics), default=0)
    given = {"lsn": lsn, "next_topic_id": highest + 1, "topics": list(topics), **changes}
    return Bounds(log_id=LOG_ID, time_us=0, time_settled=True, **given)


def topic(number: int, *starts: int) -> TopicBounds:
    partitions = [PartitionBounds(start, start, 1000) for start in starts or (0,)]
    return TopicBounds(number, f"topic-{number}", 0, False, partitions)


def plan(wal: Path, said: Bounds, since: int = 0, **changes: int) -> Lot:
    given = {"lot_bytes": 1 << 40, "file_bytes": MIB, "free_bytes": 1 << 40, **changes}
    events_lsn = given.pop("events_lsn", since)
    return plan_lot(wal, said, since, events_lsn, LotLimits(**given))


def batches(split: RecordsSplit) -> Iterator[tuple[int, int, int, int]]:
    """Topic id, partition, first offset and end of each batch of a task, in its order."""
    for piece in split.pieces:
        segment = split.segments[piece["segment"]]
        rows = slice(piece["row"], piece["row"] + piece["rows"])
        chosen = batches_of(open_sealed(segment.path).index).select(rows)
        for topic_id, partition, base, count, _, _ in zip(*chosen, strict=True):
            assert (topic_id, partition) == (piece["topic_id"], piece["partition"])
            yield int(topic_id), int(partition), int(base), int(base + count)


def planned(lot: Lot) -> list[tuple[int, int, int, int]]:
    return sorted(batch for split in lot.records for batch in batches(split))


def test_every_batch_is_in_one_task_in_order(tmp_path: Path) -> None:
    """Of all topics and partitions, from all segments."""
    maker = LogMaker(tmp_path)
    for _ in range(3):
        for _ in range(4):
            for key in ((1, 0), (1, 1), (2, 0), (17, 3)):
                maker.append(*key, [b"v" * 10] * 2)
            maker.frame()
        maker.seal()
    said = bounds(topic(1, 0, 0), topic(2), topic(17, 0, 0, 0, 0))
    lot = plan(tmp_path, said)
    expected = [
        (*key, at, at + 2) for key in ((1, 0), (1, 1), (2, 0), (17, 3)) for at in range(0, 24, 2)
    ]
    assert planned(lot) == expected
    for split in lot.records:
        assert list(batches(split)) == sorted(batches(split))
    assert sorted((split.bucket, dict(split.topics)) for split in lot.records) == [
        (1, {1: "topic-1", 17: "topic-17"}),
        (2, {2: "topic-2"}),
    ]
    assert (lot.first_lsn, lot.end_lsn) == (0, maker.first_lsn)
    (events,) = lot.events
    assert (events.first_lsn, events.end_lsn) == (0, maker.first_lsn)
    assert events.topics == {1: "topic-1", 2: "topic-2", 17: "topic-17"}


def test_large_partitions_get_files_of_their_own(tmp_path: Path) -> None:
    """And several, of nearly equal size, when one would be too large; small ones share."""
    maker = LogMaker(tmp_path)
    for _ in range(2):
        for _ in range(20):
            maker.append(1, 0, [b"v" * 9_000])
            maker.append(17, 0, [b"v" * 100])
            maker.append(33, 0, [b"v" * 60_000])
            maker.append(49, 0, [b"v" * 100])
        maker.seal()
    lot = plan(tmp_path, bounds(*(topic(number) for number in (1, 17, 33, 49))))
    keys = [sorted({batch[0] for batch in batches(split)}) for split in lot.records]
    assert keys == [[33], [33], [33], [1], [17, 49]]
    sizes = [split.bytes for split in lot.records]
    assert max(sizes) <= MIB + MIB // 8
    assert min(sizes[:3]) > 700_000
    assert len(planned(lot)) == 160


def test_small_partitions_share_files_that_are_not_too_large(tmp_path: Path) -> None:
    """As many as fit, in order; other buckets have others. The largest files come first."""
    maker = LogMaker(tmp_path)
    for partition in range(30):
        maker.append(1, partition, [b"v" * 100_000])
        if partition < 9:
            maker.append(2, partition, [b"v" * 100_000])
    maker.seal()
    lot = plan(tmp_path, bounds(topic(1), topic(2)))
    partitions = [(s.bucket, [batch[1] for batch in batches(s)]) for s in lot.records]
    assert sorted(partitions) == [
        (1, [*range(10)]),
        (1, [*range(10, 20)]),
        (1, [*range(20, 30)]),
        (2, [*range(9)]),
    ]
    sizes = [split.bytes for split in lot.records]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= MIB


def test_a_batch_larger_than_a_file_is_not_cut(tmp_path: Path) -> None:
    """It makes a file of its own."""
    maker = LogMaker(tmp_path)
    maker.append(1, 0, [b"v" * 3 * MIB])
    maker.append(1, 0, [b"w" * 3 * MIB])
    maker.seal()
    lot = plan(tmp_path, bounds(topic(1)))
    assert [list(batches(split)) for split in lot.records] == [[(1, 0, 0, 1)], [(1, 0, 1, 2)]]


def test_removed_records_are_left_out(tmp_path: Path) -> None:
    """Batches wholly below the start offset, and deleted topics; a batch that is partly below it
    is taken."""
    maker = LogMaker(tmp_path)
    for _ in range(5):
        for key in ((1, 0), (1, 1), (2, 0), (3, 0)):
            maker.append(*key, [b"v"] * 4)
    maker.seal()
    said = bounds(topic(1, 10, 0), topic(3, 20))
    assert planned(plan(tmp_path, said)) == [
        *((1, 0, at, at + 4) for at in (8, 12, 16)),
        *((1, 1, at, at + 4) for at in range(0, 20, 4)),
    ]


def test_partitions_that_the_bounds_do_not_know_yet_are_taken(tmp_path: Path) -> None:
    """A topic got them after the bounds were written, or was made after."""
    maker = LogMaker(tmp_path)
    maker.append(1, 0, [b"v"])
    maker.seal()
    lsn = maker.first_lsn
    maker.add(topic_entry(2, "created", name="new", partitions=1))
    maker.append(1, 7, [b"v"])
    maker.append(2, 0, [b"v"])
    maker.seal()
    lot = plan(tmp_path, bounds(topic(1), lsn=lsn))
    assert planned(lot) == [(1, 0, 0, 1), (1, 7, 0, 1), (2, 0, 0, 1)]
    assert {2: "new"} in [dict(split.topics) for split in lot.records]


def test_a_topic_without_a_name_ends_the_lot(tmp_path: Path) -> None:
    """What comes before is archived; the file and what to do are told."""
    maker = LogMaker(tmp_path)
    maker.append(1, 0, [b"v"])
    first = maker.seal()
    maker.append(9, 0, [b"v"])
    second = maker.seal()
    lot = plan(tmp_path, bounds(topic(1), lsn=0))
    assert [segment.path for segment in lot.segments] == [str(first)]
    assert lot.stop is not None
    assert lot.stop.is_problem
    assert f"the name of topic id 9 is unknown, and {second} has records" in lot.stop.reason


def test_a_lot_ends_where_the_limit_or_the_room_does(tmp_path: Path) -> None:
    """The next one begins there; together they are everything."""
    maker = LogMaker(tmp_path)
    for _ in range(5):
        maker.append(1, 0, [b"v" * 5_000])
        maker.seal()
    size = maker.first_lsn // 5
    said = bounds(topic(1))
    assert plan(tmp_path, said).stop is not None
    for limit in ("lot_bytes", "free_bytes"):
        since, seen = 0, []
        for count in (2, 2, 1):
            lot = plan(tmp_path, said, since, **{limit: 2 * size + 1})
            assert len(lot.segments) == count
            assert (lot.first_lsn, lot.bytes) == (since, count * size)
            assert (lot.stop is None) == (count == 2)
            since = lot.end_lsn
            seen += planned(lot)
        assert seen == [(1, 0, at, at + 1) for at in range(5)]


def test_a_small_limit_takes_one_segment_but_not_without_room(tmp_path: Path) -> None:
    """When the disk is too short for one, the job says how much it needs."""
    maker = LogMaker(tmp_path)
    maker.append(1, 0, [b"v" * 5_000])
    path = maker.seal()
    assert len(plan(tmp_path, bounds(topic(1)), lot_bytes=1).segments) == 1
    with pytest.raises(JobFailed, match=rf"has 100 bytes of free space, and {path.name} may need"):
        plan(tmp_path, bounds(topic(1)), free_bytes=100)


def test_a_segment_that_does_not_fit_is_for_the_next_lot(tmp_path: Path) -> None:
    """If there is room for those before it, these are taken."""
    maker = LogMaker(tmp_path)
    for size in (1_000, 50_000):
        maker.append(1, 0, [b"v" * size])
        maker.seal()
    lot = plan(tmp_path, bounds(topic(1)), free_bytes=20_000)
    assert (len(lot.segments), lot.stop) == (1, None)


def test_a_table_that_is_ahead_gets_nothing_twice(tmp_path: Path) -> None:
    """When a run was stopped between the two commits, only the table behind gets the segments."""
    maker = LogMaker(tmp_path)
    ends = []
    for _ in range(3):
        maker.append(1, 0, [b"v"])
        maker.seal()
        ends.append(maker.first_lsn)
    said = bounds(topic(1))
    lot = plan(tmp_path, said, ends[1], events_lsn=ends[0])
    assert planned(lot) == [(1, 0, 2, 3)]
    assert [(one.first_lsn, one.end_lsn) for one in lot.events] == [(ends[0], ends[2])]
    lot = plan(tmp_path, said, ends[0], events_lsn=ends[2])
    assert planned(lot) == [(1, 0, 1, 2), (1, 0, 2, 3)]
    assert lot.events == []


def test_events_of_a_long_log_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a gap, so that the covered ranges meet, whatever was deleted."""
    maker = LogMaker(tmp_path)
    for _ in range(5):
        maker.append(1, 0, [b"v" * 1_000])
        maker.seal()
    size = maker.first_lsn // 5
    monkeypatch.setattr("brokerd.archive.ingest.plan.EVENTS_LOG_BYTES", 2 * size)
    (tmp_path / f"{size:020}.wal").unlink()
    (tmp_path / f"{size:020}-{2 * size:020}.deleted").touch()
    splits = plan(tmp_path, bounds(topic(1))).events
    assert [(one.first_lsn, one.end_lsn) for one in splits] == [(0, 3 * size), (3 * size, 5 * size)]


def test_tasks_are_told_what_is_known_of_damage(tmp_path: Path) -> None:
    """Gaps of their partitions, and places in their segments; nothing else."""
    maker = LogMaker(tmp_path)
    maker.append(1, 0, [b"v"])
    maker.append(2, 0, [b"v"])
    path = maker.seal()
    hurt = TopicBounds(1, "hurt", 0, False, [PartitionBounds(0, 0, 9, [(1, 5)])])
    damage = [DamagedPlace(path.name, 4200, 4300), DamagedPlace(f"{1 << 50:020}.wal", 0, 9)]
    lot = plan(tmp_path, bounds(hurt, topic(2), damage=damage))
    told = {split.bucket: (split.gaps, split.known_damage) for split in lot.records}
    places = {path.name: [(4200, 4300)]}
    assert told == {1: ({(1, 0): [(1, 5)]}, places), 2: ({}, places)}
    assert lot.events[0].known_damage == places


def test_a_lot_has_no_more_pieces_than_fit_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With very many partitions it takes fewer segments."""
    maker = LogMaker(tmp_path)
    for _ in range(4):
        for partition in range(10):
            maker.append(1, partition, [b"v"])
        maker.seal()
    monkeypatch.setattr("brokerd.archive.ingest.plan.PIECES_MAX", 25)
    lot = plan(tmp_path, bounds(topic(1)))
    assert len(lot.segments) == 2
    assert lot.stop is None


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.integers(1, 3)), min_size=1),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(st.integers(1, 40), st.integers(0, 6)),
    st.sampled_from([300, 1_000, 4_000, MIB]),
    st.sampled_from([1, 10_000, MIB]),
)
def test_whatever_the_log_each_batch_is_planned_once(
    tmp_path_factory: pytest.TempPathFactory,
    segments: list[list[tuple[int, int, int]]],
    starts: dict[int, int],
    file_bytes: int,
    lot_bytes: int,
) -> None:
    """Each that is not removed, in some lot; a task's batches are sorted and of one bucket."""
    wal = tmp_path_factory.mktemp("wal")
    maker = LogMaker(wal)
    expected = []
    for appends in segments:
        for topic_id, partition, count in appends:
            base = maker.append(topic_id, partition, [b"v" * 50] * count)
            if topic_id in starts and base + count > starts[topic_id]:
                expected.append((topic_id, partition, base, base + count))
        maker.seal()
    topics = (topic(number, *[start] * 4) for number, start in starts.items())
    said = bounds(*topics, next_topic_id=41)
    since, found = 0, []
    stop = None
    while stop is None:
        lot = plan(wal, said, since, file_bytes=file_bytes, lot_bytes=lot_bytes)
        for split in lot.records:
            assert list(batches(split)) == sorted(batches(split))
            assert {batch[0] % 16 for batch in batches(split)} == {split.bucket}
            assert split.bytes <= file_bytes + file_bytes // 8 + 500
            found += batches(split)
        since, stop = lot.end_lsn, lot.stop
    assert sorted(found) == sorted(expected)
