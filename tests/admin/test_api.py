"""The whole API over real HTTP bytes: an operator's afternoon with one broker."""

from __future__ import annotations

import json

from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings
from brokerd.codecs.mamamia import Acquire, Settle
from tests.admin.caller import Caller, answer_of
from tests.house import House, ask


def test_from_a_topic_to_its_dead_letters() -> None:
    """Create, produce, fail, look: every answer fits the one before."""
    caller = Caller()
    assert caller.post("/topics", {"name": "orders"})[0] == 201
    records = [{"value": {"n": number}} for number in range(3)]
    assert caller.post("/topics/orders/records", {"records": records})[0] == 200
    for _ in range(3):
        ask(caller.house, Acquire("orders", "billing", "c"))
        ask(caller.house, Settle("orders", "billing", 0, "c", False))
    _, groups = caller.get("/topics/orders/groups")
    assert [(group["group"], group["dead"]) for group in groups["groups"]] == [("billing", 1)]
    _, group = caller.get("/topics/orders/groups/billing")
    assert (group["floor"], group["lag"], group["dead"]) == (1, 2, 1)
    _, letters = caller.get("/topics/orders/groups/billing/dead-letters")
    assert [letter["offset"] for letter in letters["dead_letters"]] == [0]
    _, letter = caller.get("/topics/orders/groups/billing/dead-letters/0/0")
    assert letter["record"]["value"] == {"n": 0}


def test_all_of_it_is_there_after_a_crash() -> None:
    """What the API answered was durable."""
    caller = Caller()
    caller.post("/topics", {"name": "orders", "partitions": 2})
    caller.post("/topics/orders/records", {"records": [{"value": "x", "partition": 1}]})
    after = Caller(caller.house.crash())
    assert after.get("/topics/orders")[1]["next_offsets"] == [0, 1]


def test_a_stop_answers_whoever_waits() -> None:
    """What was applied is told once it is durable; what was not is refused; nothing is logged."""
    caller = Caller(House(settings=BrokerSettings(max_uncommitted_bytes=64 << 10)))
    house = caller.house
    with capturedLogs() as captured:
        _, applied = caller.send("POST", "/topics", b'{"name": "orders"}')
        house.turn()
        body = json.dumps({"records": [{"value": "x" * 66_000}]}).encode()
        _, parked = caller.send("POST", "/topics/orders/records", body)
        assert (applied.value(), parked.value()) == (b"", b"")
        house.stop()
    assert answer_of(applied)[0] == 201
    status, answer = answer_of(parked)
    assert (status, answer["retryable"]) == (503, True)
    assert caller.post("/topics", {"name": "late"})[0] == 503
    assert [event for event in captured if event.get("log_failure")] == []
