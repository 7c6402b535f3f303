# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Bounds of the time of each operation, and of losses, by the lives of the broker.

An answered operation took effect at one moment from `arrived_us` to `written_us`, and is durable.
Another one took effect once from its arrival to the end of its connection or boot, or not at all.
Times are microseconds of the world.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from simulator.history.operations import NEVER, Boot, History, Operation

EVER_US = 1 << 62
"""A time after all events."""

Value = TypeVar("Value", bound=Any)
Thing = TypeVar("Thing")


class Span(NamedTuple):
    """The possible moments of an event, both ends included."""

    first_us: int
    last_us: int

    def is_before(self, other: Span) -> bool:
        """Return whether one operation certainly happened before the other."""
        return self.last_us < other.first_us


class Crossing(NamedTuple):
    """The time from the end of one life of the broker to the next ready one."""

    boot: int
    """The life that ended."""
    ended_us: int
    ready_us: int
    """EVER_US when no other life served."""
    loses: bool
    """Whether the last acknowledged data may be gone: power loss without fsync."""
    forward_us: int
    """Forward steps of the wall clock in that life and before the next; EVER_US if unknown."""


class Lives:
    """The boots of a history."""

    def __init__(self, history: History) -> None:
        self.boots = history.boots
        self._by_number = {boot.number: boot for boot in history.boots}
        self.crossings = list(_crossings(history))
        self._losing = {crossing.boot for crossing in self.crossings if crossing.loses}
        self._spans = {op.number: self._span(op) for op in history.operations}

    def boot(self, operation: Operation) -> Boot | None:
        return self._by_number.get(operation.boot)

    def loses(self, boot: int) -> bool:
        """Return whether acknowledged data of that boot may be lost after it."""
        return boot in self._losing

    @property
    def any_loss(self) -> bool:
        return bool(self._losing)

    def epoch(self, boot: int) -> int:
        """Return the number of losses before that boot. Each loss lets numbers repeat."""
        return sum(losing < boot for losing in self._losing)

    def forward_us(self, during: Span) -> int:
        """Return how far restarts during ``during`` may shorten a delay."""
        return sum(
            crossing.forward_us
            for crossing in self.crossings
            if during.first_us <= crossing.ended_us and crossing.ready_us <= during.last_us
        )

    def span(self, operation: Operation) -> Span:
        """Return the time of the operation, if it happened."""
        return self._spans[operation.number]

    def _span(self, operation: Operation) -> Span:
        first_us = operation.arrived_us if operation.arrived_us != NEVER else operation.sent_us
        if operation.answered_us != NEVER:
            last_us = operation.written_us
            return Span(first_us, last_us if last_us != NEVER else operation.answered_us)
        boot = self._by_number.get(operation.boot)
        ends = [operation.lost_us, boot.ended_us if boot is not None else NEVER]
        return Span(first_us, min((end for end in ends if end != NEVER), default=EVER_US))


def _crossings(history: History) -> list[Crossing]:
    """Return the ends of all boots that served, with the next boot that served."""
    served = [boot for boot in history.boots if boot.ready_us != NEVER]
    following = [*served[1:], None]
    crossings = []
    for boot, successor in zip(served, following, strict=True):
        if boot.ended_us == NEVER:
            continue
        ready_us = successor.ready_us if successor is not None else EVER_US
        end = successor.number if successor is not None else EVER_US
        between = [b for b in history.boots if boot.number <= b.number < end]
        loses = boot.durability != "fsync" and any(map(_may_lose_power, between))
        forward_us = _forward_us(history, Span(boot.ready_us, ready_us))
        crossings.append(Crossing(boot.number, boot.ended_us, ready_us, loses, forward_us))
    return crossings


def _may_lose_power(boot: Boot) -> bool:
    if boot.power_lost is not None:
        return boot.power_lost
    return boot.end != "stopped"


def _forward_us(history: History, during: Span) -> int:
    if history.clock_steps is None:
        return EVER_US
    return sum(
        max(step.step_us, 0)
        for step in history.clock_steps
        if during.first_us <= step.at_us <= during.last_us
    )


def possible(
    begin: Thing, changes: Iterable[tuple[Span, bool, Thing]], during: Span
) -> list[Thing]:
    """Return the values that something may have had during ``during``.

    ``changes`` are triples: time, certainty, new value.
    """
    values = [(Span(-1, -1), begin)]
    for span, is_certain, value in sorted(changes, key=lambda change: change[0]):
        if span.first_us > during.last_us:
            break
        if is_certain and span.is_before(during):
            values = [kept for kept in values if not kept[0].is_before(span)]
        values.append((span, value))
    return [value for _, value in values]


def falling(
    entries: Iterable[tuple[Span, Value, Thing]],
) -> Iterator[tuple[tuple[Value, Thing], tuple[Value, Thing]]]:
    """Return pairs of an entry and a later one with a smaller value.

    The later entry begins after the end of the earlier one, which has the largest value before it.
    """
    begun = sorted(entries, key=lambda entry: entry[0].first_us)
    ended = sorted(begun, key=lambda entry: entry[0].last_us)
    highest: tuple[Value, Thing] | None = None
    done = 0
    for span, value, thing in begun:
        while done < len(ended) and ended[done][0].is_before(span):
            if highest is None or highest[0] < ended[done][1]:
                highest = ended[done][1:]
            done += 1
        if highest is not None and value < highest[0]:
            yield highest, (value, thing)
