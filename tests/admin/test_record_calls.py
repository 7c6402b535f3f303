"""Records over the API: appended all or none, durable when answered, read from memory or disk."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from brokerd.broker import BrokerSettings
from brokerd.broker.slices import SLICE_SECONDS
from brokerd.codecs.mamamia import Acquire, Produce, Produced
from brokerd.security import READ, WRITE
from brokerd.values import ADMIN_RECORD_BYTES
from brokerd.wal import WalOptions
from tests.admin.caller import Caller, Wire, answer_of
from tests.guards import Given, GuardOf
from tests.house import House, ask
from tests.protocols.flymq_desk import Steps


@pytest.fixture
def caller() -> Caller:
    return Caller()


def produce(caller: Caller, *records: dict[str, Any], topic: str = "t") -> tuple[int, Any]:
    return caller.post(f"/topics/{topic}/records", {"records": list(records)})


def values(caller: Caller, **query: Any) -> list[Any]:
    status, answer = caller.get("/topics/t/records", **query)
    assert status == 200, answer
    return [record["value"] for record in answer["records"]]


def test_a_record_is_appended_and_its_topic_made(caller: Caller) -> None:
    """As by a Mamamia client's first PRODUCE."""
    answer = {"records": [{"partition": 0, "offset": 0}]}
    assert produce(caller, {"value": "hello"}) == (200, answer)
    assert values(caller) == ["hello"]
    (message,) = ask(caller.house, Acquire("t", "g", "c"))
    assert message.message.payload == "hello"


def test_records_are_appended_all_or_none(caller: Caller) -> None:
    """One that no record can follow leaves nothing behind, not even a topic."""
    status, answer = produce(caller, {"value": "a"}, {"value": "b", "ttl_seconds": 1e-7})
    assert status == 400 and "time to live" in answer["error"]
    assert caller.get("/topics/t/records")[0] == 404


def test_a_delayed_record_that_never_expires_outlives_its_topics_ttl(caller: Caller) -> None:
    caller.post("/topics", {"name": "t", "settings": {"ttl_seconds": 5}})
    produce(caller, {"value": "short", "delay_seconds": 1})
    produce(caller, {"value": "long", "delay_seconds": 1, "ttl_seconds": 0})
    caller.house.pass_time(2)
    assert values(caller) == ["short", "long"]
    caller.house.pass_time(10)
    assert values(caller) == ["long"]


def test_an_answer_means_durable(caller: Caller) -> None:
    """No byte of it leaves before; after a power cut all records are there."""
    body = json.dumps({"records": [{"value": "a"}, {"value": "b"}]}).encode()
    _, wire = caller.send("POST", "/topics/t/records", body)
    assert wire.value() == b""
    caller.house.run()
    assert answer_of(wire)[0] == 200
    assert values(Caller(caller.house.crash())) == ["a", "b"]


def test_records_go_where_they_are_sent(caller: Caller) -> None:
    """By partition, by key, else in turns."""
    caller.post("/topics", {"name": "t", "partitions": 4})
    _, answer = produce(
        caller, {"value": 1, "partition": 3}, {"value": 2, "key": "k"}, {"value": 3, "key": "k"}
    )
    places = [record["partition"] for record in answer["records"]]
    assert places[0] == 3
    assert places[1] == places[2]
    assert values(caller, partition=3)[0] == 1


def test_one_bad_record_keeps_the_others_out(caller: Caller) -> None:
    """All or none."""
    caller.post("/topics", {"name": "t"})
    for bad in ({}, {"value": "x", "partition": 1}, {"value": "x", "ttl_seconds": -1}):
        status, _ = produce(caller, {"value": "good"}, bad)
        assert status in (400, 404)
    assert values(caller) == []


def test_a_topic_is_not_made_by_a_record_that_is_refused(caller: Caller) -> None:
    """Neither by one for a partition that it would not have."""
    status, answer = produce(caller, {"value": "x", "partition": 2}, topic="new")
    assert (status, "create it first" in answer["error"]) == (404, True)
    assert caller.get("/topics")[1] == {"topics": [], "next": None}


def test_large_records_pass_and_larger_ones_are_refused() -> None:
    """What could not be delivered is not taken."""
    caller = Caller(House(options=WalOptions(segment_bytes=1 << 20, free_bytes_min=0)))
    fits = "x" * ADMIN_RECORD_BYTES
    assert produce(caller, {"value": fits})[0] == 200
    assert len(values(caller)[0]) == ADMIN_RECORD_BYTES
    status, answer = produce(caller, {"value": fits + "x"})
    assert (status, str(ADMIN_RECORD_BYTES) in answer["error"]) == (413, True)


def test_no_records_is_no_request(caller: Caller) -> None:
    assert produce(caller)[0] == 400


def test_a_full_disk_is_507_and_changes_nothing(caller: Caller) -> None:
    """It may be tried again, when there is room."""
    produce(caller, {"value": "x"})
    caller.house.disk.capacity = caller.house.disk.used_bytes
    for _ in range(20):
        status, answer = produce(caller, {"value": "x" * 300_000})
        if status != 200:
            break
    assert (status, answer["retryable"]) == (507, True)
    before = len(values(caller, limit=100))
    assert produce(caller, {"value": "x" * 300_000})[0] == 507
    assert len(values(caller, limit=100)) == before


def test_records_are_read_by_pages(caller: Caller) -> None:
    """Following next_offset shows each once."""
    produce(caller, *({"value": number} for number in range(10)))
    found, offset = [], 0
    for _ in range(4):
        _, answer = caller.get("/topics/t/records", offset=offset, limit=3)
        found += [record["value"] for record in answer["records"]]
        offset = answer["next_offset"]
    assert (found, offset) == (list(range(10)), 10)
    assert caller.get("/topics/t/records", offset=10)[1] == {
        "records": [],
        "next_offset": 10,
        "damage": None,
    }


def test_a_page_is_bounded_in_bytes(caller: Caller) -> None:
    """But holds one record at least."""
    produce(caller, *({"value": "x" * 600_000} for _ in range(2)))
    assert len(values(caller, bytes_max=1)) == 1
    assert len(values(caller)) == 1


def test_a_page_has_half_a_megabyte_at_most_whatever_is_asked_for(caller: Caller) -> None:
    """The next page has the rest."""
    produce(caller, *({"value": "x" * 200_000} for _ in range(4)))
    assert len(values(caller, bytes_max=1 << 20)) == 2
    assert len(values(caller, bytes_max=1 << 20, offset=2)) == 2


def test_records_that_left_memory_are_read_from_disk() -> None:
    """The reactor goes on meanwhile."""
    caller = Caller(House(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)))
    ask(caller.house, Produce("t", b"old"))
    caller.house.run()
    assert values(caller) == ["old"]


def test_a_read_from_disk_shows_nothing_to_a_sender_who_lost_the_permission_meanwhile() -> None:
    ann = Given("ann", 0, {"t": READ})
    house = House(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    caller = Caller(house, GuardOf(ann))
    ask(house, Produce("t", b"old"))
    house.run()
    for path in ("/topics/t/records", "/topics/t/records/0/0"):
        _, wire = caller.send("GET", path)
        assert not wire.value()
        ann.revoke()
        house.run()
        assert answer_of(wire)[0] == 403
        assert b"old" not in wire.value()
        ann.by_topic["t"] = READ


def test_an_append_that_waits_is_refused_to_a_sender_who_lost_the_permission_meanwhile() -> None:
    ann = Given("ann", 0, {"t": READ | WRITE})
    caller = Caller(guard=GuardOf(ann))
    caller.house.run()
    caller.house.wal._allocator.take(0)
    body = json.dumps({"records": [{"value": "x" * 100_000}]}).encode()
    _, wire = caller.send("POST", "/topics/t/records", body)
    ann.by_topic["t"] = READ
    caller.house.run()
    assert answer_of(wire)[0] == 403
    assert caller.get("/topics/t/records")[0] == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/none/records", 404),
        ("/topics/t/records?partition=1", 404),
        ("/topics/t/records?limit=0", 400),
        ("/topics/t/records?offset=-1", 400),
    ],
)
def test_what_is_not_there_cannot_be_read(caller: Caller, path: str, status: int) -> None:
    produce(caller, {"value": "x"})
    assert caller.get(path)[0] == status


def test_a_record_that_expires_is_not_shown_then(caller: Caller) -> None:
    """Its time to live runs by broker time."""
    produce(caller, {"value": "short", "ttl_seconds": 5}, {"value": "long"})
    assert values(caller) == ["short", "long"]
    caller.house.pass_time(6, 1)
    assert values(caller) == ["long"]


def test_a_topic_says_how_long_its_records_live(caller: Caller) -> None:
    """Unless the record says it itself; 0 is for ever."""
    caller.post("/topics", {"name": "t", "settings": {"ttl_seconds": 5}})
    produce(caller, {"value": "topic's"}, {"value": "own", "ttl_seconds": 50})
    produce(caller, {"value": "for ever", "ttl_seconds": 0})
    caller.house.pass_time(6, 1)
    assert values(caller) == ["own", "for ever"]


def test_delayed_messages_wait_and_are_listed(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one request with others, and durable like them."""
    status, answer = produce(
        caller,
        {"value": "now"},
        {"value": "later", "delay_seconds": 60},
        {"value": "much later", "delay_seconds": 600, "key": "k"},
    )
    assert status == 200
    assert answer["records"] == [
        {"partition": 0, "offset": 0},
        {"schedule_id": 0},
        {"schedule_id": 1},
    ]
    assert values(caller) == ["now"]
    caller = Caller(caller.house.crash())
    _, page = caller.get("/topics/t/scheduled", limit=1)
    assert [one["schedule_id"] for one in page["scheduled"]] == [0]
    assert page["next_id"] == 1
    _, page = caller.get("/topics/t/scheduled", first_id=page["next_id"])
    assert ([one["schedule_id"] for one in page["scheduled"]], page["next_id"]) == ([1], None)
    with monkeypatch.context() as patch:
        patch.setattr("brokerd.admin.calls.records.SCHEDULED_MAX", 1)
        _, page = caller.get("/topics/t/scheduled", limit=2)
        assert (len(page["scheduled"]), page["next_id"]) == (1, 1)
    caller.house.pass_time(61, 1)
    assert values(caller) == ["now", "later"]


def test_a_delayed_message_is_cancelled(caller: Caller) -> None:
    """Once; it never comes then."""
    produce(caller, {"value": "later", "delay_seconds": 5})
    path = "/topics/t/scheduled/0"
    assert caller.call("DELETE", path) == (200, {"cancelled": 0})
    status, answer = caller.call("DELETE", path)
    assert (status, "no delayed message 0" in answer["error"]) == (404, True)
    assert caller.call("DELETE", "/topics/t/scheduled/x")[0] == 400
    caller.house.pass_time(10, 1)
    assert values(caller) == []


def test_a_delay_that_is_too_long_keeps_all_out(caller: Caller) -> None:
    status, _ = produce(caller, {"value": "x"}, {"value": "y", "delay_seconds": 1e9})
    assert status == 400
    assert caller.get("/topics")[1] == {"topics": [], "next": None}


def test_the_offset_at_a_time_is_found() -> None:
    caller = Caller()
    for _ in range(3):
        caller.post("/topics/orders/records", {"records": [{"value": "x"}]})
        caller.house.pass_time(10, 1)
    path = "/topics/orders/offset"
    second = caller.get("/topics/orders/records", offset=1)[1]["records"][0]["append_time"]
    assert caller.get(path, time=second) == (200, {"partition": 0, "offset": 1})
    assert caller.get(path, time="2000-01-01T00:00:00Z")[1]["offset"] == 0
    assert caller.get(path, time="2100-01-01T00:00:00Z")[1]["offset"] == 3
    assert caller.get(path, time=second, partition=1)[0] == 404
    assert caller.get(path, time="yesterday")[0] == 400
    assert caller.get(path)[0] == 400


class TestALargeAnswer:
    """Records become JSON in slices of the reactor's turns, so that other clients go on."""

    def begun(self) -> tuple[Caller, Steps, Any, Wire]:
        """Return a caller whose request for ten records is under way, and its connection."""
        caller, steps = Caller(), Steps()
        produce(caller, *({"value": str(number)} for number in range(10)))
        slices: Any = caller.house.broker.slices
        slices.clock = steps
        steps.look_seconds = SLICE_SECONDS * 0.4
        channel, wire = caller.send("GET", "/topics/t/records", head="")
        caller.house.run()
        return caller, steps, channel, wire

    def test_takes_several_turns(self) -> None:
        caller, steps, _, wire = self.begun()
        turns = 0
        while steps.waiting:
            assert not wire.value()
            steps.step()
            caller.house.run()
            turns += 1
        assert turns > 2
        status, answer = answer_of(wire)
        assert status == 200
        assert [record["value"] for record in answer["records"]] == [*map(str, range(10))]

    def test_ends_when_the_client_leaves(self) -> None:
        _, steps, channel, wire = self.begun()
        channel.connectionLost(Failure(ConnectionLost()))
        steps.step()
        assert not steps.waiting and not wire.value()


def test_the_answer_about_many_records_takes_several_turns(caller: Caller) -> None:
    """Another client's produce is answered in each; the records are durable before."""
    steps = Steps()
    slices: Any = caller.house.broker.slices
    slices.clock = steps
    body = json.dumps({"records": [{"value": number} for number in range(1000)]}).encode()
    _, wire = caller.send("POST", "/topics/t/records", body)
    caller.house.run()
    while not caller.house.broker.topics.find("t"):
        steps.step()
        caller.house.run()
    steps.look_seconds = SLICE_SECONDS * 0.4
    turns = 0
    while steps.waiting:
        assert not wire.value()
        (produced,) = ask(caller.house, Produce("light", b"x"))
        assert isinstance(produced, Produced)
        steps.step()
        caller.house.run()
        turns += 1
    assert turns > 2
    positions = [{"partition": 0, "offset": number} for number in range(1000)]
    assert answer_of(wire) == (200, {"records": positions})
    crashed = Caller(caller.house.crash())
    page = crashed.get("/topics/t/records", limit=1000)[1]["records"]
    assert [record["value"] for record in page] == [*range(1000)]
