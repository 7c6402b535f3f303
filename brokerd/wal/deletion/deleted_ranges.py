# Tests: tests/wal/test_deletion.py
"""Records of deleted parts of the log: empty files with the range in their names.

The file ``<first LSN>-<end LSN>.deleted`` says that missing segments between the two LSNs were
deleted and are not lost. It is durable before the first segment goes. It is not an order to delete:
a segment that is still there belongs to the log. The rules are docs/wal-format.rst, section
"Deleted segments".
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from brokerd.wal.disk import Disk

LSN_MAX = (1 << 63) - 1

_NAME = re.compile(r"(?P<first>[0-9]{20})-(?P<end>[0-9]{20})\.deleted")


class LsnRange(NamedTuple):
    """A part of the log. ``end`` is exclusive."""

    first: int
    end: int


class DeletedRanges:
    """Disjoint ranges of LSNs in order. Ranges that touch are joined."""

    def __init__(self, ranges: Iterable[LsnRange] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in sorted(ranges):
            if self._ends and first <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._firsts.append(first)
                self._ends.append(end)

    def __iter__(self) -> Iterator[LsnRange]:
        return map(LsnRange, self._firsts, self._ends)

    @property
    def end(self) -> int:
        """The end of the last range, or 0."""
        return self._ends[-1] if self._ends else 0

    def end_of(self, lsn: int) -> int | None:
        """Return the end of the range that holds an LSN, or None."""
        at = bisect_right(self._firsts, lsn) - 1
        return self._ends[at] if at >= 0 and lsn < self._ends[at] else None

    def next_first(self, lsn: int) -> int | None:
        """Return the start of the first range that begins at or after an LSN, or None."""
        at = bisect_left(self._firsts, lsn)
        return self._firsts[at] if at < len(self._firsts) else None

    def cover(self, first: int, end: int) -> bool:
        """Whether one range holds all between two LSNs."""
        found = self.end_of(first)
        return found is not None and end <= found

    def follows(self, lsn: int) -> bool:
        """Whether a range ends at an LSN."""
        return lsn in self._ends

    def missing(self, first: int, end: int) -> Iterator[LsnRange]:
        """Yield the parts between two LSNs that are in no range."""
        while first < end:
            first = self.end_of(first) or first
            stop = self.next_first(first)
            stop = end if stop is None else min(stop, end)
            if first < stop:
                yield LsnRange(first, stop)
            first = max(first, stop)

    def after(self, lsn: int) -> Iterator[LsnRange]:
        """Yield the ranges, or parts of them, from an LSN on."""
        for first, end in self:
            if end > lsn:
                yield LsnRange(max(first, lsn), end)


def deleted_name(deleted: LsnRange) -> str:
    """Return the name of the record of a deleted range."""
    return f"{deleted.first:020d}-{deleted.end:020d}.deleted"


def named_range(name: str) -> LsnRange | None:
    """Return the deleted range that a file name records, None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    found = LsnRange(int(match["first"]), int(match["end"]))
    return found if found.first < found.end <= LSN_MAX else None


def deleted_ranges(disk: Disk, path: str) -> DeletedRanges:
    """Return the deleted ranges that a log's directory records. Raises OSError."""
    found = (named_range(name) for name in disk.list(path))
    return DeletedRanges(one for one in found if one is not None)


def redundant_records(disk: Disk, path: str) -> list[str]:
    """Return the names of records inside of wider ones. Raises OSError."""
    named = _records(disk, path)
    wider = {deleted_name(one) for one in DeletedRanges(named.values())} & named.keys()
    covered = DeletedRanges(named[name] for name in wider)
    return [name for name, one in named.items() if name not in wider and covered.cover(*one)]


def record_names(disk: Disk, path: str) -> list[str]:
    """Return the names of all records. Raises OSError."""
    return sorted(_records(disk, path))


def record_deletion(disk: Disk, path: str, ranges: Iterable[LsnRange]) -> list[str]:
    """Create records of ``ranges``. A new record replaces the records that it touches.

    Returns the names of the replaced records, to be deleted once the directory is synced. Raises
    OSError.
    """
    before = _records(disk, path)
    after = {deleted_name(one) for one in DeletedRanges([*before.values(), *ranges])}
    for name in sorted(after - before.keys()):
        disk.create(os.path.join(path, name)).close()
    return sorted(before.keys() - after)


def _records(disk: Disk, path: str) -> dict[str, LsnRange]:
    return {name: one for name in disk.list(path) if (one := named_range(name)) is not None}
