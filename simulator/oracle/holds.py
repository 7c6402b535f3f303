# Tests: tests/simulator/test_oracle_holds.py
"""Check that retention waits for named streams that hold: promise 5.

A hold is certainly in force from the answer of its report on, until the next change of the stream
is sent, or the stream has been silent for too long. Only one client reports for a stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from simulator.history.operations import (
    DeleteTopic,
    Describe,
    DropStream,
    History,
    Operation,
    Published,
    ReportStream,
    Trim,
)
from simulator.oracle.timeline.spans import EVER_US, Lives
from simulator.oracle.violation import Violation, violation

Place = tuple[str, int]
"""Topic and partition."""


class _Hold(NamedTuple):
    """A time in which retention must not pass an offset of a partition."""

    first_us: int
    end_us: int
    offset: int
    report: ReportStream


class _Start(NamedTuple):
    """A start offset in an answer."""

    operation: Operation
    offset: int


def check_holds(history: History, lives: Lives) -> Iterator[Violation]:
    """P5: check that no start offset and no bound passes the position of a stream that holds."""
    if history.rotted or lives.any_loss or not history.is_steady:
        return
    deleted = {op.topic for op in history.operations if isinstance(op, DeleteTopic)}
    starts: dict[Place, list[_Start]] = defaultdict(list)
    trims: dict[Place, list[Trim]] = defaultdict(list)
    bounds: dict[Place, list[Published]] = defaultdict(list)
    for op in history.operations:
        for place, start in _told(op):
            starts[place].append(_Start(op, start))
        if isinstance(op, Trim) and not op.error:
            trims[op.topic, op.partition].append(op)
    for one in history.published:
        bounds[one.topic, one.partition].append(one)
    for place, hold in _holds(history):
        if place[0] in deleted:
            continue
        yield from _check_starts(place, hold, starts[place], trims[place])
        yield from _check_published(place, hold, bounds[place])


def _told(operation: Operation) -> Iterator[tuple[Place, int]]:
    """Yield the start offsets in an answer."""
    if not operation.succeeded:
        return
    if isinstance(operation, Trim):
        yield (operation.topic, operation.partition), operation.start
    elif isinstance(operation, Describe) and operation.view is not None:
        for partition, start in enumerate(operation.view.starts):
            yield (operation.topic, partition), start
    elif isinstance(operation, ReportStream):
        for partition, start in enumerate(operation.starts):
            yield (operation.topic, partition), start


def _holds(history: History) -> Iterator[tuple[Place, _Hold]]:
    """Yield the holds of all reports. Records that were removed before are not held."""
    changes: dict[str, list[ReportStream | DropStream]] = defaultdict(list)
    for op in history.operations:
        if isinstance(op, ReportStream | DropStream):
            changes[op.stream].append(op)
    for ops in changes.values():
        for number, op in enumerate(ops):
            if not (isinstance(op, ReportStream) and op.succeeded and op.is_held):
                continue
            next_us = min((later.sent_us for later in ops[number + 1 :]), default=EVER_US)
            end_us = min(next_us, op.sent_us + history.stream_hold_us)
            # A client that does not know all partitions reports the first ones only.
            for partition, (offset, start) in enumerate(zip(op.offsets, op.starts, strict=False)):
                if start <= offset:
                    yield (op.topic, partition), _Hold(op.answered_us, end_us, offset, op)


def _check_starts(
    place: Place, hold: _Hold, starts: list[_Start], trims: list[Trim]
) -> Iterator[Violation]:
    for operation, start in starts:
        is_within = hold.first_us <= operation.sent_us and operation.answered_us < hold.end_us
        if not is_within or start <= hold.offset:
            continue
        if any(t.offset > hold.offset and t.sent_us <= operation.answered_us for t in trims):
            continue
        text = (
            f"{place[0]}/{place[1]} starts at {start}, and the stream {hold.report.stream!r} holds "
            f"from {hold.offset} on"
        )
        yield violation("P5-hold", text, hold.report, operation)
        return


def _check_published(place: Place, hold: _Hold, bounds: list[Published]) -> Iterator[Violation]:
    """A bound is captured after the one before could be read."""
    for before, bound in pairwise(bounds):
        if (
            hold.first_us <= before.at_us
            and bound.at_us < hold.end_us
            and bound.below > hold.offset
        ):
            text = (
                f"records of {place[0]}/{place[1]} below {bound.below} may go, and "
                f"the stream {hold.report.stream!r} holds from {hold.offset} on"
            )
            yield violation("P5-hold", text, hold.report)
            return
