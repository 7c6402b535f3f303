"""What the oracle says of the answers of searches of the audit trail."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.draw import generate
from simulator.history.operations import (
    NEVER,
    AuditRow,
    AuditSearch,
    ClockStep,
    DeleteTopic,
    DropStream,
    Pause,
    Release,
    ReportStream,
    SetClock,
    Trim,
)
from simulator.history.registry import MakeKey, PutAccount, RegisterSchema
from simulator.oracle import check
from simulator.oracle.audit_trail import check_audit_trail
from simulator.oracle.timeline.spans import Lives
from simulator.run import run
from tests.simulator.story import Story

DAY_US = 86_400_000_000
PAUSED = AuditRow(4, "group.pause", "c", "admin", "t/g", "success")


@pytest.fixture
def story() -> Story:
    return Story()


def add(story: Story, kind: type[Any], **fields: Any) -> None:
    """Make a change. ``client`` is "c"."""
    asked = story._asked(fields)
    if kind in (SetClock, DropStream, MakeKey, PutAccount, RegisterSchema):
        asked.pop("topic", None)
    story._add(kind(**asked))


def search(story: Story, *rows: AuditRow, **fields: Any) -> None:
    asked = story._asked({"limit": 10, "client": "auditor", "rows": rows, **fields})
    asked.pop("topic", None)
    story._add(AuditSearch(**asked))


def pause(story: Story, **fields: Any) -> None:
    add(story, Pause, **{"group": "g", **fields})


def found(story: Story) -> list[str]:
    return [one.text for one in check_audit_trail(story.history, Lives(story.history))]


def test_a_change_has_one_event(story: Story) -> None:
    pause(story)
    search(story, PAUSED)
    assert found(story) == []


def test_a_change_without_an_event_is_a_violation(story: Story) -> None:
    pause(story)
    search(story)
    subject = "Subject(type='group.pause', user='c', resource='t/g')"
    assert found(story) == [f"1 changes {subject} were made, and 0 events tell it"]


def test_the_whole_oracle_has_this_check(story: Story) -> None:
    pause(story)
    search(story)
    assert [one.promise for one in check(story.history)] == ["P1-audit"]


@pytest.mark.parametrize(
    "changes",
    [
        {"user": ""},
        {"user": "d"},
        {"resource": "t"},
        {"resource": "t/h"},
        {"type": "group.resume"},
        {"format": ""},
        {"result": "denied"},
    ],
)
def test_an_event_that_says_something_else_is_a_violation(
    story: Story, changes: dict[str, str]
) -> None:
    pause(story)
    search(story, PAUSED._replace(**changes))
    assert any("0 events tell it" in text for text in found(story))


def test_two_events_of_one_change_are_a_violation(story: Story) -> None:
    pause(story)
    search(story, PAUSED._replace(id=5), PAUSED)
    assert ["2 events tell" in text for text in found(story)] == [True]


def test_a_refused_change_has_no_event(story: Story) -> None:
    pause(story, error="no")
    search(story)
    assert found(story) == []
    search(story, PAUSED)
    assert ["only 0 were possible" in text for text in found(story)] == [True]


def test_an_unanswered_change_may_have_an_event(story: Story) -> None:
    pause(story, **story.no_answer())
    search(story)
    search(story, PAUSED)
    assert found(story) == []


def test_a_search_at_the_same_time_may_see_a_change(story: Story) -> None:
    pause(story)
    now_us = story.now_us
    search(story, sent_us=now_us - 50_000, arrived_us=1)
    assert found(story) == []


def test_each_kind_of_change_has_its_event(story: Story) -> None:
    add(story, Trim, partition=0, offset=0)
    add(story, DeleteTopic)
    add(story, Release, group="g", owner="x")
    add(story, SetClock)
    add(story, DropStream, stream="s", existed=True)
    add(story, PutAccount, name="ann", roles=(), enabled=True, creates=True)
    add(story, MakeKey, owner="ann", label="k")
    rows = [
        ("topic.trim", "t"),
        ("topic.delete", "t"),
        ("group.release", "t/g"),
        ("clock.set", ""),
        ("stream.drop", "s"),
        ("user.create", "ann"),
        ("key.create", "any id"),
    ]
    events = [
        AuditRow(number, kind, "c", "admin", resource, "success")
        for number, (kind, resource) in enumerate(rows)
    ]
    search(story, *reversed(events))
    assert found(story) == []
    for one in events:
        search(story, *(each for each in reversed(events) if each is not one))
    texts = found(story)
    assert all(any(f"type='{one.type}'" in text for text in texts) for one in events)


def test_what_may_change_nothing_needs_no_event(story: Story) -> None:
    add(story, RegisterSchema, name="s", schema=None)
    add(story, ReportStream, stream="s", offsets=(), holds=False)
    add(story, DropStream, stream="s")
    add(story, Release, group="g", owner="c")
    search(story)
    assert found(story) == []


def test_a_change_on_the_wire_is_not_counted(story: Story) -> None:
    story.history.formats = {"c": "flymq"}
    add(story, DeleteTopic)
    search(story)
    assert found(story) == []


def test_a_long_name_is_cut(story: Story) -> None:
    pause(story, topic="t" * 255)
    search(story, PAUSED._replace(resource="t" * 252 + "\u2026"))
    assert found(story) == []


def test_only_a_query_read_to_its_end_tells_that_an_event_is_missing(story: Story) -> None:
    pause(story)
    search(story, next_before=7)
    search(story, before=9)
    assert found(story) == []
    search(story, next_before=7)
    search(story, before=7)
    assert len(found(story)) == 1


@pytest.mark.parametrize(
    "fields", [{"types": ("topic.trim",)}, {"user": "d"}, {"resource": "x"}, {"unreadable": 1}]
)
def test_a_filter_leaves_events_out(story: Story, fields: dict[str, Any]) -> None:
    pause(story)
    search(story, **fields)
    assert found(story) == []
    if "unreadable" not in fields:
        search(story, PAUSED, **fields)
        assert "does not match its query" in "".join(found(story))


def test_the_order_and_the_limit_of_a_page_are_judged(story: Story) -> None:
    pause(story)
    pause(story)
    search(story, PAUSED, PAUSED._replace(id=5))
    search(story, PAUSED._replace(id=5), PAUSED, limit=1, next_before=4)
    texts = found(story)
    assert "the audit events of a page are not newest first" in texts
    assert "a page of audit events has 2, and the limit is 1" in texts


def test_an_event_stays_and_never_changes(story: Story) -> None:
    login = AuditRow(9, "auth.success", "d", "flymq", "d", "success")
    search(story, login)
    search(story)
    assert found(story) == [f"audit event {login} is missing in a later answer"]
    search(story, login._replace(user="e"))
    assert any("has become" in text for text in found(story))


def test_clocks_far_ahead_rot_and_losses_are_not_judged(story: Story) -> None:
    pause(story)
    search(story)
    story.history.clock_steps = [ClockStep(0, 81 * DAY_US)]
    assert found(story) == []
    story.history.clock_steps = []
    story.history.boots[0].damages = ("a frame",)
    assert found(story) == []
    story.history.boots[0].damages = ()
    story.history.rotted = True
    assert found(story) == []
    story.history.rotted = False
    assert len(found(story)) == 1


def test_brokers_keep_the_promise() -> None:
    """Operators and the auditor search. Each kind of change is among the events."""
    results = [run(generate(seed)) for seed in (1, 4, 6)]
    assert [result.violations for result in results] == [[], [], []]
    operations = [operation for result in results for operation in result.history.operations]
    searches = [o for o in operations if isinstance(o, AuditSearch)]
    assert {o.client for o in searches} > {"auditor"}
    assert all(o.answered_us != NEVER for o in searches if o.client == "auditor")
    users = {row.user for o in searches for row in o.rows if row.format == "admin"}
    assert users > {"registrar", "auditor"}
