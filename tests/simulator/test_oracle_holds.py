"""What the oracle says of named streams that hold back retention."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.history.operations import DeleteTopic, DropStream, Published, ReportStream, Trim
from simulator.oracle.holds import check_holds
from simulator.oracle.timeline.spans import Lives
from tests.simulator.story import Story

HOLD_US = 5_000_000


@pytest.fixture
def story() -> Story:
    story = Story()
    story.history.is_steady = True
    story.history.stream_hold_us = HOLD_US
    return story


def report(story: Story, offset: int, start: int = 0, **fields: Any) -> ReportStream:
    given = {"stream": "s", "offsets": (offset,), "holds": True, "is_held": True, **fields}
    asked = story._asked({**given, "starts": (start,)})
    operation: ReportStream = story._add(ReportStream(**asked))
    return operation


def drop(story: Story) -> None:
    asked = story._asked({"stream": "s"})
    del asked["topic"]
    story._add(DropStream(**asked))


def publish(story: Story, below: int) -> None:
    story.wait(1_000)
    story.history.published.append(Published(story.now_us, "t", 0, below))


def found(story: Story) -> list[str]:
    return [one.promise for one in check_holds(story.history, Lives(story.history))]


def test_a_start_offset_beyond_a_hold_is_a_violation(story: Story) -> None:
    report(story, 3)
    story.describe(start=3)
    assert found(story) == []
    story.describe(start=4)
    assert found(story) == ["P5-hold"]


def test_the_answer_of_another_stream_tells_it_too(story: Story) -> None:
    report(story, 3)
    report(story, 9, start=4, stream="other")
    assert found(story) == ["P5-hold"]


def test_a_report_without_positions_holds_nothing(story: Story) -> None:
    report(story, 3, offsets=())
    story.describe(start=4)
    assert found(story) == []


def test_a_bound_beyond_a_hold_is_a_violation(story: Story) -> None:
    publish(story, 9)
    report(story, 3)
    publish(story, 9)  # it may have been captured before
    publish(story, 3)
    assert found(story) == []
    publish(story, 4)
    assert found(story) == ["P5-hold"]


@pytest.mark.parametrize(
    "change", ["later report", "drop", "silence", "trim", "no hold", "was gone", "deleted topic"]
)
def test_what_excuses_a_removal(story: Story, change: str) -> None:
    report(story, 3, is_held=change != "no hold", start=5 if change == "was gone" else 0)
    if change == "later report":
        report(story, 9)
    elif change == "drop":
        drop(story)
    elif change == "silence":
        story.wait(HOLD_US)
    elif change == "trim":
        story._add(Trim(**story._asked({"partition": 0, "offset": 5}), start=5))
    elif change == "deleted topic":
        story._add(DeleteTopic(**story._asked({})))
    story.describe(start=5)
    assert found(story) == []


def test_a_small_disk_excuses_all(story: Story) -> None:
    story.history.is_steady = False
    report(story, 3)
    story.describe(start=4)
    assert found(story) == []
