"""Open transactions over the API."""

from __future__ import annotations

from brokerd.broker.transactions import OPEN_BYTES, RECORD_BYTES
from brokerd.security import MONITOR, READ
from tests.admin.caller import Caller
from tests.guards import Given, GuardOf


def test_open_transactions_are_listed_by_pages() -> None:
    """What they hold, and how long they may; ended ones are only counted."""
    caller = Caller()
    transactions = caller.house.broker.transactions
    first, second, third = (transactions.begin() for _ in range(3))
    for topic in ("a", "b", "a"):
        transactions.produce(first, topic, b"value", 1)
    for number in range(12):
        transactions.produce(third, f"topic-{number}", b"", 1)
    transactions.roll_back(second)
    caller.house.clock.advance(1)
    status, answer = caller.get("/transactions", limit=1)
    assert (status, answer["next_number"], answer["open"], answer["rolled_back"]) == (200, 3, 2, 1)
    (one,) = answer["transactions"]
    held = OPEN_BYTES + 3 * (RECORD_BYTES + len(b"value"))
    assert (one["number"], one["records"], one["topics"], one["held_bytes"]) == (
        1,
        3,
        ["a", "b"],
        held,
    )
    assert one["seconds_left"] == transactions.seconds_left(first) > 0
    assert answer["held_bytes"] < answer["held_bytes_max"]
    (one,) = caller.get("/transactions", first_number=3)[1]["transactions"]
    assert (one["topics_count"], len(one["topics"]), one["records"]) == (12, 10, 12)


def test_monitors_see_them() -> None:
    assert Caller(guard=GuardOf(Given("ann", READ))).get("/transactions")[0] == 403
    assert Caller(guard=GuardOf(Given("eye", MONITOR))).get("/transactions")[0] == 200
