# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Check the reported states of groups: promises 1, 2 and 3.

A reported state was true at one moment between request and answer. Earlier answers bound it from
below, requests until then bound it from above.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from simulator.history.operations import (
    NEVER,
    Acquire,
    Extend,
    GroupView,
    History,
    Look,
    Place,
    Produce,
)
from simulator.oracle.groups.group_partitions import Attempt, GroupPartition
from simulator.oracle.groups.lease_model import LATE_US
from simulator.oracle.records.records import Records
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, falling
from simulator.oracle.violation import Violation, violation

GROWING = ("next", "P2-next"), ("floor", "P1-settled"), ("dead", "P4-kept")
"""Numbers that never go down, and the promise. After changes of the group, only the first holds."""


class Bounds:
    """Lower and upper bounds of a count over time."""

    def __init__(self) -> None:
        self._certain: list[tuple[int, int]] = []
        self._possible: list[tuple[int, int]] = []

    def surely_ends(self, at_us: int, count: int = 1) -> None:
        """Count items for sure from that moment on."""
        self._certain.append((at_us, count))

    def may_begin(self, at_us: int, count: int = 1) -> None:
        """Count possible items from that moment on."""
        self._possible.append((at_us, count))

    def before(self, span: Span) -> int:
        """Return the lower bound over ``span``."""
        return _sum_to(self._certain, span.first_us - 1)

    def until(self, span: Span) -> int:
        """Return the upper bound over ``span``."""
        return _sum_to(self._possible, span.last_us)


class GroupViews:
    """Judge of the reported states of groups."""

    def __init__(self, history: History, lives: Lives, records: Records, removal: Removal) -> None:
        self._removal = removal
        self._rules = history.rules
        self._audit_us = history.audit_us if history.audit_us != NEVER else EVER_US
        self._lives = lives
        self._records = records
        self._produces: dict[str, list[Produce]] = defaultdict(list)
        for produce in records.produces:
            if not produce.error:
                self._produces[produce.topic].append(produce)
        self._stored = {topic: self._count_stored(topic) for topic in self._produces}

    def _count_stored(self, topic: str) -> Bounds:
        """Return the bounds of the number of records in a topic."""
        bounds = Bounds()
        for produce in self._produces[topic]:
            span = self._lives.span(produce)
            bounds.may_begin(span.first_us, len(produce.messages))
            if produce.succeeded and not self._lives.loses(produce.boot):
                placed = len(produce.messages) - produce.places.count(None)
                if produce.is_silent and produce.is_promised:
                    placed = len(produce.messages)
                bounds.surely_ends(span.last_us, placed)
        return bounds

    def check(self, group_partition: GroupPartition) -> Iterator[Violation]:
        """Return all violations in the states of one group."""
        looks = [(self._lives.span(look), look) for look in group_partition.looks if look.succeeded]
        if not looks:
            return
        settled = self._count_settled(group_partition)
        only_grows = not group_partition.alters and not self._removal.removes(group_partition.topic)
        for span, look in looks:
            if look.view is not None:
                yield from _check_sums(look, look.view)
                if not self._records.damaged:
                    yield from self._check_next(span, look, look.view)
                    if only_grows and look.view.tells_settled:
                        yield from _check_settled(settled, span, look, look.view)
        yield from self._check_growing(looks, GROWING if only_grows else GROWING[:1])
        if only_grows:
            yield from self._check_letters(group_partition, looks)

    def _check_next(self, span: Span, look: Look, view: GroupView) -> Iterator[Violation]:
        """P1, P2: check that the next offset covers acknowledged records and only sent ones."""
        stored = self._stored.get(look.topic, Bounds())
        least, most = stored.before(span), stored.until(span)
        if not least <= view.next <= most:
            text = f"{look.topic} tells {view.next} records; there were {least} to {most}"
            yield violation("P2-next", text, look)

    def _count_settled(self, group_partition: GroupPartition) -> Bounds:
        """Return the bounds of the number of settled or dead records.

        Where grants count as attempts, any lease may be the last one.
        """
        bounds = Bounds()
        dead = self._died(group_partition)
        for place in {**group_partition.attempts, **dead}:
            attempts = group_partition.attempts.get(place, ())
            spans = [self._lives.span(op) for op, _, result in attempts if not result]
            if spans:
                bounds.may_begin(min(span.first_us for span in spans))
            ends = [self._lives.span(a[0]).last_us for a in attempts if self._has_settled(a)]
            ends += dead.get(place, ())
            if ends:
                bounds.surely_ends(min(ends))
        if self._rules.counts_grants:
            for acquire in group_partition.acquires:
                count = acquire.limit if acquire.answered_us == NEVER else len(acquire.deliveries)
                bounds.may_begin(self._lives.span(acquire).first_us, count)
        return bounds

    def _died(self, group_partition: GroupPartition) -> dict[Place, list[int]]:
        """Return the latest moments at which the dead letters died."""
        died: dict[Place, list[int]] = {}
        leases_over_us = self._leases_over_us(group_partition)
        for op in group_partition.letters if not self._lives.any_loss else ():
            for letter in op.letters:
                attempts = group_partition.attempts.get(letter.place, ())
                failed = [a[0] for a in attempts if not a[2] and not a[1].success]
                over_us = [self._lives.span(failure).last_us for failure in failed]
                if self._rules.counts_grants:
                    over_us.append(leases_over_us)
                died[letter.place] = [self._lives.span(op).last_us, max(over_us, default=EVER_US)]
        return died

    def _leases_over_us(self, group_partition: GroupPartition) -> int:
        """Return when all leases were over at the latest, except those of the audit."""
        leases: list[Acquire | Extend] = [*group_partition.acquires]
        leases += [op for ops in group_partition.extends.values() for op in ops]
        leases = [op for op in leases if op.sent_us < self._audit_us]
        begun_us = [self._lives.span(op).last_us for op in leases]
        begun_us += [boot.ready_us for boot in self._lives.boots]
        longest_us = max((op.duration_us for op in leases), default=0)
        return max(begun_us) + max(longest_us, 0) + LATE_US

    def _has_settled(self, attempt: Attempt) -> bool:
        op, settlement, result = attempt
        return result == "" and settlement.success and not self._lives.loses(op.boot)

    def _check_growing(
        self, looks: list[tuple[Span, Look]], growing: Sequence[tuple[str, str]]
    ) -> Iterator[Violation]:
        """P2, P3: check that next offset, floor and number of dead records never go down."""
        for name, promise in growing:
            epochs: dict[int, list[tuple[Span, int, Look]]] = defaultdict(list)
            for span, look in looks:
                if look.view is not None:
                    value = getattr(look.view, name)
                    epochs[self._lives.epoch(look.boot)].append((span, value, look))
            for values in epochs.values():
                for (before, earlier), (after, later) in falling(values):
                    text = (
                        f"{name} of group {earlier.group} of {earlier.topic} went down from "
                        f"{before} to {after}"
                    )
                    yield violation(promise, text, earlier, later)

    def _check_letters(
        self, group_partition: GroupPartition, looks: list[tuple[Span, Look]]
    ) -> Iterator[Violation]:
        """P4: check that a group without lag reports as many dead letters as it lists."""
        for span, look in looks:
            for letters in group_partition.letters:
                view = look.view
                if view is None or view.lag or letters.boot != look.boot:
                    continue
                if not view.tells_settled:
                    continue
                if not span.is_before(self._lives.span(letters)) or self._may_grow(
                    look.topic, span
                ):
                    continue
                if view.dead != len(letters.letters):
                    text = f"tells {view.dead} dead letters, lists {len(letters.letters)}"
                    yield violation("P4-letter", text, look, letters)

    def _may_grow(self, topic: str, span: Span) -> bool:
        produces = self._produces.get(topic, ())
        return any(not self._lives.span(produce).is_before(span) for produce in produces)


def _check_settled(settled: Bounds, span: Span, look: Look, view: GroupView) -> Iterator[Violation]:
    """P1, P8: check that all settled records count, and no more than were tried."""
    count = view.next - view.lag
    name = f"group {look.group} of {look.topic}"
    if count < (least := settled.before(span)):
        yield violation("P1-settled", f"{name} tells {count} settled of {least}", look)
    if count > (most := settled.until(span)):
        text = f"{name} tells {count} settled, and {most} were tried"
        yield violation("P8-settled", text, look)


def _check_sums(look: Look, view: GroupView) -> Iterator[Violation]:
    """Check that the numbers of one state add up."""
    settled = view.next - view.lag
    sound = (
        min(view[:7]) >= 0
        and view.lag == view.leased + view.ready + view.delayed
        and max(view.floor, settled) <= view.next
    )
    if view.tells_settled:
        sound &= view.floor <= settled and view.dead <= settled
        sound &= view.lag > 0 or view.floor == view.next
    if not sound:
        yield violation("P3-sums", f"group {look.group} of {look.topic} tells {view}", look)


def _sum_to(counts: list[tuple[int, int]], last_us: int) -> int:
    return sum(count for at_us, count in counts if at_us <= last_us)
