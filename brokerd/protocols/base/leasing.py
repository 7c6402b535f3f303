# Tests: tests/protocols/test_mamamia_acquire.py, tests/protocols/test_blipmq_poll.py
"""The lease filter of formats that lease records, and dead letters of damaged records.

A record is leased only when it is in memory, so that the answer can be made at once. A record on
disk stops the acquire. The format loads it and tries again.
"""

from __future__ import annotations

from enum import Enum

from brokerd.broker import (
    GONE,
    STOP,
    TAKE,
    UNKNOWN,
    Broker,
    Chunk,
    GroupPartition,
    gone_until,
    key_hash,
)
from brokerd.broker.model.chunks import REMOVED
from brokerd.broker.records.cold_reader import Unreadable

GONE_MAX = 2_000
"""Expired records and holes that one acquire passes over in one reactor turn."""

RecordPlace = tuple[GroupPartition, int]
"""The place of a record: group partition and offset."""


class NoLease(Enum):
    """The reason why an acquire leased no record."""

    EMPTY = 1
    CUT_SHORT = 2
    """Many records were passed over, and more may follow: try again in another reactor turn."""


class BaseLeaseFilter:
    """Accepts records that are in memory and that a format's `decide` accepts.

    After an acquire, ``taken`` holds the places of the leased records in the order of the grants.
    ``cold_place``, ``too_large_place`` or ``cut_short`` says why the acquire stopped early.
    """

    group_partition: GroupPartition
    # Most acquires leave these as they are.
    cold_place: RecordPlace | None = None
    too_large_place: RecordPlace | None = None
    stopped = False
    cut_short = False
    _removal_us = -1
    """Records that expire at this broker time or before are gone; -1 until first needed."""
    _gone_left = GONE_MAX

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.taken: list[tuple[Chunk, int]] = []

    def decide(self, chunk: Chunk, index: int) -> int:
        """Decide about a record that has not expired; the result is that of `accept`."""
        raise NotImplementedError

    def accept_run(self, first: int, count: int) -> int:
        """Accept the first of ``count`` records in one step, as `LeaseFilter.accept_run` does."""
        return 0

    def key_of(self, offset: int) -> int:
        """Return the hash of the record's key. Expired records count in key order too."""
        chunk = self.group_partition.partition.find(offset)
        if chunk is None:
            self.cold_place = (self.group_partition, offset)
            self.stopped = True
            return UNKNOWN
        return key_hash(chunk.keys[offset - chunk.base])

    def accept(self, offset: int) -> int:
        """Decide about the record at ``offset``; the result is that of `LeaseFilter.accept`."""
        chunk = self.group_partition.partition.find(offset)
        if chunk is None:
            self.cold_place = (self.group_partition, offset)
            self.stopped = True
            return STOP
        index = offset - chunk.base
        if chunk.expires_at_us is not None:
            expires_at_us = chunk.expires_at_us[index]
            if expires_at_us == REMOVED:
                return self.passed_over(gone_until(chunk.hole_end(offset)))
            if self._is_expired(expires_at_us):
                return self.passed_over()
        verdict = self.decide(chunk, index)
        if verdict == TAKE:
            self.taken.append((chunk, index))
        return verdict

    def stop_at_too_large(self, chunk: Chunk, index: int) -> int:
        """Stop at a record that is too large to deliver."""
        self.too_large_place = (self.group_partition, chunk.base + index)
        self.stopped = True
        return STOP

    def passed_over(self, verdict: int = GONE) -> int:
        """Return ``verdict``, or STOP when the reactor turn has to end."""
        self._gone_left -= 1
        if self._gone_left:
            return verdict
        self.stopped = self.cut_short = True
        return STOP

    def _is_expired(self, expires_at_us: int) -> bool:
        if not expires_at_us:
            return False
        if self._removal_us < 0:
            self._removal_us = self._broker.reader.expiry.removal_us()
        return expires_at_us <= self._removal_us


def dead_letter_damaged(broker: Broker, place: RecordPlace, damage: Exception) -> None:
    """Make an unreadable record a dead letter and report the damage. Raises as `dead_letter`."""
    group_partition, offset = place
    if broker.leases.dead_letter(group_partition, offset, "damaged"):
        first, end = offset, offset + 1
        if isinstance(damage, Unreadable):
            first, end = min(first, damage.first), max(end, damage.end)
        broker.damage.dead_lettered(group_partition, first, end, str(damage))
