# Tests: tests/broker/test_removed_records.py
"""Settles removed records in the groups of their partition, in cooperative slices.

A start offset moves in one step. A group settles the records below it before its next use
(`GroupPartition.store`, ``position``), or here: 10,000 groups with live leases take a second.
Replay settles them in one step, with the same result, because no event comes between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twisted.logger import Logger

from brokerd.broker.callbacks import run_callback
from brokerd.broker.context import Context
from brokerd.broker.model.topics import Partition
from brokerd.broker.slices import SLICE_SECONDS, SliceOwner, SliceQueue


class RemovedRecords:
    """Settles the records below moved start offsets, and counts dead letters among them."""

    _log = Logger()

    def __init__(self, context: Context, slices: SliceQueue) -> None:
        self._state = context.state
        self._counters = context.counters
        self._slices = slices
        self._owner = SliceOwner()
        self._waiting: dict[Partition, None] = {}
        self._letters: dict[Partition, int] = {}
        """Dead letters of partitions in work."""
        self._steps: Iterator[None] | None = None

    def start(self) -> None:
        """Count the dead letters that groups settle from now on."""
        self._state.stores.letters_removed = self._count_letters

    def stop(self) -> None:
        """Work no more. A snapshot, or the next start, settles the others."""
        self._waiting.clear()
        self._steps = None

    def settle(self, partitions: Iterable[Partition]) -> None:
        """Settle the removed records of these partitions. The first slice runs now."""
        self._waiting.update(dict.fromkeys(partitions))
        if self._steps is None:
            self._steps = self._settle_all()
            self._run_slice()

    def _run_slice(self) -> None:
        steps, self._steps = self._steps, None
        clock = self._slices.clock
        end_seconds = clock.seconds() + SLICE_SECONDS
        for _ in steps or ():
            if clock.seconds() > end_seconds:
                self._steps = steps
                self._slices.add(self._run_slice, self._owner)
                return

    def _settle_all(self) -> Iterator[None]:
        """Yield after each group. A partition that moves meanwhile has another pass."""
        while self._waiting:
            partition = next(iter(self._waiting))
            del self._waiting[partition]
            for group in list(partition.topic.groups.values()):
                group_partition = group.kept.get(partition.index)
                if group_partition is not None:
                    run_callback(group_partition.settle_removed)  # its next use tries again
                yield
            self._tell_letters(partition)

    def _count_letters(self, partition: Partition, letters: int) -> None:
        self._counters.dead_letters_removed += letters
        self._letters[partition] = self._letters.get(partition, 0) + letters

    def _tell_letters(self, partition: Partition) -> None:
        letters = self._letters.pop(partition, 0)
        if letters:
            self._log.info(
                "{letters} dead letters of topic {topic} partition {partition} went with their "
                "records, which are removed below offset {start}",
                letters=letters,
                topic=partition.topic.name,
                partition=partition.index,
                start=partition.start_offset,
                event_id="dead-letters-removed",
            )
