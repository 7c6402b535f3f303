# Tests: tests/simulator/test_oracle_limits.py
"""Check limits of the broker's options that clients meet: refusals are true, and none is missing.

Also the time for which a dead letter holds back retention: promises 4 and 8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulator.history.offsets import Position
from simulator.history.operations import (
    DeleteGroup,
    DeleteTopic,
    Describe,
    History,
    LetterChange,
    Letters,
    Operation,
    Produce,
    Seek,
    Trim,
)
from simulator.history.subscriptions import Subscribe
from simulator.oracle.timeline.spans import Lives
from simulator.oracle.violation import Violation, violation

TOO_MANY_SUBSCRIPTIONS = "subscriptions already"
TOO_LONG = "exceeds maximum allowed delay"
"""Part of the refusal of a delay that is too long."""
USUAL_GRACE_US = 3_600_000_000
"""Subscriptions with this grace outlive a run."""
SLACK_US = 1_000_000


def check_limits(history: History, lives: Lives) -> Iterator[Violation]:
    """Return the violations of limits."""
    if history.rotted or lives.any_loss:
        return
    yield from _check_subscriptions(history, lives)
    yield from _check_delays(history)
    yield from _check_letters_hold(history, lives)


def _check_subscriptions(history: History, lives: Lives) -> Iterator[Violation]:
    """P8: check that there are never more subscriptions than allowed, and no refusal before."""
    subscribes = [op for op in history.operations if isinstance(op, Subscribe)]
    may_end = history.subscriptions.grace_us < USUAL_GRACE_US or any(
        isinstance(op, DeleteTopic) for op in history.operations
    )
    limit = history.limits.subscriptions
    for op in subscribes:
        span = lives.span(op)
        if TOO_MANY_SUBSCRIPTIONS in op.error:
            before = [o for o in subscribes if not o.error and not span.is_before(lives.span(o))]
            if len(before) < limit:
                text = f"it was refused, and there were at most {len(before)} of {limit}"
                yield violation("P8-limit", text, op)
        elif op.succeeded and not may_end:
            before = [o for o in subscribes if o.succeeded and lives.span(o).is_before(span)]
            if len(before) >= limit:
                text = f"there were {len(before)} subscriptions, and the limit is {limit}"
                yield violation("P8-limit", text, op)


def _check_delays(history: History) -> Iterator[Violation]:
    """P8: check that FlyMQ's delays are refused above the limit, and not below."""
    limit_us = history.limits.delay_us
    for op in history.operations:
        if not isinstance(op, Produce) or history.formats.get(op.client) != "flymq":
            continue
        delays = [message.delay_us or 0 for message in op.messages]
        if op.succeeded and max(delays) > limit_us:
            text = f"a delay of {max(delays)} us was accepted, and the limit is {limit_us}"
            yield violation("P8-limit", text, op)
        if TOO_LONG in op.error and max(delays) <= limit_us:
            text = f"a delay of {max(delays)} us was refused, and the limit is {limit_us}"
            yield violation("P8-limit", text, op)


def _check_letters_hold(history: History, lives: Lives) -> Iterator[Violation]:
    """P4: check that retention passes no dead letter before its time.

    Not judged after a step of the wall clock, which shifts the age over a restart.
    """
    hold_us = history.limits.dead_letter_us
    if history.clock_steps != [] or not hold_us:
        return
    starts: dict[tuple[str, int], list[tuple[int, Operation]]] = defaultdict(list)
    moved: set[tuple[str, str]] = set()
    trimmed: set[tuple[str, int]] = set()
    deleted: set[str] = set()
    for op in history.operations:
        match op:
            case Describe(view=view) if op.succeeded and view is not None:
                for partition, start in enumerate(view.starts):
                    starts[op.topic, partition].append((start, op))
            case Position(mode="earliest") if op.succeeded:
                starts[op.topic, op.partition].append((op.offset, op))
            case LetterChange() | DeleteGroup() | Seek():
                moved.add((op.topic, op.group))
            case Trim():
                trimmed.add((op.topic, op.partition))
            case DeleteTopic():
                deleted.add(op.topic)
    for op in history.operations:
        if not isinstance(op, Letters) or not op.succeeded or (op.topic, op.group) in moved:
            continue
        if op.topic in deleted:
            continue
        for letter in op.letters:
            key = op.topic, letter.place.partition
            if letter.last_ago_us is None or key in trimmed:
                continue
            until_us = lives.span(op).first_us - letter.last_ago_us + hold_us - SLACK_US
            for start, told in starts.get(key, ()):
                if start > letter.place.offset and lives.span(told).last_us < until_us:
                    text = f"{key[0]}/{key[1]} starts at {start}, and a dead letter is younger"
                    yield violation("P4-held", text, op, told)
                    break
