# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""The value that reports a broken promise."""

from __future__ import annotations

from typing import NamedTuple

from simulator.history.operations import NEVER, Operation


class Violation(NamedTuple):
    """A promise that a history breaks."""

    promise: str
    """The check, as docs/simulator.rst tabulates it; its number is the promise's."""
    text: str
    operations: tuple[int, ...]
    """Numbers of the operations that together show it."""
    at_us: int
    """When it could be seen."""


def violation(promise: str, text: str, *shown_by: Operation) -> Violation:
    """Return a violation, dated by the last answer or request of its operations."""
    numbers = tuple(sorted({operation.number for operation in shown_by}))
    times = (max(op.sent_us, op.answered_us, op.written_us) for op in shown_by)
    return Violation(promise, text, numbers, max(times, default=NEVER))
