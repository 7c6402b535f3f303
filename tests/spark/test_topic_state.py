"""Which topics there are, by what the broker wrote and what the journal says since."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.bounds import Bounds, PartitionBounds, TopicBounds
from brokerd.archive.contract.topic_names import TopicNames
from brokerd.archive.journal.topics import TopicChange
from brokerd.errors import BrokerdError, NewerFormat, UnknownTopic
from brokerd.spark.plan.predicate import INT64_MAX, Interval
from brokerd.spark.plan.topic_state import TopicState

EVERY = Interval(0)


def _state() -> TopicState:
    topics = [
        TopicBounds(1, "one", 0, False, [PartitionBounds(0, 0, 9), PartitionBounds(4, 0, 9)]),
        TopicBounds(2, "__brokerd.1", 1, False, [PartitionBounds(0, 0, 9)]),
        TopicBounds(4, "__brokerd.audit", 0, False, [PartitionBounds(0, 0, 9)]),
    ]
    return TopicState(Bounds("0" * 32, 100, 0, True, 5, topics))


def _change(topic_id: int, op: str, partition: int = 0, **fields: object) -> TopicChange:
    return TopicChange(200, topic_id, partition, {"op": op, **fields})


def test_all_topics_are_those_with_names_that_are_not_the_brokers_own() -> None:
    state = _state()
    assert state.select(TopicNames(None), True) == (1,)
    assert state.select(TopicNames(["*"]), True) == (1, 4)
    assert state.select(TopicNames(["__brokerd.audit"]), True) == (4,)


def test_a_name_that_no_topic_has_is_an_error_unless_it_may_come_later() -> None:
    state = _state()
    with pytest.raises(UnknownTopic, match="there is no topic 'One'; there is 'one' and 1 more"):
        state.select(TopicNames(["One"]), True)
    with pytest.raises(UnknownTopic, match=r"no topic '__brokerd\.1'"):
        state.select(TopicNames(["__brokerd.1"]), True)
    assert state.select(TopicNames(["One", "o*"]), False) == (1,)
    assert state.select(TopicNames(["none*"]), True) == ()


def test_offsets_of_what_is_not_there_are_an_error() -> None:
    state = _state()
    state.apply([_change(5, "created", name="five", partitions=2)])
    state.check_offsets("from", {"one": {0: 7, 1: 99}, "five": {1: 0}, "__brokerd.audit": {0: 1}})
    with pytest.raises(UnknownTopic, match="from: there is no topic 'One'; there is 'one' and 2"):
        state.check_offsets("from", {"One": {0: 7}})
    with pytest.raises(UnknownTopic, match="to: the topic 'five' has partitions 0 to 1, not 2"):
        state.check_offsets("to", {"five": {2: 7}})


def test_topics_come_and_go_as_the_journal_says() -> None:
    state = _state()
    state.apply([_change(5, "created", name="five", partitions=1)])
    assert state.select(TopicNames(None), True) == (1, 5)
    state.apply([_change(1, "deleted", token_base=0)])
    assert state.select(TopicNames(None), True) == (5,)
    assert set(state.topics) == {4, 5}, "what serves a topic goes with it"


def test_what_is_deleted_does_not_come_back() -> None:
    state = _state()
    state.apply([_change(3, "created", name="three", partitions=1)])
    state.apply([_change(6, "created", name="six", partitions=1, internal_of=3)])
    assert set(state.topics) == {1, 2, 4}
    assert state.next_topic_id == 7


def test_start_offsets_only_grow() -> None:
    state = _state()
    state.apply([_change(1, "start", 1, offset=2), _change(1, "start", 0, offset=3)])
    state.apply([_change(1, "archived", 0, offset=9), _change(1, "configured", settings={})])
    offsets = state.partition_offsets([1], EVERY, {}, {})
    assert offsets == {(1, 1): (4, INT64_MAX), (1, 0): (3, INT64_MAX)}


def test_offsets_that_are_asked_for_meet_those_that_are_there() -> None:
    state = _state()
    offsets = state.partition_offsets(
        [1, 4], Interval(2, 8), {"one": {0: 5, 1: 1}, "no": {0: 1}}, {"one": {0: 6}}
    )
    assert offsets == {(1, 0): (5, 6), (1, 1): (4, 8)}


def test_records_of_a_topic_that_nothing_names_are_an_error() -> None:
    with pytest.raises(BrokerdError, match="the name of topic id 9 is unknown"):
        _state().name_of(9)


def test_what_a_newer_broker_says_is_refused() -> None:
    with pytest.raises(NewerFormat, match="topic operation 'renamed'"):
        _state().apply([_change(1, "renamed")])
