# Tests: tests/archive/test_segment_list.py
"""Lists the segments of a log from an LSN on, and gives the reason why the list ends.

docs/wal-format.rst defines the files, and says which files may be absent. The list skips deleted
segments and known damage. Any other missing or wrong file ends it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from brokerd.archive.contract.bounds import SEGMENT_NAME, Bounds, damaged_lsns
from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, open_sealed
from brokerd.errors import NewerFormat
from brokerd.walformat import SEGMENT_HEADER_BYTES

_DELETED = re.compile(r"([0-9]{20})-([0-9]{20})\.deleted")

Damage = Mapping[str, Sequence[tuple[int, int]]]
"""Damaged places by the name of the segment file: first position and end."""


class Stop(NamedTuple):
    """The end of a list of segments, and its reason."""

    lsn: int
    reason: str
    is_problem: bool
    """Whether an operator has to act."""


def damaged_places(bounds: Bounds) -> dict[str, list[tuple[int, int]]]:
    """Return the known damage: positions by segment file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for file, position, end in bounds.damage:
        found.setdefault(file, []).append((position, end))
    return found


def _deleted_lsns(wal: Path) -> Iterator[tuple[int, int]]:
    for name in os.listdir(wal):
        if (match := _DELETED.fullmatch(name)) is not None:
            yield int(match[1]), int(match[2])


def end_of_damage(bounds: Bounds, lsn: int) -> int:
    """Return the first LSN from ``lsn`` on outside known damage."""
    return DisjointRanges(damaged_lsns(bounds.damage)).end_of(lsn)


def end_of_known_gap(wal: Path, bounds: Bounds, lsn: int) -> int:
    """Return the first LSN from ``lsn`` on that is neither damaged nor deleted. Raises OSError."""
    return _known_gaps(wal, bounds).end_of(lsn)


def _known_gaps(wal: Path, bounds: Bounds) -> DisjointRanges:
    return DisjointRanges([*_deleted_lsns(wal), *damaged_lsns(bounds.damage)])


def end_of_deleted(wal: Path, lsn: int) -> int:
    """Return the first LSN from ``lsn`` on that no deleted segment held. Raises OSError."""
    return DisjointRanges(_deleted_lsns(wal)).end_of(lsn)


def is_deleted(wal: Path, lsn: int) -> bool:
    """Return whether the broker deleted the segment that held an LSN. Raises OSError."""
    return end_of_deleted(wal, lsn) > lsn


def first_lsns(wal: Path) -> list[int]:
    """Return the first LSNs of all segments by their file names, in order. Raises OSError.

    Ignore a pipe or a directory with the name of a segment.
    """
    with os.scandir(wal) as entries:
        names = [one.name for one in entries if SEGMENT_NAME.fullmatch(one.name) and one.is_file()]
    return sorted(int(name.removesuffix(".wal")) for name in names)


def end_of_log(wal: Path, bounds: Bounds) -> int:
    """Return an LSN that the log has certainly reached. Raises OSError.

    The broker may have stopped between sealing the last segment and writing the bounds. It may
    have deleted segments since the bounds were read.
    """
    end_lsn = bounds.lsn
    for lsn in first_lsns(wal)[-1:]:
        end_lsn = max(end_lsn, lsn)
        with suppress(FileNotFoundError, DamagedSegment, NewerFormat):  # deleted, or not sealed
            end_lsn = max(end_lsn, open_sealed(wal / f"{lsn:020d}.wal").end_lsn)
    # Deletions are read last, because the broker records a deletion before it deletes.
    return max([end_lsn, *(end for _, end in _deleted_lsns(wal))])


def sealed_segments(wal: Path, bounds: Bounds, lsn: int) -> Iterator[SealedSegment | Stop]:
    """Yield the sealed segments of a log from ``lsn`` on, in order; then a `Stop`.

    Raises OSError, and FileNotFoundError if the broker deletes a segment during the iteration.
    """
    return segments_from(wal, bounds, lsn, lambda path, after: open_segment(path, after is None))


class OpenedSegment(Protocol):
    """The result of the opener of `segments_from`."""

    @property
    def end_lsn(self) -> int:
        """Return the end of the segment (exclusive)."""


Opened = TypeVar("Opened", bound=OpenedSegment)


def segments_from(
    wal: Path, bounds: Bounds, lsn: int, opener: Callable[[Path, int | None], Opened | Stop]
) -> Iterator[Opened | Stop]:
    """Yield the segments of a log from ``lsn`` on, in order; then a `Stop`.

    :param opener: opens a segment, given its path and the first LSN of the next segment, or None
        for the last segment. Returns a `Stop` if the list ends before the segment.
    :raises OSError: the directory cannot be read. The opener's exceptions pass through.
    """
    segments = first_lsns(wal)
    # The gaps are read after the list, because the broker records a deletion before it deletes.
    gaps = _known_gaps(wal, bounds)
    afters = [*segments[1:], None] if segments else []
    for first_lsn, after in zip(segments, afters, strict=True):
        if lsn < first_lsn:
            lsn = gaps.end_of(lsn)
        if lsn > first_lsn:
            continue  # already archived, in a gap, or not a segment
        if lsn < first_lsn:
            yield _missing(lsn, first_lsn)
            return
        found = opener(wal / f"{first_lsn:020d}.wal", after)
        if not isinstance(found, Stop):
            yield found
            lsn = found.end_lsn
        elif gaps.end_of(lsn) > lsn + SEGMENT_HEADER_BYTES:
            lsn = gaps.end_of(lsn)
        else:
            yield found
            return
    yield Stop(lsn, "", False)


def _missing(lsn: int, first_lsn: int) -> Stop:
    return Stop(
        lsn,
        f"the log from LSN {lsn} to {first_lsn} is missing, and nothing says that it was deleted: "
        "restore the journal files, or start the broker, which finds out what is lost, and run "
        "`brokerctl wal repair`",
        True,
    )


def open_segment(path: Path, is_last: bool) -> SealedSegment | Stop:
    """Open a sealed segment, or return a `Stop`. Raises OSError; FileNotFoundError if deleted."""
    lsn = int(path.stem)
    try:
        found = open_sealed(path)
    except FileNotFoundError as error:
        if error.filename is None or not str(error.filename).endswith(".idx"):
            raise
        if is_last:
            return Stop(lsn, f"{path.name} is not closed yet", False)
        return Stop(lsn, f"{path.name} has no index yet: the broker is about to write it", False)
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
            f"{path} says that it begins at LSN {found.first_lsn}: the file belongs to another "
            "segment; restore the right one",
            True,
        )
    return found
