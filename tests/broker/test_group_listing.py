"""What is shown of groups costs the same whether there are ten or a hundred thousand."""

from __future__ import annotations

import pytest

from brokerd.broker.status import group_listing
from brokerd.broker.status.group_listing import (
    EXACT_GROUP_PARTITIONS,
    EXACT_TOPICS,
    MAX_GROUPS,
    REFRESH_SECONDS,
    GroupListing,
)
from tests.broker.desk import lease, produce, settle
from tests.house import House
from tests.test_garbage import Watch


def groups(house: House) -> list[tuple[str, int]]:
    """(topic, lag) of what is shown."""
    return [(group["topic"], group["lag"]) for group in house.broker.status()["groups"]]


def many(count: int) -> House:
    house = House()
    for number in range(count):
        produce(house, f"t{number:04}", b"x", b"y")
        lease(house, topic=f"t{number:04}", limit=2)
    house.run()
    return house


def test_a_few_groups_are_shown_as_they_are_now_largest_lag_first() -> None:
    house = many(3)
    settle(house, 0, topic="t0001")
    assert groups(house) == [("t0000", 2), ("t0002", 2), ("t0001", 1)]
    assert house.broker.status()["groups_omitted"] == 0


def test_of_many_the_largest_lags_are_shown_and_the_others_counted() -> None:
    house = many(MAX_GROUPS + 2)
    for topic in ("t0000", "t0500"):
        settle(house, 0, topic=topic)  # its lag is 1 now
    assert groups(house) == [], "the first look at them all begins now"
    house.pass_time(0.1)
    shown = groups(house)
    assert len(shown) == MAX_GROUPS
    assert {lag for _, lag in shown} == {2}
    assert house.broker.status()["groups_omitted"] == 2


def test_of_many_what_is_shown_is_looked_at_again_after_a_while() -> None:
    house = many(EXACT_GROUP_PARTITIONS + 1)
    groups(house)
    house.pass_time(0.1)
    settle(house, 0, topic="t0007")
    assert ("t0007", 2) in groups(house)
    house.pass_time(REFRESH_SECONDS)
    groups(house)
    house.pass_time(0.1)
    assert ("t0007", 1) in groups(house)


def test_nothing_is_looked_at_while_nobody_asks() -> None:
    house = many(EXACT_GROUP_PARTITIONS + 1)
    groups(house)
    house.pass_time(1)
    before = len(house.clock.getDelayedCalls())
    house.pass_time(2 * REFRESH_SECONDS)
    assert len(house.clock.getDelayedCalls()) <= before


def test_each_turn_goes_on_although_a_look_at_the_clock_takes_longer() -> None:
    """The process may wait for a processor."""
    house = many(EXACT_GROUP_PARTITIONS + 1)
    clock = Watch(look=2 * group_listing.SLICE_SECONDS)
    listing = GroupListing(house.broker.context.state, clock, lambda one: {}, lambda one: 0)
    assert listing.rows() == ([], 0)
    for _ in range(100):
        clock.advance(group_listing.PAUSE_SECONDS)
    rows, omitted = listing.rows()
    assert len(rows) + omitted == EXACT_GROUP_PARTITIONS + 1


def test_groups_that_go_while_they_are_looked_at_are_not_shown() -> None:
    house = many(EXACT_GROUP_PARTITIONS + 2)
    ticks = iter(range(10**9))
    house.clock.seconds = lambda: house.clock.rightNow + next(ticks) * 1e-3  # type: ignore
    groups(house)
    house.clock.advance(0.01)
    house.broker.topics.delete("t0000")
    house.broker.groups.delete("t0001", "g")
    for _ in range(100):
        house.clock.advance(0.01)
    shown = dict(groups(house))
    assert "t0000" not in shown and "t0001" not in shown
    assert len(shown) == EXACT_GROUP_PARTITIONS


def test_a_stop_ends_a_pass() -> None:
    house = many(EXACT_GROUP_PARTITIONS + 1)
    groups(house)
    house.stop()
    assert house.clock.getDelayedCalls() == []


def test_many_topics_without_groups_are_not_looked_at_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_listing, "EXACT_TOPICS", 2)
    assert EXACT_TOPICS > 2
    house = many(3)
    assert groups(house) == []
    house.pass_time(0.1)
    assert len(groups(house)) == 3
