# Tests: tests/simulator/test_registry.py
"""Check accounts, access lists, keys, schemas and quotas, and the requests that quotas hold back.

The model of `simulator.oracle.registry_model` follows the requests of the only client that changes
them. A request without an answer leaves two possible states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.history.operations import (
    NEVER,
    Acquire,
    History,
    Operation,
    Produce,
)
from simulator.history.registry import Inspect, LogIn, Probe, RegistryOperation
from simulator.oracle.connections import LISTENER_QUOTA, NO_QUOTA, check_connections
from simulator.oracle.permissions import Epoch, Permissions
from simulator.oracle.registry_model import REFUSALS, Refused, RegistryState, Told
from simulator.oracle.timeline.spans import EVER_US, Lives, Span
from simulator.oracle.violation import Violation, violation

SECOND = 1_000_000
STEPS_SECONDS = 1, 4, 3_600


class Judged(NamedTuple):
    """The violations of the registry, and the permissions of the clients."""

    violations: list[Violation]
    permissions: Permissions


def check_registry(history: History, lives: Lives) -> Judged:
    """Judge the registry, permissions and quotas."""
    requests = [op for op in history.operations if isinstance(op, RegistryOperation)]
    found: list[Violation] = []
    if history.rotted or lives.any_loss or not (requests or history.principal):
        permissions = Permissions(history, lives, [])
        return Judged([*check_connections(history, lives, [], permissions)], permissions)
    epochs = [Epoch(-1, EVER_US, (RegistryState(rules=history.access),))]
    for op in requests:
        before = epochs[-1].states
        states = _follow(op, before)
        if not states:
            found.append(violation(_promise(op), _contradiction(op, before), op))
            # No later answer proves anything.
            return Judged(found, Permissions(history, lives, []))
        span = lives.span(op)
        epochs[-1] = epochs[-1]._replace(last_us=span.last_us)
        epochs.append(Epoch(span.first_us, EVER_US, states))
    permissions = Permissions(history, lives, epochs)
    found += permissions.check()
    found += _check_quota(history, lives, epochs)
    found += check_connections(history, lives, epochs, permissions)
    return Judged(found, permissions)


def _promise(op: RegistryOperation) -> str:
    return "access" if isinstance(op, LogIn | Probe) else "P1-registry"


def _contradiction(op: RegistryOperation, before: tuple[RegistryState, ...]) -> str:
    if isinstance(op, Inspect) and op.view is not None:
        expected = before[0].view()
        for name, shown, known in zip(expected._fields, op.view, expected, strict=True):
            if shown != known:
                return f"the {name} are {shown}, and by all answers they are {known}"
    answer = f"refused: {op.error}" if op.error else "accepted, with another answer"
    return f"by all earlier answers the request cannot be {answer}"


def _follow(op: RegistryOperation, states: tuple[RegistryState, ...]) -> tuple[RegistryState, ...]:
    """Return the possible states after a request; none if no state explains its answer."""
    after: list[RegistryState] = []
    for state in states:
        result = state.after(op)
        if op.answered_us == NEVER:
            after += [state] if isinstance(result, Refused) else [state, result.state]
        elif op.error:
            if _explains(result, op.error):
                after.append(state)
        elif isinstance(result, Told) and result.fits:
            after.append(result.state)
    return tuple(dict.fromkeys(after))


def _explains(result: Refused | Told, error: str) -> bool:
    """Return whether a refusal can have this text: it is true, or of another kind."""
    if isinstance(result, Refused):
        return result.text in error
    return not any(text in error for text in REFUSALS)


def _check_quota(history: History, lives: Lives, epochs: list[Epoch]) -> Iterator[Violation]:
    """Check that no time has more requests than the quota of the listener allows."""
    counted = [
        op
        for op in history.operations
        if isinstance(op, Produce | Acquire)
        and history.formats.get(op.client, "mamamia") == "mamamia"
        and op.connection != NEVER
        and NEVER not in (op.arrived_us, op.written_us)
        and op.succeeded
    ]
    for number, epoch in enumerate(epochs):
        limits = {state.quotas.get(LISTENER_QUOTA, NO_QUOTA) for state in epoch.states}
        if len(limits) != 1:
            continue
        ((requests, bytes_in, _, bytes_out),) = limits
        # The change before may take effect until its answer.
        begin_us = epochs[number - 1].last_us if number else epoch.first_us
        for boot in lives.boots:
            ends = [epoch.last_us, *([] if boot.ended_us == NEVER else [boot.ended_us])]
            window = Span(max(begin_us, boot.ready_us), min(ends))
            here = [op for op in counted if op.boot == boot.number and _is_within(op, window)]
            if requests:
                yield from _check_rate("requests", requests, window, [(op, 1) for op in here])
            if bytes_in:
                sizes = [(op, _size(op)) for op in here if isinstance(op, Produce)]
                yield from _check_rate("bytes", bytes_in, window, sizes)
            if bytes_out:
                reads = [op for op in here if isinstance(op, Acquire)]
                yield from _check_answers(bytes_out, window, reads)


def _is_within(op: Operation, span: Span) -> bool:
    return span.first_us <= op.arrived_us and op.written_us < span.last_us


def _size(op: Produce) -> int:
    """Return the least size of a request in bytes."""
    return sum(len(message.payload) for message in op.messages)


def _check_answers(rate: int, window: Span, reads: Sequence[Acquire]) -> Iterator[Violation]:
    """Check that a read waited for the bytes of answers before it.

    The quota counts an answer of any size when it is written, and reads of other connections may
    have begun by then. So a read waits only for the answers that were written before it arrived.
    """
    sizes = [(op, sum(len(one.payload) for one in op.deliveries)) for op in reads]
    for read in reads:
        starts = (read.arrived_us - seconds * SECOND for seconds in STEPS_SECONDS)
        for begin_us in sorted({max(window.first_us, start_us) for start_us in starts}):
            before = [
                (op, size)
                for op, size in sizes
                if size and begin_us <= op.arrived_us and op.written_us < read.arrived_us
            ]
            total = sum(size for _, size in before)
            took_us = read.written_us - begin_us
            if total > rate * (took_us / SECOND + 1) + 1:
                text = (
                    f"{total} bytes of answers were sent in {took_us} us before the end of a read, "
                    f"and the quota is {rate} a second"
                )
                yield violation("quota", text, *(op for op, _ in before[:3]), read)
                return


def _check_rate(
    what: str, rate: int, window: Span, counted: Sequence[tuple[Operation, int]]
) -> Iterator[Violation]:
    """Check requests with their costs. The last one of a time may cost more than is left."""
    last_us = max((op.arrived_us for op, _ in counted), default=0)
    for step_us in (seconds * SECOND for seconds in STEPS_SECONDS):
        for begin_us in range(window.first_us, last_us + 1, step_us):
            span = Span(begin_us, begin_us + step_us)
            passed = [(op, cost) for op, cost in counted if _is_within(op, span)]
            if not passed:
                continue
            took_us = min(step_us, max(op.written_us for op, _ in passed) - begin_us)
            total = sum(cost for _, cost in passed)
            if total > rate * (took_us / SECOND + 1) + max(cost for _, cost in passed):
                text = f"{total} {what} in {took_us} us, and the quota is {rate} a second"
                yield violation("quota", text, *(op for op, _ in passed[:3]))
                return
