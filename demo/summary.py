# Tests: tests/test_demo.py
"""The figures of a run as text."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd.server.sections import FORMATS

from .ledger import MAX_FAILURES
from .workers import SharedState

PLACES = {
    "mamamia": "leases of a group, each settled",
    "flymq": "committed offsets, FETCH and COMMIT",
    "blipmq": "a QoS 1 subscription, each acknowledged",
    "rustlog": "committed offsets, binary and JSON in turn",
    "mega": "offsets of the reader, one CONSUME a record",
}
"""How each format keeps the position of its readers."""


@dataclass
class Times:
    """Monotonic times of the run in seconds, and counts at the kill; 0 means not reached."""

    began: float = 0.0
    produced: float = 0.0
    """Time of the last acknowledged row."""
    finished: float = 0.0
    ready_after: float = 0.0
    """Duration of the first start."""
    recovered_after: float = 0.0
    """Duration from SIGKILL until the broker serves again."""
    acknowledged_at_kill: int = 0
    read_at_kill: dict[str, int] = field(default_factory=dict)
    """Format -> records read before the kill."""


def report(state: SharedState, times: Times, next_offset: int, dead: int, where: str) -> str:
    """Return the figures as text; a rate needs a duration, so an unfinished phase has none."""
    ledger = state.ledger
    seconds = times.finished - times.began
    read = {**state.read_by(), "mamamia": len(ledger.delivered)}
    lines = [
        (
            "rows acknowledged",
            f"{ledger.acknowledged():,}",
            _rate(ledger.acknowledged(), times.produced - times.began, "the crash included"),
        ),
        (
            "records in the log",
            f"{next_offset:,}",
            f"{ledger.unacknowledged_copies():,} twice: killed before the answer, then sent again",
        ),
        (
            "records read",
            f"{sum(read.values()):,}",
            _rate(sum(read.values()), seconds, "all formats, the crash included"),
        ),
        ("dead letters", f"{dead:,}", f"one row in a thousand, after {MAX_FAILURES} failures"),
        ("rows sent again", f"{ledger.resent_rows:,}", "no answer before the crash"),
        (
            "settles sent again",
            f"{ledger.resent_settles:,}",
            f"{ledger.refused_settles:,} refused: another consumer had the lease",
        ),
        (
            "killed at",
            f"{times.acknowledged_at_kill:,}",
            f"rows acknowledged, {sum(times.read_at_kill.values()):,} records read",
        ),
        ("recovery", f"{times.recovered_after:.2f} s", "from SIGKILL until it served again"),
        ("took", f"{seconds:.1f} s", where),
    ]
    shares = [len(state.rows[at :: len(FORMATS)]) for at in range(len(FORMATS))]
    table = [
        f"  {form:<10} {share:>12,} {read[form]:>14,}   {PLACES[form]}"
        for form, share in zip(FORMATS, shares, strict=True)
    ]
    return "\n".join(
        [
            "  format     rows written   records read   kept its place by",
            *table,
            "",
            *(f"  {name:<20} {figure:>10}   {note}" for name, figure, note in lines),
        ]
    )


def _rate(count: int, seconds: float, note: str) -> str:
    return f"{count / seconds:,.0f}/s, {note}" if seconds > 0 else ""
