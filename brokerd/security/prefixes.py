# Tests: tests/security/test_prefixes.py
"""A set of prefixes, and which of them a name begins with.

Looking takes a binary search for each prefix that fits and one or two more, however many different
lengths there are: in order, whatever stands between a prefix and a name that begins with it begins
with it too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Prefixes:
    """Texts, in order; the empty one is a prefix of all."""

    def __init__(self) -> None:
        self._sorted: list[str] = []

    def add(self, prefix: str) -> None:
        """Have a prefix, if it is not there."""
        at = bisect_left(self._sorted, prefix)
        if self._sorted[at : at + 1] != [prefix]:
            self._sorted.insert(at, prefix)

    def remove(self, prefix: str) -> None:
        """Forget a prefix, if it is there."""
        at = bisect_left(self._sorted, prefix)
        if self._sorted[at : at + 1] == [prefix]:
            del self._sorted[at]

    def of(self, name: str) -> Iterator[str]:
        """Those that a name begins with, the longest first."""
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
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((at for at, (left, right) in pairs if left != right), shorter)
