# Tests: tests/simulator/test_oracle_changes.py
"""Turn changes of a group or topic into events of each of its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from simulator.history.operations import (
    NEVER,
    Acquire,
    Configure,
    DeleteGroup,
    GroupChange,
    GroupRules,
    LetterChange,
    Operation,
    Pause,
    Place,
    Purge,
    Release,
    Replay,
    Resume,
    Seek,
)
from simulator.oracle.groups import group_model
from simulator.oracle.groups.lease_model import Step
from simulator.oracle.groups.lease_search import Event
from simulator.oracle.records.records import Record
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, possible


class RecordChange(NamedTuple):
    """A change of one record."""

    rules: list[GroupRules]
    """The possible settings of the group when the record was stored."""
    certain: list[Event]
    uncertain: list[Event]
    resets: bool
    """Whether its counters may have begun anew."""


class Changes:
    """All changes of one group."""

    def __init__(
        self,
        rules: GroupRules,
        lives: Lives,
        operations: Sequence[GroupChange],
        acquires: Sequence[Acquire],
        removal: Removal,
    ) -> None:
        self._begin = rules
        self._lives = lives
        self._operations = operations
        self._acquires = [lives.span(op) for op in acquires if not op.error]
        self._removal = removal
        self._rules = [
            (lives.span(op), _is_kept(lives, op), rules_after(op, rules))
            for op in operations
            if isinstance(op, Configure | DeleteGroup)
        ]
        self._resets = any(isinstance(op, Seek | Replay | DeleteGroup) for op in operations)

    def of(
        self, record: Record, owners: set[str], is_of: Callable[[Operation], bool]
    ) -> RecordChange:
        """Return the events of a record; ``owners`` may have leased it.

        ``is_of(operation)`` tells whether the record existed in the life of the operation.
        """
        stored = record.stored
        before = [change for change in self._rules if change[0].is_before(stored)]
        changed = RecordChange(possible(self._begin, before, stored), [], [], self._resets)
        for op in self._operations:
            span = self._lives.span(op)
            if span.is_before(stored) or not is_of(op):
                continue
            step = self._step(op, record, owners)
            if step is None:
                continue
            is_certain = op.answered_us != NEVER and not (
                (isinstance(op, Seek) and span.first_us <= stored.last_us)
                or (isinstance(op, Release) and op.is_partial)
                or (isinstance(op, LetterChange) and op.aged_us is not None)
            )
            events = changed.certain if is_certain else changed.uncertain
            events.append(Event(span, step, op, revives=not isinstance(op, Release)))
        self._add_removal(record, changed)
        self._add_passing(record, changed)
        return changed

    def _step(self, op: GroupChange, record: Record, owners: set[str]) -> Step | None:
        """Return the step of the record for a change; None if it has no effect."""
        place = record.place
        match op:
            case Pause() | Resume():
                return None
            case Configure():
                return partial(group_model.configure, rules=op.rules)
            case DeleteGroup():
                return partial(group_model.delete, rules=self._begin)
            case Release():
                if op.owner not in owners or place not in (op.places or (place,)):
                    return None
                return partial(group_model.release, owner=op.owner)
            case Seek():
                if op.partition not in (None, place.partition):
                    return None
                return partial(group_model.seek, is_below=_is_below(op, place))
            case LetterChange():
                return self._letter_step(op, record)
        raise TypeError(f"a change of an unknown kind: {op!r}")

    @staticmethod
    def _letter_step(op: LetterChange, record: Record) -> Step | None:
        if not op.concerns(record.place):
            return None
        steps: dict[type[LetterChange], Step] = {
            Replay: partial(group_model.replay, reason=op.reason or ""),
            Purge: partial(group_model.purge, reason=op.reason or ""),
        }
        return steps[type(op)]

    def _add_removal(self, record: Record, changed: RecordChange) -> None:
        """Add the event for the possible removal of the record."""
        may_us, told = self._removal.removed(record)
        if told is not None:
            span = Span(min(max(may_us, record.stored.first_us), told.span.last_us), EVER_US)
            changed.certain.append(
                Event(Span(span.first_us, told.span.last_us), group_model.remove, told.operation)
            )
        elif may_us < EVER_US:
            span = Span(may_us, EVER_US)
            changed.uncertain.append(Event(span, group_model.remove, revives=True))

    def _add_passing(self, record: Record, changed: RecordChange) -> None:
        """Add the events for acquires that passed over the expired record.

        One is before each seek that may open the record again, and the last one is for good.
        """
        since_us = expires_us = self._removal.expires(record).first_us
        compacted_us = self._removal.compacted_us(record)
        span = self._passing(expires_us, EVER_US)
        if expires_us < EVER_US and span is not None:
            step: Step = partial(group_model.expire, compacted_us=compacted_us)
            changed.uncertain.append(Event(span, step))
        for op in self._operations if since_us < EVER_US else ():
            if not isinstance(op, Seek) or op.partition not in (None, record.place.partition):
                continue
            sought = self._lives.span(op)
            if sought.last_us < since_us or _is_below(op, record.place):
                continue
            span = self._passing(since_us, sought.last_us)
            if span is not None:
                step = partial(group_model.pass_over, compacted_us=compacted_us)
                changed.uncertain.append(Event(span, step))
            since_us = max(since_us, sought.first_us)

    def _passing(self, since_us: int, until_us: int) -> Span | None:
        """Return when acquires may have passed over a record that expired; None for no acquire."""
        passing = [
            span
            for span in self._acquires
            if since_us <= span.last_us and span.first_us <= until_us
        ]
        if not passing:
            return None
        first_us = max(since_us, min(span.first_us for span in passing))
        return Span(first_us, min(until_us, max(span.last_us for span in passing)))


def _is_below(op: Seek, place: Place) -> bool:
    """Return whether the record at ``place`` lies below the target of a seek."""
    return op.to == "end" or (op.to != "start" and place.offset < op.to)


def _is_kept(lives: Lives, op: Operation) -> bool:
    """Return whether the change happened for sure and is durable."""
    return op.answered_us != NEVER and not lives.loses(op.boot)


def rules_after(op: Operation, begin: GroupRules) -> GroupRules:
    """Return the settings of a group after it was configured or deleted."""
    return op.rules if isinstance(op, Configure) else begin
