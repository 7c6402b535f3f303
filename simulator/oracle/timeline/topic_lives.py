# Tests: tests/simulator/test_oracle_changes.py
"""Give each life of a deleted and recreated topic a name of its own: promise 2.

Each life is judged by itself; the last one keeps the name. A request that may have met either of
two lives counts as unanswered in both.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from simulator.history.offsets import Committed, Position, Read
from simulator.history.operations import (
    NEVER,
    DeleteTopic,
    Describe,
    Explain,
    History,
    Letters,
    Look,
    Operation,
    Produce,
)
from simulator.oracle.timeline.spans import Lives, Span

ASKS = (Look, Letters, Describe, Explain, Read, Committed, Position)
"""Requests that change nothing. Their refusals prove nothing if their topic is unknown."""
BLANKS: dict[str, Any] = {
    "places": (),
    "schedules": (),
    "deliveries": (),
    "results": (),
    "released": 0,
    "count": 0,
    "start": 0,
    "cancelled": False,
    "handed": None,
}
"""Fields that an answer fills."""
ENDED = "~"
"""Separates the name of a deleted topic from the number of its life."""


def split_topics(history: History, lives: Lives) -> History:
    """Return the history with one name for each life of a topic."""
    of_topic: dict[str, list[Operation]] = defaultdict(list)
    for op in history.operations:
        if isinstance(op, DeleteTopic) and not op.error:
            of_topic[op.topic].append(op)
    if not of_topic:
        return history
    ends = {topic: _ends(history, lives, topic, ops) for topic, ops in of_topic.items()}
    operations: list[Operation] = []
    for op in history.operations:
        topic = getattr(op, "topic", None)
        if topic not in ends:
            operations.append(op)
        elif (bounds := ends[topic]) is not None and not isinstance(op, DeleteTopic):
            operations += _lives_of(op, lives.span(op), topic, bounds)
    return replace(history, operations=operations)


def has_ended(topic: str) -> bool:
    """Return whether a name of `split_topics` is that of an ended life."""
    return ENDED in topic


def _ends(
    history: History, lives: Lives, topic: str, deletes: list[Operation]
) -> list[Span] | None:
    """Return the end of each life of a topic but the last; None if unknown."""
    if lives.any_loss or history.rotted:
        return None
    seen = [
        (lives.span(op), op.view and op.view.topic_id)
        for op in history.operations
        if isinstance(op, Describe) and op.topic == topic and op.succeeded
    ]
    ends: list[Span] = []
    for op in deletes:
        span = lives.span(op)
        if op.answered_us != NEVER:
            ends.append(span)
            continue
        before = [topic_id for at, topic_id in seen if at.last_us <= span.first_us]
        after = [(at, topic_id) for at, topic_id in seen if span.first_us < at.first_us]
        later = [at for at, _ in after if span.is_before(at)]
        if not before or not later:
            return None
        if any(
            topic_id != before[-1] for at, topic_id in after if at.first_us <= later[0].first_us
        ):
            ends.append(Span(span.first_us, min(span.last_us, later[0].last_us)))
    return sorted(ends)


def _lives_of(op: Operation, span: Span, topic: str, ends: list[Span]) -> list[Operation]:
    """Return the operation in each life of its topic that it may have met."""
    first = sum(end.is_before(span) for end in ends)
    last = sum(end.first_us <= span.last_us for end in ends)
    if first == last:
        return [_in_life(op, topic, first, ends)]
    if isinstance(op, ASKS) or (op.error and not isinstance(op, Produce)):
        return []
    doubtful = op if op.error else _unanswered(op, span)
    return [_in_life(doubtful, topic, life, ends) for life in range(first, last + 1)]


def _in_life(op: Operation, topic: str, life: int, ends: list[Span]) -> Operation:
    name = topic if life == len(ends) else f"{topic}{ENDED}{life}"
    fields: dict[str, Any] = {"topic": name}
    return replace(op, **fields)


def _unanswered(op: Operation, span: Span) -> Operation:
    """Return the operation without its answer; its effect stays within its span."""
    blanks = {name: value for name, value in BLANKS.items() if hasattr(op, name)}
    return replace(op, written_us=NEVER, answered_us=NEVER, lost_us=span.last_us, **blanks)
