# Tests: tests/broker/test_cold.py
"""A broker whose records are in an archive and no longer in its log.

archive, house = FakeArchive(), cold_house(archive)
produce(house, "t", ...)
house.run()
archive_all(house, archive)
"""

from __future__ import annotations

from typing import Any

from brokerd.broker import ArchiveSettings, BrokerSettings
from brokerd.broker.model.topics import Partition
from brokerd.wal import WalOptions
from simulator.machine.bare import WAL_DIR
from tests.broker.fakearchive import FakeArchive
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
KEEPS_NOTHING = ArchiveSettings(keep_wal_bytes=0)


def cold_house(archive: FakeArchive, **settings: Any) -> House:
    """Return a broker without caches whose log keeps no archived records."""
    forgetful = {"tail_cache_bytes": 0, "read_cache_bytes": 0, "archive": KEEPS_NOTHING}
    return House(
        settings=BrokerSettings(**{**forgetful, **settings}),
        options=SMALL,
        open_archive=archive.open,
    )


def segments(house: House) -> list[str]:
    """Return the names of the log's segments."""
    return [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]


def roll_up(house: House, archive: FakeArchive) -> None:
    """Seal the log, archive all records, and let the broker load that version."""
    house.wal.seal()
    house.run()
    archive.roll_up(house)
    house.broker.archive_refresher.refresh()
    house.run()


def archive_all(house: House, archive: FakeArchive) -> None:
    """Archive all records and delete their segments, once the bounds cover them."""
    roll_up(house, archive)
    for _ in range(2):
        take_snapshot(house)
    bounds = house.broker.bounds
    assert bounds is not None
    bounds.request(lambda error: None)
    house.run()
    house.broker.segment_cleaner.wake()
    house.run()


def take_snapshot(house: House) -> None:
    """Have a snapshot written. Segments are deletable after two snapshots."""
    written = house.broker.status()["snapshots_written"]
    while house.broker.status()["snapshots_written"] == written:
        house.broker.snapshotter.wanted = True
        house.broker.group_commit.mark()
        house.pass_time(0.05)


def partition_of(house: House, topic: str = "t", index: int = 0) -> Partition:
    return house.broker.topics.existing(topic).partition(index)
