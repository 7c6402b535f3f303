"""Subscriptions: stories for the oracle's checks, each told twice by
`tests/simulator/test_oracle.py`."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.history.operations import Letter, Letters, Message, Place
from simulator.history.subscriptions import (
    UNKNOWN_DELIVERY,
    Acknowledge,
    Handed,
    Poll,
    Subscribe,
    group_of,
)
from simulator.oracle import check
from tests.simulator.story import SECOND_US, Story
from tests.simulator.tales import Tales

TALES = Tales()
breaks = TALES.breaks

QOS_0 = b"\x81\xa3qos\x00"
FLIGHT_US = 100_000
"""How long the first delivery is in flight."""


def subscribe(story: Story, qos: int = 1, number: int = 1, **fields: Any) -> None:
    story.change(Subscribe, **{"qos": qos, "subscription": number, **fields})


def publish(story: Story, value: bytes, qos: int = 1, **fields: Any) -> None:
    message = Message(value, None if qos else QOS_0)
    silent = {"places": (None,), "is_silent": True, "is_promised": bool(qos)}
    story.produce(message, **{**silent, **fields})


def poll(story: Story, *handed: tuple[int, bytes] | bytes, number: int = 1, **fields: Any) -> Poll:
    """Polls; what is handed is (offset, value) at QoS 1, or a value at QoS 0."""
    told = None
    for one in handed:
        told = Handed(one, 0) if isinstance(one, bytes) else Handed(one[1], 1, Place(0, one[0]))
    operation: Poll = story.change(Poll, **{"subscription": number, "handed": told, **fields})
    return operation


def acknowledge(story: Story, offset: int, **fields: Any) -> None:
    story.change(Acknowledge, **{"subscription": 1, "place": Place(0, offset), **fields})


def drained(story: Story, *letters: int, number: int = 1) -> None:
    """The subscription was polled until nothing came, and these are its dead letters."""
    poll(story, number=number)
    asked = {"group": group_of(number), "client": "auditor"}
    story.letters(*(Letter(Place(0, n), "max_attempts", 3, 3) for n in letters), **asked)


# -- ids -------------------------------------------------------------------------------------------


@breaks("P2-subscription")
def an_id_that_is_given_again_after_a_crash(story: Story, wrong: bool) -> None:
    subscribe(story)
    story.restart("power")
    subscribe(story, number=1 if wrong else 2)


@breaks("P2-subscription")
def ids_that_go_down(story: Story, wrong: bool) -> None:
    subscribe(story, number=5)
    subscribe(story, number=4 if wrong else 6)


# -- deliveries ------------------------------------------------------------------------------------


@breaks("P3-from-now")
def a_message_from_before_the_subscription(story: Story, wrong: bool) -> None:
    if not wrong:
        subscribe(story)
    publish(story, b"a")
    if wrong:
        subscribe(story)
    poll(story, (0, b"a"))


def looks_back(story: Story, back_us: int) -> None:
    story.history.subscriptions = story.history.subscriptions._replace(look_back_us=back_us)


@breaks("P3-from-now")
def a_message_from_before_the_time_to_which_a_subscription_looks_back(
    story: Story, wrong: bool
) -> None:
    looks_back(story, SECOND_US)
    publish(story, b"a")
    story.wait(2 * SECOND_US if wrong else SECOND_US // 2)
    subscribe(story)
    poll(story, (0, b"a"))


@breaks("P5-eventually")
def a_message_missing_since_the_time_to_which_a_subscription_looks_back(
    story: Story, wrong: bool
) -> None:
    looks_back(story, SECOND_US)
    publish(story, b"a")
    story.wait(SECOND_US // 2 if wrong else 2 * SECOND_US)
    subscribe(story)
    drained(story)
    story.audit((0, b"a"), drain=((0, b"a"),))


@breaks("P3-one-lease")
def a_message_delivered_while_it_is_in_flight(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    if not wrong:
        story.wait(FLIGHT_US)
    poll(story, (0, b"a"))


@breaks("P3-one-lease")
def a_second_flight_as_short_as_the_first(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    story.wait(FLIGHT_US)
    poll(story, (0, b"a"))
    story.wait(FLIGHT_US if wrong else 2 * FLIGHT_US)
    poll(story, (0, b"a"))


@breaks("P3-one-lease")
def a_message_delivered_again_right_after_a_restart(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    story.restart()
    if not wrong:
        story.wait(FLIGHT_US)
    poll(story, (0, b"a"))


@breaks("P4-dead")
def more_deliveries_than_allowed(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    for _ in range(4 if wrong else 3):
        poll(story, (0, b"a"))
        story.wait(SECOND_US)


@breaks("P1-settled")
def an_acknowledgement_that_a_crash_took(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    acknowledge(story, 0, **(story.no_answer() if not wrong else {}))
    story.restart("power")
    story.wait(SECOND_US)
    poll(story, (0, b"a"))


def test_an_acknowledgement_that_came_too_late_may_have_been_refused_unheard() -> None:
    story = Story()
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    story.wait(FLIGHT_US)
    acknowledge(story, 0)
    poll(story, (0, b"a"))
    assert check(story.history) == []


@breaks("P3-once")
def a_message_of_qos_0_that_comes_twice(story: Story, wrong: bool) -> None:
    subscribe(story, qos=0)
    publish(story, b"a")
    publish(story, b"b")
    poll(story, b"a")
    story.restart("power")
    poll(story, b"a" if wrong else b"b")


@breaks("P1-content")
def a_message_of_qos_1_delivered_as_qos_0(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, b"a" if wrong else (0, b"a"))


@breaks("P1-content")
def a_message_of_qos_0_delivered_as_qos_1(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a", qos=0)
    poll(story, (0, b"a") if wrong else b"a")


@breaks("P2-content")
def a_message_that_nobody_published(story: Story, wrong: bool) -> None:
    subscribe(story, qos=0)
    publish(story, b"a")
    poll(story, b"x" if wrong else b"a")


@breaks("P8-produce")
def a_refused_message_that_is_delivered(story: Story, wrong: bool) -> None:
    subscribe(story, qos=0)
    publish(story, b"a", error="durable publish failed: no room" if wrong else "")
    poll(story, b"a")


@breaks("P2-reuse")
def a_tag_of_two_messages(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    publish(story, b"b")
    poll(story, (0, b"a"))
    poll(story, (0 if wrong else 1, b"b"))


@breaks("P2-once")
def a_message_with_two_tags(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    story.wait(SECOND_US)
    poll(story, (1 if wrong else 0, b"a"))


@breaks("P3-refusal")
def a_refusal_of_what_is_in_flight(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    if not wrong:
        story.wait(FLIGHT_US)
    acknowledge(story, 0, error=UNKNOWN_DELIVERY)


# -- what must come --------------------------------------------------------------------------------


@breaks("P5-eventually")
def a_message_that_was_never_delivered(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    story.audit((0, b"a"), drain=((0, b"a"),))
    if not wrong:
        poll(story, (0, b"a"))
        acknowledge(story, 0)
    drained(story)


@breaks("P5-eventually")
def a_message_that_is_neither_acknowledged_nor_dead(story: Story, wrong: bool) -> None:
    subscribe(story)
    publish(story, b"a")
    for _ in range(3):
        poll(story, (0, b"a"))
        story.wait(SECOND_US)
    story.audit((0, b"a"), drain=((0, b"a"),))
    drained(story, *(() if wrong else (0,)))


@breaks("P5-eventually")
def a_message_of_qos_0_that_was_passed_over(story: Story, wrong: bool) -> None:
    subscribe(story, qos=0)
    publish(story, b"a")
    story.audit((0, b"a"), drain=((0, b"a"),))
    if not wrong:
        poll(story, b"a")
    drained(story)


# -- where the oracle must be silent ---------------------------------------------------------------


def test_a_message_of_qos_0_may_be_lost_with_a_connection() -> None:
    story = Story()
    subscribe(story, qos=0)
    publish(story, b"a")
    poll(story, **story.no_answer())
    story.audit((0, b"a"), drain=((0, b"a"),))
    drained(story)
    assert check(story.history) == []


def test_a_publish_of_qos_0_promises_nothing() -> None:
    story = Story()
    publish(story, b"a", qos=0)
    story.audit()
    assert check(story.history) == []


def test_a_delivery_that_nobody_got_counts_too() -> None:
    """The flight of the next one is longer then, and there are fewer left."""
    story = Story()
    subscribe(story)
    publish(story, b"a")
    poll(story, **story.no_answer())
    story.wait(FLIGHT_US)
    poll(story, (0, b"a"))
    story.wait(2 * FLIGHT_US)
    poll(story, (0, b"a"))
    story.wait(SECOND_US)
    story.audit((0, b"a"), drain=((0, b"a"),))
    drained(story, 0)
    assert check(story.history) == []


def test_a_subscription_that_may_have_expired_owes_nothing() -> None:
    story = Story()
    story.history.subscriptions = story.history.subscriptions._replace(grace_us=SECOND_US)
    subscribe(story)
    publish(story, b"a")
    story.wait(3 * SECOND_US)
    story.audit((0, b"a"), drain=((0, b"a"),))
    drained(story)
    assert check(story.history) == []


@pytest.mark.parametrize("error", ["", UNKNOWN_DELIVERY])
def test_who_acknowledges_twice_may_be_refused(error: str) -> None:
    story = Story()
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    acknowledge(story, 0, **story.no_answer())
    acknowledge(story, 0, error=error)
    assert check(story.history) == []


def test_letters_of_a_subscription_are_no_business_of_leases() -> None:
    story = Story()
    subscribe(story)
    publish(story, b"a")
    poll(story, (0, b"a"))
    letters: Letters = story.letters(
        Letter(Place(0, 0), "max_attempts", 3, 3), group=group_of(1), client="o"
    )
    assert letters.group == "__blipmq.1"
    assert check(story.history) == []
