# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Check answers to acquires, one by one and all of a group together: promises 3 and 4."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulator.history.operations import (
    Acquire,
    Configure,
    DeleteGroup,
    Extend,
    History,
    Operation,
    Place,
    Replay,
    Seek,
)
from simulator.oracle.groups.group_partitions import GroupPartition
from simulator.oracle.groups.lease_model import (
    GIVEN_UP_REASON,
    MAX_ATTEMPTS_REASON,
    MAX_WAIT_US,
    SLACK_US,
)
from simulator.oracle.records.records import Records, Sight
from simulator.oracle.timeline.spans import Lives, Span, falling
from simulator.oracle.violation import Violation, violation


def check_answers(history: History) -> Iterator[Violation]:
    """Check each answer alone: at most the requested records, each once, in order, with a live
    lease.
    """
    for op in history.operations:
        if isinstance(op, Acquire) and op.succeeded:
            yield from _check_acquire(op)
        elif isinstance(op, Extend) and op.succeeded:
            duration_us = min(max(op.duration_us, 0), MAX_WAIT_US)
            if not -SLACK_US <= op.remaining_us - duration_us <= SLACK_US:
                text = f"{op.duration_us} us were asked for, {op.remaining_us} us given"
                yield violation("P3-extend", text, op)


def _check_acquire(op: Acquire) -> Iterator[Violation]:
    if len(op.deliveries) > op.limit:
        text = f"{op.limit} records were asked for, {len(op.deliveries)} given"
        yield violation("P3-answer", text, op)
    last: dict[int, tuple[int, int]] = {}
    for delivery in op.deliveries:
        partition, offset = delivery.place
        before, token_before = last.get(partition, (-1, 0))
        if offset <= before:
            text = f"offset {offset} of partition {partition} comes after {before} in one answer"
            yield violation("P3-answer", text, op)
        token = delivery.token if delivery.token is not None else token_before + 1
        if token <= token_before:
            text = f"token {token} comes after {token_before} in one answer"
            yield violation("P3-token", text, op)
        last[partition] = offset, token
        if (
            delivery.remaining_us is not None
            and not op.by_default
            and not (0 <= delivery.remaining_us <= max(op.duration_us, 0) + SLACK_US)
        ):
            text = f"{delivery.remaining_us} us are left of a lease of {op.duration_us} us"
            yield violation("P3-answer", text, op)


def check_tokens(lives: Lives, group_partition: GroupPartition) -> Iterator[Violation]:
    """P3: check that a token names one grant, and that later grants of a partition have larger
    ones.
    """
    told: dict[tuple[int, int], list[Sight[Acquire]]] = defaultdict(list)
    for place, sights in group_partition.sights.items():
        for sight in sights:
            if sight.delivery.token is not None:
                told[place.partition, lives.epoch(sight.acquire.boot)].append(sight)
    for sights in told.values():
        names: dict[int, Sight[Acquire]] = {}
        for sight in sights:
            token = sight.delivery.token or 0
            other = names.setdefault(token, sight)
            if other is not sight:
                text = (
                    f"group {group_partition.group} of {group_partition.topic} was given "
                    f"token {token} twice"
                )
                yield violation("P3-token", text, other.acquire, sight.acquire)
        entries = ((lives.span(s.acquire), s.delivery.token, s) for s in sights)
        for (before, earlier), (after, later) in falling(entries):
            text = (
                f"group {group_partition.group} of {group_partition.topic} was given "
                f"token {after} after {before}"
            )
            yield violation("P3-token", text, earlier.acquire, later.acquire)


def check_lowest_first(
    lives: Lives, records: Records, group_partition: GroupPartition
) -> Iterator[Violation]:
    """Check that a record that was never leased is leased before later ones of its partition.

    A failed settle before the first lease of a record may delay it, so such records are exempt. In
    a group with order by key, records of other keys may come first.
    """
    if lives.any_loss:
        return
    by_key = any(
        isinstance(op, Configure) and op.rules.key_ordered for op in group_partition.changes
    )
    told: dict[tuple[int, bytes | None], list[tuple[Span, Place, Sight[Acquire]]]] = defaultdict(
        list
    )
    for place, sights in group_partition.sights.items():
        keys = _keys(records, sights) if by_key else {None}
        for sight in sights if len(keys) == 1 else ():
            told[place.partition, *keys].append((lives.span(sight.acquire), place, sight))
    resets = [op for op in group_partition.changes if isinstance(op, Seek | Replay | DeleteGroup)]
    anew = [lives.span(op) for op in resets]
    for entries in told.values():
        for (higher, earlier), (place, later) in falling(entries):
            if later.delivery.grants != 1 or _may_have_waited(group_partition, place):
                continue
            since_us = lives.span(earlier.acquire).first_us
            until_us = lives.span(later.acquire).last_us
            if any(at.first_us <= until_us and since_us <= at.last_us for at in anew):
                continue
            text = (
                f"group {group_partition.group} was given record {higher.offset} of "
                f"{group_partition.topic}/{place.partition} before record {place.offset}"
            )
            yield violation("P3-lowest", text, earlier.acquire, later.acquire)


def _keys(records: Records, sights: list[Sight[Acquire]]) -> set[bytes | None]:
    """Return the possible keys of a record, as delivered or sent."""
    for _, delivery in sights:
        if delivery.token is not None:
            return {delivery.key}
    acquire, delivery = sights[0]
    known = records.by_place.get((acquire.topic, delivery.place), ())
    return {sent.message.key for record in known for sent in records.possible(record)}


def _may_have_waited(group_partition: GroupPartition, place: Place) -> bool:
    return any(
        not result and not settlement.success
        for _, settlement, result in group_partition.attempts.get(place, ())
    )


def check_attempt_times(lives: Lives, group_partition: GroupPartition) -> Iterator[Violation]:
    """P4: check the times of a dead letter: its first attempt and its death.

    Both lie between the first request for the record and the listing, in this order. Times from
    before a start are approximate and are not checked.
    """
    for op in group_partition.letters:
        listed, boot = lives.span(op), lives.boot(op)
        for letter in op.letters:
            if letter.first_ago_us is None or letter.last_ago_us is None or boot is None:
                continue
            asked = _asked_about(group_partition, letter.place)
            if not asked or any(each.boot != boot.number for each in asked):
                continue
            since_us = min(lives.span(each).first_us for each in asked)
            is_ordered = 0 <= letter.last_ago_us <= letter.first_ago_us
            if not is_ordered or listed.last_us - letter.first_ago_us < since_us - SLACK_US:
                text = (
                    f"record {letter.place.offset} of "
                    f"{group_partition.topic}/{letter.place.partition} tells "
                    f"attempts {letter.first_ago_us} to {letter.last_ago_us} us ago, and was first "
                    f"asked for at {since_us}"
                )
                yield violation("P4-letter", text, op)


def _asked_about(group_partition: GroupPartition, place: Place) -> list[Operation]:
    """Return all requests that may have been an attempt of a record."""
    return [
        *(sight.acquire for sight in group_partition.sights.get(place, ())),
        *(attempt[0] for attempt in group_partition.attempts.get(place, ())),
        *group_partition.unanswered,
    ]


def check_letters(records: Records, group_partition: GroupPartition) -> Iterator[Violation]:
    """P4: check that a record is a dead letter at most once, and for a possible reason."""
    for op in group_partition.letters:
        seen: set[Place] = set()
        for letter in op.letters:
            name = (
                f"record {letter.place.offset} of {group_partition.topic}/{letter.place.partition}"
            )
            if letter.place in seen:
                yield violation("P4-letter", f"{name} is a dead letter twice", op)
            seen.add(letter.place)
            said = {each.reason for _, each, _ in group_partition.attempts.get(letter.place, ())}
            reasons = {MAX_ATTEMPTS_REASON, GIVEN_UP_REASON, *said}
            if letter.reason not in reasons and not records.damaged:
                text = f"{name} is a dead letter for {letter.reason!r}"
                yield violation("P4-letter", text, op)
            if (
                group_partition.topic,
                letter.place,
            ) not in records.by_place and not records.may_be_unseen(group_partition.topic):
                yield violation("P4-letter", f"{name} is a dead letter and never was", op)
