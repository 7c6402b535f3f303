"""Transactions and what is told of them: stories for the oracle's checks.

`tests/simulator/test_oracle.py` tells each story twice. The topics are ``t`` and ``u``.
"""

from __future__ import annotations

from typing import Any

from simulator.history.offsets import Read, Reading
from simulator.history.operations import Message, Place
from simulator.history.transactions import Begin, RollBack, Stage, Transact
from simulator.oracle import check
from tests.simulator.story import SECOND_US, Story
from tests.simulator.tales import Tales

TALES = Tales()
breaks = TALES.breaks
BOTH = (("t", b"a"), ("u", b"b"))


def tell(story: Story, kind: type[Any], **fields: Any) -> Any:
    """A request that names no topic."""
    asked = story._asked({"transaction": "txn-1", **fields})
    del asked["topic"]
    return story._add(kind(**asked))


def transact(story: Story, *messages: tuple[str, bytes], **fields: Any) -> Transact:
    """Stage messages, and commit."""
    told = tuple((topic, Message(payload)) for topic, payload in messages)
    for topic, message in told:
        story._add(Stage(**story._asked({"transaction": "txn-1", "message": message}, topic=topic)))
    operation: Transact = tell(story, Transact, messages=told, **fields)
    return operation


def read(story: Story, topic: str, *shown: bytes) -> None:
    """Read partition 0 from its beginning."""
    readings = tuple(Reading(Place(0, offset), value) for offset, value in enumerate(shown))
    story.change(Read, topic=topic, readings=readings, partition=0, offset=0, limit=10)


def audit(story: Story, of_t: tuple[bytes, ...], of_u: tuple[bytes, ...]) -> None:
    """Everything is read, of both topics."""
    seen_of_t = list(enumerate(of_t))
    story.audit(*seen_of_t, drain=seen_of_t)
    by_audit: dict[str, Any] = {"group": "audit-1", "client": "auditor", "topic": "u"}
    day_us = 86_400 * SECOND_US
    if of_u:
        story.acquire(*enumerate(of_u), duration_us=day_us, **by_audit)
    story.acquire(duration_us=day_us, **by_audit)


@breaks("P2-content")
def a_message_that_a_transaction_refused(story: Story, wrong: bool) -> None:
    told = tuple((topic, Message(payload)) for topic, payload in BOTH)
    for topic, message in told:
        error = "unauthorized" if topic == "u" else ""
        asked = {"transaction": "txn-1", "message": message, "error": error}
        story._add(Stage(**story._asked(asked, topic=topic)))
    tell(story, Transact, messages=told)
    audit(story, (b"a",), (b"b",) if wrong else ())


@breaks("P2-transaction")
def a_commit_after_the_time_of_a_transaction(story: Story, wrong: bool) -> None:
    tell(story, Begin)
    story.wait((70 if wrong else 50) * SECOND_US)
    transact(story, *BOTH)
    audit(story, (b"a",), (b"b",))


@breaks("P2-transaction")
def the_end_of_a_transaction_before_its_time(story: Story, wrong: bool) -> None:
    tell(story, Begin)
    story.wait((50 if wrong else 70) * SECOND_US)
    refused = "transaction is not active: aborted (it was open for 60 seconds)"
    transact(story, *BOTH, error=refused)
    audit(story, (), ())


@breaks("P2-transaction")
def half_of_a_transaction_after_a_crash(story: Story, wrong: bool) -> None:
    transact(story, *BOTH, **story.no_answer())
    story.restart("power")
    audit(story, (b"a",), () if wrong else (b"b",))


@breaks("P2-transaction")
def some_of_a_transactions_records_in_a_topic(story: Story, wrong: bool) -> None:
    transact(story, ("t", b"a"), ("t", b"c"), ("u", b"b"), **story.no_answer())
    story.restart("killed")
    audit(story, (b"a",) if wrong else (b"a", b"c"), (b"b",))


@breaks("P1-kept")
def an_acknowledged_transaction_that_a_crash_took(story: Story, wrong: bool) -> None:
    transact(story, *BOTH)
    story.restart("power")
    audit(story, *(((), ()) if wrong else ((b"a",), (b"b",))))


@breaks("P1-read")
def a_transaction_that_is_seen_in_one_topic_first(story: Story, wrong: bool) -> None:
    """Although nobody was told that it is committed."""
    transact(story, *BOTH, **story.no_answer())
    story.wait(SECOND_US)
    read(story, "t", b"a")
    read(story, "u", *(() if wrong else (b"b",)))
    read(story, "u", b"b")


@breaks("P2-once")
def a_transaction_that_is_stored_twice(story: Story, wrong: bool) -> None:
    transact(story, *BOTH, **story.no_answer())
    story.wait(SECOND_US)
    read(story, "t", b"a", *((b"a",) if wrong else ()))


@breaks("P8-produce")
def a_refused_transaction_that_is_seen(story: Story, wrong: bool) -> None:
    transact(story, *BOTH, error="transaction is not active: aborted" if wrong else "")
    read(story, "t", b"a")


@breaks("P2-content")
def a_transaction_that_is_seen_although_it_was_rolled_back(story: Story, wrong: bool) -> None:
    if wrong:
        story._add(
            Stage(**story._asked({"transaction": "txn-1", "message": Message(b"a")}, topic="t"))
        )
        tell(story, RollBack)
    else:
        transact(story, *BOTH)
    read(story, "t", b"a")


def test_a_transaction_without_an_answer_may_be_there_or_not() -> None:
    for of_t, of_u in (((), ()), ((b"a",), (b"b",))):
        story = Story()
        transact(story, *BOTH, **story.no_answer())
        story.restart("power")
        audit(story, of_t, of_u)
        assert check(story.history) == []


def test_a_transaction_of_nothing_says_nothing() -> None:
    story = Story()
    transact(story)
    story.produce(b"a")
    assert check(story.history) == []
