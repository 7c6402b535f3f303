# Tests: tests/spark/test_predicate.py
"""Which records a query wants, as far as files, batches and rows can be told apart by it.

Everything here is about whole columns; Python runs a step for each run of rows of one partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brokerd.values import RESERVED_PREFIX

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Key = tuple[int, int]
"""(topic id, partition)"""

LEAST = -(1 << 63)
MOST = (1 << 63) - 1


class Within(NamedTuple):
    """Numbers from ``first`` to ``end``, exclusive."""

    first: int = LEAST
    end: int = MOST

    def has_some(self, smallest: int, largest: int) -> bool:
        """Whether any number from the one to the other, inclusive, may be within."""
        return smallest < self.end and self.first <= largest

    def has_all(self, smallest: int, largest: int) -> bool:
        """Whether all numbers from the one to the other, inclusive, are."""
        return self.first <= smallest and largest < self.end

    def mask(self, numbers: Integers) -> Mask:
        """Which of some numbers are."""
        return (numbers >= self.first) & (numbers < self.end)

    def and_within(self, other: Within) -> Within:
        """Both."""
        return Within(max(self.first, other.first), min(self.end, other.end))


ALL = Within()


class Names:
    """Names of topics, or patterns with ``*``; None: all names but those of the broker's own."""

    def __init__(self, names: Iterable[str] | None) -> None:
        self._names = None if names is None else tuple(names)
        self._exact = frozenset(self.exact())
        self._patterns = [name.split("*") for name in self._names or () if "*" in name]

    def __reduce__(self) -> tuple[type[Names], tuple[tuple[str, ...] | None]]:
        return Names, (self._names,)

    def has(self, name: str) -> bool:
        """Whether a topic of this name is one of them."""
        if self._names is None:
            return not name.startswith(RESERVED_PREFIX)
        return name in self._exact or any(_fits(name, pieces) for pieces in self._patterns)

    def exact(self) -> tuple[str, ...]:
        """Those without ``*``."""
        return tuple(name for name in self._names or () if "*" not in name)


def _fits(name: str, pieces: Sequence[str]) -> bool:
    """Whether a name is those pieces in order, two at least, with anything between them.

    Each is looked for once, where it may begin first: later pieces then have the most room.
    """
    first, *middle, last = pieces
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for piece in middle:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


class Predicate(NamedTuple):
    """Records that are wanted; goes to other processes."""

    topic_ids: tuple[int, ...]
    """In order."""
    doubtful_from: int
    """A topic with an id from here on that is not among them is judged by its name."""
    names: Names
    """Of such topics."""
    partitions: frozenset[int] | None
    offsets: Within
    """Of every partition that has no ``limits`` of its own."""
    limits: Mapping[Key, Within]
    times_us: Within
    lsns: Within
    now_us: int
    """What is expired by then is not wanted."""

    # -- Partitions ------------------------------------------------------------------------------

    def has_topic(self, topic_id: int) -> bool:
        """Whether a topic is wanted for certain."""
        at = bisect_left(self.topic_ids, topic_id)
        return at < len(self.topic_ids) and self.topic_ids[at] == topic_id

    def of(self, topic_id: int, partition: int, name: str | None = None) -> Within | None:
        """The offsets that are wanted of a partition, None: none are.

        Without a ``name`` a topic that is judged by it counts as wanted.
        """
        if not self.has_topic(topic_id) and not self._is_doubtful(topic_id, name):
            return None
        if self.partitions is not None and partition not in self.partitions:
            return None
        return self.limits.get((topic_id, partition), self.offsets)

    def _is_doubtful(self, topic_id: int, name: str | None) -> bool:
        """Whether a topic that is not known is wanted, by its name if that is given."""
        if topic_id < self.doubtful_from:
            return False
        return name is None or (not name.startswith(RESERVED_PREFIX) and self.names.has(name))

    def between(self, low: int, high: int) -> Predicate:
        """The same for topic ids from one to another, inclusive."""
        return Narrowing(self).between(low, high)

    # -- Rows ------------------------------------------------------------------------------------

    def spans(
        self, topic_id: Integers, partition: Integers, name_of: Callable[[int], str]
    ) -> tuple[Integers, Integers]:
        """For each row, from and up to which offset its partition is wanted.

        :param name_of: the name of the topic of a row.
        """
        is_new = np.ones(len(topic_id), np.bool_)
        is_new[1:] = (topic_id[1:] != topic_id[:-1]) | (partition[1:] != partition[:-1])
        heads = np.flatnonzero(is_new)
        nothing = Within(0, 0)
        found = []
        for row, topic, part in zip(
            heads.tolist(), topic_id[heads].tolist(), partition[heads].tolist(), strict=True
        ):
            name = name_of(row) if topic >= self.doubtful_from else None
            found.append(self.of(topic, part, name) or nothing)
        flat = np.fromiter(chain.from_iterable(found), np.int64, 2 * len(found))
        spans = flat.reshape(-1, 2)
        counts = np.diff(np.append(heads, len(topic_id)))
        return np.repeat(spans[:, 0], counts), np.repeat(spans[:, 1], counts)


class Narrowing:
    """Makes smaller sieves of one that may be of many topics."""

    def __init__(self, sieve: Predicate) -> None:
        self._sieve = sieve
        self._keys = sorted(sieve.limits)

    def between(self, low: int, high: int) -> Predicate:
        """The same for topic ids from one to another, inclusive."""
        ids, keys = self._sieve.topic_ids, self._keys
        first, last = bisect_left(ids, low), bisect_right(ids, high)
        some = keys[bisect_left(keys, (low, 0)) : bisect_left(keys, (high + 1, 0))]
        limits = {key: self._sieve.limits[key] for key in some}
        return self._sieve._replace(topic_ids=ids[first:last], limits=limits)
