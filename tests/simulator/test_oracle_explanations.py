"""What the oracle says of the events that an explanation of a record shows."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.history.operations import (
    Delivery,
    Explain,
    Letter,
    LifeEvent,
    Place,
    Published,
)
from simulator.oracle import check
from tests.simulator.story import Story

LEASED = LifeEvent(100, "g", "leased", 7)
SETTLED = LifeEvent(200, "g", "settled")


@pytest.fixture
def story() -> Story:
    story = Story()
    story.produce(b"a")
    return story


def explain(story: Story, *events: LifeEvent, **fields: Any) -> None:
    told = {"exists": True, "is_whole": True, "events": events}
    story._add(Explain(**story._asked({**told, **fields}, place=Place(0, 0))))


def lease(story: Story, **fields: Any) -> None:
    story.acquire(Delivery(Place(0, 0), b"a", token=7), **fields)


def found(story: Story) -> list[str]:
    return [one.text for one in check(story.history) if one.promise == "P1-events"]


def test_the_events_that_clients_know_of_are_all_right(story: Story) -> None:
    lease(story)
    explain(story, LEASED)
    story.settle(0, token=7)
    explain(story, LEASED, SETTLED)
    assert found(story) == []


def test_a_lease_that_is_missing_is_a_violation(story: Story) -> None:
    lease(story)
    explain(story)
    explain(story, LEASED._replace(token=8))
    explain(story, LEASED._replace(group="other"))
    text = "record 0 of t/0 in group g was leased (token 7), and no event tells it"
    assert found(story).count(text) == 3


@pytest.mark.parametrize("success", [True, False])
def test_a_settle_that_is_missing_is_a_violation(story: Story, success: bool) -> None:
    lease(story)
    story.settle(0, success, token=7)
    explain(story, LEASED)
    (text,) = found(story)
    assert "and no event tells it" in text and ("settled" in text) == success


@pytest.mark.parametrize("kind", ["settled_range", "committed", "seek", "dead"])
def test_a_record_may_have_ended_otherwise_before_it_is_settled(story: Story, kind: str) -> None:
    lease(story)
    story.settle(0, token=7)
    explain(story, LEASED, SETTLED._replace(event=kind))
    assert found(story) == []


def test_a_dead_letter_needs_its_event_with_its_reason(story: Story) -> None:
    lease(story)
    story.settle(0, False, token=7, reason="broken", dead=True)
    story.letters(Letter(Place(0, 0), "broken", 1, 1))
    dead = LifeEvent(200, "g", "dead", reason="broken")
    explain(story, LEASED, dead)
    assert found(story) == []
    explain(story, LEASED, dead._replace(reason="max_attempts"))
    (text,) = [text for text in found(story) if "missing in a later answer" not in text]
    assert "was a dead letter (broken), and its events say ['max_attempts']" in text


def test_more_leases_than_acquires_are_a_violation(story: Story) -> None:
    lease(story)
    again = LEASED._replace(lsn=300, token=9)
    explain(story, LEASED, again)
    assert len(found(story)) == 1
    story.history.operations.pop()
    story.acquire(**story.no_answer())
    explain(story, LEASED, again)
    assert found(story) == []


def test_a_token_that_is_granted_twice_is_a_violation(story: Story) -> None:
    lease(story)
    story.acquire(**story.no_answer())
    explain(story, LEASED, LEASED)
    assert found(story) == ["record 0 of t/0 in group g has two leases with the token 7"]


def test_events_are_in_order(story: Story) -> None:
    lease(story)
    story.settle(0, token=7)
    explain(story, LEASED, SETTLED._replace(lsn=50))
    assert found(story) == ["the events of an explanation are not in order"]


def test_an_acknowledged_record_is_not_one_that_comes_later(story: Story) -> None:
    explain(story, error="partition 0 of topic 't' has no record 0 yet", exists=False)
    (text,) = found(story)
    assert text.startswith("record 0 of t/0 was acknowledged")


@pytest.mark.parametrize("fields", [{"is_whole": False}, {"exists": False}, {"error": "no"}])
def test_a_part_of_an_answer_proves_nothing(story: Story, fields: dict[str, Any]) -> None:
    lease(story)
    explain(story, **fields)
    assert found(story) == []


def test_events_before_the_journal_may_be_in_the_archive(story: Story) -> None:
    lease(story)
    story.history.published.append(Published(story.now_us, "t", 0, 0))
    explain(story)
    assert found(story) == []


def test_events_of_an_earlier_answer_are_in_a_later_one(story: Story) -> None:
    lease(story)
    explain(story, LEASED)
    story.settle(0, token=7)
    explain(story, LEASED, SETTLED)
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, SETTLED)
    assert len(found(story)) == 2 and all("leased" in text for text in found(story))


def test_an_answer_that_begins_later_tells_that_events_are_gone(story: Story) -> None:
    lease(story)
    explain(story, LEASED)
    story.settle(0, token=7)
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, SETTLED, from_lsn=150)
    explain(story, LEASED, SETTLED, from_lsn=100)
    explain(story, SETTLED, archive_lsn=150, exists=False)
    explain(story, is_whole=False)
    assert found(story) == []


def test_events_that_follow_from_earlier_ones_go_with_them(story: Story) -> None:
    """Settings of a group are told only of records that the group had before."""
    configured = LifeEvent(300, "g", "configured")
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, SETTLED, configured, exists=False)
    explain(story, from_lsn=250, exists=False)
    assert found(story) == []
    explain(story, SETTLED, from_lsn=150, exists=False)
    assert ["configured" in text for text in found(story)] == [True]


def test_a_settle_does_not_go_with_its_lease(story: Story) -> None:
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, LEASED, SETTLED, exists=False)
    explain(story, from_lsn=150, exists=False)
    assert ["settled" in text for text in found(story)] == [True]


def test_what_the_archive_had_it_keeps(story: Story) -> None:
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, LEASED, archive_lsn=150, exists=False)
    explain(story, archive_lsn=500, exists=False)
    assert ["missing in a later answer" in text for text in found(story)] == [True]


def test_an_answer_with_events_of_the_archive_has_all(story: Story) -> None:
    """Whatever the broker has let go of the journal once it was archived."""
    lease(story)
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, from_lsn=150)
    assert found(story) == []
    explain(story, from_lsn=150, archive_lsn=500)
    assert found(story) == [
        "record 0 of t/0 in group g was leased (token 7), and no event tells it"
    ]


def test_events_that_were_deleted_before_they_were_archived_may_be_missing(story: Story) -> None:
    lease(story)
    story.history.has_deleted_events = True
    story.history.published.append(Published(0, "t", 0, 1))
    explain(story, archive_lsn=500)
    assert found(story) == []
    explain(story, LEASED, LEASED, archive_lsn=500)
    assert len(found(story)) == 2, "a token that is granted twice is no loss"
