# Tests: tests/archive/test_merge_policy.py
"""The merge policy: keep few files, but rewrite no record too often.

Pure functions of file sizes and key spans. docs/archive-tables.rst, "Merging", has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FILES_MAX = 64
"""The largest number of files of one merge. All of them may be open together."""
SMALL_ROUND_GROWTH = 8
"""The least growth of a file by a merge in a small round. A complete run has 2: small rounds
rewrite a record a third as often, and leave more files."""

Span = tuple[tuple[int, int], tuple[int, int]]
"""The smallest and the largest (topic id, partition) that a shared file may hold."""


def neighbours_to_merge(sizes: Sequence[int], limit: int, growth: int = 2) -> list[range]:
    """Return runs of neighbours, as positions, newest first. Each run becomes one file.

    ``sizes`` has the newest file last. A file is merged with all later files if these are together
    at least ``growth - 1`` times as large, up to ``limit`` bytes. So the new file is at least
    ``growth`` times as large, and a second merge finds no run.
    """
    runs = []
    first = end = len(sizes)
    total = 0
    for at in reversed(range(len(sizes))):
        if total + sizes[at] > limit:
            runs.append(range(first, end))
            first = end = at + 1
            total = 0
        if sizes[at] * (growth - 1) <= total or at == end - 1:
            first = at
        total += sizes[at]
    return [run for run in [*runs, range(first, end)] if len(run) > 1]


def pieces(runs: Iterable[range], most: int = FILES_MAX) -> list[range]:
    """Cut runs to ``most`` files each, and drop a remainder of one file."""
    cut = [
        range(at, min(at + most, run.stop))
        for run in runs
        for at in range(run.start, run.stop, most)
    ]
    return [piece for piece in cut if len(piece) > 1]


def deepest(spans: Sequence[Span]) -> list[int]:
    """Find the key that most spans hold, the smallest of several. Return these spans' positions."""
    most: list[int] = []
    for key in sorted({first for first, _ in spans}):
        holding = [at for at, (first, last) in enumerate(spans) if first <= key <= last]
        if len(holding) > len(most):
            most = holding
    return most
