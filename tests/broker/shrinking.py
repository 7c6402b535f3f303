# Tests: tests/broker/test_segment_cleaner.py
"""A broker whose log shrinks because an archive has its records.

archive = CountedArchive()
house = make(archive)
fill(house, 600)                  # KiB
archive_all(house, archive)       # now the archive has them, and the log only the newest
"""

from __future__ import annotations

from typing import Any

from brokerd.archive.contract.view import Archive
from brokerd.broker import BrokerSettings
from brokerd.broker.archive.access import ArchiveSettings
from brokerd.broker.retention.retention import RetentionSettings
from brokerd.wal import WalOptions
from simulator.directory.state_text import describe
from simulator.machine.bare import WAL_DIR
from tests.broker.desk import SECOND_US, produce
from tests.broker.fakearchive import FakeArchive
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
CHECK_SECONDS = 60
POLL_SECONDS = 5


class CountedArchive(FakeArchive):
    """An archive with a count of the questions whether it covers something."""

    asked = 0

    def opened(self, log_id: str) -> Archive:
        self.log_id = log_id
        return self


def settings(keep_wal_bytes: int = 0, **changes: Any) -> BrokerSettings:
    return BrokerSettings(
        tail_cache_bytes=0,
        read_cache_bytes=0,
        snapshot_interval_bytes=changes.pop("snapshot_interval_bytes", 100 * KIB),
        archive=ArchiveSettings(POLL_SECONDS * SECOND_US, keep_wal_bytes=keep_wal_bytes, **changes),
        retention=RetentionSettings(check_us=CHECK_SECONDS * SECOND_US),
    )


def make(archive: CountedArchive, **changes: Any) -> House:
    return House(
        settings=changes.pop("settings", settings()),
        options=changes.pop("options", SMALL),
        open_archive=archive.opened,
        **changes,
    )


def fill(house: House, kib: int, *topics: str) -> None:
    """Produce ``kib`` KiB to each topic in turns, in frames of 10 KiB."""
    for number in range(kib // 10):
        for topic in topics or ("t",):
            produce(house, topic, b"%d" % number + bytes(10 * KIB))
            house.run()


def segments(house: House) -> list[str]:
    return [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]


def marks(house: House) -> dict[str, list[int]]:
    return {one.name: [p.archived_end for p in one.partitions] for one in house.broker.topics.all()}


def firsts(house: House) -> dict[tuple[int, int], int]:
    """Return the first offset in the log of each partition, by topic id and partition."""
    catalog = house.wal._catalog
    return {key: where[0][0] for key, where in catalog._locations.items()}


def without_marks(house: House) -> list[str]:
    return [line.partition(", archived")[0] for line in describe(house.broker)]


def archive_all(house: House, archive: CountedArchive) -> None:
    """Seal, roll up, and pass the time until the broker loads the version."""
    house.wal.seal()
    house.run()
    archive.roll_up(house)
    house.pass_time(POLL_SECONDS + 1, step=0.5)
