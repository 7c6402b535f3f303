"""The search of the table of events for those about one record."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.archive.contract.layout import EVENTS
from brokerd.archive.contract.view import (
    ArchivedEvent,
    DamagedArchive,
    EventPlace,
    EventView,
)
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.archive.serve import event_search
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.archive.serve.file_cache import FileCache
from brokerd.walformat import EventKind
from tests.archive.plain import Happened
from tests.archive.world import LOG_ID, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, None)


def happened(
    lsn: int, kind: EventKind, offset: int, topic_id: int = 1, partition: int = 0
) -> Happened:
    event = (int(kind), offset, 5, 17, 1, "w", "")
    return Happened(topic_id, partition, "g", lsn, 0, event)


def search(world: World, offset: int, from_lsn: int = 0) -> tuple[list[ArchivedEvent], int]:
    """Return the events, and the number of slices that they took."""
    view = DeltaArchive(world.root, LOG_ID).refresh()
    assert isinstance(view, EventView)
    found, slices = [], 0
    place: EventPlace | None = EventPlace()
    while place is not None:
        part = view.events(1, 0, offset, from_lsn, place)
        found += part.events
        place, slices = part.next, slices + 1
    return found, slices


def test_events_of_the_record_and_wide_events_are_found(world: World) -> None:
    log = [
        happened(1, EventKind.LEASED, 7),
        happened(2, EventKind.LEASED, 8),
        happened(3, EventKind.LEASED, 7, topic_id=2),
        happened(4, EventKind.LEASED, 7, partition=1),
        happened(5, EventKind.SEEK, 9),
        happened(6, EventKind.SETTLED, 7),
    ]
    world.roll_events(log, 7)
    found, _ = search(world, 7)
    expected = [log[0], log[4], log[5]]
    assert found == [
        ArchivedEvent(one.lsn, one.seq, one.time_us, one.group, one.event) for one in expected
    ]


def test_large_tokens_are_not_negative(world: World) -> None:
    """The table stores 64 bits as a signed number."""
    log = happened(1, EventKind.LEASED, 7)
    kind, offset, amount, _, *rest = log.event
    world.roll_events([log._replace(event=(kind, offset, amount, -1, *rest))], 2)
    assert search(world, 7)[0][0].event[3] == (1 << 64) - 1


def test_files_and_row_groups_below_an_lsn_are_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_search, "GROUPS_MAX", 1)
    rows = [happened(lsn, EventKind.LEASED, 7) for lsn in range(20_000)]
    world.roll_events(rows[:10_000], 10_000)
    world.lsn = 10_000
    world.roll_events(rows[10_000:], 20_000)
    found, slices = search(world, 7)
    assert ([one.lsn for one in found], slices) == (list(range(20_000)), 4)
    opened: list[str] = []
    really_open = FileCache.open

    def counted(self: FileCache, path: str, size: int) -> ArchiveFile:
        opened.append(path)
        return really_open(self, path, size)

    monkeypatch.setattr(FileCache, "open", counted)
    found, slices = search(world, 7, from_lsn=18_500)
    assert len(opened) == 1
    assert (found[0].lsn > 10_000, found[-1].lsn, slices) == (True, 19_999, 1)


def test_row_groups_of_other_topics_are_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(event_search, "_events", lambda *_: read.append(1) or [])
    world.roll_events([happened(1, EventKind.LEASED, 7, topic_id=3)], 2)
    assert search(world, 7) == ([], 1)
    assert read == []


def test_a_damaged_file_is_an_error(world: World) -> None:
    world.roll_events([happened(1, EventKind.LEASED, 7)], 2)
    (path,) = (world.root / EVENTS.name).glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedArchive):
        search(world, 7)
