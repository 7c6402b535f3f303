# Tests: tests/security/test_prefixes.py
"""A set of prefixes, with a search for those of a name.

A search is one binary search for each match, and one or two more. It relies on the sort order:
every entry between a prefix and a name with this prefix also begins with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Prefixes:
    """Sorted texts; the empty one is a prefix of all."""

    def __init__(self) -> None:
        self._sorted: list[str] = []

    def add(self, prefix: str) -> None:
        """Add a prefix."""
        at = bisect_left(self._sorted, prefix)
        if self._sorted[at : at + 1] != [prefix]:
            self._sorted.insert(at, prefix)

    def remove(self, prefix: str) -> None:
        """Remove a prefix."""
        at = bisect_left(self._sorted, prefix)
        if self._sorted[at : at + 1] == [prefix]:
            del self._sorted[at]

    def of(self, name: str) -> Iterator[str]:
        """Return the prefixes of a name, the longest first."""
        rest = name
        while at := bisect_right(self._sorted, rest):
            found = self._sorted[at - 1]
            if rest.startswith(found):
                yield found
                if not found:
                    return
                rest = found[:-1]
            else:
                rest = rest[: _common_length(rest, found)]


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((at for at, (left, right) in pairs if left != right), shorter)
