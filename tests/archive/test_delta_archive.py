"""The archive read back: what was committed, or an error that says what is wrong."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import EVENTS, RECORDS, ROLLUP_APP, Range
from brokerd.archive.contract.view import (
    Archive,
    ArchivedRows,
    ArchiveUnavailable,
    ArchiveView,
    DamagedArchive,
    EventView,
    ForeignArchive,
)
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.log_files import COMMITS, commit_name
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.parquet.writer import FileInfo
from brokerd.archive.serve import file_cache
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.archive.storage.address import Place
from brokerd.errors import BrokerdError, NewerFormat
from tests.archive.adding import LOG_ID, NOW_MS, OTHER_LOG_ID, Row, records_file, write_records

FLIP_EVERY = 101
KEYS = [(1, 0), (1, 1), (17, 0), (2, 0)]
"""All but the last are in one bucket."""


class World:
    """An archive, and the table of records as the job has it."""

    def __init__(self, root: Place) -> None:
        self.root = root
        self.tables = ensure_tables(root, LOG_ID, NOW_MS)
        self.table: Table = self.tables[RECORDS.name]
        self.archive: Archive = DeltaArchive(root, LOG_ID)
        self._lsn = 0

    @property
    def view(self) -> ArchiveView:
        found = self.archive.refresh()
        assert found is not None
        return found

    def add(self, *ranges: Range, without: frozenset[int] = frozenset()) -> FileInfo:
        """Commit a file with all records of some ranges, but those at some offsets."""
        info = self.write(*ranges, without=without)
        self.table.commit([add_file(info)], now_ms=NOW_MS)
        return info

    def write(self, *ranges: Range, without: frozenset[int] = frozenset()) -> FileInfo:
        rows = [
            record(one.topic_id, one.partition, offset)
            for one in ranges
            for offset in range(one.first, one.end)
            if offset not in without
        ]
        return write_records(self.table, sorted(ranges), rows)

    def replace(self, old: list[FileInfo], *ranges: Range, without: frozenset[int]) -> FileInfo:
        info = self.write(*ranges, without=without)
        self.table.commit([add_file(info)], [one.path for one in old], now_ms=NOW_MS)
        return info

    def path(self, info: FileInfo) -> Path:
        return Path(str(self.table.path)) / info.path


def record(topic_id: int, partition: int, offset: int) -> Row:
    """The record that a test has there; its LSN and time grow with its offset."""
    value = f"{topic_id}/{partition}/{offset}".encode()
    return Row(topic_id, partition, offset, value, None, offset)


def own(first: int, end: int) -> Range:
    return Range(1, 0, first, end)


def read_all(view: ArchiveView, topic_id: int, partition: int) -> dict[int, bytes]:
    """All records of a partition from offset 0 on, as a consumer reads them."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        rows = view.read(topic_id, partition, offset, 25)
        if rows is None:
            return found
        check_rows(rows, offset)
        found.update(zip(rows.offsets, rows.columns.values, strict=False))
        offset = rows.end


def check_rows(rows: ArchivedRows, offset: int) -> None:
    """It begins where it was asked to, brings something, and offsets grow."""
    assert rows.first == offset < rows.end
    edges = [offset - 1, *rows.offsets, rows.end]
    assert all(low < high for low, high in pairwise(edges))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "archive")


# -- What is there -------------------------------------------------------------------------------


ranges = st.builds(
    lambda key, first, count: Range(*key, first, first + count),
    st.sampled_from(KEYS),
    st.integers(0, 30),
    st.integers(1, 20),
)


@given(
    drawn=st.lists(st.lists(ranges, min_size=1, max_size=4), max_size=8),
    removed=st.frozensets(st.integers(0, 50)),
)
def test_every_record_is_read_that_a_file_has_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[Range]], removed: frozenset[int]
) -> None:
    """Whether files are shared or not, overlap, or were written in any order."""
    world = World(tmp_path_factory.mktemp("world") / "archive")
    covered: dict[tuple[int, int], set[int]] = {key: set() for key in KEYS}
    infos = []
    for one in drawn:
        apart = {r[:2]: r for r in one if r.topic_id % 16 == one[0].topic_id % 16}
        infos.append(world.write(*apart.values(), without=removed))
        for key, told in apart.items():
            covered[key] |= set(range(told.first, told.end))
    world.table.commit(
        [add_file(info) for info in infos], transactions={ROLLUP_APP: 7}, now_ms=NOW_MS
    )
    view = world.view
    assert (view.log_id, view.version, view.records_lsn, view.events_lsn) == (LOG_ID, 1, 7, 0)
    assert view.files == len(infos)
    assert view.bytes == sum(info.size for info in infos)
    tops = [told.topic_id for info in infos for told in info.ranges]
    assert view.max_topic_id == max(tops, default=0)
    for key in KEYS:
        for first in range(0, 52, 3):
            for end in range(first, 52, 5):
                assert view.covers(*key, first, end) == (set(range(first, end)) <= covered[key])
        for offset in range(52):
            rows = view.read(*key, offset, 30)
            if offset not in covered[key]:
                assert rows is None
                continue
            assert rows is not None
            check_rows(rows, offset)
            known = range(offset, rows.end)
            assert set(known) <= covered[key]
            assert list(rows.offsets) == [n for n in known if n not in removed]
            for n, value in zip(rows.offsets, rows.columns.values, strict=False):
                assert value == f"{key[0]}/{key[1]}/{n}".encode()


def test_directory_with_nothing_in_it_has_no_version(tmp_path: Path) -> None:
    assert DeltaArchive(tmp_path / "nowhere", LOG_ID).refresh() is None


def test_version_is_the_same_object_until_there_is_another(world: World) -> None:
    first = world.view
    assert world.view is first
    world.add(own(0, 10))
    second = world.view
    assert second is not first
    assert (first.version, second.version) == (0, 1)
    assert first.read(1, 0, 0, 100) is None
    assert second.read(1, 0, 0, 100) is not None
    assert world.view is second


def test_commit_to_the_table_of_events_is_seen_too(world: World) -> None:
    world.add(own(0, 10))
    first = world.view
    events = world.tables[EVENTS.name]
    events.commit([], transactions={ROLLUP_APP: 4096}, now_ms=NOW_MS)
    second = world.view
    assert second.events_lsn == 4096
    assert second.version == first.version
    assert read_all(second, 1, 0) == read_all(first, 1, 0)


def test_records_are_served_while_the_table_of_events_cannot_be_read(world: World) -> None:
    """But the log has to keep all that it has."""
    world.add(own(0, 10))
    world.tables[EVENTS.name].commit([], transactions={ROLLUP_APP: 4096}, now_ms=NOW_MS)
    assert world.view.events_lsn == 4096
    path = world.root / EVENTS.name / COMMITS / commit_name(1)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-10])
    assert world.view.events_lsn == 0
    assert len(read_all(world.view, 1, 0)) == 10
    path.write_bytes(data)
    assert open_view(world).events_lsn == 4096


def test_archive_on_a_read_only_file_system_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(own(0, 10))

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    assert len(read_all(open_view(world), 1, 0)) == 10


def test_archive_whose_disk_fails_is_not_relied_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ArchiveUnavailable, match="Input/output error"):
        DeltaArchive(world.root, LOG_ID).refresh()


def test_archive_that_is_taken_away_and_brought_back_is_read_again(world: World) -> None:
    world.add(own(0, 10))
    world.archive.refresh()
    world.root.rename(world.root.with_name("elsewhere"))
    assert world.archive.refresh() is None
    world.root.with_name("elsewhere").rename(world.root)
    assert len(read_all(world.view, 1, 0)) == 10


def test_archive_of_another_log_is_refused(world: World) -> None:
    with pytest.raises(ForeignArchive, match=OTHER_LOG_ID):
        DeltaArchive(world.root, OTHER_LOG_ID).refresh()


def test_table_that_another_program_wrote_to_is_refused(world: World) -> None:
    foreign = records_file(1, 0, 10)._replace(path="bucket=1/part-00000-0a0b.c000.parquet")
    world.table.commit([foreign], now_ms=NOW_MS)
    with pytest.raises(ForeignArchive, match=r"part-00000-0a0b\.c000\.parquet"):
        world.archive.refresh()


# -- Shared files ----------------------------------------------------------------------------------


def test_few_of_many_shared_files_are_opened_to_find_an_offset(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files were written one after the other, so the one in the middle tells where to go on."""
    infos = [
        world.write(Range(1, 0, 10 * n, 10 * n + 10), Range(1, 1, 10 * n, 10 * n + 10))
        for n in range(64)
    ]
    world.table.commit([add_file(info) for info in infos], now_ms=NOW_MS)
    view = world.view
    opened_files = count_opened(monkeypatch)
    assert view.read(1, 1, 105, 1) is not None
    assert len(opened_files) <= 8
    assert len(read_all(view, 1, 1)) == 640
    assert len(opened_files) <= 64 + 8


def count_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    open_file = file_cache.open_file

    def counting(table: Path, path: str, *others: object) -> object:
        paths.append(path)
        return open_file(table, path, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(file_cache, "open_file", counting)
    return paths


def test_shared_files_that_were_merged_out_of_order_are_found(world: World) -> None:
    """A merged file covers the oldest and the newest offsets, another one those between."""
    world.add(Range(1, 0, 10, 20), Range(17, 0, 10, 20))
    world.add(Range(1, 0, 0, 10), Range(17, 0, 20, 30))
    world.add(Range(1, 0, 20, 30), Range(17, 0, 0, 10))
    for key in ((1, 0), (17, 0)):
        assert sorted(read_all(world.view, *key)) == list(range(30))


def test_damaged_shared_file_takes_only_what_it_covers(world: World) -> None:
    """Nobody knows what that was: it ends where the next file begins that can be read."""
    infos = [
        world.add(Range(1, 0, 10 * n, 10 * n + 10), Range(17, 0, 10 * n, 10 * n + 10))
        for n in range(3)
    ]
    damage(world.path(infos[1]), -20)
    view = world.view
    assert view.read(1, 0, 5, 100) is not None
    assert view.read(1, 0, 25, 100) is not None
    with pytest.raises(DamagedArchive) as caught:
        view.read(1, 0, 12, 100)
    assert (caught.value.first, caught.value.end) == (12, 20)
    damage(world.path(infos[2]), -20)
    with pytest.raises(DamagedArchive) as caught:
        open_view(world).read(17, 0, 25, 100)
    assert (caught.value.first, caught.value.end) == (25, 26)


def test_shared_file_that_is_damaged_later_takes_what_it_covers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that is was known already when it was opened again."""
    monkeypatch.setattr(file_cache, "OPEN_FILES_MAX", 1)
    info = world.add(Range(1, 0, 10, 20), Range(17, 0, 10, 20))
    world.add(Range(2, 0, 0, 1))
    view = open_view(world)
    assert view.read(1, 0, 15, 1) is not None
    assert view.read(2, 0, 0, 1) is not None
    damage(world.path(info), -20)
    for ask in (lambda: view.read(1, 0, 15, 1), lambda: view.covers(1, 0, 12, 13)):
        with pytest.raises(DamagedArchive) as caught:
            ask()
        assert (caught.value.first, caught.value.end) == (10, 20)


def open_view(world: World) -> ArchiveView:
    """As a broker sees it that just started."""
    view = DeltaArchive(world.root, LOG_ID).refresh()
    assert view is not None
    return view


# -- Damage --------------------------------------------------------------------------------------


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_damaged_footer_takes_what_the_file_covers(world: World) -> None:
    info = world.add(own(0, 10))
    world.add(own(10, 20))
    damage(world.path(info), -20)
    view = world.view
    for ask in (lambda: view.read(1, 0, 3, 100), lambda: view.covers(1, 0, 3, 5)):
        with pytest.raises(DamagedArchive, match=info.path) as caught:
            ask()
        assert (caught.value.first, caught.value.end) == (0, 10)
    assert view.covers(1, 0, 10, 20)
    assert view.read(1, 0, 10, 100) is not None


def test_damaged_row_group_takes_its_offsets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.archive.parquet.row_groups.GROUP_ROWS", 5)
    info = world.add(own(0, 10))
    damage(world.path(info), 40)
    with pytest.raises(DamagedArchive) as caught:
        world.view.read(1, 0, 3, 100)
    assert (caught.value.first, caught.value.end) == (0, 5)
    assert world.view.read(1, 0, 5, 100) is not None


def test_flipped_bit_anywhere_in_the_archive_gives_no_wrong_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, commits, a checkpoint and its sum: what is read is right, or an error names a file."""
    monkeypatch.setattr("brokerd.archive.delta.checkpoints.EVERY_COMMITS", 2)
    old = world.add(Range(1, 0, 0, 5), Range(17, 0, 0, 5))
    world.replace([old], Range(1, 0, 0, 5), Range(17, 0, 0, 5), without=frozenset({3}))
    world.add(own(5, 9))
    expected = read_all(open_view(world), 1, 0)
    assert sorted(expected) == [0, 1, 2, 4, 5, 6, 7, 8]
    refused = 0
    for path in sorted(path for path in world.root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for place in range(0, len(data), FLIP_EVERY):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            try:
                view = open_view(world)
                found = read_all(view, 1, 0)
                is_covered = view.covers(1, 0, 0, 5)
            except (ArchiveUnavailable, ForeignArchive, NewerFormat, DamagedArchive):
                refused += 1
                continue
            assert found.items() <= expected.items()
            assert not is_covered or len(found) >= 4
        path.write_bytes(data)
    assert refused


def test_file_that_was_cut_covers_nothing_any_more(world: World) -> None:
    """Also when it was open already: the log must not be deleted because of it."""
    info = world.add(own(0, 10))
    view = world.view
    assert view.covers(1, 0, 0, 10)
    with world.path(info).open("r+b") as file:
        file.truncate(info.size - 1)
    with pytest.raises(ArchiveUnavailable, match=f"{info.size - 1} bytes, not {info.size}"):
        view.covers(1, 0, 0, 10)
    with pytest.raises(DamagedArchive):
        open_view(world).covers(1, 0, 0, 10)


def test_missing_file_is_named_and_the_rest_is_served(world: World) -> None:
    infos = [world.add(own(0, 10)), world.add(own(10, 20))]
    view = world.view
    assert view.covers(1, 0, 0, 20)
    world.path(infos[0]).unlink()
    asked: list[Callable[[ArchiveView], object]] = [
        lambda view: view.covers(1, 0, 0, 20),
        lambda view: view.covers(1, 0, 9, 20),
    ]
    for ask in asked:
        with pytest.raises(ArchiveUnavailable, match=f"{infos[0].path} cannot be read"):
            ask(view)
    fresh = open_view(world)
    for ask in (*asked, lambda view: view.read(1, 0, 0, 100)):
        with pytest.raises(ArchiveUnavailable, match=f"{infos[0].path} cannot be read"):
            ask(fresh)
    assert fresh.read(1, 0, 10, 100) is not None
    assert fresh.covers(1, 0, 10, 20)


def test_too_many_open_files_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(own(0, 10))
    view = world.view

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr("brokerd.archive.storage.disk.open_regular", refuse)
        with pytest.raises(ArchiveUnavailable, match="Too many open files"):
            view.read(1, 0, 0, 100)
    assert view.read(1, 0, 0, 100) is not None


# -- Files that others replace -------------------------------------------------------------------


def test_version_whose_file_was_replaced_and_vacuumed_asks_no_other(world: World) -> None:
    """Nobody may have looked yet whether a newer one is to be relied on; its reader goes on there.

    Else a segment might be deleted because of an archive that was put in the place of this one.
    """
    infos = [world.add(own(0, 10)), world.add(own(10, 20))]
    reading, idle = open_view(world), open_view(world)
    assert reading.read(1, 0, 0, 20) is not None
    world.replace(infos, own(0, 20), without=frozenset({11, 12}))
    assert reading.covers(1, 0, 0, 20)
    assert len(world.table.vacuum(0, NOW_MS * 1000)) == 2
    asked: list[Callable[[], object]] = [
        lambda: reading.covers(1, 0, 0, 5),
        lambda: idle.read(1, 0, 10, 20),
        lambda: idle.offset_at_time(1, 0, 11),
        lambda: idle.offset_of_size(1, 0, 20, 6),
    ]
    for ask in asked:
        with pytest.raises(ArchiveUnavailable, match=r"parquet cannot be read"):
            ask()
    newest = open_view(world)
    assert sorted(read_all(newest, 1, 0)) == [n for n in range(20) if n not in (11, 12)]
    assert newest.covers(1, 0, 0, 20)
    assert newest.offset_at_time(1, 0, 11) == 13
    assert newest.offset_of_size(1, 0, 20, 6) == 19


def test_readers_see_every_record_once_while_others_commit_merge_and_vacuum(world: World) -> None:
    """Four of them, from the first offset to the last, again and again."""
    world.add(own(0, 10))
    stop = threading.Event()
    problems: list[BaseException] = []
    rounds = [0] * 4

    def consume(number: int) -> None:
        try:
            while not stop.is_set() or not rounds[number]:
                view = world.view
                try:
                    found = read_all(view, 1, 0)
                    assert view.covers(1, 0, 0, len(found))
                except ArchiveUnavailable:
                    if world.view is view:  # else its files were replaced, and vacuumed
                        raise
                    continue
                assert list(found) == list(range(len(found)))
                assert len(found) >= 10 * min(view.version, 1)
                rounds[number] += 1
        except (AssertionError, BrokerdError) as error:
            problems.append(error)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    infos: list[FileInfo] = []
    for n in range(1, 30):
        infos.append(world.add(own(10 * n, 10 * n + 10)))
        if len(infos) == 3:
            span = own(infos[0].ranges[0].first, infos[-1].ranges[0].end)
            world.replace(infos, span, without=frozenset())
            infos = []
            world.table.vacuum(0, NOW_MS * 1000)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert min(rounds) >= 1


def test_open_files_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "OPEN_FILES_MAX", 3)
    infos = [world.write(own(n, n + 1)) for n in range(10)]
    world.table.commit([add_file(info) for info in infos], now_ms=NOW_MS)
    before = len(os.listdir("/proc/self/fd"))
    view = open_view(world)
    for _ in range(2):
        assert len(read_all(view, 1, 0)) == 10
        assert len(os.listdir("/proc/self/fd")) <= before + 3


def test_files_that_no_version_needs_free_their_disk_space(world: World) -> None:
    """An open file keeps its space on the disk, and its rows in memory, after its deletion."""
    archive = world.archive
    assert isinstance(archive, DeltaArchive)
    own_file = world.add(own(0, 10))
    kept = world.add(Range(2, 0, 0, 5))
    shared = world.add(*(Range(topic, 0, 0, 5) for topic in (1, 17)))
    view = world.view
    for topic_id in (1, 2, 17):
        assert len(read_all(view, topic_id, 0)) >= 5
        view.offset_of_size(topic_id, 0, 5, 1 << 20)
    assert is_open(world.path(own_file)) and is_open(world.path(shared))
    world.replace([own_file, shared], own(0, 10), without=frozenset({3}))
    world.table.vacuum(0, NOW_MS * 1000)
    assert world.view is not view
    names = [str(name) for name in open_names()]
    assert not [name for name in names if "(deleted)" in name and str(world.root) in name]
    assert is_open(world.path(kept)), "the newest version has it"
    cache = archive.open_files
    caches = (cache._files, cache._ranges, cache._groups, cache.sizes)
    paths = [key if isinstance(key, str) else key[0] for one in caches for key in one.all_keys()]
    assert set(paths) == {kept.path}


def is_open(path: Path) -> bool:
    return path in open_names()


def open_names() -> list[Path]:
    """Return the files that this process has open."""
    descriptors = Path("/proc/self/fd").iterdir()
    return [Path(os.readlink(one)) for one in descriptors if one.is_symlink()]


def test_an_lsn_of_a_record_is_that_where_its_row_group_begins(world: World) -> None:
    """Offsets are the LSNs here; a row group of the shared file begins at offset 5."""
    world.add(own(100, 200))
    world.add(Range(1, 1, 5, 10), Range(17, 0, 5, 10))
    view = world.view
    assert isinstance(view, EventView)
    assert [view.record_lsn(1, 0, offset) for offset in (100, 150, 199)] == [100] * 3
    assert view.record_lsn(17, 0, 9) == 5
    assert view.record_lsn(1, 0, 200) == view.record_lsn(3, 0, 0) == 0
