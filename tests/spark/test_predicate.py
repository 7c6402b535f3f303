"""Which topics, partitions and offsets a query wants."""

from __future__ import annotations

import pickle
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brokerd.spark.plan.predicate import ALL, LEAST, MOST, Names, Narrowing, Predicate, Within


def _sieve(**fields: Any) -> Predicate:
    whole = Predicate((1, 5, 17), 100, Names(["a", "b*"]), None, Within(0), {}, ALL, ALL, 0)
    return whole._replace(**fields)


def test_without_names_all_topics_but_the_brokers_own_are_wanted() -> None:
    assert Names(None).has("orders")
    assert not Names(None).has("__brokerd.audit")
    assert Names(["__brokerd.audit"]).has("__brokerd.audit")


def test_a_star_stands_for_any_characters_and_nothing_else_does() -> None:
    names = Names(["a*c", "x.y", "*\n*"])
    assert all(map(names.has, ["ac", "abc", "a c", "x.y", "one\ntwo"]))
    assert not any(map(names.has, ["abcd", "xzy", "", "A c"]))
    assert names.exact() == ("x.y",)
    assert not Names([]).has("")


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_fits_as_one_of_the_shell_does(pattern: str, name: str) -> None:
    assert Names([pattern]).has(name) == fnmatchcase(name, pattern)


def test_a_pattern_with_many_stars_is_as_quick_as_another() -> None:
    """A broker's user may name topics, and who queries them patterns."""
    names = Names(["*a" * 100 + "*b"])
    assert not names.has("a" * 249)
    assert names.has("a" * 248 + "b")


def test_ranges_tell_what_they_share_with_others() -> None:
    within = Within(10, 20)
    assert within.has_some(0, 10) and within.has_some(19, 30) and within.has_some(0, 99)
    assert not within.has_some(0, 9) and not within.has_some(20, 30)
    assert within.has_all(10, 19) and not within.has_all(9, 19) and not within.has_all(10, 20)
    assert within.and_within(Within(15, 30)) == (15, 20)
    assert within.mask(np.array([9, 10, 19, 20])).tolist() == [False, True, True, False]
    assert ALL == (LEAST, MOST)


def test_a_partition_has_its_own_limits_or_those_of_all() -> None:
    sieve = _sieve(offsets=Within(3), limits={(5, 1): Within(7, 9)}, partitions=frozenset([1]))
    assert sieve.of(5, 1) == (7, 9)
    assert sieve.of(17, 1) == (3, MOST)
    assert sieve.of(5, 0) is None
    assert sieve.of(6, 1) is None


def test_a_topic_that_nothing_is_known_of_is_judged_by_its_name() -> None:
    sieve = _sieve()
    assert sieve.of(100, 0) is not None
    assert sieve.of(100, 0, "bee") is not None
    assert sieve.of(100, 0, "c") is None
    assert _sieve(names=Names(["*"])).of(100, 0, "__brokerd.7") is None
    assert _sieve(names=Names(None)).of(99, 0, "c") is None


def test_rows_have_the_span_of_their_partition() -> None:
    sieve = _sieve(limits={(5, 1): Within(7, 9)})
    topic_id = np.array([1, 5, 5, 6, 100, 101], np.int64)
    partition = np.array([0, 1, 1, 0, 0, 0], np.int64)
    names = ["", "", "", "", "a", "c"]
    low, high = sieve.spans(topic_id, partition, names.__getitem__)
    assert low.tolist() == [0, 7, 7, 0, 0, 0]
    assert high.tolist() == [MOST, 9, 9, 0, MOST, 0]


def test_a_sieve_for_some_topics_is_smaller_and_goes_to_other_processes() -> None:
    limits = {(topic_id, 3): Within(topic_id) for topic_id in (1, 5, 17)}
    sieve = Narrowing(_sieve(limits=limits)).between(2, 16)
    assert sieve.topic_ids == (5,)
    assert sieve.limits == {(5, 3): (5, MOST)}
    copy = pickle.loads(pickle.dumps(sieve))
    assert copy.topic_ids == (5,)
    assert copy.names.has("bee") and not copy.names.has("c")
