"""Reads by offset, committed offsets and lists of topics: stories for the oracle's checks.

`tests/simulator/test_oracle.py` tells each story twice. Payloads are single bytes that are what
they are as values too.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    Reading,
    ResetOffset,
)
from simulator.history.operations import (
    Boot,
    ConfigureTopic,
    DeleteGroup,
    DeleteTopic,
    Message,
    Place,
    Seek,
    TopicRules,
    Trim,
)
from simulator.oracle import check
from simulator.oracle.records.reads import passes
from tests.simulator.story import SECOND_US, Story
from tests.simulator.tales import Tales

TALES = Tales()
breaks = TALES.breaks


def read(story: Story, *shown: tuple[int, bytes] | Reading, offset: int = 0, **fields: Any) -> Read:
    """Reads partition 0; each record as (offset, value) or whole."""
    readings = tuple(r if isinstance(r, Reading) else Reading(Place(0, r[0]), r[1]) for r in shown)
    asked = {"partition": 0, "offset": offset, "limit": 10, **fields}
    operation: Read = story.change(Read, readings=readings, **asked)
    return operation


def commit(story: Story, offset: int, **fields: Any) -> Commit:
    operation: Commit = story.change(Commit, group="g", partition=0, offset=offset, **fields)
    return operation


def committed(story: Story, offset: int | None, **fields: Any) -> Committed:
    operation: Committed = story.change(Committed, group="g", partition=0, offset=offset, **fields)
    return operation


# -- the reference's group rules -----------------------------------------------------------------


@breaks("P2-read")
def a_fetch_of_a_group_without_a_commit_by_the_reference(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    shown = ((0, b"a"),) if wrong else ()
    read(story, *shown, group="g", by_reference=True, next=len(shown))


@breaks("P2-read")
def a_fetch_of_a_group_begins_at_its_commit_by_the_reference(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    commit(story, 1 if wrong else 0)
    read(story, (0, b"a"), (1, b"b"), group="g", by_reference=True, offset=1, next=2)


@breaks("P1-committed")
def a_commit_that_the_reference_keeps_in_memory(story: Story, wrong: bool) -> None:
    commit(story, 7, is_kept=wrong)
    story.restart("power")
    committed(story, None)


@breaks("P1-committed")
def an_answer_that_tells_a_commit_in_memory(story: Story, wrong: bool) -> None:
    commit(story, 7, is_kept=wrong)
    committed(story, 7)
    story.restart("power")
    committed(story, None)


@breaks("P1-committed")
def an_answer_that_tells_another_commit_than_the_one_in_memory(story: Story, wrong: bool) -> None:
    commit(story, 7, is_kept=False)
    if wrong:
        commit(story, 8)
        committed(story, 8)
    story.restart("power")
    committed(story, None)


# -- reads -----------------------------------------------------------------------------------------


@breaks("P1-read")
def a_record_left_out_of_an_answer(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", b"c", at=(0, 1, 2))
    read(story, (0, b"a"), *(() if wrong else ((1, b"b"),)), (2, b"c"))


@breaks("P1-read")
def an_empty_answer_where_there_is_something(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, offset=1 if wrong else 2, next=2)


@breaks("P1-read")
def an_acknowledged_record_that_a_crash_took_from_readers(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.restart("power")
    read(story, *(() if wrong else ((0, b"a"),)))


@breaks("P1-read")
def a_next_offset_that_passes_over_a_record(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, (0, b"a"), next=2 if wrong else 1)


@breaks("P1-read")
def a_record_that_the_connection_itself_has_written(story: Story, wrong: bool) -> None:
    first = story.produce(b"a", connection=0)
    late = {"arrived_us": first.arrived_us, "sent_us": first.sent_us}
    read(story, *(() if wrong else ((0, b"a"),)), connection=0, **late)


@breaks("P1-read")
def the_one_record_that_was_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, *(() if wrong else ((0, b"a"),)), limit=1, exact=True)


@breaks("P1-read")
def a_record_that_matches_a_filter(story: Story, wrong: bool) -> None:
    story.produce(b"apple", b"pear", b"plum", at=(0, 1, 2))
    shown = [(0, b"apple")] if wrong else [(0, b"apple"), (1, b"pear")]
    read(story, *shown, pattern="p[ep]", next=3)


@breaks("P1-read")
def a_gap_where_nothing_was_removed(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    if not wrong:
        story.change(Trim, partition=0, offset=1, start=1)
    read(story, next=1, stops_at_gaps=True)


@breaks("P2-read")
def more_records_than_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, (0, b"a"), (1, b"b"), limit=1 if wrong else 2)


@breaks("P2-read")
def more_bytes_than_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"abc", b"def", at=(0, 1))
    read(story, (0, b"abc"), *(((1, b"def"),) if wrong else ()), limit_bytes=5)


@breaks("P2-read")
def records_out_of_order(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    shown = [(0, b"a"), (1, b"b")]
    read(story, *(reversed(shown) if wrong else shown))


@breaks("P2-read")
def a_record_below_where_it_was_asked_to_begin(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, *(((0, b"a"),) if wrong else ()), (1, b"b"), offset=1)


@breaks("P2-read")
def a_record_that_does_not_match_the_filter(story: Story, wrong: bool) -> None:
    story.produce(b"apple", b"plum", at=(0, 1))
    read(story, (0, b"apple"), *(((1, b"plum"),) if wrong else ()), pattern="APP", next=2)


@breaks("P2-read")
def another_record_than_the_one_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, (1, b"b"), offset=0 if wrong else 1, limit=1, exact=True)


@breaks("P2-read")
def a_next_offset_that_shows_the_same_again(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    read(story, (0, b"a"), next=0 if wrong else 1)


@breaks("P2-content")
def a_value_that_nobody_sent(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    read(story, (0, b"x" if wrong else b"a"))


@breaks("P2-once")
def a_value_at_another_place(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, (0, b"b" if wrong else b"a"), (1, b"b"))


@breaks("P8-produce")
def a_refused_value_that_is_read(story: Story, wrong: bool) -> None:
    story.produce(b"a", places=(), error="no room" if wrong else "")
    if not wrong:
        story.history.operations.clear()
        story.produce(b"a")
    read(story, (0, b"a"))


@breaks("P1-content")
def a_key_that_a_reader_is_not_told(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", key=b"k"))
    read(story, Reading(Place(0, 0), b"a", None if wrong else b"k", tells_key=True))


@breaks("P1-content")
def a_producers_time_that_changed(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", timestamp=7))
    read(story, Reading(Place(0, 0), b"a", timestamp=8 if wrong else 7))


@breaks("P1-kept")
def a_record_that_was_read_before_it_was_durable(story: Story, wrong: bool) -> None:
    story.produce(b"a", **story.no_answer())
    read(story, *(((0, b"a"),) if wrong else ()))
    story.restart("power")
    story.audit(drain=())
    story.history.operations[-2].topic = "t"  # type: ignore[attr-defined]


@breaks("P1-kept")
def an_acknowledgement_that_tells_no_place(story: Story, wrong: bool) -> None:
    story.produce(b"a", places=(None,), is_silent=True)
    story.restart("power")
    story.audit(*(() if wrong else ((0, b"a"),)), drain=() if wrong else ((0, b"a"),))


@breaks("P2-start")
def a_record_read_below_the_start(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.change(Trim, partition=0, offset=1, start=1)
    read(story, *(((0, b"a"),) if wrong else ()), (1, b"b"))


@breaks("P5-removed")
def a_start_that_was_told_and_that_nobody_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    if not wrong:
        story.change(Trim, partition=0, offset=1, start=1)
    story.change(Position, group="g", partition=0, mode="earliest", offset=1)


# -- committed offsets -----------------------------------------------------------------------------


@breaks("P1-committed")
def a_commit_that_is_forgotten(story: Story, wrong: bool) -> None:
    commit(story, 5)
    story.restart("power")
    committed(story, None if wrong else 5)


@breaks("P1-committed")
def a_commit_that_goes_back_after_a_crash(story: Story, wrong: bool) -> None:
    commit(story, 5)
    commit(story, 7)
    story.restart()
    committed(story, 5 if wrong else 7)


@breaks("P1-committed")
def a_commit_that_is_told_otherwise(story: Story, wrong: bool) -> None:
    commit(story, 5)
    committed(story, 6 if wrong else 5)


@breaks("P1-committed")
def a_commit_that_nobody_made(story: Story, wrong: bool) -> None:
    committed(story, 3 if wrong else 0, told_as_zero=True)


@breaks("P1-committed")
def a_commit_that_was_told_and_not_durable(story: Story, wrong: bool) -> None:
    commit(story, 5, **story.no_answer())
    committed(story, 5)
    story.restart("power")
    committed(story, None if wrong else 5)


@breaks("P1-committed")
def a_reset_that_is_forgotten(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.change(ResetOffset, group="g", partition=0, to="latest")
    story.restart("power")
    committed(story, 0 if wrong else 2, told_as_zero=True)


@breaks("P1-committed")
def a_commit_that_outlives_its_group(story: Story, wrong: bool) -> None:
    commit(story, 5)
    story.change(DeleteGroup)
    committed(story, 5 if wrong else None)


@breaks("P1-committed")
def a_seek_that_leaves_a_commit_where_it_was(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    commit(story, 1)
    story.change(Seek, to="end")
    story.restart("power")
    committed(story, 1 if wrong else 2)


@breaks("P1-committed")
def a_seek_that_makes_a_commit(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.change(Seek, to=1)
    committed(story, 1 if wrong else None)
    commit(story, 1)
    committed(story, 1)


@breaks("P1-committed")
def a_seek_of_another_partition_that_moves_a_commit(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    commit(story, 1)
    story.change(Seek, to="end", partition=1)
    committed(story, 2 if wrong else 1)


@breaks("P1-committed")
def a_reader_who_begins_elsewhere_than_its_group(story: Story, wrong: bool) -> None:
    commit(story, 5)
    story.change(Position, group="g", partition=0, mode="commit", offset=4 if wrong else 5)


@breaks("P2-read")
def a_fetch_that_begins_before_the_commit_of_its_group(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    commit(story, 1)
    read(story, *(((0, b"a"),) if wrong else ()), (1, b"b"), group="g")


@breaks("P1-read")
def a_fetch_of_a_group_without_a_commit(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    read(story, *(() if wrong else ((0, b"a"),)), (1, b"b"), group="g")


@breaks("P3-sums")
def a_lag_that_does_not_add_up(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    commit(story, 1)
    committed(story, 1, latest=2, lag=2 if wrong else 1)


@breaks("P2-next")
def an_end_below_what_was_acknowledged(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    committed(story, 0, told_as_zero=True, latest=1 if wrong else 2, lag=1 if wrong else 2)


@breaks("P2-next")
def an_end_beyond_what_was_sent(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.change(Position, group="", partition=0, mode="latest", offset=3 if wrong else 2)


# -- topics ----------------------------------------------------------------------------------------


def listed(story: Story, *names: str) -> ListTopics:
    operation = ListTopics(
        **{
            key: value
            for key, value in story.change(Read, partition=0, offset=0).__dict__.items()
            if key not in Read.__annotations__
        },
        topics=tuple((name, None) for name in names),
    )
    story.history.operations[-1] = operation
    return operation


@breaks("P1-topic")
def a_topic_that_a_crash_took(story: Story, wrong: bool) -> None:
    story.change(CreateTopic, topic="own", partitions=1)
    story.restart("power")
    listed(story, *(() if wrong else ("own",)))


@breaks("P1-topic")
def a_topic_that_comes_back(story: Story, wrong: bool) -> None:
    story.change(CreateTopic, topic="own", partitions=1)
    story.change(DeleteTopic, topic="own")
    story.restart("power")
    listed(story, *(("own",) if wrong else ()))


# -- where the oracle must be silent ---------------------------------------------------------------


def test_what_retention_may_have_taken_need_not_be_read() -> None:
    story = Story()
    story.change(ConfigureTopic, rules=TopicRules(retention_us=SECOND_US))
    story.produce(b"a")
    story.wait(2 * SECOND_US)
    read(story)
    assert check(story.history) == []


def test_a_record_may_be_missed_that_was_not_acknowledged_when_the_read_came() -> None:
    story = Story()
    asked_us = story.now_us
    read(story)
    story.produce(b"a", sent_us=asked_us, arrived_us=asked_us + 5)
    assert check(story.history) == []


def test_a_record_may_be_missed_whose_connection_ended_before_it_was_durable() -> None:
    """The disk was stuck: the broker had the record in memory, and a later read shows it."""
    story = Story()
    story.produce(b"a", **story.no_answer() | {"lost_us": story.now_us + 50})
    story.wait(SECOND_US)
    read(story)
    story.wait(SECOND_US)
    read(story, (0, b"a"))
    assert check(story.history) == []
    read(story)
    assert [found.promise for found in check(story.history)] == ["P1-read"]


def test_what_an_unanswered_request_committed_may_be_told_or_not() -> None:
    for told in (None, 5):
        story = Story()
        commit(story, 5, **story.no_answer())
        story.restart("power")
        committed(story, told)
        assert check(story.history) == []


def test_an_empty_value_is_that_of_a_message_that_was_due_and_not_of_a_later_one() -> None:
    """Empty text and empty bytes are different payloads, and one value."""
    story = Story()
    story.schedule(b"\xc4\x00", SECOND_US)
    story.acquire()
    story.wait(2 * SECOND_US)
    read(story, (0, b""))
    story.change(Trim, partition=0, offset=1, start=1)
    story.acquire()
    story.schedule(b"\xa0", SECOND_US, number=1)
    story.wait(2 * SECOND_US)
    story.audit((1, b"\xa0"), drain=[(1, b"\xa0")])
    assert check(story.history) == []


@pytest.mark.parametrize(("ttl_us", "found"), [(SECOND_US, []), (None, ["P1-kept"])])
@pytest.mark.parametrize("payloads", [(b"\xa0", b"\xc4\x00"), (b"\xc4\x00", b"\xa0")])
def test_a_record_of_which_only_the_value_was_seen_may_be_any_message_with_it(
    payloads: tuple[bytes, ...], ttl_us: int | None, found: list[str]
) -> None:
    """Here an unanswered message expires, and the answer to the other one gives no place."""
    story = Story()
    for payload in payloads:
        if payload == b"\xa0":
            story.produce(Message(payload, ttl_us=ttl_us), **story.no_answer())
        else:
            story.produce(payload, places=(None,), is_silent=True)
    read(story, (0, b""))
    story.wait(2 * SECOND_US)
    story.audit((1, b"\xc4\x00"), drain=[(1, b"\xc4\x00")])
    promises = [each.promise for each in check(story.history)]
    assert promises[: len(found)] == found
    assert bool(promises) == bool(found)


def test_text_is_read_as_its_bytes() -> None:
    story = Story()
    story.produce(b"\xa3abc")
    read(story, (0, b"abc"))
    assert check(story.history) == []


def test_without_fsync_a_read_after_a_power_loss_may_miss_the_last_records() -> None:
    story = Story(durability="os")
    story.produce(b"a")
    boot: Boot = story.history.boots[-1]
    story.restart("power", power_lost=True)
    read(story)
    assert boot.power_lost
    assert check(story.history) == []


@pytest.mark.parametrize(
    ("pattern", "key", "value", "is_shown"),
    [
        ("", None, b"a", True),
        ("BC", None, b"abcd", True),
        ("k1", b"K12", b"", True),
        ("a.c", None, b"xabcx", True),
        ("A.C", None, b"xabcx", False),
        ("(", None, b"ab", False),
        ("(", None, b"a(b", True),
        ("$.a.b", None, b'{"a": {"b": null}}', True),
        ("$.a.c", None, b'{"a": {"b": null}}', False),
        ("$.a.c", None, b'{"a": "$.a.C"}', True),
        ("$.a.b", None, b"{nonsense", False),
    ],
)
def test_a_filter_lets_pass_what_the_page_says(
    pattern: str, key: bytes | None, value: bytes, is_shown: bool
) -> None:
    assert passes(pattern, key, value) == is_shown
