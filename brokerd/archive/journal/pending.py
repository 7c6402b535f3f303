# Tests: tests/archive/test_pending.py
"""What of a log is to be archived: its sealed segments from some LSN on, and why there are no more.

Which files are segments, and what may be missing, is docs/wal-format.rst. Segments that were
deleted on purpose, and damage that the broker knows, are passed over; anything else that is wrong
ends what can be archived, and is told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, open_sealed
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
)

_SEGMENT = re.compile(r"([0-9]{20})\.wal")
_DELETED = re.compile(r"([0-9]{20})-([0-9]{20})\.deleted")

Damage = Mapping[str, Sequence[tuple[int, int]]]
"""Damaged places by the name of the segment file: position, end."""


class Stop(NamedTuple):
    """Why the log is archived no further."""

    lsn: int
    reason: str
    is_problem: bool
    """Whether somebody has to do something about it."""


def damaged_places(bounds: Bounds) -> dict[str, list[tuple[int, int]]]:
    """Damage that the broker knows: positions by segment file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for file, position, end in bounds.damage:
        found.setdefault(file, []).append((position, end))
    return found


def _damaged_lsns(bounds: Bounds) -> Iterator[tuple[int, int]]:
    for place in bounds.damage:
        if (match := _SEGMENT.fullmatch(place.file)) is not None:
            yield int(match[1]) + place.position, int(match[1]) + place.end


def _known_gaps(names: Iterable[str], bounds: Bounds) -> DisjointRanges:
    deleted = (match for match in map(_DELETED.fullmatch, names) if match is not None)
    ranges = ((int(match[1]), int(match[2])) for match in deleted)
    return DisjointRanges([*ranges, *_damaged_lsns(bounds)])


def end_of_damage(bounds: Bounds, lsn: int) -> int:
    """The first LSN from ``lsn`` on that is in none of the damage that is known."""
    return DisjointRanges(_damaged_lsns(bounds)).end_of(lsn)


def end_of_known_gap(wal: Path, bounds: Bounds, lsn: int) -> int:
    """The first LSN from ``lsn`` on that is neither damaged nor deleted. Raises OSError."""
    return _known_gaps(os.listdir(wal), bounds).end_of(lsn)


class _Names(NamedTuple):
    """What stands in the log's directory."""

    segments: list[int]
    known: DisjointRanges


def _names(wal: Path, bounds: Bounds) -> _Names:
    return _Names(first_lsns(wal), _known_gaps(os.listdir(wal), bounds))


def first_lsns(wal: Path) -> list[int]:
    """Where the segments of a log begin, by their names, in order. Raises OSError.

    What is no file, as a pipe or a directory, is none.
    """
    with os.scandir(wal) as entries:
        names = [one.name for one in entries if _SEGMENT.fullmatch(one.name) and one.is_file()]
    return sorted(int(name.removesuffix(".wal")) for name in names)


def end_of_log(wal: Path, bounds: Bounds) -> int:
    """An LSN that the log has got to, for certain. Raises OSError."""
    return max([bounds.lsn, *_names(wal, bounds).segments])


def is_deleted(wal: Path, lsn: int) -> bool:
    """Whether the log says that what it had at an LSN was deleted on purpose. Raises OSError."""
    deleted = (match for match in map(_DELETED.fullmatch, os.listdir(wal)) if match is not None)
    return any(int(match[1]) <= lsn < int(match[2]) for match in deleted)


def sealed_segments(wal: Path, bounds: Bounds, lsn: int) -> Iterator[SealedSegment | Stop]:
    """The sealed segments of a log from ``lsn`` on, in order; then why there are no more.

    Raises FileNotFoundError when the broker deleted one meanwhile, and OSError.
    """
    return segments_from(wal, bounds, lsn, lambda path, after: open_segment(path, after is None))


class Opened(Protocol):
    """A segment that somebody opened."""

    @property
    def end_lsn(self) -> int:
        """Where it ends, exclusive."""


Found = TypeVar("Found", bound=Opened)


def segments_from(
    wal: Path, bounds: Bounds, lsn: int, opened: Callable[[Path, int | None], Found | Stop]
) -> Iterator[Found | Stop]:
    """The segments of a log from ``lsn`` on, in order; then why there are no more.

    ``opened`` opens a segment, or says why nothing can be had of it and those after it. It is given
    the first LSN of the one after it, None for the last one. Raises what that raises, and OSError.
    """
    segments, known = _names(wal, bounds)
    afters = [*segments[1:], None] if segments else []
    for first_lsn, after in zip(segments, afters, strict=True):
        if lsn < first_lsn:
            lsn = known.end_of(lsn)
        if lsn > first_lsn:
            continue  # it is archived, or inside of what is gone, or no segment at all
        if lsn < first_lsn:
            yield _missing(lsn, first_lsn)
            return
        found = opened(wal / f"{first_lsn:020d}.wal", after)
        if not isinstance(found, Stop):
            yield found
            lsn = found.end_lsn
        elif known.end_of(lsn) > lsn + SEGMENT_HEADER_BYTES:
            lsn = known.end_of(lsn)
        else:
            yield found
            return
    yield Stop(lsn, "", False)


def _missing(lsn: int, first_lsn: int) -> Stop:
    return Stop(
        lsn,
        f"the log from LSN {lsn} to {first_lsn} is missing, and nothing says that it was deleted: "
        "bring the journal files back, or start the broker, which finds out what is lost, and run "
        "`brokerctl wal repair`",
        True,
    )


def open_segment(path: Path, is_last: bool) -> SealedSegment | Stop:
    """A sealed segment, or why it is none. Raises FileNotFoundError if it is gone, and OSError."""
    lsn = int(path.stem)
    try:
        found = open_sealed(path)
    except FileNotFoundError as error:
        if error.filename is None or not str(error.filename).endswith(".idx"):
            raise
        if is_last:
            return Stop(lsn, f"{path.name} is not closed yet", False)
        return Stop(lsn, f"{path.name} has no index yet: the broker has still to write it", False)
    except DamagedSegment as error:
        return Stop(
            lsn,
            f"{path} at {error.position}: {error.problem}; start the broker, which makes a new "
            "index, or run `brokerctl wal repair`",
            True,
        )
    except NewerFormat as error:
        return Stop(lsn, str(error), True)
    if found.first_lsn != lsn:
        return Stop(
            lsn,
            f"{path} says that it begins at LSN {found.first_lsn}: a file of another place was put "
            "there; bring the right one back",
            True,
        )
    return found
