# Tests: tests/simulator/test_oracle_explanations.py
"""Check the events about a record, as ``brokerctl explain`` shows them: promise 1.

An answer must have the lease of each delivery, the end of each settled record and each listed dead
letter, if the client knew of it before it asked. It must have no lease that no request can have
made. From its first LSN on it must have all events of an earlier answer, except for those that
concern the record only because of events below that LSN. If the archive has let the
journal go, only answers with events of the archive are judged in full, and only if no segment was
deleted before it was archived.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from simulator.history.operations import (
    Explain,
    History,
    LifeEvent,
    Place,
    Settlement,
)
from simulator.oracle.groups.group_partitions import GroupPartition
from simulator.oracle.records.records import Records
from simulator.oracle.timeline.spans import Lives
from simulator.oracle.violation import Violation, violation

DONE = frozenset(("settled", "settled_range", "committed", "seek", "dead"))
"""Events that end a record. A settle of a record that has ended before is accepted, too."""
FAILED = DONE | {"failed"}
FOLLOWING = frozenset(
    ("committed", "configured", "deleted", "paused", "resumed", "replayed", "purged")
)
"""Events that concern a record only because of earlier events of the group about it."""


def check_explanations(
    history: History,
    lives: Lives,
    records: Records,
    group_partitions: dict[tuple[str, str], GroupPartition],
) -> Iterator[Violation]:
    """P1: check that each answer has all events that clients know of, and no invented lease."""
    if records.damaged or lives.any_loss:
        return
    of_topic: dict[str, list[GroupPartition]] = defaultdict(list)
    for group_partition in group_partitions.values():
        of_topic[group_partition.topic].append(group_partition)
    whole: dict[tuple[str, Place], list[Explain]] = defaultdict(list)
    for op in history.operations:
        if isinstance(op, Explain):
            yield from _check_known(op, lives, records)
            if not (op.succeeded and op.is_whole):
                continue
            yield from _check_kept(op, lives, whole[op.topic, op.place])
            whole[op.topic, op.place].append(op)
            # Without events of the archive, the answer begins with the oldest segment.
            if op.exists and (op.archive_lsn or not history.published):
                must_tell = not (op.archive_lsn and history.has_deleted_events)
                for group_partition in of_topic[op.topic]:
                    yield from _check_group(op, lives, group_partition, must_tell)
                yield from _check_order(op)


def _check_known(op: Explain, lives: Lives, records: Records) -> Iterator[Violation]:
    """Check that no acknowledged record is called one that does not exist yet."""
    if "yet" not in op.error:
        return
    for record in records.by_place.get((op.topic, op.place), ()):
        if record.is_acknowledged and lives.span(record.sent.produce).is_before(lives.span(op)):
            text = f"{record.name} was acknowledged, and an explanation says: {op.error}"
            yield violation("P1-events", text, record.sent.produce, op)


def _check_kept(op: Explain, lives: Lives, earlier: list[Explain]) -> Iterator[Violation]:
    """Check that an answer has the events of earlier ones, from its first LSN on."""
    events = set(op.events)
    for before in earlier:
        if not lives.span(before).is_before(lives.span(op)):
            continue
        cut = {one.group for one in before.events if one.lsn < op.from_lsn}
        lost = [
            one
            for one in before.events
            if one.lsn >= op.from_lsn
            and one not in events
            and not (one.event in FOLLOWING and one.group in cut)
            and not _may_be_gone(one, before, op)
        ]
        if lost:
            text = (
                f"{lost[0]} of record {op.place.offset} of {op.topic}/{op.place.partition} is "
                f"missing in a later answer, which has all events from LSN {op.from_lsn} on"
            )
            yield violation("P1-events", text, before, op)


def _may_be_gone(event: LifeEvent, before: Explain, after: Explain) -> bool:
    """Return whether the broker may have deleted an event's segment before it was archived."""
    return before.archive_lsn <= event.lsn < after.archive_lsn


def _check_group(
    op: Explain, lives: Lives, group_partition: GroupPartition, must_tell: bool
) -> Iterator[Violation]:
    group, place = group_partition.group, op.place
    events = [event for event in op.events if event.group == group]
    kinds = {event.event for event in events}
    asked = lives.span(op)
    name = f"record {place.offset} of {op.topic}/{place.partition} in group {group}"
    yield from _check_invented(op, lives, group_partition, events, name)
    if not must_tell:
        return
    sights = group_partition.sights.get(place, [])
    tokens = {event.token for event in events if event.event == "leased"}
    for sight in sights:
        if not lives.span(sight.acquire).is_before(asked):
            continue
        if "leased" not in kinds or sight.delivery.token not in (None, *tokens):
            text = f"{name} was leased (token {sight.delivery.token}), and no event tells it"
            yield violation("P1-events", text, sight.acquire, op)
    for settle, settlement, result in group_partition.attempts.get(place, []):
        if result != "" or not lives.span(settle).is_before(asked):
            continue
        if not kinds & _ends_of(settlement):
            how = "settled" if settlement.success else "failed"
            yield violation("P1-events", f"{name} was {how}, and no event tells it", settle, op)
    for letters in group_partition.letters:
        for letter in letters.letters if lives.span(letters).is_before(asked) else ():
            if letter.place != place:
                continue
            dead = [event.reason for event in events if event.event == "dead"]
            if letter.reason not in dead:
                text = f"{name} was a dead letter ({letter.reason}), and its events say {dead}"
                yield violation("P1-events", text, letters, op)


def _ends_of(settlement: Settlement) -> frozenset[str]:
    return DONE if settlement.success else FAILED


def _check_invented(
    op: Explain,
    lives: Lives,
    group_partition: GroupPartition,
    events: list[LifeEvent],
    name: str,
) -> Iterator[Violation]:
    """Check that there are no more leases than acquires that may have made them."""
    asked = lives.span(op)
    leased = sum(event.event == "leased" for event in events)
    may_have = [
        sight.acquire
        for sight in group_partition.sights.get(op.place, [])
        if lives.span(sight.acquire).first_us <= asked.last_us
    ]
    hidden = [
        acquire
        for acquire in group_partition.unanswered
        if lives.span(acquire).first_us <= asked.last_us
    ]
    if leased > len(may_have) + len(hidden):
        text = f"{name} has {leased} leases, and only {len(may_have) + len(hidden)} were possible"
        yield violation("P1-events", text, op)
    twice = [
        token
        for token, count in Counter(
            event.token for event in events if event.event == "leased"
        ).items()
        if count > 1
    ]
    if twice:
        yield violation("P1-events", f"{name} has two leases with the token {twice[0]}", op)


def _check_order(op: Explain) -> Iterator[Violation]:
    lsns = [event.lsn for event in op.events]
    if lsns != sorted(lsns):
        yield violation("P1-events", "the events of an explanation are not in order", op)
