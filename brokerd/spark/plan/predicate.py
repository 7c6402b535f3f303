# Tests: tests/spark/test_predicate.py
"""The predicate of a query: the topics, partitions, offsets, times and LSNs that it reads.

It works on whole columns. Python runs one step per run of rows of one partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brokerd.archive.contract.topic_names import TopicNames
from brokerd.values import RESERVED_PREFIX

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Key = tuple[int, int]
"""(topic id, partition)"""

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


class Interval(NamedTuple):
    """The integers from ``first`` to ``end`` (exclusive)."""

    first: int = INT64_MIN
    end: int = INT64_MAX

    def overlaps(self, smallest: int, largest: int) -> bool:
        """Return whether the interval has any integer from ``smallest`` to ``largest``."""
        return smallest < self.end and self.first <= largest

    def contains(self, smallest: int, largest: int) -> bool:
        """Return whether the interval has all integers from ``smallest`` to ``largest``."""
        return self.first <= smallest and largest < self.end

    def mask(self, numbers: Integers) -> Mask:
        """Return a mask of the numbers in the interval."""
        return (numbers >= self.first) & (numbers < self.end)

    def intersect(self, other: Interval) -> Interval:
        """Return the integers in both intervals."""
        return Interval(max(self.first, other.first), min(self.end, other.end))


UNBOUNDED = Interval()


class Predicate(NamedTuple):
    """The records that a query reads. It is pickled."""

    topic_ids: tuple[int, ...]
    """The ids of selected topics, in order."""
    first_unknown_id: int
    """A topic from this id on may also be selected by its name."""
    names: TopicNames
    partitions: frozenset[int] | None
    offsets: Interval
    """Offsets of the partitions that ``partition_offsets`` lacks."""
    partition_offsets: Mapping[Key, Interval]
    times_us: Interval
    lsns: Interval
    now_us: int
    """Records that expire at this time or earlier are skipped."""
    last_unknown_id: int = INT64_MAX
    """No topic above this id is selected by its name."""

    # -- Partitions ------------------------------------------------------------------------------

    def has_topic(self, topic_id: int) -> bool:
        """Return whether a topic is selected by its id."""
        at = bisect_left(self.topic_ids, topic_id)
        return at < len(self.topic_ids) and self.topic_ids[at] == topic_id

    def offsets_of(self, topic_id: int, partition: int, name: str | None = None) -> Interval | None:
        """Return the offsets to read of a partition, or None for no offsets.

        :param name: the name. If None, a topic counts as selected if its name may match.
        """
        if not self.has_topic(topic_id) and not self._may_match(topic_id, name):
            return None
        if self.partitions is not None and partition not in self.partitions:
            return None
        return self.partition_offsets.get((topic_id, partition), self.offsets)

    def _may_match(self, topic_id: int, name: str | None) -> bool:
        """Return whether a topic's name selects it, or may do so if ``name`` is None."""
        if not self.first_unknown_id <= topic_id <= self.last_unknown_id:
            return False
        return name is None or (not name.startswith(RESERVED_PREFIX) and self.names.match(name))

    def of_topics(self, low: int, high: int) -> Predicate:
        """Return the predicate for the topic ids from ``low`` to ``high`` (inclusive)."""
        return Narrower(self).of_topics(low, high)

    # -- Rows ------------------------------------------------------------------------------------

    def offset_bounds(
        self, topic_id: Integers, partition: Integers, name_of: Callable[[int], str]
    ) -> tuple[Integers, Integers]:
        """Return, for each row, the first and the end offset to read of its partition.

        :param name_of: returns the topic name of a row.
        """
        is_new = np.ones(len(topic_id), np.bool_)
        is_new[1:] = (topic_id[1:] != topic_id[:-1]) | (partition[1:] != partition[:-1])
        heads = np.flatnonzero(is_new)
        nothing = Interval(0, 0)
        intervals = []
        for row, topic, part in zip(
            heads.tolist(), topic_id[heads].tolist(), partition[heads].tolist(), strict=True
        ):
            name = name_of(row) if topic >= self.first_unknown_id else None
            intervals.append(self.offsets_of(topic, part, name) or nothing)
        flat = np.fromiter(chain.from_iterable(intervals), np.int64, 2 * len(intervals))
        bounds = flat.reshape(-1, 2)
        counts = np.diff(np.append(heads, len(topic_id)))
        return np.repeat(bounds[:, 0], counts), np.repeat(bounds[:, 1], counts)


class Narrower:
    """Derives predicates for some topics from a predicate for many topics."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self._keys = sorted(predicate.partition_offsets)

    def of_topics(self, low: int, high: int) -> Predicate:
        """Return the predicate for the topic ids from ``low`` to ``high`` (inclusive)."""
        ids, keys = self._predicate.topic_ids, self._keys
        first, last = bisect_left(ids, low), bisect_right(ids, high)
        some = keys[bisect_left(keys, (low, 0)) : bisect_left(keys, (high + 1, 0))]
        offsets = {key: self._predicate.partition_offsets[key] for key in some}
        return self._predicate._replace(topic_ids=ids[first:last], partition_offsets=offsets)
