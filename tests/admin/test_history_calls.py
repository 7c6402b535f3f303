"""The life of a record over the API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.broker.status import record_history
from brokerd.codecs.mamamia import Acquire, Extend, Produce, Settle
from brokerd.errors import LimitExceeded
from tests.admin.caller import Caller
from tests.broker.fakearchive import FakeArchive, FakeView
from tests.house import House, ask

ON = ("orders", "g")


def history(caller: Caller, offset: int, partition: int = 0, **query: int) -> dict[str, Any]:
    status, answer = caller.get(f"/topics/orders/records/{partition}/{offset}", **query)
    assert status == 200, answer
    return dict(answer)


def kinds(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event["group"], event["event"]) for event in answer["events"]]


@pytest.fixture
def caller() -> Caller:
    caller = Caller()
    ask(caller.house, *(Produce("orders", b"%d" % number) for number in range(3)))
    return caller


def test_a_life_with_failures_a_dead_letter_and_a_replay(caller: Caller) -> None:
    house = caller.house
    for _ in range(3):
        ask(house, Acquire(*ON, "worker", 5.0), Settle(*ON, 0, "worker", False))
        house.pass_time(1)
    caller.post("/topics/orders/groups/g/dead-letters/replay", {"first": 0, "end": 1})
    ask(house, Acquire(*ON, "worker"), Settle(*ON, 0, "worker", True))
    ask(house, Acquire("orders", "other", "c"))
    answer = history(caller, 0)
    life = [("g", "leased"), ("g", "failed")] * 2 + [("g", "leased"), ("g", "dead")]
    ending = [("g", "replayed"), ("g", "leased"), ("g", "settled"), ("other", "leased")]
    assert kinds(answer) == life + ending
    first, failed, *_ = answer["events"]
    assert (first["client"], first["count"], first["seconds"]) == ("worker", 1, 5.0)
    assert failed["count"] == 1
    assert answer["events"][5]["reason"] == "max_attempts"
    assert answer["record"]["format"] == "mamamia"
    times = [datetime.fromisoformat(event["time"]) for event in answer["events"]]
    assert datetime.fromisoformat(answer["record"]["append_time"]) <= times[0]
    assert times == sorted(times) and (times[-1] - times[0]).total_seconds() > 2
    assert (answer["next"], answer["problems"], answer["from_lsn"]) == (None, [], 0)


def test_other_records_and_other_topics_are_left_out(caller: Caller) -> None:
    house = caller.house
    ask(house, Produce("else", b"x"), Acquire("else", "g", "c"))
    ask(house, *(Acquire(*ON, "c") for _ in range(3)))
    ask(house, Settle(*ON, 1, "c", True))
    assert kinds(history(caller, 0)) == [("g", "leased")]
    assert kinds(history(caller, 1)) == [("g", "leased"), ("g", "settled")]
    assert kinds(history(caller, 2)) == [("g", "leased")]


def test_extensions_and_expiries_are_part_of_it(caller: Caller) -> None:
    house = caller.house
    ask(house, Acquire(*ON, "c", 5.0), Extend(*ON, "c", 0, 9.0))
    house.pass_time(10, 1)
    ask(house, Acquire(*ON, "d"))
    assert kinds(history(caller, 0)) == [
        ("g", "leased"),
        ("g", "extended"),
        ("g", "expired"),
        ("g", "leased"),
    ]


def test_a_commit_counts_when_it_passes_the_record(caller: Caller) -> None:
    for offset in (1, 2, 3, 1, 0):
        caller.house.broker.groups.commit_offset("orders", "readers", 0, offset)
        caller.house.run()
    answer = history(caller, 1)
    assert [(event["event"], event["first"]) for event in answer["events"]] == [
        ("committed", 2),
        ("committed", 1),
    ]


def test_seeks_and_pauses_of_a_group_that_had_the_record_are_shown(caller: Caller) -> None:
    caller.post("/topics/orders/groups/h/pause", {"create": True})  # it never had the record
    ask(caller.house, Acquire(*ON, "c"))
    caller.post("/topics/orders/groups/g/pause")
    caller.post("/topics/orders/groups/g/seek", {"to": 2})
    answer = history(caller, 0)
    assert [kind for group, kind in kinds(answer) if group == "g"][-2:] == ["paused", "seek"]
    assert answer["events"][-1]["first"] == 2
    assert ("h", "paused") not in kinds(answer)


def test_events_come_by_pages(caller: Caller) -> None:
    for _ in range(2):
        ask(caller.house, Acquire(*ON, "c"), Settle(*ON, 0, "c", False))
    whole = history(caller, 0)["events"]
    assert len(whole) == 4
    page = history(caller, 0, limit=3)
    assert (page["events"], page["next"]) == (whole[:3], 3)
    page = history(caller, 0, limit=3, first=3)
    assert (page["events"], page["next"]) == (whole[3:], None)


def test_a_life_is_found_over_segments_and_slices(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry may cross the end of a slice."""
    house = caller.house
    ask(house, *(Acquire(*ON, "worker") for _ in range(3)))
    caller.post("/wal/seal")
    for number in range(40):
        ask(house, Produce("orders", bytes(1_000 + number)))
    ask(house, Settle(*ON, 0, "worker", True))
    expected = history(caller, 0)
    assert kinds(expected) == [("g", "leased"), ("g", "settled")]
    for size in (128, 136, 200, 4_096):
        monkeypatch.setattr("brokerd.wal.read.event_scan.SLICE_BYTES", size)
        assert history(caller, 0) == expected, size


def test_a_search_begins_with_the_segment_of_the_record(caller: Caller) -> None:
    caller.post("/wal/seal")
    ask(caller.house, Produce("orders", b"x"), *(Acquire(*ON, "c") for _ in range(4)))
    answer = history(caller, 3)
    assert kinds(answer) == [("g", "leased")]
    assert answer["from_lsn"] > 0
    assert history(caller, 0)["from_lsn"] == 0


def test_a_removed_record_still_has_its_events(caller: Caller) -> None:
    ask(caller.house, Acquire(*ON, "c"))
    caller.post("/topics/orders/trim", {"offset": 1})
    answer = history(caller, 0)
    assert answer["record"] is None
    assert "removed or expired" in answer["record_error"]
    assert kinds(answer)[0] == ("g", "leased")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("orders/records/0/3", 404),
        ("orders/records/1/0", 404),
        ("none/records/0/0", 404),
        ("orders/records/0/x", 400),
    ],
)
def test_what_is_not_there_is_refused(caller: Caller, path: str, status: int) -> None:
    assert caller.get(f"/topics/{path}")[0] == status


@pytest.fixture
def archived() -> tuple[Caller, FakeArchive]:
    """A record whose lease, failure and second lease are archived; it is settled afterwards."""
    archive = FakeArchive()
    caller = Caller(House(open_archive=archive.open))
    house = caller.house
    ask(house, Produce("orders", b"x"), Acquire(*ON, "c"), Settle(*ON, 0, "c", False))
    ask(house, Acquire(*ON, "d"))
    caller.post("/wal/seal")
    archive.roll_up(house)
    caller.post("/archive/refresh")
    ask(house, Settle(*ON, 0, "d", True))
    return caller, archive


LIFE = [("g", "leased"), ("g", "failed"), ("g", "leased"), ("g", "settled")]


def test_a_life_goes_on_from_the_archive_to_the_journal(
    archived: tuple[Caller, FakeArchive],
) -> None:
    caller, archive = archived
    answer = history(caller, 0)
    assert kinds(answer) == LIFE
    assert (answer["problems"], answer["from_lsn"]) == ([], 0)
    assert answer["archive_lsn"] == archive.versions[-1].events_lsn > 0
    assert answer["events"][2]["lsn"] < answer["archive_lsn"] < answer["events"][3]["lsn"]
    page = history(caller, 0, first=1, limit=2)
    assert (kinds(page), page["next"]) == (LIFE[1:3], 3)


def test_the_archive_is_read_where_it_has_events(archived: tuple[Caller, FakeArchive]) -> None:
    caller, archive = archived
    archive.events.clear()
    archive.events.append(((99, 0), []))
    assert kinds(history(caller, 0)) == LIFE[3:]


def test_journal_files_that_went_before_they_were_archived_are_reported(
    archived: tuple[Caller, FakeArchive],
) -> None:
    """A full disk lets the broker delete files without records early; here it is the settle."""
    house = (caller := archived[0]).house
    for _ in range(2):
        caller.post("/wal/seal")
        ask(house, Acquire("orders", "other", "c"))
        house.broker.snapshotter.begin()
        house.pass_time(1)
    house.disk.capacity = house.disk.used_bytes
    for _ in range(100):
        if house.wal.shortage is None:
            ask(house, Produce("orders", bytes(32 << 10)))
    assert house.wal.shortage is not None
    house.pass_time(60)
    answer = history(caller, 0)
    (problem,) = answer["problems"]
    assert kinds(answer)[:3] == LIFE[:3] and LIFE[3] not in kinds(answer)
    assert problem.startswith(f"journal files with LSN {answer['archive_lsn']} to ")


def test_an_archive_that_cannot_be_read_is_reported(
    archived: tuple[Caller, FakeArchive],
) -> None:
    """What the journal still has is shown."""
    caller, archive = archived
    archive.read_failure = ArchiveUnavailable("the disk is gone")
    answer = history(caller, 0)
    assert kinds(answer) == LIFE
    assert answer["archive_lsn"] == 0
    assert len(answer["problems"]) == 1 and "the disk is gone" in answer["problems"][0]


def test_an_archive_that_fails_in_the_middle_gives_no_event_twice(
    archived: tuple[Caller, FakeArchive], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, archive = archived
    view, read = archive.versions[-1], FakeView.events

    def events(self: FakeView, *arguments: Any) -> Any:
        found = read(self, *arguments)
        if found.next is None:
            raise ArchiveUnavailable("the disk is gone")
        return found

    monkeypatch.setattr(FakeView, "events", events)
    assert view.events_lsn > 0
    answer = history(caller, 0)
    assert kinds(answer) == LIFE
    assert len(answer["problems"]) == 1


def test_a_client_that_leaves_ends_its_search(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next slice is not searched, and the next client gets its turn."""
    monkeypatch.setattr("brokerd.wal.read.event_scan.SLICE_BYTES", 128)
    ask(caller.house, Acquire(*ON, "c"))
    reader = caller.house.broker.record_history
    submitted: list[Any] = []
    pool = reader._read_threads
    monkeypatch.setattr(reader, "_read_threads", Held(submitted))
    partition = caller.house.broker.topics.existing("orders").partition(0)
    left = Deferred.fromCoroutine(reader.read(partition, 0, 0, 10))
    left.addErrback(lambda failure: None)
    waiting = Deferred.fromCoroutine(reader.read(partition, 0, 0, 10))
    assert len(submitted) == 1
    left.cancel()
    assert len(submitted) == 2  # that of the other client
    submitted[0]()
    assert len(submitted) == 2
    monkeypatch.setattr(reader, "_read_threads", pool)
    submitted[1]()
    caller.house.run()
    assert waiting.called


class Held:
    """A pool that keeps its work."""

    def __init__(self, kept: list[Any]) -> None:
        self._kept = kept

    def submit(self, work: Any, done: Any) -> None:
        self._kept.append(lambda: done(work(), None))


def test_too_many_searches_are_refused(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_history, "WAITING_MAX", 1)
    reader = caller.house.broker.record_history
    monkeypatch.setattr(reader, "_read_threads", Held([]))
    partition = caller.house.broker.topics.existing("orders").partition(0)
    searches = [Deferred.fromCoroutine(reader.read(partition, 0, 0, 10)) for _ in range(3)]
    refused: list[Any] = []
    searches[2].addErrback(refused.append)
    assert refused[0].check(LimitExceeded)
    for one in searches[:2]:
        one.addErrback(lambda failure: None)
        one.cancel()
