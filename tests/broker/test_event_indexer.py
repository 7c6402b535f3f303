"""Event indexes are made in the background, and go with their segments."""

from __future__ import annotations

import errno

import pytest
from twisted.logger import capturedLogs

from brokerd.broker.status.event_indexer import CHECK_SECONDS, RETRY_SECONDS
from brokerd.codecs.mamamia import Acquire, Produce, Settle
from simulator.machine.bare import DATA_DIR, WAL_DIR
from tests.house import House, ask

ON = ("orders", "g")
DIRECTORY = f"{DATA_DIR}/event-index"
FIRST = "00000000000000000000"


def indexes(house: House) -> list[str]:
    return house.disk.list(DIRECTORY)


def seal(house: House) -> None:
    house.broker.archive_admin.seal(lambda *answer: None)
    house.run()


@pytest.fixture
def house() -> House:
    """A sealed segment with a lease and a settle."""
    house = House()
    ask(house, Produce("orders", b"x"), Acquire(*ON, "w"), Settle(*ON, 0, "w", True))
    seal(house)
    return house


def problems(house: House, seconds: float) -> list[str]:
    """Return the texts of the warnings while time passes."""
    with capturedLogs() as captured:
        house.pass_time(seconds)
    found = [one for one in captured if one.get("event_id") == "event-index-failed"]
    return [str(one["error"]) for one in found]


def test_a_sealed_segment_gets_an_index_and_an_open_one_does_not(house: House) -> None:
    ask(house, Produce("orders", b"y"), Acquire(*ON, "w"))
    house.pass_time(CHECK_SECONDS + 2)
    assert indexes(house) == [f"{FIRST}.evx"]


def test_several_segments_get_theirs_after_a_start(house: House) -> None:
    ask(house, Produce("orders", b"y"), Acquire(*ON, "w"))
    seal(house)
    house.stop()
    house = house.again()
    house.pass_time(CHECK_SECONDS + 2)
    sealed = [name for name in house.disk.list(WAL_DIR) if name.endswith(".idx")]
    assert len(sealed) == 3  # a stop seals, too
    assert indexes(house) == [name.replace("idx", "evx") for name in sealed]


def test_an_index_goes_when_its_segment_is_gone(house: House) -> None:
    house.pass_time(CHECK_SECONDS + 2)
    house.disk.make_directory(DIRECTORY)
    house.disk.create(f"{DIRECTORY}/00000000000000999999.evx")
    house.disk.create(f"{DIRECTORY}/notes.txt")
    ask(house, Produce("orders", b"y"))
    seal(house)
    house.pass_time(CHECK_SECONDS + 2)
    assert f"{FIRST}.evx" in indexes(house) and len(indexes(house)) == 3
    assert "00000000000000999999.evx" not in indexes(house)


def test_a_damaged_segment_is_told_once(house: House) -> None:
    house.disk.flip(f"{WAL_DIR}/{FIRST}.wal", 4096, 255)
    [problem] = problems(house, 5 * CHECK_SECONDS)
    assert f"{FIRST}.wal" in problem and indexes(house) == []


def test_an_error_of_the_disk_is_told_and_the_index_is_made_later(house: House) -> None:
    house.pass_time(CHECK_SECONDS / 2)
    house.disk.fail("rename", error=errno.EIO)
    [problem] = problems(house, 2 * CHECK_SECONDS)
    assert FIRST in problem and f"{FIRST}.evx" not in indexes(house)
    house.pass_time(RETRY_SECONDS)
    assert indexes(house) == [f"{FIRST}.evx"]


def test_a_segment_deleted_before_its_index_is_made_is_no_problem(house: House) -> None:
    house.disk.unlink(f"{WAL_DIR}/{FIRST}.wal")
    assert problems(house, 2 * CHECK_SECONDS) == []


def test_a_stopped_broker_makes_no_index(house: House) -> None:
    house.stop()
    house.pass_time(2 * CHECK_SECONDS)
    assert indexes(house) == []
