"""Leases and dead letters over the API."""

from __future__ import annotations

import pytest

from brokerd.codecs.mamamia import Acquire, Produce, Settle
from tests.admin.caller import Caller
from tests.house import House, ask

LETTERS = "/topics/orders/groups/g/dead-letters"


@pytest.fixture
def caller() -> Caller:
    """Three records of `orders`; group g settled the first, failed the second for good."""
    caller = Caller()
    ask(caller.house, *(Produce("orders", b"x%d" % number) for number in range(3)))
    ask(caller.house, *(Acquire("orders", "g", "c") for _ in range(2)))
    ask(caller.house, Settle("orders", "g", 0, "c", True))
    for _ in range(3):
        ask(caller.house, Acquire("orders", "g", "c"), Settle("orders", "g", 1, "c", False))
    return caller


def test_dead_letters_are_listed(caller: Caller) -> None:
    status, page = caller.get(LETTERS)
    assert status == 200
    (letter,) = page["dead_letters"]
    told = {name: letter[name] for name in ("partition", "offset", "reason", "grants", "failures")}
    assert told == {
        "partition": 0,
        "offset": 1,
        "reason": "max_attempts",
        "grants": 3,
        "failures": 3,
    }
    assert page["next"] is None
    assert caller.get(LETTERS, offset=1)[1] == page
    assert caller.get(LETTERS, offset=2)[1] == {"dead_letters": [], "next": None}
    assert caller.get(LETTERS, partition=1)[1] == {"dead_letters": [], "next": None}


def test_following_next_shows_every_dead_letter_once() -> None:
    """A page begins at an offset, so that what came before it is neither counted nor read."""
    house = House()
    house.broker.create_topic("orders", 2)
    ask(house, *(Produce("orders", b"x", partition=n % 2) for n in range(20)))
    for lane in [house.broker.lane("orders", "g", index, 0) for index in range(2)]:
        for offset in range(0, 10, 2):
            house.broker.dead_letter(lane, offset, "bad")
    caller, found, where = Caller(house), [], {}
    while True:
        status, page = caller.get(LETTERS, limit=3, **where)
        assert status == 200
        found += [(letter["partition"], letter["offset"]) for letter in page["dead_letters"]]
        if page["next"] is None:
            break
        where = page["next"]
    assert found == [(index, offset) for index in range(2) for offset in range(0, 10, 2)]


def test_a_dead_letter_is_shown_with_its_record(caller: Caller) -> None:
    status, letter = caller.get(f"{LETTERS}/0/1")
    assert (status, letter["reason"]) == (200, "max_attempts")
    assert (letter["record"]["value"], letter["record_error"]) == ("x1", None)


@pytest.mark.parametrize(
    ("place", "status"), [("0/0", 404), ("0/2", 404), ("1/1", 404), ("0/x", 400), ("-1/1", 400)]
)
def test_what_is_no_dead_letter_is_not_shown(caller: Caller, place: str, status: int) -> None:
    assert caller.get(f"{LETTERS}/{place}")[0] == status


def test_a_group_that_is_not_there_has_no_dead_letters(caller: Caller) -> None:
    assert caller.get("/topics/orders/groups/other/dead-letters")[0] == 404
