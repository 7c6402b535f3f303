# Tests: tests/simulator/test_crashpoints.py
"""Compute the possible and the required state of the disk at a moment of a run.

The workload ran to its end before, so the times of each request and answer are known. At a moment a
request had not arrived (no effect may be seen), was answered (its whole effect must be seen), or
lies in between (all or nothing). Times are microseconds of the world.

A written answer counts, even if the client has not received it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from brokerd.codecs import mamamia as mm
from brokerd.values import Format, Record
from simulator.crashpoints.script import TOPICS, Script
from simulator.history.operations import (
    NEVER,
    Acquire,
    Boot,
    Delivery,
    Extend,
    GroupRules,
    History,
    Operation,
    Place,
    Produce,
    Settle,
    Settlement,
)

EVER_US = 1 << 62
"""A time after all events."""


def is_sure(operation: Operation, now_us: int) -> bool:
    """Return whether the request was answered by then, so that its whole effect must be there."""
    return NEVER < operation.written_us < now_us and not operation.error


def is_possible(operation: Operation, now_us: int) -> bool:
    """Return whether the request may have had an effect by then."""
    return NEVER < operation.arrived_us <= now_us and not operation.error


# -- records ---------------------------------------------------------------------------------------


class SentMessage(NamedTuple):
    """A message of a produce."""

    operation: Produce
    message: mm.BatchMessage
    place: Place | None
    """None if there was no answer."""

    def is_shown_by(self, record: Record) -> bool:
        """Return whether the record is this message in all parts."""
        value, encoding, metadata, key = self.message[:4]
        return (value, encoding, metadata, key, Format.MAMAMIA) == (
            record.value,
            record.encoding,
            record.metadata,
            record.key,
            record.producer_format,
        )


# -- leases ----------------------------------------------------------------------------------------


class Status(Enum):
    OPEN = "open"
    LEASED = "leased"
    SETTLED = "settled"
    DEAD = "dead"


class State(NamedTuple):
    """A record in a group, after docs/leases.rst."""

    status: Status = Status.OPEN
    grants: int = 0
    failures: int = 0
    counted: bool = False
    """Whether the last grant's failure is counted already."""
    ready_from_us: int = 0
    """OPEN: the earliest time of its next lease."""
    ready_by_us: int = 0
    """OPEN: from then on it can be leased for sure."""
    owner: str = ""
    token: int | None = None
    """None if unknown."""
    duration_us: int = 0
    lapses_us: int = 0
    """LEASED: the earliest time at which the lease may lapse."""

    def after_lapse(self, now_us: int) -> Iterator[State]:
        """Yield this state, and the next one if its lease may be over by now."""
        yield self
        if self.status is Status.LEASED and self.lapses_us < now_us:
            yield State(grants=self.grants, failures=self.failures)


UNTOUCHED = State()


class Boundary(NamedTuple):
    """A restart of the broker: a live lease gets its whole duration again."""

    boot: Boot

    @property
    def at_us(self) -> int:
        return self.boot.ready_us

    def apply(self, state: State) -> State:
        return state._replace(lapses_us=self.boot.ready_us + state.duration_us)


class Leased(NamedTuple):
    operation: Acquire
    delivery: Delivery

    def apply(self, state: State) -> State | None:
        """Return the next state; None if the lease is not possible."""
        operation, delivery = self
        if state.status is not Status.OPEN or state.ready_from_us > operation.written_us:
            return None
        grants = state.grants + 1
        if delivery.grants not in (None, grants):
            return None
        return State(
            Status.LEASED,
            grants,
            state.failures,
            owner=operation.client,
            token=delivery.token,
            duration_us=operation.duration_us,
            lapses_us=operation.arrived_us + operation.duration_us,
        )


class Settled(NamedTuple):
    operation: Settle
    settlement: Settlement
    max_attempts: int

    def apply(self, state: State) -> State | None:
        operation, settlement, _ = self
        if state.status in (Status.SETTLED, Status.DEAD):
            return state
        if state.status is Status.LEASED and state.owner != operation.client:
            return None
        if settlement.success:
            return State(Status.SETTLED)
        return state if state.counted else self._failed(state)

    def _failed(self, state: State) -> State:
        failures = state.failures + 1
        if failures >= self.max_attempts:
            return State(Status.DEAD, state.grants, failures)
        operation, delay_us = self.operation, self.settlement.delay_us
        if delay_us is None:
            return State(grants=state.grants, failures=failures, counted=True)
        written_us = operation.written_us
        return State(
            grants=state.grants,
            failures=failures,
            counted=True,
            ready_from_us=operation.arrived_us + delay_us,
            ready_by_us=EVER_US if written_us == NEVER else written_us + delay_us,
        )


class Extended(NamedTuple):
    operation: Extend

    def apply(self, state: State) -> State | None:
        operation = self.operation
        if state.status is not Status.LEASED or state.owner != operation.client:
            return None
        lapses_us = operation.arrived_us + operation.duration_us
        return state._replace(duration_us=operation.duration_us, lapses_us=lapses_us)


Step = Leased | Settled | Extended


def states_after(steps: list[Step], boots: list[Boot], now_us: int) -> set[State]:
    """Return the possible states of a record in a group; none if the answers disagree."""
    boundaries = [Boundary(boot) for boot in boots[1:] if NEVER < boot.ready_us <= now_us]
    states = {UNTOUCHED}
    for step in steps:
        operation = step.operation
        if not is_possible(operation, now_us):
            continue
        while boundaries and boundaries[0].at_us <= operation.arrived_us:
            states = _across(states, boundaries.pop(0))
        by_us = operation.written_us if operation.written_us != NEVER else now_us
        before = {after for state in states for after in state.after_lapse(by_us)}
        applied = {after for state in before if (after := step.apply(state)) is not None}
        states = applied if is_sure(operation, now_us) else before | applied
    for boundary in boundaries:
        states = _across(states, boundary)
    return {after for state in states for after in state.after_lapse(now_us)}


def _across(states: set[State], boundary: Boundary) -> set[State]:
    before = {after for state in states for after in state.after_lapse(boundary.at_us)}
    return {boundary.apply(state) for state in before}


# -- all of it -------------------------------------------------------------------------------------


class GroupPartition(NamedTuple):
    """A group of a topic."""

    topic: str
    group: str


class Expected(NamedTuple):
    """The possible and the required state at one moment."""

    now_us: int
    topics: dict[str, int]
    """Topics that may exist, with their numbers of partitions."""
    certain: set[str]
    """Topics that must exist."""
    produces: list[list[SentMessage]]
    """The messages of each arrived produce, in the order of arrival."""
    sure: set[int]
    """Numbers of the answered operations."""
    group_partitions: dict[GroupPartition, dict[Place, set[State]]]
    """The possible states of each record. A record without an entry is ready."""
    tokens: dict[GroupPartition, int]
    """The highest known token of all partitions."""


class RecordedRun:
    """A whole run of the workload, with the expected state of any moment."""

    def __init__(self, script: Script) -> None:
        self._history: History = script.history
        self._produces: list[list[SentMessage]] = []
        self._steps: dict[GroupPartition, dict[Place, list[Step]]] = defaultdict(
            lambda: defaultdict(list)
        )
        rules = GroupRules()
        for operation in sorted(script.history.operations, key=lambda op: op.arrived_us):
            if isinstance(operation, Produce):
                self._produces.append(_sent(operation, script.requests[operation.number]))
            elif isinstance(operation, Acquire | Settle | Extend):
                group_partition = GroupPartition(operation.topic, operation.group)
                for place, step in _steps(operation, rules.max_attempts):
                    self._steps[group_partition][place].append(step)

    def at(self, now_us: int) -> Expected:
        """Return the content that the disk may have, and must have, at one moment."""
        operations = self._history.operations
        sure = {op.number for op in operations if is_sure(op, now_us)}
        produces = [sent for sent in self._produces if is_possible(sent[0].operation, now_us)]
        named = {sent[0].operation.topic for sent in produces}
        certain = {sent[0].operation.topic for sent in produces if sent[0].operation.number in sure}
        topics = {**dict.fromkeys(named, 1), **TOPICS}
        boots = self._history.boots
        group_partitions = {
            group_partition: {
                place: states_after(steps, boots, now_us) for place, steps in places.items()
            }
            for group_partition, places in self._steps.items()
        }
        return Expected(
            now_us, topics, certain, produces, sure, group_partitions, self._tokens(sure)
        )

    def _tokens(self, sure: set[int]) -> dict[GroupPartition, int]:
        tokens: dict[GroupPartition, int] = {}
        for operation in self._history.operations:
            if isinstance(operation, Acquire) and operation.number in sure:
                group_partition = GroupPartition(operation.topic, operation.group)
                told = [delivery.token or 0 for delivery in operation.deliveries]
                tokens[group_partition] = max([tokens.get(group_partition, 0), *told])
        return tokens


def _sent(operation: Produce, request: mm.Request) -> list[SentMessage]:
    if isinstance(request, mm.Produce):
        messages: tuple[mm.BatchMessage, ...] = (mm.BatchMessage(*request[1:]),)
    else:
        assert isinstance(request, mm.ProduceBatch), request
        messages = request.messages
    places = operation.places or (None,) * len(messages)
    return [SentMessage(operation, *one) for one in zip(messages, places, strict=True)]


def _steps(operation: Acquire | Settle | Extend, max_attempts: int) -> Iterator[tuple[Place, Step]]:
    if isinstance(operation, Acquire):
        for delivery in operation.deliveries:
            yield delivery.place, Leased(operation, delivery)
    elif isinstance(operation, Extend):
        yield operation.place, Extended(operation)
    else:
        results = operation.results or ("",) * len(operation.settlements)
        for settlement, error in zip(operation.settlements, results, strict=True):
            if not error:
                yield settlement.place, Settled(operation, settlement, max_attempts)
