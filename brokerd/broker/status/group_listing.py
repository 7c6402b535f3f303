# Tests: tests/broker/test_group_listing.py
"""Lists group partitions, those with the largest lag first, without blocking the reactor.

With few groups, an answer shows the current state. With more groups, a pass over all of them runs
in slices between other work, and an answer shows the result of the last complete pass. A request
starts the next pass, if the last one is old enough. So a request costs the same for any number of
groups, and without requests no pass runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from brokerd.broker.clock import Clock, Timer
from brokerd.broker.model.state import State
from brokerd.broker.model.topics import GroupPartition

MAX_GROUPS = 1_000
"""Group partitions that one answer describes."""

EXACT_GROUP_PARTITIONS = 250
"""Up to this many group partitions, an answer shows the current state."""

EXACT_TOPICS = 2_000
"""The same limit for topics, with and without groups."""

SLICE_SECONDS = 0.001
PAUSE_SECONDS = 0.005
CLOCK_INTERVAL = 32
"""Steps of a pass between two reads of the clock."""

REFRESH_SECONDS = 5.0
"""Least time between the end of a pass and the start of the next one."""

Row = dict[str, Any]


class GroupListing:
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
        self._call: Timer | None = None

    def rows(self) -> tuple[list[Row], int]:
        """Return the rows and the number of omitted group partitions.

        With many groups, the rows are those of the last pass; none before the first pass ends.
        """
        if len(self._state.by_id) <= EXACT_TOPICS:
            group_partitions = list(islice(self._group_partitions(), EXACT_GROUP_PARTITIONS + 1))
            if len(group_partitions) <= EXACT_GROUP_PARTITIONS:
                group_partitions.sort(key=self._lag, reverse=True)
                return [self._describe(group_partition) for group_partition in group_partitions], 0
        if self._pass is None and self._clock.seconds() - self._ended_at >= REFRESH_SECONDS:
            self._pass = self._run_pass()
            self._go_on_later()
        return self._rows, self._omitted

    def stop(self) -> None:
        """Abandon the current pass."""
        self._pass = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _group_partitions(self) -> Iterator[GroupPartition]:
        return (
            group_partition
            for topic in self._state.by_id.values()
            if not topic.internal_of
            for group in topic.groups.values()
            for group_partition in group.partitions
        )

    def _go_on_later(self) -> None:
        self._call = self._clock.callLater(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._call = None
        steps = self._pass
        assert steps is not None
        until = self._clock.seconds() + SLICE_SECONDS
        while True:
            for _ in islice(steps, CLOCK_INTERVAL):
                pass
            if self._pass is not steps:
                return
            if self._clock.seconds() >= until:
                break
        self._go_on_later()

    def _run_pass(self) -> Iterator[None]:
        """Run a pass: one step for each group partition read, and one for each described."""
        largest: list[tuple[int, int, GroupPartition]] = []
        count = 0
        for topic in list(self._state.by_id.values()):
            yield
            for group in () if topic.internal_of else list(topic.groups.values()):
                for group_partition in list(group.partitions):
                    count += 1
                    entry = (self._lag(group_partition), -count, group_partition)
                    if len(largest) < MAX_GROUPS:
                        heapq.heappush(largest, entry)
                    else:
                        heapq.heappushpop(largest, entry)
                    yield
        rows = []
        for _, _, group_partition in sorted(largest, reverse=True):
            group = group_partition.group
            if not group.deleted:
                # It may have got its first event since.
                current = group.kept.get(group_partition.partition.index, group_partition)
                rows.append(self._describe(current))
            yield
        self._rows, self._omitted = rows, count - len(rows)
        self._ended_at = self._clock.seconds()
        self._pass = None
