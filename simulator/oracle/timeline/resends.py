# Tests: tests/simulator/test_oracle_changes.py
"""Merge the repeats of a batch under one sequence number into one request: promise 2.

The batch was stored once between the first arrival and the first answer. The other checks see one
operation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from simulator.history.operations import NEVER, History, Operation, Produce
from simulator.oracle.violation import Violation, violation


def merge_resends(history: History) -> tuple[History, list[Violation]]:
    """Return the history with each message sent once, and the answers that disagree."""
    same: dict[tuple[str, str, int], list[Produce]] = defaultdict(list)
    for op in history.operations:
        if isinstance(op, Produce) and op.producer_id:
            same[op.topic, op.producer_id, op.sequence].append(op)
    violations: list[Violation] = []
    merged: dict[tuple[str, int], Produce | None] = {}
    for sent in same.values():
        if len(sent) > 1:
            violations += _disagreements(sent)
            kept = _merged(sent)
            merged |= {(op.topic, op.number): None for op in sent}
            merged[kept.topic, kept.number] = kept
    operations: list[Operation] = []
    for op in history.operations:
        one = merged.get((op.topic, op.number), op) if isinstance(op, Produce) else op
        if one is not None:
            operations.append(one)
    return replace(history, operations=operations), violations


def _merged(sent: list[Produce]) -> Produce:
    """Return one request: it came with the first and was answered with the first answer.

    Its connection is unknown, because a stalled connection may be overtaken by the next.
    """
    tried = [op for op in sent if not op.error] or sent[:1]
    first, last = tried[0], tried[-1]
    answered = [op for op in tried if op.answered_us != NEVER]
    shown = min(answered, key=lambda op: op.written_us) if answered else last
    arrived = [op.arrived_us for op in tried if op.arrived_us != NEVER]
    return replace(
        first,
        boot=shown.boot,
        connection=NEVER,
        arrived_us=min(arrived, default=NEVER),
        written_us=shown.written_us,
        answered_us=shown.answered_us,
        lost_us=shown.lost_us,
        error=shown.error,
        places=shown.places,
        schedules=shown.schedules,
    )


def _disagreements(sent: list[Produce]) -> list[Violation]:
    """P2: check that a resend is answered with the first ids."""
    answers = [op for op in sent if op.succeeded]
    return [
        violation(
            "P2-resend",
            f"sequence {op.sequence} of {op.producer_id!r} was answered with other ids before",
            answers[0],
            op,
        )
        for op in answers[1:]
        if (op.places, op.schedules) != (answers[0].places, answers[0].schedules)
    ]
