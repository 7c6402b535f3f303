"""What is seen of an archive, and what looking after it can ask for."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.archive.contract.bounds import decode_bounds
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.broker import ArchiveSettings, BrokerSettings
from brokerd.broker.archive.bounds_writer import SOON_SECONDS
from brokerd.broker.archive.refresher import SILENT_SECONDS
from simulator.machine.bare import STATE_DIR, WAL_DIR
from tests.broker.fakearchive import FakeArchive
from tests.house import House

SETTINGS = BrokerSettings(archive=ArchiveSettings(poll_us=1 << 50, keep_wal_bytes=0))


@pytest.fixture
def archive() -> FakeArchive:
    return FakeArchive()


@pytest.fixture
def house(archive: FakeArchive) -> House:
    house = House(settings=SETTINGS, open_archive=archive.open)
    house.run()
    return house


def status(house: House) -> dict[str, Any]:
    return house.broker.status()["archive"]


def refresh(house: House) -> list[Exception | None]:
    """Ask, and let what follows happen."""
    answers: list[Exception | None] = []
    house.broker.archive_admin.refresh(answers.append)
    house.run()
    return answers


def seal(house: House) -> int:
    answers: list[tuple[int, Exception | None]] = []
    house.broker.archive_admin.seal(lambda *answer: answers.append(answer))
    house.pass_time(1)
    [(lsn, error)] = answers
    assert error is None
    return lsn


def test_before_the_first_rollup_all_is_behind(house: House) -> None:
    """There is an address and an id, and no version."""
    house.append("t", b"x")
    seen = status(house)
    assert (seen["version"], seen["usable"], seen["error"], seen["degraded"]) == (
        None,
        False,
        None,
        "",
    )
    assert len(seen["log_id"]) == 32
    assert (seen["behind_bytes"], seen["behind_segments"]) == (house.wal.durable_lsn, 1)
    assert (seen["first_lsn"], seen["sealed_lsn"]) == (0, 0)


def test_a_broker_without_archive_says_nothing_of_one() -> None:
    house = House()
    assert status(house) == {}
    assert refresh(house) == [None]


def test_a_refresh_answers_when_the_new_version_is_in_use(
    house: House, archive: FakeArchive
) -> None:
    house.append("t", b"x")
    lsn = seal(house)
    archive.roll_up(house)
    assert status(house)["version"] is None
    assert refresh(house) == [None]
    seen = status(house)
    assert (seen["usable"], seen["records_lsn"], seen["sealed_lsn"]) == (True, lsn, lsn)
    assert seen["behind_segments"] in (0, 1)  # a mark may have begun the next
    assert seen["behind_bytes"] == house.wal.durable_lsn - lsn


def test_a_refresh_that_fails_says_why(house: House, archive: FakeArchive) -> None:
    archive.failure = ArchiveUnavailable("the disk is away")
    [error] = refresh(house)
    assert "the disk is away" in str(error)
    assert (status(house)["error"], status(house)["usable"]) == ("the disk is away", False)


def test_a_seal_writes_bounds_before_it_is_answered(house: House) -> None:
    """The job that asked finds all topics in them that the segment tells of."""
    house.append("t", b"x")
    lsn = seal(house)
    bounds = decode_bounds(bytes(house.disk.content(f"{STATE_DIR}/bounds")))
    assert [topic.name for topic in bounds.topics] == ["t"]
    assert bounds.lsn >= lsn


def test_a_segment_that_is_full_has_bounds_written_soon(house: House) -> None:
    """So that they are fresh when the job comes for it."""
    house.pass_time(2)
    house.append("t", b"x")
    house.wal.seal()
    house.pass_time(SOON_SECONDS + 0.5)
    assert status(house)["bounds"]["lsn"] > 0


def archive_and_delete(house: House, archive: FakeArchive) -> None:
    """Have the archive alone hold some of what is appended here."""
    house.append("t", bytes(100_000))
    seal(house)
    for _ in range(2):
        house.broker.snapshotter.begin()
        house.append("t", bytes(100_000))
        house.pass_time(1)
        seal(house)
    archive.roll_up(house)
    assert refresh(house) == [None]
    house.pass_time(1)


def test_what_the_archive_has_is_deleted_after_a_refresh(
    house: House, archive: FakeArchive
) -> None:
    """Once two snapshots hold what else the log said; and it can still be read."""
    archive_and_delete(house, archive)
    seen = status(house)
    assert seen["deleted_segments"] >= 1
    assert seen["deleted_bytes"] > 100_000
    assert seen["first_lsn"] > 0
    assert f"{0:020d}.wal" not in house.disk.list(WAL_DIR)
    assert seen["degraded"] == ""
    archive.failure = ArchiveUnavailable("the disk is away")
    refresh(house)
    assert "cannot be read from the archive: the disk is away" in status(house)["degraded"]


def test_an_archive_that_does_not_answer_degrades_what_needs_it(
    house: House, archive: FakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once, and until it answers."""
    archive_and_delete(house, archive)
    monkeypatch.setattr(house.archive_threads, "step", lambda: False)
    house.broker.archive_admin.refresh(lambda error: None)
    house.pass_time(SILENT_SECONDS - 1)
    assert status(house)["degraded"] == ""
    house.pass_time(2)
    assert status(house)["degraded"].endswith("wait: the archive does not answer")
    monkeypatch.undo()
    house.run()
    assert status(house)["degraded"] == ""


def test_a_refresh_deletes_what_went_meanwhile(house: House) -> None:
    """There may be no newer version, but records were removed."""
    house.append("t", b"x")
    seal(house)
    house.broker.topics.trim("t", 0, 1)
    for _ in range(2):
        house.broker.snapshotter.begin()
        house.pass_time(1)
        house.append("u", b"x")
        house.pass_time(1)
    before = status(house)["bounds"]["lsn"]
    refresh(house)
    house.pass_time(SOON_SECONDS + 0.5)
    seen = status(house)
    assert seen["first_lsn"] > 0
    assert seen["behind_bytes"] == house.wal.durable_lsn - seen["first_lsn"]
    assert seen["bounds"]["lsn"] > before


def test_an_archive_that_nothing_is_in_alone_degrades_nothing(
    house: House, archive: FakeArchive
) -> None:
    """All that it has is in the log, too."""
    house.append("t", b"x")
    archive.failure = ArchiveUnavailable("the disk is away")
    refresh(house)
    assert status(house)["degraded"] == ""


def test_the_id_is_made_when_there_is_room_for_it(archive: FakeArchive) -> None:
    """A first start on a full disk does without an archive for a while."""
    house = House(settings=SETTINGS, open_archive=archive.open)
    house.stop()
    house.disk.unlink(f"{STATE_DIR}/log_id")
    house.disk.unlink(f"{STATE_DIR}/bounds")
    house.disk.capacity = house.disk.used_bytes
    house = house.again()
    house.pass_time(2)
    assert status(house)["log_id"] is None
    assert "No space" in status(house)["bounds"]["error"]
    house.disk.capacity = None
    house.pass_time(10)
    assert len(status(house)["log_id"]) == 32
    assert status(house)["bounds"]["error"] is None
    assert status(house)["looked_seconds_ago"] is not None
