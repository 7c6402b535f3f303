# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Check the lives of the broker: promises 1, 6 and 7."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.history.operations import NEVER, History
from simulator.oracle.timeline.spans import Lives
from simulator.oracle.violation import Violation, violation

OWN_FAULTS = (
    "contradicts itself",
    "a frame could not be made",
    "unknown to this version",
    "does not know; upgrade",
)
"""Parts of the broker's errors about data that it must never write."""


def check_boots(history: History, lives: Lives) -> Iterator[Violation]:
    """Check for answers after an end, refused logs and damage without a cause."""
    for op in history.operations:
        boot = lives.boot(op)
        if boot is None or op.written_us == NEVER:
            continue
        if boot.ended_us != NEVER and op.written_us > boot.ended_us:
            text = f"boot {boot.number} {boot.end} at {boot.ended_us} and answered after it"
            yield violation("P7-silence", text, op)
        if boot.ready_us == NEVER or op.written_us < boot.ready_us:
            text = f"boot {boot.number} answered before it was ready"
            yield violation("P1-ready", text, op)
    without_sync = False
    for boot in history.boots:
        without_sync |= boot.durability != "fsync"
        if history.rotted:
            continue
        if any(fault in boot.reason for fault in OWN_FAULTS):
            text = f"boot {boot.number} {boot.end}: {boot.reason}"
            yield Violation("P1-start", text, (), boot.ended_us)
        if boot.damages and not without_sync:
            text = f"boot {boot.number} reports damage that nobody did: {boot.damages[0]}"
            yield Violation("P6-damage", text, (), boot.ready_us)
    last = history.boots[-1] if history.boots else None
    if history.operations and last is not None and last.ready_us == NEVER and not history.rotted:
        text = f"the broker does not come up again: {last.end} {last.reason}".rstrip()
        yield Violation("P1-start", text, (), last.begun_us)
