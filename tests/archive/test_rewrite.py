"""Files written anew: every record that stays is there, in order, once, and still proved."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import EVENTS, Range
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.maintain import rewrite as rewriting
from brokerd.archive.maintain.retention_bounds import RetentionBounds, bounds_by_bucket
from brokerd.archive.maintain.rewrite import RewriteFailure, RewriteResult, RewriteUnit, rewrite
from brokerd.archive.parquet import row_groups
from brokerd.archive.parquet.reader import open_file
from brokerd.errors import DamagedData
from tests.archive.data import Data
from tests.archive.world import LOG_ID, World, record

Place = tuple[int, int, int]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, None)  # type: ignore[arg-type]


def unit(world: World, paths: list[str], **fields: Any) -> RewriteUnit:
    return RewriteUnit(world.root, fields.pop("table", "records"), LOG_ID, tuple(paths), **fields)


def rewritten(world: World, paths: list[str], **fields: Any) -> RewriteResult:
    found = rewrite(unit(world, paths, **fields))
    assert isinstance(found, RewriteResult)
    return found


def places(world: World, path: str) -> list[Place]:
    rows = open_file(world.root / "records", path).read_table()
    names = ("topic_id", "partition", "offset")
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))


def drop(world: World, name: str, rows: dict[int, str], offsets: dict[int, int]) -> str:
    """Say which rows of a file go, as Spark does; returns the path of the file that says so."""
    directory = world.root / "drops"
    directory.mkdir(exist_ok=True)
    numbers = list(rows)
    table = pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "offset": pa.array([offsets[row] for row in numbers], pa.int64()),
            "reason": list(rows.values()),
        }
    )
    pq.write_table(table, directory / name)
    return f"drops/{name}"


@st.composite
def shared_files(draw: st.DrawFn) -> list[list[tuple[Range, list[int]]]]:
    """Files of a few partitions of bucket 1: for each, what it covers and the offsets it has."""
    partitions = [(1, 0), (1, 1), (17, 0), (33, 2)]
    files = []
    at = dict.fromkeys(partitions, 0)
    for _ in range(draw(st.integers(1, 5))):
        file = []
        for partition in sorted(draw(st.sets(st.sampled_from(partitions), min_size=1))):
            first = at[partition] + draw(st.sampled_from([0, 0, 3, -2]))
            first = max(first, 0)
            end = max(first + draw(st.integers(1, 8)), at[partition])
            at[partition] = end
            every = range(first, end)
            offsets = [offset for offset in every if offset % draw(st.sampled_from([1, 2, 9])) == 0]
            file.append((Range(*partition, first, end), offsets))
        files.append(file)
    return files


@given(
    shared_files(),
    st.sets(st.integers(0, 20)),
    st.dictionaries(st.sampled_from([(1, 0), (17, 0)]), st.integers(1, 12)),
    st.sampled_from([frozenset({1, 17, 33}), frozenset({1, 17})]),
    st.sampled_from([1, 2000, 1 << 40]),
    st.sampled_from([1, 1 << 40]),
    st.sampled_from([2, 8192]),
)
def test_what_stays_is_there_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[tuple[Range, list[int]]]],
    gone: set[int],
    starts: dict[tuple[int, int], int],
    live: frozenset[int],
    own_bytes: int,
    file_bytes: int,
    group_rows: int,
) -> None:
    """However files overlap, and into however many files and row groups the rows go."""
    world = World(tmp_path_factory.mktemp("world"), None)  # type: ignore[arg-type]
    bounds = RetentionBounds(40, live, starts)
    every: dict[Place, None] = {}
    covered: list[Range] = []
    paths, told = [], {}
    for file in files:
        rows = [
            record(offset, b"k%d" % offset, topic_id=range_.topic_id, partition=range_.partition)
            for range_, offsets in file
            for offset in offsets
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_groups, "GROUP_ROWS", group_rows)
            info = world.records_file(rows, [range_ for range_, _ in file])
        paths.append(info.path)
        covered += [range_ for range_, _ in file]
        numbers = [(row["topic_id"], row["partition"], row["offset"]) for row in rows]
        every |= dict.fromkeys(numbers)
        stays = {
            (r.topic_id, r.partition, o)
            for r, os_ in file
            for o in os_
            if bounds.retained([r]) != []
        }
        drops = {
            at: "expired"
            for at, (topic_id, partition, offset) in enumerate(numbers)
            if offset in gone
            or offset < starts.get((topic_id, partition), 0)
            or topic_id not in live
            or (topic_id, partition, offset) not in stays
        }
        name = drop(world, info.path[-24:], drops, {at: numbers[at][2] for at in drops})
        told[info.path] = (name,)
    kept = bounds.retained(merge_ranges(covered))
    found = rewritten(
        world,
        paths,
        drops=told,
        bounds=bounds,
        own_bytes=own_bytes,
        file_bytes=file_bytes,
    )
    assert found.paths == tuple(paths)
    assert sorted(range_ for info in found.added for range_ in info.ranges) == kept
    expected = [
        (topic_id, partition, offset)
        for topic_id, partition, offset in sorted(every)
        if topic_id in live
        and offset not in gone
        and offset >= starts.get((topic_id, partition), 0)
    ]
    now = [places(world, info.path) for info in found.added]
    assert all(rows == sorted(rows) for rows in now)
    assert sorted(place for rows in now for place in rows) == expected
    if own_bytes == 1:
        assert all("/p-" in info.path for info in found.added)
    for path in paths:
        assert (world.root / "records" / path).exists()


def test_ranges_are_joined_whatever_their_order() -> None:
    """Those that touch, overlap or lie in one another; never those of two partitions."""
    found = merge_ranges(
        [Range(1, 0, 8, 9), Range(1, 0, 0, 8), Range(1, 0, 2, 5), Range(1, 1, 9, 10)]
    )
    assert found == [Range(1, 0, 0, 9), Range(1, 1, 9, 10)]


def test_values_keys_and_all_else_come_back(world: World) -> None:
    """Merged files give the same rows, column by column, over several row groups."""
    one = [record(at, None if at % 3 else b"k", os.urandom(at % 50)) for at in range(9000)]
    two = [
        record(at, b"", b"", metadata=b"m", producer_time=-at, expires_at=at, encoding=2)
        for at in range(9000, 20_000)
    ]
    infos = [world.records_file(two, [Range(1, 0, 9000, 20_000)])]
    infos.append(world.records_file(one, [Range(1, 0, 0, 9000)]))
    (merged,) = rewritten(world, [info.path for info in infos]).added
    rows = open_file(world.root / "records", merged.path).read_table()
    before = [open_file(world.root / "records", info.path).read_table() for info in infos]
    assert rows.equals(pa.concat_tables([before[1], before[0]]).cast(rows.schema))
    assert merged.path.startswith("bucket=1/p-1-0-0-20000-")


def test_a_file_is_complete_before_the_next_one_begins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the memory of a rewrite does not grow with the number of its files."""
    opened: list[int] = []

    class CountedWriter(rewriting.FileWriter):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            opened.append(1 + (opened[-1] if opened else 0))

        def close(self) -> Any:
            opened.append(opened[-1] - 1)
            return super().close()

    rows = [record(offset, partition=at) for at in range(5) for offset in range(3)]
    info = world.records_file(rows, [Range(1, at, 0, 3) for at in range(5)])
    monkeypatch.setattr(rewriting, "FileWriter", CountedWriter)
    result = rewritten(world, [info.path], own_bytes=1)
    assert len(result.added) == 5
    assert opened == [1, 0] * 5


def test_a_file_of_which_every_row_goes_still_covers(world: World) -> None:
    """Readers have to know that there is nothing, or they would wait for it."""
    info = world.records_file([record(3), record(4)], [Range(1, 0, 3, 5)])
    name = drop(world, "one", {0: "superseded", 1: "expired"}, {0: 3, 1: 4})
    found = rewritten(world, [info.path], drops={info.path: (name,)})
    (left,) = found.added
    assert (left.rows, left.ranges) == (0, (Range(1, 0, 3, 5),))
    assert found.removed == {"superseded": 1, "expired": 1}
    (again,) = rewritten(world, [left.path]).added
    assert again.ranges == left.ranges


def test_nothing_is_written_when_nothing_has_to_be_known(world: World) -> None:
    """All of it is below the start offset, or of a topic that is gone."""
    info = world.records_file([], [Range(1, 0, 0, 5), Range(17, 0, 0, 9)])
    bounds = RetentionBounds(30, frozenset({1}), {(1, 0): 5})
    assert rewritten(world, [info.path], bounds=bounds).added == ()


def test_a_row_that_goes_for_two_reasons_is_counted_once(world: World) -> None:
    """For the one that comes first in the list of them, whoever tells it."""
    info = world.records_file([record(0), record(1)], [Range(1, 0, 0, 2)])
    one = drop(world, "one", {0: "superseded", 1: "superseded"}, {0: 0, 1: 1})
    two = drop(world, "two", {0: "expired"}, {0: 0})
    found = rewritten(world, [info.path], drops={info.path: (one, two)})
    assert found.removed == {"expired": 1, "superseded": 1}


def test_rows_that_are_not_those_looked_at_are_never_removed(world: World) -> None:
    """A number of a row that leads to another record stops it."""
    info = world.records_file([record(0), record(7)], [Range(1, 0, 0, 8)])
    name = drop(world, "one", {1: "superseded"}, {1: 6})
    found = rewrite(unit(world, [info.path], drops={info.path: (name,)}))
    assert isinstance(found, RewriteFailure)
    assert "changed since its records were examined" in found.text
    assert len(list((world.root / "records" / "bucket=1").iterdir())) == 1


def test_a_full_disk_leaves_all_as_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is refused with the reason, and no half file stays."""
    infos = [
        world.records_file([record(at, b"k", b"v" * 5000)], [Range(1, 0, at, at + 1)])
        for at in range(2)
    ]
    before = sorted((world.root / "records" / "bucket=1").iterdir())
    real = os.pwrite

    def full(fd: int, data: bytes, position: int) -> int:
        if len(data) > 300:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, position)

    monkeypatch.setattr("brokerd.archive.parquet.writer.os.pwrite", full)
    found = rewrite(unit(world, [info.path for info in infos]))
    assert isinstance(found, RewriteFailure)
    assert "No space left" in found.text
    monkeypatch.undo()
    assert sorted((world.root / "records" / "bucket=1").iterdir()) == before


def test_shared_files_are_cut_between_partitions(world: World) -> None:
    """Each is about as large as it should be, and a large partition gets a file of its own."""
    rows, ranges = [], []
    for topic_id in range(1, 1 + 16 * 8, 16):
        count = 400 if topic_id == 33 else 100
        rows += [record(at, None, os.urandom(100), topic_id=topic_id) for at in range(count)]
        ranges.append(Range(topic_id, 0, 0, count))
    info = world.records_file(rows, ranges)
    found = rewritten(world, [info.path], own_bytes=30_000, file_bytes=36_000).added
    names = sorted(one.path.split("/")[1].rsplit("-", 2)[0] for one in found)
    assert names == ["p-113-0-0-100", "p-33-0-0-400", "s-1.0-49.0", "s-65.0-97.0"]
    assert sum(one.rows for one in found) == len(rows)


def test_a_damaged_file_is_left_as_it_is(world: World) -> None:
    """And named; what was written by then is not used."""
    infos = [
        world.records_file([record(at, b"key", b"value")], [Range(1, 0, at, at + 1)])
        for at in range(2)
    ]
    path = world.root / "records" / infos[1].path
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    found = rewrite(unit(world, [info.path for info in infos]))
    assert isinstance(found, RewriteFailure)
    assert str(path) in found.text


def test_files_of_events_are_merged_by_lsn(world: World) -> None:
    """Nothing of them goes, and the file covers what all of them did."""
    infos = []
    for first in (20, 0, 10):
        rows = [
            {
                "topic": "t",
                "topic_id": 1,
                "partition": 0,
                "group_name": "g",
                "lsn": first + 3,
                "seq": seq,
                "time": first,
                "kind": "SETTLED",
                "offset": seq,
                "amount": 0,
                "token": 0,
                "count": 0,
            }
            for seq in range(5)
        ]
        infos.append(world._write(EVENTS, rows, [Range(0, 0, first, first + 10)]))
    (merged,) = rewritten(world, [info.path for info in infos], table="events").added
    assert merged.path.startswith("e-0-30-")
    rows = open_file(world.root / "events", merged.path).read_table(columns=["lsn", "seq"])
    keys = list(zip(rows["lsn"].to_pylist(), rows["seq"].to_pylist(), strict=True))
    assert keys == [(lsn, seq) for lsn in (3, 13, 23) for seq in range(5)]


def test_what_was_written_is_read_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that does not give back what was written stops it before anything is committed."""
    info = world.records_file([record(0)], [Range(1, 0, 0, 1)])

    def wrong(directory: Path, written: Any) -> None:
        raise DamagedData(f"{written.path} does not give back what was written")

    monkeypatch.setattr(rewriting, "verify_written", wrong)
    found = rewrite(unit(world, [info.path]))
    assert isinstance(found, RewriteFailure)
    assert "does not give back" in found.text


def test_a_run_for_some_topics_has_the_start_offsets_of_these_alone(tmp_path: Path) -> None:
    data = Data(tmp_path / "data")
    data.starts = {1: 5, 17: 3, 2: 4}
    every = bounds_by_bucket(data.bounds())
    assert every[1].starts == {(1, 0): 5, (17, 0): 3}
    assert (every[2].starts, every[2].next_topic_id) == ({(2, 0): 4}, 18)
    some = bounds_by_bucket(data.bounds(), {1})
    assert some[1].starts == {(1, 0): 5}
    assert (some[2].starts, some[2].next_topic_id) == ({}, 0)
