"""What the oracle says of the archive: records that were compacted, and bounds that lie.

`tests.simulator.test_oracle` tells the stories, with all others.
"""

from __future__ import annotations

from simulator.history.operations import Compacted, DeleteGroup, Message, Published, Seek
from simulator.oracle import check
from tests.simulator.story import Story
from tests.simulator.tales import Tales

TALES = Tales()
breaks = TALES.breaks


def publish(story: Story, below: int) -> None:
    """The bounds of the topic's only partition."""
    story.wait(1_000)
    story.history.published.append(Published(story.now_us, "t", 0, below))


@breaks("P5-bound")
def a_bound_above_what_is_not_settled(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"), (1, b"b"))
    publish(story, 0)
    story.settle(0)
    publish(story, 2 if wrong else 1)


@breaks("P5-bound")
def a_bound_above_a_failure(story: Story, wrong: bool) -> None:
    story.produce(b"a", at=(0,))
    story.acquire((0, b"a"))
    publish(story, 0)
    story.settle(0, success=not wrong)
    publish(story, 1)


@breaks("P5-bound")
def a_bound_above_a_record_that_was_compacted_twice(story: Story, wrong: bool) -> None:
    """The group passes over it, then an older copy of the archive brings it back."""
    story.produce(Message(b"a", key=b"k"), Message(b"b", key=b"k"), at=(0, 1))
    if not wrong:
        story.history.compacted.append(Compacted(story.now_us, "t", 0, 0))
    story.acquire((1, b"b"))
    publish(story, 0)
    story.settle(1)
    publish(story, 2)
    story.wait(1_000)
    story.history.compacted.append(Compacted(story.now_us, "t", 0, 0))


@breaks("P1-kept")
def a_compacted_record_takes_no_other_with_it(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", key=b"k"), Message(b"b", key=b"k"), at=(0, 1))
    story.wait(1_000)
    story.history.compacted.append(Compacted(story.now_us, "t", 0, 0))
    left = [] if wrong else [(1, b"b")]
    story.audit(*left, drain=left)


def test_a_record_may_be_gone_once_it_was_compacted_and_not_before() -> None:
    """And a group that is there anyhow need not be given it."""
    story = Story()
    story.produce(Message(b"a", key=b"k"), Message(b"b", key=b"k"), at=(0, 1))
    story.audit((1, b"b"), drain=[(1, b"b")])
    assert "P1-kept" in {each.promise for each in check(story.history)}
    story = Story()
    story.produce(Message(b"a", key=b"k"), Message(b"b", key=b"k"), at=(0, 1))
    story.history.compacted.append(Compacted(story.now_us, "t", 0, 0))
    story.audit((1, b"b"), drain=[(1, b"b")])
    assert check(story.history) == []


@breaks("P5-removed")
def a_start_that_passes_more_than_was_compacted(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", key=b"k"), Message(b"b", key=b"k"), at=(0, 1))
    story.history.compacted.append(Compacted(story.now_us, "t", 0, 0))
    story.wait(1_000)
    story.describe(start=2 if wrong else 1)


def test_nothing_is_said_of_groups_that_were_moved_or_came_later() -> None:
    """What they have to do changes by other things than settles."""
    for kind, fields in ((Seek, {"to": "end"}), (DeleteGroup, {})):
        story = Story()
        story.produce(b"a", at=(0,))
        story.acquire((0, b"a"))
        publish(story, 0)
        story.change(kind, **fields)
        publish(story, 1)
        assert check(story.history) == []
    story = Story()
    story.acquire()
    story.produce(b"a", at=(0,))
    publish(story, 1)
    story.acquire((0, b"a"))
    publish(story, 1)
    assert check(story.history) == []
