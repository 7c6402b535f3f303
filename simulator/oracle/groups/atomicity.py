# Tests: tests/simulator/test_oracle_changes.py
"""Check changes of many dead letters or messages at once: promises 4 and 5."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.history.operations import (
    Cancel,
    DeleteGroup,
    History,
    Letter,
    LetterChange,
    Letters,
    Operation,
    Place,
    Seek,
)
from simulator.oracle.groups.group_partitions import GroupPartition
from simulator.oracle.groups.lease_model import SLACK_US
from simulator.oracle.records.records import Records
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import Lives, Span
from simulator.oracle.violation import Violation, violation


def check_letter_changes(
    lives: Lives, records: Records, removal: Removal, group_partition: GroupPartition
) -> Iterator[Violation]:
    """P4: check that a replay or purge took all listed dead letters, or none."""
    if lives.any_loss or records.damaged or removal.removes(group_partition.topic):
        return
    for op in group_partition.changes:
        if isinstance(op, LetterChange):
            before = [each for each in group_partition.letters if _is_next(lives, each, op)][-1:]
            after = [each for each in group_partition.letters if _is_next(lives, op, each)][:1]
            for first in before:
                yield from _check_count(lives, group_partition, op, first)
                for last in after:
                    yield from _check_all(lives, group_partition, op, first, last)


def _is_next(lives: Lives, first: Operation, then: Operation) -> bool:
    """Return whether one request came before the other, also if both have the same time."""
    if first.client == then.client and first.number < then.number:
        return lives.span(first).last_us <= lives.span(then).first_us
    return lives.span(first).is_before(lives.span(then))


def _check_count(
    lives: Lives, group_partition: GroupPartition, op: LetterChange, before: Letters
) -> Iterator[Violation]:
    concerned = _concerned(op, before)
    between = Span(lives.span(before).first_us, lives.span(op).last_us)
    if (
        op.succeeded
        and not _others(lives, group_partition, op, between)
        and op.count < len(concerned)
    ):
        text = f"{len(concerned)} dead letters were listed, and it was done to {op.count}"
        yield violation("P4-atomic", text, before, op)


def _check_all(
    lives: Lives, group_partition: GroupPartition, op: LetterChange, before: Letters, after: Letters
) -> Iterator[Violation]:
    between = Span(lives.span(before).first_us, lives.span(after).last_us)
    if _others(lives, group_partition, op, between):
        return
    left = {letter.place for letter in after.letters}
    concerned = [letter.place for letter in _concerned(op, before)]
    gone = [place for place in concerned if place not in left]
    stayed = [
        place
        for place in concerned
        if place in left and not _may_have_died(lives, group_partition, place, lives.span(op))
    ]
    if stayed and (gone or op.succeeded):
        text = f"of {len(concerned)} dead letters {len(gone)} are gone, not {stayed[0].offset}"
        yield violation("P4-atomic", text, before, op, after)


def _concerned(op: LetterChange, listed: Letters) -> list[Letter]:
    """Return the dead letters that the request covers for sure. Times are approximate after a
    start."""
    if op.aged_us is not None and op.boot != listed.boot:
        return []
    return [
        letter
        for letter in listed.letters
        if op.concerns(letter.place)
        and op.reason in (None, "", letter.reason)
        and (op.aged_us is None or op.aged_us + SLACK_US < (letter.last_ago_us or 0))
    ]


def _others(lives: Lives, group_partition: GroupPartition, op: LetterChange, between: Span) -> bool:
    """Return whether another request may have removed dead letters in between."""
    return any(
        other is not op
        and isinstance(other, LetterChange | Seek | DeleteGroup)
        and not lives.span(other).is_before(between)
        and not between.is_before(lives.span(other))
        for other in group_partition.changes
    )


def _may_have_died(
    lives: Lives, group_partition: GroupPartition, place: Place, since: Span
) -> bool:
    """Return whether the record may have become a dead letter again during ``since``."""
    if group_partition.unanswered:
        return True
    spans = [lives.span(sight.acquire) for sight in group_partition.sights.get(place, ())]
    spans += [lives.span(attempt[0]) for attempt in group_partition.attempts.get(place, ())]
    return any(span.last_us >= since.first_us for span in spans)


def check_cancels(history: History, lives: Lives, records: Records) -> Iterator[Violation]:
    """P5: check that a cancelled message is never stored."""
    if lives.any_loss:
        return
    cancelled = {
        (op.topic, op.schedule_id): op
        for op in history.operations
        if isinstance(op, Cancel) and op.succeeded and op.cancelled
    }
    for record in records:
        sent = record.sent
        schedules = sent.produce.schedules
        if not records.is_unique(record) or sent.position >= len(schedules):
            continue
        op = cancelled.get((record.topic, schedules[sent.position] or 0))
        if op is not None and schedules[sent.position] is not None:
            text = f"{record.name} was cancelled as schedule {op.schedule_id}"
            yield violation("P5-cancelled", text, sent.produce, op)
