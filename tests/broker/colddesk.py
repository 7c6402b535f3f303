# Tests: tests/broker/test_cold.py
"""A broker whose records are in an archive, and not in its log any more.

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
    """One that keeps nothing in memory, and nothing in the log that the archive has."""
    forgetful = {"tail_cache_bytes": 0, "read_cache_bytes": 0, "archive": KEEPS_NOTHING}
    return House(
        settings=BrokerSettings(**{**forgetful, **settings}),
        options=SMALL,
        open_archive=archive.open,
    )


def segments(house: House) -> list[str]:
    """Files of the log that hold something."""
    return [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]


def roll_up(house: House, archive: FakeArchive) -> None:
    """Have all there is in the archive, in a version that the broker uses."""
    house.wal.seal()
    house.run()
    archive.roll_up(house)
    house.broker.archive_refresher.refresh()
    house.run()


def archive_all(house: House, archive: FakeArchive) -> None:
    """Have all there is in the archive, and nothing of it in the log."""
    roll_up(house, archive)
    for _ in range(2):
        take_snapshot(house)
    house.broker.segment_cleaner.wake()
    house.run()


def take_snapshot(house: House) -> None:
    """Two of them vouch for what groups and topics are, so that their log may go."""
    written = house.broker.status()["snapshots_written"]
    while house.broker.status()["snapshots_written"] == written:
        house.broker.snapshotter.wanted = True
        house.broker.group_commit.mark()
        house.pass_time(0.05)


def partition_of(house: House, topic: str = "t", index: int = 0) -> Partition:
    return house.broker.topics.existing(topic).partition(index)
