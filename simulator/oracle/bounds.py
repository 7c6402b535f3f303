# Tests: tests/simulator/test_oracle_archive.py
"""Check the bounds that release records to the rollup: promise 5.

A bound is captured before it can be read, and after the previous bound could be read. So a group
counts only if it had leased something by then. Any change of the group until the bound can be read
excuses it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise

from simulator.history.offsets import Commit, ResetOffset
from simulator.history.operations import DeleteGroup, DeleteTopic, History, Published, Purge, Seek
from simulator.oracle.groups.group_partitions import GroupPartition
from simulator.oracle.records.records import Record, Records
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives
from simulator.oracle.violation import Violation, violation

MOVES = Seek, DeleteGroup, Purge
"""Changes after which a group may have nothing to do with records that it did not settle."""


def check_bounds(
    history: History,
    lives: Lives,
    records: Records,
    removal: Removal,
    group_partitions: dict[tuple[str, str], GroupPartition],
) -> Iterator[Violation]:
    """P5: check that below a bound every record is settled or removed in every group."""
    if records.damaged or lives.any_loss or not history.published:
        return
    published: dict[tuple[str, int], list[Published]] = defaultdict(list)
    for one in history.published:
        published[one.topic, one.partition].append(one)
    deleted = {op.topic for op in history.operations if isinstance(op, DeleteTopic)}
    committing = {
        (op.topic, op.group)
        for op in history.operations
        if isinstance(op, Commit | ResetOffset) and not op.error
    }
    for (topic, group), group_partition in group_partitions.items():
        if topic in deleted or (topic, group) in committing or not group_partition.acquires:
            continue
        if any(isinstance(change, MOVES) for change in group_partition.changes):
            continue
        there_us = min(
            (op.answered_us for op in group_partition.acquires if op.succeeded and op.deliveries),
            default=EVER_US,
        )
        for (of, partition), bounds in published.items():
            if of == topic:
                yield from _check_group_partition(
                    records, removal, group_partition, partition, there_us, bounds
                )


def _check_group_partition(
    records: Records,
    removal: Removal,
    group_partition: GroupPartition,
    partition: int,
    there_us: int,
    bounds: list[Published],
) -> Iterator[Violation]:
    of_partition = sorted(
        (
            record
            for record in records.of_topic[group_partition.topic]
            if record.place.partition == partition
        ),
        key=lambda record: record.place.offset,
    )
    offsets = [record.place.offset for record in of_partition]
    over_us = list(
        accumulate((_over_us(removal, group_partition, one) for one in of_partition), max)
    )
    for before, bound in pairwise(bounds):
        below = bisect_left(offsets, bound.below)
        if not below or there_us >= before.at_us or over_us[below - 1] < bound.at_us:
            continue
        record = of_partition[bisect_left(over_us, bound.at_us)]
        text = (
            f"records of {group_partition.topic}/{partition} below {bound.below} may go at "
            f"{bound.at_us}, and "
            f"{group_partition.group} has not settled {record.name}"
        )
        yield violation("P5-bound", text, record.sent.produce)
        return


def _over_us(removal: Removal, group_partition: GroupPartition, record: Record) -> int:
    """Return the first moment at which the group may be done with a record; EVER_US for never."""
    settles = [
        op.sent_us
        for op, settlement, _ in group_partition.attempts.get(record.place, ())
        if settlement.success
    ]
    gone = removal.removed(record)[0], removal.expires(record).first_us
    return min(*settles, *gone, EVER_US)
