# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""When an operation can have happened, and what can be lost: the lives of the broker.

An answered operation happened at one moment from `arrived_us` to `written_us`, and so is durable.
One that was not answered happened once from its arrival to the end of its connection or boot, or
not at all; and one that never arrived did not happen. Times are microseconds of the world.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from simulator.history.operations import NEVER, Boot, History, Operation

EVER_US = 1 << 62
"""After everything."""

Value = TypeVar("Value", bound=Any)
Thing = TypeVar("Thing")


class Span(NamedTuple):
    """The moments at which something may have happened, both ends included."""

    first_us: int
    last_us: int

    def is_before(self, other: Span) -> bool:
        """Whether it happened before the other in any case."""
        return self.last_us < other.first_us


class Crossing(NamedTuple):
    """From the end of one life of the broker to the beginning of the next that served."""

    boot: int
    """The life that ended."""
    ended_us: int
    ready_us: int
    """EVER_US when no other life served."""
    loses: bool
    """Whether the last of what was acknowledged may be gone: power loss without fsync."""
    forward_us: int
    """How far the wall clock was moved forward in that life and before the next; EVER_US when
    nobody knows."""


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
        """Whether what was acknowledged in that boot may be gone after it."""
        return boot in self._losing

    @property
    def any_loss(self) -> bool:
        return bool(self._losing)

    def epoch(self, boot: int) -> int:
        """How many losses lie before that boot: numbers may be given again after each."""
        return sum(losing < boot for losing in self._losing)

    def forward_us(self, during: Span) -> int:
        """How far delays may end early because of restarts that may have been within ``during``."""
        return sum(
            crossing.forward_us
            for crossing in self.crossings
            if during.first_us <= crossing.ended_us and crossing.ready_us <= during.last_us
        )

    def span(self, operation: Operation) -> Span:
        """When it happened, if it did."""
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
    """The ends of all boots that served, and who served next."""
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
    """What something may have been at some moment of ``during``.

    ``changes`` are when it was set, whether that happened for sure, and what to.
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
    """Pairs of an entry and one that began after the end of it and has a smaller value.

    One pair for each later entry: the earlier one with the largest value.
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
