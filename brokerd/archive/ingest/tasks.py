# Tests: tests/archive/test_tasks.py
"""What a task of a rollup does: reads its part of the log, writes one file, reads that back.

Runs in Spark's workers: no Spark, nothing of the broker. A task that is killed leaves a file that
no commit names; it is done again from the start, under another name.

What planning again, or planning less, goes round is returned as a :class:`Problem`. Anything else
is raised.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.contract.layout import EVENTS, RECORDS, Layout, Range
from brokerd.archive.ingest.plan import EventsSplit, Pieces, RecordsSplit
from brokerd.archive.journal.copies import DamagedCopy, SegmentCopy, fetch_copy
from brokerd.archive.journal.coverage import covered_ranges
from brokerd.archive.journal.events import read_events
from brokerd.archive.journal.records import lost_batches, read_records
from brokerd.archive.journal.sealed import (
    Batches,
    SealedSegment,
    Segment,
    batches_of,
    open_sealed,
)
from brokerd.archive.parquet.writer import FileInfo, FileWriter, verify_written
from brokerd.archive.storage.address import Place
from brokerd.errors import DamagedData, NewerFormat

_SORTED_ROWS = 64 << 10
"""Sorted rows are copied so many at a time."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Problem(NamedTuple):
    """Why a task wrote nothing."""

    kind: Literal["damaged", "gone", "full"]
    """Damaged: nothing from the segment at ``lsn`` on can be archived. Gone: the broker deleted a
    segment since the plan was made. Full: the disk is."""
    text: str
    lsn: int = 0


class Target(NamedTuple):
    """Where files are written."""

    root: Place
    """Where the archive is."""
    log_id: str
    copies: Mapping[bytes, SegmentCopy] | None = None
    """By segment id, if tasks may not have the journal itself."""
    cache_bytes: int = 0
    """How much of its disk a machine may take for what it fetches of them."""


class _Ended(Exception):
    """The task ends with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


def write_records(task: tuple[Target, RecordsSplit]) -> FileInfo | Problem | None:
    """Write a file of records and prove it; None if known damage left nothing to write."""
    return _guarded(_write_records, *task)


def write_events(task: tuple[Target, EventsSplit]) -> FileInfo | Problem | None:
    """Write a file of events and prove it; None if there are no events."""
    return _guarded(_write_events, *task)


def _guarded(
    write: Callable[[Target, Any], FileInfo | None], target: Target, split: Any
) -> FileInfo | Problem | None:
    try:
        return write(target, split)
    except _Ended as ended:
        return ended.problem
    except OSError as error:
        if error.errno in _NO_SPACE:
            return Problem("full", f"{error.filename or target.root}: {error.strerror}")
        raise


@contextmanager
def _reading(target: Target, segment: Segment) -> Iterator[Segment]:
    """Have a segment on a disk of this machine; end the task when it cannot be read."""
    path = segment.path
    try:
        with _here(target, segment) as here:
            path = here.path
            yield here
    except (DamagedData, NewerFormat) as error:
        text = str(error).replace(path, segment.path)
        raise _Ended(Problem("damaged", text, segment.first_lsn)) from error
    except DamagedCopy as error:
        raise _Ended(Problem("gone", str(error))) from error
    except FileNotFoundError as error:
        if str(error.filename).endswith((".wal", ".idx")):
            raise _Ended(Problem("gone", f"{error.filename} is gone")) from error
        raise


def _here(target: Target, segment: Segment) -> AbstractContextManager[Segment]:
    if target.copies is None:
        return nullcontext(segment)
    copy = target.copies[segment.segment_id]
    return fetch_copy(target.root, segment, copy, target.cache_bytes)


def _open(segment: Segment) -> SealedSegment:
    opened = open_sealed(segment.path)
    if (opened.segment_id, opened.end_lsn) != (segment.segment_id, segment.end_lsn):
        raise _Ended(Problem("gone", f"{segment.path} is another segment now"))
    return opened


def _write(
    target: Target, layout: Layout, ranges: Sequence[Range], rows: Iterable[pa.Table]
) -> FileInfo:
    directory = target.root / layout.name
    with FileWriter(directory, layout, target.log_id, ranges) as writer:
        for some in rows:
            writer.write(some)
        info = writer.close()
    verify_written(directory, info)
    return info


# -- Records -------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """The batches of one segment that a task writes."""

    segment: Segment
    batches: Batches


def _write_records(target: Target, split: RecordsSplit) -> FileInfo | None:
    parts, lost = _parts(target, split)
    ranges = covered_ranges([part.batches for part in parts], lost, split.gaps)
    if not ranges:
        return None
    rows = _rows(target, parts, split)
    if len({found[:2] for found in ranges}) > 1:
        rows = _sorted(rows)
    return _write(target, RECORDS, ranges, rows)


def _parts(target: Target, split: RecordsSplit) -> tuple[list[_Part], list[Batches]]:
    """The batches of a task by segment, and those that are lost to damage that is known."""
    parts, lost = [], []
    for ordinal, segment in enumerate(split.segments):
        pieces = split.pieces[split.pieces["segment"] == ordinal]
        with _reading(target, segment) as here:
            opened = _open(here)
            batches = batches_of(opened.index).select(_row_numbers(pieces))
            places = split.known_damage.get(Path(segment.path).name, ())
            read = partial(read_records, opened, names=split.topics)
            is_lost = lost_batches(batches, places, read)
        parts.append(_Part(segment, batches.select(~is_lost)))
        lost.append(batches.select(is_lost))
    return parts, lost


def _row_numbers(pieces: Pieces) -> npt.NDArray[np.intp]:
    runs = [np.arange(row, row + rows) for row, rows in pieces[["row", "rows"]].tolist()]
    return np.concatenate(runs).astype(np.intp)


def _rows(target: Target, parts: Iterable[_Part], split: RecordsSplit) -> Iterator[pa.Table]:
    """The records, segment by segment; those of one partition come in order."""
    for segment, batches in parts:
        with _reading(target, segment) as here:
            for rows in read_records(_open(here), batches, split.topics):
                yield pa.Table.from_batches([rows])


def _sorted(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """All of them by topic id, partition and offset."""
    together = pa.concat_tables(rows).combine_chunks()
    order = np.lexsort([together[name].to_numpy() for name in ("offset", "partition", "topic_id")])
    for first in range(0, len(order), _SORTED_ROWS):
        yield together.take(pa.array(order[first : first + _SORTED_ROWS]))


# -- Events --------------------------------------------------------------------------------------


def _write_events(target: Target, split: EventsSplit) -> FileInfo | None:
    rows = _event_rows(target, split)
    first = next(rows, None)
    if first is None:
        return None
    ranges = [Range(0, 0, split.first_lsn, split.end_lsn)]
    return _write(target, EVENTS, ranges, chain([first], rows))


def _event_rows(target: Target, split: EventsSplit) -> Iterator[pa.Table]:
    for segment in split.segments:
        places = split.known_damage.get(Path(segment.path).name, ())
        with _reading(target, segment) as here:
            for rows in read_events(_open(here), split.topics, places):
                if len(rows):
                    yield pa.Table.from_batches([rows])
