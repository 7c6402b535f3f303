"""Which topics, partitions and offsets a query wants."""

from __future__ import annotations

import pickle
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brokerd.spark.plan.predicate import (
    INT64_MAX,
    INT64_MIN,
    UNBOUNDED,
    Interval,
    Narrower,
    Predicate,
    TopicNames,
)
from tests.spark.logs import make_predicate


def _predicate(**fields: Any) -> Predicate:
    return make_predicate(1, 5, 17, **{"names": TopicNames(["a", "b*"]), **fields})


def test_without_names_all_topics_but_the_brokers_own_are_wanted() -> None:
    assert TopicNames(None).match("orders")
    assert not TopicNames(None).match("__brokerd.audit")
    assert TopicNames(["__brokerd.audit"]).match("__brokerd.audit")


def test_a_star_stands_for_any_characters_and_nothing_else_does() -> None:
    names = TopicNames(["a*c", "x.y", "*\n*"])
    assert all(map(names.match, ["ac", "abc", "a c", "x.y", "one\ntwo"]))
    assert not any(map(names.match, ["abcd", "xzy", "", "A c"]))
    assert names.exact() == ("x.y",)
    assert not TopicNames([]).match("")


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_fits_as_one_of_the_shell_does(pattern: str, name: str) -> None:
    assert TopicNames([pattern]).match(name) == fnmatchcase(name, pattern)


def test_a_pattern_with_many_stars_is_as_quick_as_another() -> None:
    """A broker's user may name topics, and who queries them patterns."""
    names = TopicNames(["*a" * 100 + "*b"])
    assert not names.match("a" * 249)
    assert names.match("a" * 248 + "b")


def test_intervals_overlap_contain_and_intersect() -> None:
    interval = Interval(10, 20)
    assert interval.overlaps(0, 10) and interval.overlaps(19, 30) and interval.overlaps(0, 99)
    assert not interval.overlaps(0, 9) and not interval.overlaps(20, 30)
    assert (
        interval.contains(10, 19) and not interval.contains(9, 19) and not interval.contains(10, 20)
    )
    assert interval.intersect(Interval(15, 30)) == (15, 20)
    assert interval.mask(np.array([9, 10, 19, 20])).tolist() == [False, True, True, False]
    assert UNBOUNDED == (INT64_MIN, INT64_MAX)


def test_a_partition_has_its_own_limits_or_those_of_all() -> None:
    predicate = _predicate(
        offsets=Interval(3), partition_offsets={(5, 1): Interval(7, 9)}, partitions=frozenset([1])
    )
    assert predicate.offsets_of(5, 1) == (7, 9)
    assert predicate.offsets_of(17, 1) == (3, INT64_MAX)
    assert predicate.offsets_of(5, 0) is None
    assert predicate.offsets_of(6, 1) is None
    assert _predicate(partitions=frozenset()).offsets_of(5, 1) is None


def test_a_topic_that_nothing_is_known_of_is_judged_by_its_name() -> None:
    predicate = _predicate()
    assert predicate.offsets_of(100, 0) is not None
    assert predicate.offsets_of(100, 0, "bee") is not None
    assert predicate.offsets_of(100, 0, "c") is None
    assert _predicate(names=TopicNames(["*"])).offsets_of(100, 0, "__brokerd.7") is None
    assert _predicate(names=TopicNames(None)).offsets_of(99, 0, "c") is None


def test_rows_have_the_span_of_their_partition() -> None:
    predicate = _predicate(partition_offsets={(5, 1): Interval(7, 9)})
    topic_id = np.array([1, 5, 5, 5, 5, 6, 100, 101], np.int64)
    partition = np.array([0, 0, 1, 1, 2, 0, 0, 0], np.int64)
    names = ["", "", "", "", "", "", "a", "c"]
    low, high = predicate.offset_bounds(topic_id, partition, names.__getitem__)
    assert low.tolist() == [0, 0, 7, 7, 0, 0, 0, 0]
    assert high.tolist() == [INT64_MAX, INT64_MAX, 9, 9, INT64_MAX, 0, INT64_MAX, 0]


def test_a_sieve_for_some_topics_is_smaller_and_goes_to_other_processes() -> None:
    offsets = {(topic_id, 3): Interval(topic_id) for topic_id in (1, 5, 17)}
    predicate = Narrower(_predicate(partition_offsets=offsets)).of_topics(2, 16)
    assert predicate.topic_ids == (5,)
    assert predicate.partition_offsets == {(5, 3): (5, INT64_MAX)}
    both_ends = Narrower(_predicate(partition_offsets=offsets)).of_topics(5, 17)
    assert both_ends.topic_ids == (5, 17)
    assert set(both_ends.partition_offsets) == {(5, 3), (17, 3)}
    copy = pickle.loads(pickle.dumps(predicate))
    assert copy.topic_ids == (5,)
    assert copy.names.match("bee") and not copy.names.match("c")
