"""FlyMQ's consumer groups on the wire: where to begin, what is committed, how far behind."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.codecs import flymq
from tests.protocols.flymq_desk import FlymqHouse

DONE = flymq.Done()
T_G = ("t", "g", 0)


def house_of(records: int = 5, start: int = 2) -> FlymqHouse:
    """A topic of which the first records are removed."""
    house = FlymqHouse()
    house.produce(*[b"x"] * records)
    house.broker.topics.trim("t", 0, start)
    house.run()
    return house


def subscribe(mode: str, group: str = "g") -> flymq.Subscribe:
    return flymq.Subscribe("t", group, 0, mode)


# -- SUBSCRIBE --------------------------------------------------------------------------------


@pytest.mark.parametrize("sdk", [False, True])
@pytest.mark.parametrize(
    ("mode", "offset"), [("earliest", 2), ("latest", 5), ("commit", 2), ("", 5)]
)
def test_a_subscription_begins_where_its_mode_says(mode: str, offset: int, sdk: bool) -> None:
    assert house_of().only(flymq.Subscribe("t", "g", 0, mode, sdk)) == flymq.Position(offset)


def test_earliest_and_latest_are_literal_whatever_is_committed() -> None:
    """Clients ask for positions in this way."""
    house = house_of()
    house.ask(flymq.Commit(*T_G, 4))
    answers = house.ask(*[subscribe(mode) for mode in ("earliest", "latest", "commit", "")])
    assert [answer.offset for answer in answers] == [2, 5, 4, 5]
    assert house.only(flymq.GetOffset(*T_G)) == flymq.Position(4)


def test_an_empty_partition_begins_and_ends_at_0() -> None:
    """The reference server says 1, and the first record is skipped."""
    house = FlymqHouse()
    house.broker.topics.create("t")
    answers = house.ask(*[subscribe(mode) for mode in ("earliest", "latest", "commit")])
    assert [answer.offset for answer in answers] == [0, 0, 0]
    assert house.only(flymq.GetLag(*T_G)) == flymq.Lag(0, 0, 0, 0)


def test_a_subscription_brings_its_group_about_and_it_stays() -> None:
    house = house_of()
    assert house.only(flymq.GetOffset(*T_G)) == flymq.Failed("consumer group not found: t:g")
    house.ask(subscribe("latest"))
    assert house.only(flymq.GetOffset(*T_G)) == flymq.Position(0)
    assert house.crash().only(flymq.GetOffset(*T_G)) == flymq.Position(0)


def test_a_second_subscription_forgets_no_commit() -> None:
    house = house_of()
    house.ask(subscribe("earliest"), flymq.Commit(*T_G, 3), subscribe("latest"))
    assert house.only(subscribe("commit")) == flymq.Position(3)


def test_an_empty_group_is_no_group() -> None:
    house = house_of()
    assert [answer.offset for answer in house.ask(subscribe("latest", ""), subscribe("", ""))] == [
        5,
        5,
    ]
    assert house.only(subscribe("commit", "")) == flymq.Position(2)
    topic = house.broker.topics.find("t")
    assert topic is not None
    assert not topic.groups


def test_another_format_s_group_without_a_name_is_not_meant_by_an_empty_group() -> None:
    house = house_of()
    house.broker.groups.commit_offset("t", "", 0, 4)
    house.run()
    assert house.only(subscribe("commit", "")) == flymq.Position(2)
    assert house.only(flymq.GetOffset("t", "", 0)) == flymq.Failed("consumer group not found: t:")


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (flymq.Subscribe("t", "g", 0, "newest"), "unknown subscribe mode: newest"),
        (flymq.Subscribe("none", "g", 0, "latest"), "topic not found: none"),
        (flymq.Subscribe("t", "g", 1, "latest"), "partition 1 not found"),
        (flymq.Subscribe("t", "g", -1, "latest"), "partition -1 not found"),
        (flymq.Subscribe("t", "a\nb", 0, "latest"), "group name holds a control character"),
        (flymq.Subscribe("t", "..", 0, "latest"), "group name must not be '..'"),
        (flymq.Commit("none", "g", 0, 1), "topic not found: none"),
        (flymq.Commit("t", "g", 1, 1), "partition 1 not found"),
        (flymq.Commit("t", "g", -1, 1), "partition -1 not found"),
        (flymq.Commit("t", "", 0, 1), "group name must not be ''"),
        (flymq.Commit("t", "x" * 256, 0, 1), "group name is longer than 255 bytes"),
        (flymq.ResetOffset("t", "g", 0, "newest"), "unknown reset mode: newest"),
        (flymq.ResetOffset("t", "g", -1, "latest"), "partition -1 not found"),
        (flymq.ResetOffset("t", "g", -1, "earliest"), "partition -1 not found"),
        (flymq.ResetOffset("t", "", 0, "earliest"), "group name must not be ''"),
        (flymq.GetOffset("t", "h", 0), "consumer group not found: t:h"),
        (flymq.GetOffset("t", "", 0), "consumer group not found: t:"),
        (flymq.GetOffset("t", "g", -1), "partition -1 not found"),
        (flymq.GetOffset("none", "g", 0), "topic not found: none"),
        (flymq.GetLag("t", "h", 0), "consumer group not found: t:h"),
        (flymq.GetLag("t", "g", 9), "partition 9 not found"),
    ],
)
def test_what_makes_no_sense_is_refused_and_brings_no_group_about(request_: Any, text: str) -> None:
    house = house_of()
    answer = house.only(request_)
    assert answer.text.startswith(text)
    topic = house.broker.topics.find("t")
    assert topic is not None
    assert not topic.groups


# -- commits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 43, 5_000, (1 << 63) - 1])
def test_a_commit_is_stored_as_given_and_durable(offset: int) -> None:
    """Forward, back, and past the end: it is the client's number."""
    house = house_of()
    house.ask(flymq.Commit(*T_G, 44))
    assert house.only(flymq.Commit(*T_G, offset)) == DONE
    for _ in range(2):
        answers = house.ask(flymq.GetOffset(*T_G), subscribe("commit"), flymq.GetLag(*T_G))
        lag = max(0, 5 - offset)
        assert answers == [
            flymq.Position(offset),
            flymq.Position(offset),
            flymq.Lag(offset, offset, 5, lag),
        ]
        house = house.crash()


def test_an_offset_past_63_bits_is_refused() -> None:
    house = house_of()
    for request in (flymq.Commit(*T_G, 1 << 63), flymq.ResetOffset(*T_G, "offset", 1 << 63)):
        assert "2^63 - 1" in house.only(request).text


def test_a_commit_is_answered_when_it_is_durable() -> None:
    house = house_of()
    client = house.client()
    client.send(flymq.Commit(*T_G, 3))
    house.turn()
    assert client.received_bytes() == b""
    house.run()
    assert client.answers() == [DONE]


def test_groups_of_one_name_on_two_topics_are_two() -> None:
    house = house_of()
    house.produce(b"x", topic="u")
    house.ask(flymq.Commit("t", "g", 0, 3), flymq.Commit("u", "g", 0, 1))
    assert house.ask(flymq.GetOffset("t", "g", 0), flymq.GetOffset("u", "g", 0)) == [
        flymq.Position(3),
        flymq.Position(1),
    ]


@pytest.mark.parametrize("sdk", [False, True])
@pytest.mark.parametrize(
    ("mode", "given", "offset"),
    [("earliest", None, 2), ("latest", None, 5), ("offset", 1, 1), ("offset", 99, 99)],
)
def test_a_reset_commits_what_its_mode_says(
    mode: str, given: int | None, offset: int, sdk: bool
) -> None:
    """The group need not exist."""
    house = house_of()
    assert house.only(flymq.ResetOffset("t", "g", 0, mode, given, sdk)) == DONE
    assert house.only(flymq.GetOffset(*T_G)) == flymq.Position(offset)


def test_a_commit_ends_no_lease_and_moves_no_floor() -> None:
    """Leases are another way to consume, and go on beside it."""
    house = house_of()
    house.ask(flymq.Commit(*T_G, 5))
    info = house.broker.overview.group_info("t", "g")
    assert (info.next, info.floor, info.lag) == (5, 2, 0)
    house.broker.leases.settle(house.broker.leases.group_partition("t", "g", 0, 2), 2, True)
    assert house.broker.overview.group_info("t", "g").floor == 3
