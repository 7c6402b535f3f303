"""What the log let go of has to be in the archive that is there, after any restart."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from brokerd.archive.contract.pin import decode_pin, encode_pin
from brokerd.archive.contract.view import ArchiveUnavailable
from simulator.machine.bare import STATE_DIR
from tests.broker.desk import produce
from tests.broker.shrinking import (
    CHECK_SECONDS,
    POLL_SECONDS,
    CountedArchive,
    archive_all,
    fill,
    make,
    segments,
)
from tests.house import House

PATH = f"{STATE_DIR}/archived"


def shrunk() -> tuple[House, CountedArchive]:
    """A broker whose log relies on an archive."""
    archive = CountedArchive()
    house = make(archive)
    fill(house, 600)
    archive_all(house, archive)
    return house, archive


def again(house: House, archive: CountedArchive) -> House:
    """The same after a restart, when it has looked at the archive."""
    house.stop()
    house = make(archive, disk=house.disk)
    house.pass_time(POLL_SECONDS + 1, step=0.5)
    return house


def error_of(house: House) -> str:
    house.pass_time(POLL_SECONDS + 1, step=0.5)
    assert house.broker.archive_refresher.view is None
    return str(house.broker.archive_refresher.status()["error"])


def test_it_says_which_archive_has_what_is_gone() -> None:
    house, archive = shrunk()
    relied = decode_pin(house.disk.read(PATH))
    first_lsn = min(int(name[:20]) for name in segments(house))
    assert relied.archive_id == archive.archive_id
    assert relied.lsn >= first_lsn > 0
    assert again(house, archive).broker.archive_refresher.view is not None


def test_its_lsn_does_not_go_back() -> None:
    """A segment that is deleted later may lie below those deleted before."""
    house, _archive = shrunk()
    before = decode_pin(house.disk.read(PATH))
    errors: list[Exception | None] = []
    house.broker.pin.raise_to(before._replace(lsn=1), errors.append)
    house.pass_time(1)
    assert errors == [None]
    assert decode_pin(house.disk.read(PATH)) == before


def test_it_is_durable_before_anything_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it cannot be written nothing is deleted, and that is told."""
    archive = CountedArchive()
    house = make(archive)
    fill(house, 600)

    def refuse(*what: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr("brokerd.broker.archive.pin.write_atomically", refuse)
        with capturedLogs() as logs:
            archive_all(house, archive)
    assert min(segments(house))[:20] == "0" * 20
    assert any(event.get("event_id") == "segments-not-deleted" for event in logs)
    house.pass_time(CHECK_SECONDS + 1, step=0.5)
    assert min(segments(house))[:20] != "0" * 20


@pytest.mark.parametrize("restarted", [False, True])
def test_another_archive_is_refused(restarted: bool) -> None:
    """Such as one that was made while the disk of the right one was not mounted."""
    house, archive = shrunk()
    kept = archive.versions[:]
    archive.archive_id = "b" * 16
    archive.roll_up(house)
    if restarted:
        house = again(house, archive)
    before = segments(house)
    assert "another archive" in error_of(house)
    fill(house, 300)
    archive.roll_up(house)
    error_of(house)
    assert segments(house)[: len(before)] == before
    assert "cannot be read" in house.broker.archive_admin.reason
    archive.versions = kept
    house.pass_time(POLL_SECONDS + 1, step=0.5)
    assert house.broker.archive_refresher.view is not None


@pytest.mark.parametrize("restarted", [False, True])
def test_an_archive_whose_newest_commits_are_lost_is_refused(restarted: bool) -> None:
    house, archive = shrunk()
    view = archive.cover((1, 0), 0, 0)
    view.records_lsn = 4096
    view.segment_hash = 0
    if restarted:
        house = again(house, archive)
    assert "commits were lost" in error_of(house)


def test_records_are_served_while_events_cannot_be_read() -> None:
    house, archive = shrunk()
    archive.cover((1, 0), 0, 0).events_lsn = 0
    house = again(house, archive)
    assert house.broker.archive_refresher.view is not None


def test_no_archive_is_not_taken_for_one_that_never_was() -> None:
    """It may not be mounted."""
    house, archive = shrunk()
    versions, archive.versions = archive.versions, []
    house = again(house, archive)
    assert "the disk is mounted" in error_of(house)
    archive.versions = versions
    house.pass_time(POLL_SECONDS + 1, step=0.5)
    assert house.broker.archive_refresher.view is not None


def test_who_deletes_the_file_gives_the_archive_up() -> None:
    house, archive = shrunk()
    house.stop()
    house.disk.unlink(PATH)
    archive.versions.clear()
    archive.archive_id = "b" * 16
    house = make(archive, disk=house.disk)
    archive_all(house, archive)
    assert house.broker.archive_refresher.view is not None


def test_a_damaged_file_is_told_of_and_removed() -> None:
    house, archive = shrunk()
    house.disk.flip(PATH, 30, 1)
    with capturedLogs() as logs:
        house = again(house, archive)
    assert any(event.get("event_id") == "relied-damaged" for event in logs)
    assert PATH not in house.disk.paths(STATE_DIR)
    assert house.broker.archive_refresher.view is not None
    fill(house, 300)
    archive_all(house, archive)
    assert encode_pin(decode_pin(house.disk.read(PATH))) == house.disk.read(PATH)


def test_an_archive_of_what_an_older_copy_of_the_log_became_is_refused_after_restarts() -> None:
    """The copy grows past the place up to which the archive has the log: that is another log."""
    archive = CountedArchive()
    house = make(archive)
    fill(house, 60)
    older = house.disk.copy()
    fill(house, 60)
    house.wal.seal()
    house.run()
    archive.roll_up(house)
    house = make(archive, disk=older)
    fill(house, 300)
    assert house.wal.durable_lsn > archive.versions[-1].records_lsn
    for _ in range(2):
        house = again(house, archive)
        assert "another segment" in error_of(house)
        assert min(segments(house))[:20] == "0" * 20


def trimmed() -> tuple[House, CountedArchive]:
    """A broker all of whose records are removed; the archive has only the first of its events."""
    archive = CountedArchive()
    house = make(archive)
    produce(house, "t", b"0")
    house.run()
    archive_all(house, archive)
    fill(house, 600)
    next_offset = house.broker.topics.existing("t").partition(0).next_offset
    house.broker.topics.trim("t", 0, next_offset)
    house.pass_time(2 * CHECK_SECONDS + 1, step=0.5)
    return house, archive


def waits_for_events(house: House) -> int:
    """What the status says of them, in bytes."""
    waiting: int = house.broker.status()["archive"]["waiting_bytes"]["events"]
    return waiting


def sealed_bytes_above(house: House, lsn: int) -> int:
    return sum(
        one.end_lsn - one.first_lsn
        for one in house.wal.segments()
        if lsn < one.end_lsn <= house.wal.sealed_lsn
    )


def test_segments_without_records_wait_for_their_events_to_be_archived() -> None:
    house, archive = trimmed()
    first_lsn = house.wal.segments()[0].first_lsn
    assert first_lsn <= archive.versions[-1].events_lsn
    assert len(segments(house)) > 5
    assert waits_for_events(house) == sealed_bytes_above(house, archive.versions[-1].events_lsn)
    archive_all(house, archive)
    house.pass_time(CHECK_SECONDS + 1, step=0.5)
    assert len(segments(house)) < 5
    assert waits_for_events(house) == 0


def test_when_the_disk_is_full_they_go_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    house, _ = trimmed()
    monkeypatch.setattr(house.wal, "shortage", "no space for a segment")
    house.pass_time(CHECK_SECONDS + 1, step=0.5)
    assert len(segments(house)) < 5
    assert waits_for_events(house) == 0


def test_so_they_do_when_the_archive_is_refused() -> None:
    house, archive = trimmed()
    archive.versions[-1].log_id = "f" * 32
    archive.cover((1, 0), 0, 0).log_id = "f" * 32
    house.pass_time(CHECK_SECONDS + 1, step=0.5)
    assert len(segments(house)) < 5


def test_they_wait_after_a_restart_until_the_archive_was_looked_at() -> None:
    """And while it cannot be reached."""
    house, archive = trimmed()
    count = len(segments(house))
    assert count > 5
    archive.failure = ArchiveUnavailable("away")
    house = again(house, archive)
    house.pass_time(2 * CHECK_SECONDS + 1, step=0.5)
    assert len(segments(house)) >= count
