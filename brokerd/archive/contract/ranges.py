# Tests: tests/archive/test_coverage.py
"""Arithmetic on covered ranges."""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.archive.contract.layout import Range


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Merge ranges that touch or overlap; returns them sorted."""
    found: list[Range] = []
    for one in sorted(ranges):
        if found and found[-1][:2] == one[:2] and one.first <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(found[-1].end, one.end))
        else:
            found.append(one)
    return found
