# Tests: tests/spark/test_predicate.py
"""Selections of topics by name, as the option ``topics`` of the Spark source has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd.values import RESERVED_PREFIX


class TopicNames:
    """Topic names, or patterns with ``*``. None selects all names except the broker's own."""

    def __init__(self, names: Iterable[str] | None) -> None:
        self.names = None if names is None else tuple(names)
        self._exact = frozenset(self.exact())
        self._patterns = [name.split("*") for name in self.names or () if "*" in name]

    def __reduce__(self) -> tuple[type[TopicNames], tuple[tuple[str, ...] | None]]:
        return TopicNames, (self.names,)

    def match(self, name: str) -> bool:
        """Return whether a topic name is in the set, or matches a pattern."""
        if self.names is None:
            return not name.startswith(RESERVED_PREFIX)
        return name in self._exact or any(_match(name, pieces) for pieces in self._patterns)

    @property
    def patterns(self) -> int:
        """Return the number of patterns: `match` may compare a name with each of them."""
        return len(self._patterns)

    def exact(self) -> tuple[str, ...]:
        """Return the names without ``*``."""
        return tuple(name for name in self.names or () if "*" not in name)


def _match(name: str, pieces: Sequence[str]) -> bool:
    """Return whether a name consists of at least two pieces in order, with any text between them.

    Take the first match of each piece, which leaves the most text for later pieces.
    """
    first, *middle, last = pieces
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for piece in middle:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
