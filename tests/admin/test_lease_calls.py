"""Leases and dead letters over the API."""

from __future__ import annotations

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.leases.service import OPENS_MAX
from brokerd.codecs.mamamia import Acquire, AcquireBatch, Produce, Settle
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
    house.broker.topics.create("orders", 2)
    ask(house, *(Produce("orders", b"x", partition=n % 2) for n in range(20)))
    for group_partition in [
        house.broker.leases.group_partition("orders", "g", index, 0) for index in range(2)
    ]:
        for offset in range(0, 10, 2):
            house.broker.leases.dead_letter(group_partition, offset, "bad")
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


GROUP = "/topics/orders/groups/g"


def test_leases_are_listed_with_what_remains() -> None:
    caller = Caller()
    ask(caller.house, *(Produce("orders", b"x") for _ in range(5)))
    ask(caller.house, *(Acquire("orders", "g", f"c{n % 2}", 30.0) for n in range(4)))
    caller.house.pass_time(10, 1)
    found, where = [], {}
    while True:
        status, page = caller.get(f"{GROUP}/leases", limit=3, **where)
        assert status == 200
        found += page["leases"]
        if page["next"] is None:
            break
        where = page["next"]
    assert [(one["offset"], one["client"]) for one in found] == [
        (0, "c0"),
        (1, "c1"),
        (2, "c0"),
        (3, "c1"),
    ]
    first = found[0]
    assert (first["grants"], first["failures"], first["duration_seconds"]) == (1, 0, 30)
    assert 19 < first["remaining_seconds"] <= 20


def test_leases_far_apart_are_found_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and wherever: a request looks at so many offsets and no more."""
    caller = Caller()
    caller.post("/topics", {"name": "orders", "partitions": 2})
    for partition in range(2):
        ask(caller.house, *(Produce("orders", b"x", partition=partition) for _ in range(60)))
    ask(caller.house, AcquireBatch("orders", "g", "c", 120))
    for partition in range(2):
        for offset in [*range(1, 40), *range(45, 60)]:
            message_id = partition << 48 | offset
            ask(caller.house, Settle("orders", "g", message_id, "c", True))
    left = [(partition, offset) for partition in range(2) for offset in [0, *range(40, 45)]]
    monkeypatch.setattr("brokerd.admin.calls.leases.EXAMINED_MAX", 5)
    found, where, requests = [], {}, 0
    while True:
        _, page = caller.get(f"{GROUP}/leases", **where)
        found += [(one["partition"], one["offset"]) for one in page["leases"]]
        requests += 1
        if page["next"] is None:
            break
        where = page["next"]
    assert found == left
    assert requests > 10


def test_all_leases_of_a_client_are_released() -> None:
    """Their records are given out again, and no failure is counted."""
    caller = Caller()
    ask(caller.house, *(Produce("orders", b"x") for _ in range(4)))
    ask(caller.house, *(Acquire("orders", "g", f"c{n % 2}") for n in range(4)))
    assert caller.post(f"{GROUP}/leases/release", {"client": "c0"}) == (200, {"released": 2})
    assert caller.post(f"{GROUP}/leases/release", {"client": "c0"}) == (200, {"released": 0})
    _, page = caller.get(f"{GROUP}/leases")
    assert [one["client"] for one in page["leases"]] == ["c1", "c1"]
    (answer,) = ask(caller.house, Acquire("orders", "g", "new"))
    assert answer.message.id == 0
    _, page = caller.get(f"{GROUP}/leases")
    assert (page["leases"][0]["grants"], page["leases"][0]["failures"]) == (2, 0)


def test_more_leases_than_a_frame_takes_are_released() -> None:
    """In as many commits as it takes."""
    caller = Caller(House(settings=BrokerSettings(frame_bytes=16 << 10)))
    ask(caller.house, *(Produce("orders", b"x") for _ in range(300)))
    ask(caller.house, *(Acquire("orders", "g", "c") for _ in range(300)))
    assert caller.post(f"{GROUP}/leases/release", {"client": "c"}) == (200, {"released": 300})


def test_leases_in_the_last_of_many_partitions_are_released() -> None:
    """One step opens some stores. Here they have the client's name as a reason only."""
    house = House()
    leases = house.broker.leases
    house.broker.topics.create("orders", OPENS_MAX + 1)
    for index in range(OPENS_MAX + 1):
        ask(house, Produce("orders", b"x", partition=index))
    for index in range(OPENS_MAX):
        leases.dead_letter(leases.group_partition("orders", "g", index, 0), 0, "c")
    assert ask(house, Acquire("orders", "g", "c"))[0].message is not None
    stores = leases._state.stores
    stores._open_max = 0
    stores.trim()
    used = house.broker.topics.existing("orders").groups["g"].used()
    assert [one.may_own("c") for one in used] == [False] * OPENS_MAX + [True]
    assert stores.open == 0
    released = Caller(house).post(f"{GROUP}/leases/release", {"client": "c"})
    assert released == (200, {"released": 1})


def test_one_lease_is_released_after_a_delay() -> None:
    caller = Caller()
    ask(caller.house, Produce("orders", b"x"), Acquire("orders", "g", "c"))
    body = {"offset": 0, "delay_seconds": 5}
    assert caller.post(f"{GROUP}/leases/release", body) == (200, {"released": 1})
    assert ask(caller.house, Acquire("orders", "g", "d"))[0].message is None
    caller.house.pass_time(6, 1)
    assert ask(caller.house, Acquire("orders", "g", "d"))[0].message is not None


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"client": "c", "offset": 0}, 400), ({"offset": 0}, 409), ({"offset": 9}, 404)],
)
def test_a_release_that_makes_no_sense_is_refused(
    caller: Caller, body: dict[str, object], status: int
) -> None:
    assert caller.post(f"{GROUP}/leases/release", body)[0] == status


@pytest.fixture
def bad() -> Caller:
    """Ten records, all dead: the even ones as `odd`, the others a minute later as `worse`."""
    caller = Caller()
    ask(caller.house, *(Produce("orders", b"x") for _ in range(10)))
    broker = caller.house.broker
    for reason, offsets in (("odd", range(0, 10, 2)), ("worse", range(1, 10, 2))):
        for offset in offsets:
            broker.leases.dead_letter(
                broker.leases.group_partition("orders", "g", 0, offset), offset, reason
            )
        caller.house.pass_time(60, 1)
    return caller


def offsets(caller: Caller, **query: object) -> list[int]:
    _, page = caller.get(LETTERS, **query)
    return [letter["offset"] for letter in page["dead_letters"]]


def test_dead_letters_are_listed_by_reason_and_time(bad: Caller) -> None:
    """Times are those of the wall, whatever clock the attempts were timed by."""
    assert offsets(bad, reason="odd") == [0, 2, 4, 6, 8]
    _, page = bad.get(LETTERS, offset=1, limit=1)
    assert page["dead_letters"][0]["last_attempt"].startswith("2023-11-14T22:14:20")
    before = "2023-11-14T22:14:00Z"
    assert offsets(bad, before=before) == [0, 2, 4, 6, 8]
    assert offsets(bad, before=before, reason="worse") == []


def test_a_list_that_looks_long_has_a_next_page(
    bad: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is passed over in turns, so that a request never holds up the broker."""
    monkeypatch.setattr("brokerd.admin.calls.leases.EXAMINED_MAX", 4)
    _, page = bad.get(LETTERS, reason="none")
    assert page == {"dead_letters": [], "next": {"partition": 0, "offset": 4}}


@pytest.mark.parametrize(
    ("choice", "stay"),
    [
        ({}, []),
        ({"first": 3, "end": 4}, [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        ({"reason": "odd"}, [1, 3, 5, 7, 9]),
        ({"before": "2023-11-14T22:14:00Z"}, [1, 3, 5, 7, 9]),
        ({"first": 5, "reason": "worse"}, [0, 1, 2, 3, 4, 6, 8]),
        ({"partition": 0, "end": 9}, [9]),
    ],
)
@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_dead_letters_that_fit_are_changed(
    bad: Caller, verb: str, choice: dict[str, object], stay: list[int]
) -> None:
    """Replayed ones are delivered again with counters at zero; purged ones never."""
    count = 10 - len(stay)
    assert bad.post(f"{LETTERS}/{verb}", choice) == (200, {"count": count})
    assert offsets(bad) == stay
    again = Caller(bad.house.crash())
    assert offsets(again) == stay
    answers = ask(again.house, *(Acquire("orders", "g", "c") for _ in range(10)))
    got = [answer.message.id for answer in answers if answer.message is not None]
    assert got == (sorted(set(range(10)) - set(stay)) if verb == "replay" else [])


def test_what_is_not_there_cannot_be_replayed(bad: Caller) -> None:
    assert bad.post("/topics/orders/groups/none/dead-letters/replay")[0] == 404
    assert bad.post(f"{LETTERS}/replay", {"partition": 4})[0] == 404
    assert bad.post(f"{LETTERS}/purge", {"before": "yesterday"})[0] == 400
