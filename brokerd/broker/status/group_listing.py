# Tests: tests/broker/test_group_listing.py
"""Where groups stand, those with the largest lag first, without holding up the reactor.

With few groups the answer is of the moment. With more, a pass over all of them goes on in slices
between other work, and answers come from the last pass that ended: asking starts the next one, if
the last is old enough. So asking costs the same whatever the number of groups, and nothing is done
while nobody asks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from brokerd.broker.journal import Clock, DelayedCall
from brokerd.broker.model.state import State
from brokerd.broker.model.topics import GroupPartition

MAX_GROUPS = 1_000
"""How many (topic, group, partition) one answer describes."""

EXACT_GROUP_PARTITIONS = 250
"""Up to so many, everything is looked at when asked."""

EXACT_TOPICS = 2_000
"""The same for topics, whether they have groups or not."""

SLICE_SECONDS = 0.001
PAUSE_SECONDS = 0.005
LOOKS = 32
"""Things looked at between two looks at the clock."""

REFRESH_SECONDS = 5.0
"""Between the end of a pass and the beginning of the next."""

Row = dict[str, Any]


class Listing:
    """Describes group partitions by ``describe(group_partition)``, those with the largest
    ``lag(group_partition)`` first."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        describe: Callable[[GroupPartition], Row],
        lag: Callable[[GroupPartition], int],
    ) -> None:
        self._state = state
        self._clock = clock
        self._describe = describe
        self._lag = lag
        self._rows: list[Row] = []
        self._omitted = 0
        self._ended_at = -REFRESH_SECONDS
        self._pass: Iterator[None] | None = None
        self._call: DelayedCall | None = None

    def rows(self) -> tuple[list[Row], int]:
        """What there is to show, and how many are left out.

        With many groups, what the last pass found; nothing before the end of the first one.
        """
        if len(self._state.by_id) <= EXACT_TOPICS:
            group_partitions = list(islice(self._group_partitions(), EXACT_GROUP_PARTITIONS + 1))
            if len(group_partitions) <= EXACT_GROUP_PARTITIONS:
                group_partitions.sort(key=self._lag, reverse=True)
                return [self._describe(group_partition) for group_partition in group_partitions], 0
        if self._pass is None and self._clock.seconds() - self._ended_at >= REFRESH_SECONDS:
            self._pass = self._look_at_all()
            self._go_on_later()
        return self._rows, self._omitted

    def stop(self) -> None:
        """Give up a pass."""
        self._pass = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _group_partitions(self) -> Iterator[GroupPartition]:
        return (
            group_partition
            for group_partition in self._state.group_partitions()
            if not group_partition.group.topic.internal_of
        )

    def _go_on_later(self) -> None:
        self._call = self._clock.callLater(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._call = None
        steps = self._pass
        assert steps is not None
        until = self._clock.seconds() + SLICE_SECONDS
        while self._clock.seconds() < until:
            for _ in islice(steps, LOOKS):
                pass
            if self._pass is not steps:
                return
        self._go_on_later()

    def _look_at_all(self) -> Iterator[None]:
        """The pass: one step a group partition looked at, and one a group partition described."""
        largest: list[tuple[int, int, GroupPartition]] = []
        count = 0
        for topic in list(self._state.by_id.values()):
            yield
            for group in () if topic.internal_of else list(topic.groups.values()):
                for group_partition in group.partitions:
                    count += 1
                    entry = (self._lag(group_partition), -count, group_partition)
                    if len(largest) < MAX_GROUPS:
                        heapq.heappush(largest, entry)
                    else:
                        heapq.heappushpop(largest, entry)
                    yield
        rows = []
        for _, _, group_partition in sorted(largest, reverse=True):
            if not group_partition.group.deleted:
                rows.append(self._describe(group_partition))
            yield
        self._rows, self._omitted = rows, count - len(rows)
        self._ended_at = self._clock.seconds()
        self._pass = None
