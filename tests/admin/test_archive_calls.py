"""The archive over the API."""

from __future__ import annotations

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from brokerd.archive.contract.view import ForeignArchive
from simulator.machine.bare import WAL_DIR
from tests.admin.caller import Caller
from tests.broker.fakearchive import FakeArchive
from tests.house import House


@pytest.fixture
def archive() -> FakeArchive:
    return FakeArchive()


@pytest.fixture
def caller(archive: FakeArchive) -> Caller:
    caller = Caller(House(open_archive=archive.open))
    caller.house.run()
    return caller


def test_it_is_described_before_there_is_one(caller: Caller) -> None:
    status, answer = caller.get("/archive")
    assert status == 200
    assert (answer["version"], answer["usable"], answer["files"]) == (None, False, 0)
    assert answer["waiting_bytes"] == dict.fromkeys(
        ("archive", "events", "proof", "newer", "snapshot", "bounds", "lacking"), 0
    )
    assert answer["bounds"]["error"] is None


def test_a_refresh_answers_with_the_version_in_use(caller: Caller, archive: FakeArchive) -> None:
    """Not with the one before."""
    caller.post("/topics/t/records", {"records": [{"value": "x"}]})
    _, sealed = caller.post("/wal/seal")
    archive.roll_up(caller.house)
    assert caller.get("/archive")[1]["version"] is None
    status, answer = caller.post("/archive/refresh")
    assert (status, answer["version"], answer["usable"]) == (200, 0, True)
    assert answer["records_lsn"] == sealed["lsn"]


def test_an_archive_that_cannot_be_used_is_refused_with_why(
    caller: Caller, archive: FakeArchive
) -> None:
    archive.failure = ForeignArchive("it is another log's")
    status, answer = caller.post("/archive/refresh")
    assert (status, answer["retryable"]) == (503, True)
    assert "it is another log's" in answer["error"]
    assert caller.get("/archive")[1]["error"] == "it is another log's"


def test_a_seal_makes_a_whole_file(caller: Caller) -> None:
    """Index and all; one that has nothing is left as it is."""
    caller.post("/topics/t/records", {"records": [{"value": "x"}]})
    status, answer = caller.post("/wal/seal")
    assert (status, answer["lsn"] > 0) == (200, True)
    names = caller.house.disk.list(WAL_DIR)
    assert f"{0:020d}.idx" in names
    assert caller.post("/wal/seal") == (200, answer)
    assert caller.house.disk.list(WAL_DIR) == names


def test_no_room_to_go_on_is_refused(caller: Caller) -> None:
    house = caller.house
    caller.post("/topics/t/records", {"records": [{"value": "x"}]})
    house.disk.capacity = house.disk.used_bytes
    house.wal.seal()
    house.append("t", b"y")
    house.run()
    status, answer = caller.post("/wal/seal")
    assert (status, answer["retryable"]) == (507, True)


def test_a_caller_that_leaves_harms_nobody(caller: Caller) -> None:
    """Its answer is forgotten."""
    caller.post("/topics/t/records", {"records": [{"value": "x"}]})
    for path in ("/wal/seal", "/archive/refresh"):
        channel, _ = caller.send("POST", path)
        channel.connectionLost(Failure(ConnectionDone()))
    caller.house.run()
    assert caller.post("/wal/seal")[0] == 200


def test_a_broker_without_archive_says_so() -> None:
    caller = Caller()
    assert caller.get("/archive") == (
        404,
        {"error": "this broker has no archive", "retryable": False},
    )
    assert caller.post("/archive/refresh")[0] == 404
