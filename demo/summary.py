# Tests: tests/test_demo.py
"""The figures of a run, laid out for a person."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd.server.sections import FORMATS

from .course import Course
from .ledger import MAX_FAILURES

PLACES = {
    "mamamia": "leases of a group, each settled",
    "flymq": "committed offsets, FETCH and COMMIT",
    "blipmq": "a QoS 1 subscription, each acknowledged",
    "rustlog": "committed offsets, binary and JSON by turns",
    "mega": "its own offset, CONSUME by CONSUME",
}
"""How the readers of each format keep their place."""


@dataclass
class Times:
    """Moments of the run, in monotonic seconds."""

    began: float = 0.0
    produced: float = 0.0
    """When the last row was acknowledged."""
    finished: float = 0.0
    ready_after: float = 0.0
    """Seconds the first start took."""
    recovered_after: float = 0.0
    """Seconds from SIGKILL to the next answer-ready broker."""
    acknowledged_at_kill: int = 0
    read_at_kill: dict[str, int] = field(default_factory=dict)
    """Format -> records read by then."""


def report(course: Course, times: Times, next_offset: int, dead: int, where: str) -> str:
    """Lay the figures out."""
    ledger = course.ledger
    produce_seconds = max(times.produced - times.began, 1e-9)
    seconds = max(times.finished - times.began, 1e-9)
    read = {**course.read_by(), "mamamia": len(ledger.delivered)}
    lines = [
        (
            "rows acknowledged",
            f"{ledger.acknowledged():,}",
            f"{ledger.acknowledged() / produce_seconds:,.0f}/s, the crash included",
        ),
        (
            "records in the log",
            f"{next_offset:,}",
            f"{ledger.unacknowledged_copies():,} stored, but never answered",
        ),
        (
            "records read",
            f"{sum(read.values()):,}",
            f"{sum(read.values()) / seconds:,.0f}/s by all formats, the crash included",
        ),
        ("dead letters", f"{dead:,}", f"one row in a thousand, after {MAX_FAILURES} failures"),
        ("rows sent again", f"{ledger.resent_rows:,}", "no answer had come at the crash"),
        (
            "settles sent again",
            f"{ledger.resent_settles:,}",
            f"{ledger.refused_settles:,} refused: leased by another by then",
        ),
        (
            "killed at",
            f"{times.acknowledged_at_kill:,}",
            f"rows acknowledged, {sum(times.read_at_kill.values()):,} records read",
        ),
        ("recovery", f"{times.recovered_after:.2f} s", "from SIGKILL until it served again"),
        ("took", f"{seconds:.1f} s", where),
    ]
    shares = [len(course.rows[at :: len(FORMATS)]) for at in range(len(FORMATS))]
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
