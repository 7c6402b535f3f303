# Tests: tests/simulator/test_oracle_changes.py
"""Check order by key and pauses: promise 3."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulator.history.operations import (
    NEVER,
    Acquire,
    Configure,
    DeleteGroup,
    GroupRules,
    Operation,
    Pause,
    Resume,
    Seek,
)
from simulator.oracle.groups.group_changes import rules_after
from simulator.oracle.groups.group_partitions import GroupPartition
from simulator.oracle.records.records import Record, Records, Sight
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, possible
from simulator.oracle.violation import Violation, violation


def check_pauses(lives: Lives, group_partition: GroupPartition) -> Iterator[Violation]:
    """P3: check that a paused group gives out nothing until it is resumed."""
    if lives.any_loss:
        return
    for pause in group_partition.changes:
        if not isinstance(pause, Pause) or not pause.succeeded:
            continue
        begun = lives.span(pause)
        ends = [
            lives.span(op).first_us
            for op in group_partition.changes
            if isinstance(op, Resume | DeleteGroup) and not lives.span(op).is_before(begun)
        ]
        paused = Span(begun.last_us, min(ends, default=EVER_US))
        for acquire in group_partition.acquires:
            span = lives.span(acquire)
            if not acquire.deliveries or not acquire.succeeded:
                continue
            if paused.first_us < span.first_us and span.last_us < paused.last_us:
                text = (
                    f"group {group_partition.group} of {group_partition.topic} is paused "
                    f"and was given records"
                )
                yield violation("P3-paused", text, pause, acquire)


def check_key_order(
    begin: GroupRules,
    lives: Lives,
    records: Records,
    removal: Removal,
    group_partition: GroupPartition,
) -> Iterator[Violation]:
    """P3: check that a leased or returned record blocks later records of its key.

    A record blocks its key from its first lease until a request that may have ended it.
    """
    if not any(
        isinstance(op, Configure) and op.rules.key_ordered for op in group_partition.changes
    ):
        return
    if lives.any_loss or records.damaged:
        return
    yield from _KeyOrder(begin, lives, records, removal, group_partition).check()


class _KeyOrder:
    def __init__(
        self,
        begin: GroupRules,
        lives: Lives,
        records: Records,
        removal: Removal,
        group_partition: GroupPartition,
    ) -> None:
        self._begin = begin
        self._lives = lives
        self._records = records
        self._removal = removal
        self._group_partition = group_partition
        self._rules = [
            (lives.span(op), op.answered_us != NEVER, rules_after(op, begin))
            for op in group_partition.changes
            if isinstance(op, Configure | DeleteGroup)
        ]

    def check(self) -> Iterator[Violation]:
        for same in self._by_key().values():
            for index, record in enumerate(same):
                later = [sight for other in same[index + 1 :] for sight in self._sights(other)]
                if later:
                    yield from self._check(record, later)

    def _by_key(self) -> dict[tuple[int, bytes], list[Record]]:
        """Return the delivered records by partition and key, in order of offsets."""
        keys: dict[tuple[int, bytes], list[Record]] = defaultdict(list)
        for place in sorted(self._group_partition.sights):
            for record in self._records.by_place.get((self._group_partition.topic, place), ())[-1:]:
                key = record.sent.message.key
                if key is not None and self._records.is_known(record):
                    keys[place.partition, key].append(record)
        return keys

    def _sights(self, record: Record) -> list[Sight[Acquire]]:
        return self._group_partition.sights.get(record.place, [])

    def _check(self, record: Record, later: list[Sight[Acquire]]) -> Iterator[Violation]:
        for mine in self._sights(record):
            begun = self._lives.span(mine.acquire)
            end_us = self._may_end_us(record, begun)
            for sight in later:
                span = self._lives.span(sight.acquire)
                if span.is_before(begun) or not span.last_us < end_us:
                    continue
                if self._may_reopen_between(span, begun):
                    continue
                first_us = min(begun.first_us, span.first_us)
                if self._is_ordered(Span(first_us, max(begun.last_us, span.last_us))):
                    text = (
                        f"group {self._group_partition.group} was given "
                        f"{sight.delivery.place.offset} while "
                        f"{record.name}, of the same key, was open"
                    )
                    yield violation("P3-key-order", text, mine.acquire, sight.acquire)
                    return

    def _may_reopen_between(self, span: Span, begun: Span) -> bool:
        """Return whether a seek or a deletion after ``span`` may have reopened the record.

        A long poll may begin before both and get the record after both.
        """
        if begun.is_before(span):
            return False
        seeks = [
            self._lives.span(op)
            for op in self._group_partition.changes
            if isinstance(op, Seek | DeleteGroup)
        ]
        return any(not seek.is_before(span) and not begun.is_before(seek) for seek in seeks)

    def _is_ordered(self, during: Span) -> bool:
        return all(rules.key_ordered for rules in possible(self._begin, self._rules, during))

    def _may_end_us(self, record: Record, begun: Span) -> int:
        """Return the first moment at which the key may be free again."""
        operations: list[Operation] = [
            op
            for op, settlement, result in self._group_partition.attempts.get(record.place, ())
            if (settlement.success or settlement.dead) and not result
        ]
        operations += [
            op
            for op in self._group_partition.changes
            if isinstance(op, Seek | DeleteGroup | Configure)
        ]
        spans = [self._lives.span(op) for op in operations]
        moments = [span.first_us for span in spans if not span.is_before(begun)]
        moments.append(self._removal.removed(record)[0])
        moments.append(self._removal.expires(record).first_us)
        return min([*moments, self._may_die_us(record)])

    def _may_die_us(self, record: Record) -> int:
        """Return the first moment at which the record may have become a dead letter."""
        fewest = min(
            rules.max_attempts for rules in possible(self._begin, self._rules, Span(-1, EVER_US))
        )
        attempts: list[Operation] = [
            op
            for op, settlement, result in self._group_partition.attempts.get(record.place, ())
            if not settlement.success and not result
        ]
        if any(
            rules.counts_grants for rules in possible(self._begin, self._rules, Span(-1, EVER_US))
        ):
            attempts += [sight.acquire for sight in self._sights(record)]
            attempts += self._group_partition.unanswered
        moments = sorted(self._lives.span(op).first_us for op in attempts)
        return moments[fewest - 1] if len(moments) >= fewest else EVER_US
