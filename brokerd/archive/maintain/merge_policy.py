# Tests: tests/archive/test_merge_policy.py
"""Which small files are worth merging, so that few stay and no record is written again too often.

Pure: sizes and spans of keys in, positions out. The rules are docs/archive-tables.rst, "Merging".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FILES_MAX = 64
"""So many files are merged at once: all of them may be open together."""

Span = tuple[tuple[int, int], tuple[int, int]]
"""The smallest and the largest (topic id, partition) that a shared file may hold."""


def neighbours_to_merge(sizes: Sequence[int], limit: int) -> list[range]:
    """Runs of neighbours that should become one file each, by their positions, newest first.

    Going back from the newest, which is the last, a file is merged with all that follow it as soon
    as these are together at least as large as it is, but no more than ``limit`` bytes. Of what is
    left, each file is larger than all that follow it, up to the limit: merging again finds nothing.
    """
    found = []
    first = end = len(sizes)
    total = 0
    for at in reversed(range(len(sizes))):
        if total + sizes[at] > limit:
            found.append(range(first, end))
            first = end = at + 1
            total = 0
        if sizes[at] <= total or at == end - 1:
            first = at
        total += sizes[at]
    return [run for run in [*found, range(first, end)] if len(run) > 1]


def pieces(runs: Iterable[range], most: int = FILES_MAX) -> list[range]:
    """The same runs, none longer than ``most``; what is left of one alone is no run."""
    cut = [
        range(at, min(at + most, run.stop))
        for run in runs
        for at in range(run.start, run.stop, most)
    ]
    return [piece for piece in cut if len(piece) > 1]


def deepest(spans: Sequence[Span]) -> list[int]:
    """Positions of the spans that hold one key: the smallest one that most of them hold."""
    at_most: list[int] = []
    for key in sorted({first for first, _ in spans}):
        holding = [at for at, (first, last) in enumerate(spans) if first <= key <= last]
        if len(holding) > len(at_most):
            at_most = holding
    return at_most
