"""An archive that knows more of the log than there is belongs to a later state of it."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import capturedLogs

from brokerd.archive.contract.view import Archive
from brokerd.broker.archive.refresher import SILENT_SECONDS
from brokerd.wal import WalOptions
from brokerd.wal.segment import SegmentStatus
from simulator.machine.bare import WAL_DIR as WAL
from simulator.machine.disk import SimDisk
from tests.broker.desk import produce
from tests.broker.fakearchive import FakeArchive
from tests.broker.shrinking import CHECK_SECONDS, KIB, SMALL, fill, settings
from tests.house import House

POLL_SECONDS = 5


def make(archive: FakeArchive, disk: SimDisk | None = None, **changes: Any) -> House:
    def opened(log_id: str) -> Archive:
        archive.log_id = log_id
        for view in archive.versions:
            view.log_id = log_id
        return archive

    return House(disk=disk, open_archive=opened, **changes)


def archived(house: House, archive: FakeArchive) -> None:
    house.wal.seal()
    house.run()
    archive.roll_up(house)


def usable(house: House) -> bool:
    house.pass_time(POLL_SECONDS + 1, step=0.5)
    return house.broker.archive_refresher.view is not None


def behind(archive: FakeArchive) -> House:
    """Return a broker with an older copy of a log, which the archive is ahead of."""
    house = make(archive)
    produce(house, "t", b"0")
    house.run()
    older = house.disk.copy()
    produce(house, "t", b"1")
    house.run()
    archived(house, archive)
    return make(archive, older)


def test_one_that_is_as_far_as_the_log_is_used() -> None:
    archive = FakeArchive()
    house = make(archive)
    produce(house, "t", b"0")
    house.run()
    archived(house, archive)
    assert usable(house)
    assert usable(make(archive, house.disk))


def test_one_that_is_ahead_of_the_log_is_refused_also_when_the_log_catches_up() -> None:
    archive = FakeArchive()
    house = behind(archive)
    with capturedLogs() as logs:
        assert not usable(house)
        for _ in range(20):
            produce(house, "t", bytes(1000))
        house.run()
        assert house.wal.durable_lsn > archive.versions[-1].records_lsn
        assert not usable(house)
    (told,) = (event for event in logs if event.get("event_id") == "archive-unusable")
    assert "older copy" in str(told["error"])
    archive.cover((1, 0), 0, 9)
    assert not usable(house), "nor is its next version used"


FEW = settings(snapshot_interval_bytes=16 * KIB)


def trimmed(archive: FakeArchive) -> House:
    """Return a broker that refuses its archive, all of whose records below 400 KiB are removed."""
    house = make(archive, settings=FEW, options=SMALL)
    fill(house, 20)
    older = house.disk.copy()
    fill(house, 100)
    archived(house, archive)
    house = make(archive, older, settings=FEW, options=SMALL)
    assert not usable(house)
    fill(house, 400)
    (partition,) = house.broker.topics.existing("t").partitions
    house.broker.topics.trim("t", 0, partition.next_offset)
    fill(house, 100)
    return house


def proofs(house: House, archive: FakeArchive) -> list[SegmentStatus]:
    """Return the segments at the end of the archive."""
    lsn = archive.versions[-1].records_lsn
    return [s for s in house.wal.segments() if s.first_lsn < lsn <= s.end_lsn]


def proof_bytes(house: House) -> int:
    waiting: dict[str, int] = house.broker.archive_admin.status()["waiting_bytes"]
    return waiting["proof"]


def test_the_segment_by_which_a_restart_refuses_it_again_stays() -> None:
    """All records of the segment are removed, and no others that the archive claims to have."""
    archive = FakeArchive()
    house = trimmed(archive)
    house.pass_time(2 * CHECK_SECONDS, step=0.5)
    (proof,) = proofs(house, archive)
    assert proof_bytes(house) == proof.end_lsn - proof.first_lsn
    assert len(house.wal.segments()) < 5, "the others are deleted"
    assert not usable(make(archive, house.disk.copy(), settings=FEW, options=SMALL))
    lsn = archive.versions[-1].records_lsn
    archive.versions.clear()
    assert not usable(house)
    archive.cover((1, 0), 0, 1, lsn=8)
    assert usable(house)
    archive.versions[-1].records_lsn = archive.versions[-1].events_lsn = lsn
    house.pass_time(2 * CHECK_SECONDS, step=0.5)
    assert proofs(house, archive) == []
    assert proof_bytes(house) == 0


@pytest.mark.parametrize("answers", [True, False])
def test_it_stays_on_a_full_disk_too_until_a_start_has_checked_the_archive(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start finds the disk full, and the archive answers late or not at all."""
    archive = FakeArchive()
    house = trimmed(archive)
    house.pass_time(2 * CHECK_SECONDS, step=0.5)
    no_room = WalOptions(segment_bytes=64 * KIB, free_bytes_min=2 << 40)
    house = house.crash(options=no_room)
    really = house.archive_threads.step
    monkeypatch.setattr(house.archive_threads, "step", lambda: False)
    house.broker.segment_cleaner.wake()
    house.run()
    assert house.wal.shortage
    assert len(proofs(house, archive)) == 1
    if answers:
        monkeypatch.setattr(house.archive_threads, "step", really)
        house.run()
        assert proof_bytes(house) > 0, "it is asked at once after the check"
        house.pass_time(2 * CHECK_SECONDS, step=0.5)
        assert len(proofs(house, archive)) == 1
    else:
        house.pass_time(SILENT_SECONDS + CHECK_SECONDS, step=0.5)
        assert proofs(house, archive) == [], "the room is needed"


def test_another_that_was_made_in_its_place_is_used() -> None:
    archive = FakeArchive()
    house = behind(archive)
    assert not usable(house)
    archive.versions.clear()
    assert not usable(house)
    archive.cover((1, 0), 0, 1, lsn=8)
    assert usable(house)


def test_another_that_reaches_further_is_used() -> None:
    """The job made it after the log had grown beyond the end of the refused one."""
    archive = FakeArchive()
    house = behind(archive)
    refused = archive.versions[-1]
    assert not usable(house)
    archive.versions.clear()
    assert not usable(house)
    for _ in range(20):
        produce(house, "t", bytes(1000))
    house.run()
    archive.archive_id = "b" * 16
    archived(house, archive)
    assert archive.versions[-1].records_lsn > refused.records_lsn
    assert usable(house)


def test_one_that_knows_topics_that_were_never_made_is_refused() -> None:
    archive = FakeArchive()
    house = make(archive)
    produce(house, "t", b"0")
    house.run()
    archive.cover((2, 0), 0, 1, lsn=0)
    assert not usable(house)
    assert "topic id 2" in str(house.broker.archive_refresher.status()["error"])
    produce(house, "u", b"0")
    house.run()
    assert not usable(house)


@pytest.mark.parametrize("cut", [True, False])
def test_a_segment_that_lost_its_end_still_ends_where_it_was_archived(cut: bool) -> None:
    """Its index is made again later and names the begin of the next file as its end.

    If its end is not lost, the archive lacks that end and the segment is not the archived one.
    """
    archive = FakeArchive()
    house = make(archive)
    produce(house, "t", bytes(5000))
    house.run()
    end_lsn = house.wal.durable_lsn
    produce(house, "t", bytes(5000))
    house.run()
    archived(house, archive)
    archive.versions[-1].records_lsn = archive.versions[-1].events_lsn = end_lsn
    produce(house, "t", b"1")
    house.run()
    disk = house.disk.copy()
    first, _ = (name for name in sorted(disk.list(WAL)) if name.endswith(".wal"))
    if cut:
        disk.open(f"{WAL}/{first}", write=True).truncate(end_lsn - int(first[:20]))
        disk.unlink(f"{WAL}/{first.removesuffix('.wal')}.idx")
    house = make(archive, disk)
    assert bool(house.report.damages) == cut
    assert usable(house) == cut
    error = house.broker.archive_refresher.status()["error"]
    assert cut or f"up to LSN {end_lsn}, where the log has another segment" in str(error)
