"""Limits of options: stories for the oracle's checks, each told twice by
`tests/simulator/test_oracle.py`."""

from __future__ import annotations

from simulator.history.operations import Letter, Message, Place, Trim
from simulator.history.subscriptions import Subscribe
from simulator.oracle import check
from simulator.rules import LimitRules
from tests.simulator.story import SECOND_US, Story
from tests.simulator.tales import Tales

TALES = Tales()
breaks = TALES.breaks

TOO_MANY = "there are 1 subscriptions already, the most that a broker has"
TOO_LONG = "delay 2000 ms exceeds maximum allowed delay 1000 ms"


def subscribe(story: Story, number: int, **fields: object) -> None:
    story.change(Subscribe, **{"qos": 1, "subscription": number, **fields})


def limited(story: Story, **limits: int) -> None:
    story.history.limits = LimitRules(**limits)
    story.history.formats["c"] = "flymq"


@breaks("P8-limit")
def a_subscription_above_the_limit(story: Story, wrong: bool) -> None:
    limited(story, subscriptions=1 if wrong else 2)
    subscribe(story, 1)
    subscribe(story, 2)


@breaks("P8-limit")
def a_subscription_refused_below_the_limit(story: Story, wrong: bool) -> None:
    limited(story, subscriptions=2 if wrong else 1)
    subscribe(story, 1)
    subscribe(story, 0, error=TOO_MANY)


@breaks("P8-limit")
def a_delay_above_the_limit(story: Story, wrong: bool) -> None:
    limited(story, delay_us=SECOND_US if wrong else 2 * SECOND_US)
    story.schedule(b"a", 2 * SECOND_US)


@breaks("P8-limit")
def a_delay_refused_below_the_limit(story: Story, wrong: bool) -> None:
    limited(story, delay_us=SECOND_US)
    delay_us = SECOND_US if wrong else 2 * SECOND_US
    story.produce(Message(b"a", delay_us=delay_us), at=(), error=TOO_LONG)


def a_dead_letter(story: Story, died_ago_us: int) -> None:
    """Record 0 becomes a dead letter, listed so long after its death; retention is on."""
    limited(story, dead_letter_us=10 * SECOND_US)
    story.history.topic_rules = story.history.topic_rules._replace(retention_us=1)
    story.produce(b"a")
    story.produce(b"b", at=(1,))
    story.acquire((0, b"a"))
    story.settle(0, success=False, reason="bad", dead=True)
    died_us = story.now_us
    story.wait(died_ago_us)
    letter = Letter(Place(0, 0), "bad", 1, 1, died_ago_us, story.now_us - died_us)
    story.letters(letter)


@breaks("P4-held")
def retention_that_passes_a_young_dead_letter(story: Story, wrong: bool) -> None:
    a_dead_letter(story, SECOND_US)
    story.wait(2 * SECOND_US if wrong else 12 * SECOND_US)
    story.describe(start=1)


def test_a_trim_passes_any_dead_letter() -> None:
    story = Story()
    a_dead_letter(story, SECOND_US)
    story.change(Trim, partition=0, offset=1, start=1)
    story.describe(start=1)
    assert not [each for each in check(story.history) if each.promise == "P4-held"]


def test_the_age_of_a_letter_is_not_known_after_a_step_of_the_clock() -> None:
    story = Story()
    story.history.clock_steps = None
    a_dead_letter(story, SECOND_US)
    story.describe(start=1)
    assert not [each for each in check(story.history) if each.promise == "P4-held"]
