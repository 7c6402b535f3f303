# Tests: tests/archive/test_tasks.py
"""The tasks of an ingest: read a part of the log, write one file and verify it.

They run in Spark's workers, and need neither Spark nor the broker. A killed task leaves a file
without a commit. Its next attempt uses another file name.

A task returns a :class:`TaskProblem` if a new or smaller plan can avoid the problem. It raises
other errors.
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

from brokerd.archive.cluster.attempts import retry_later
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
"""The number of sorted rows that are copied at a time."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class TaskProblem(NamedTuple):
    """The reason why a task wrote no file."""

    kind: Literal["damaged", "gone", "full"]
    """Damaged: the archive must end before the segment at ``lsn``. Gone: the broker deleted a
    segment after the plan. Full: the disk has no space."""
    text: str
    lsn: int = 0


class Target(NamedTuple):
    """The archive that tasks write to, and copies of the journal that they read."""

    root: Place
    log_id: str
    copies: Mapping[bytes, SegmentCopy] | None = None
    """Copies by segment id, or None if tasks read the journal itself."""
    cache_bytes: int = 0
    """The disk space that a machine may use for fetched copies."""


class _TaskAborted(Exception):
    """A task stops because of a problem."""

    def __init__(self, problem: TaskProblem) -> None:
        super().__init__(problem)
        self.problem = problem


def write_records(task: tuple[Target, RecordsSplit]) -> FileInfo | TaskProblem | None:
    """Write and verify a file of records. Return None if known damage destroyed all records."""
    return _run(_write_records, *task)


def write_events(task: tuple[Target, EventsSplit]) -> FileInfo | TaskProblem | None:
    """Write and verify a file of events. Return None if the input has no events."""
    return _run(_write_events, *task)


def _run(
    write: Callable[[Target, Any], FileInfo | None], target: Target, split: Any
) -> FileInfo | TaskProblem | None:
    try:
        return write(target, split)
    except _TaskAborted as aborted:
        return aborted.problem
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        if not _is_of_archive(error, target.root):
            retry_later(error)  # in another executor, which has another disk
        return TaskProblem("full", f"{error.filename or target.root}: {error.strerror}")


def _is_of_archive(error: OSError, root: Place) -> bool:
    """Return whether an error belongs to a file of the archive, or names no file."""
    name = error.filename
    return isinstance(root, Path) and (name is None or Path(name).is_relative_to(root))


@contextmanager
def _reading(target: Target, segment: Segment) -> Iterator[Segment]:
    """Yield a segment on a disk of this machine. If reading fails, raise _TaskAborted."""
    path = segment.path
    try:
        with _local(target, segment) as local:
            path = local.path
            yield local
    except (DamagedData, NewerFormat) as error:
        text = str(error).replace(path, segment.path)
        raise _TaskAborted(TaskProblem("damaged", text, segment.first_lsn)) from error
    except DamagedCopy as error:
        raise _TaskAborted(TaskProblem("gone", str(error))) from error
    except FileNotFoundError as error:
        if str(error.filename).endswith((".wal", ".idx")):
            raise _TaskAborted(TaskProblem("gone", f"{error.filename} is gone")) from error
        raise


def _local(target: Target, segment: Segment) -> AbstractContextManager[Segment]:
    if target.copies is None:
        return nullcontext(segment)
    copy = target.copies[segment.segment_id]
    return fetch_copy(target.root, segment, copy, target.cache_bytes)


def _open(segment: Segment) -> SealedSegment:
    opened = open_sealed(segment.path)
    if (opened.segment_id, opened.end_lsn) != (segment.segment_id, segment.end_lsn):
        raise _TaskAborted(TaskProblem("gone", f"{segment.path} was replaced by another segment"))
    return opened


def _write(
    target: Target, layout: Layout, ranges: Sequence[Range], rows: Iterable[pa.Table]
) -> FileInfo:
    directory = target.root / layout.name
    with FileWriter(directory, layout, target.log_id, ranges) as writer:
        for part in rows:
            writer.write(part)
        info = writer.close()
    verify_written(directory, info)
    return info


# -- Records -------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """The batches of a segment that a task writes."""

    segment: Segment
    batches: Batches


def _write_records(target: Target, split: RecordsSplit) -> FileInfo | None:
    parts, lost = _parts(target, split)
    ranges = covered_ranges([part.batches for part in parts], lost, split.gaps)
    if not ranges:
        return None
    rows = _rows(target, parts, split)
    if len({covered[:2] for covered in ranges}) > 1:
        rows = _sorted(rows)
    return _write(target, RECORDS, ranges, rows)


def _parts(target: Target, split: RecordsSplit) -> tuple[list[_Part], list[Batches]]:
    """Return the batches of a task by segment, and the batches that known damage destroyed."""
    parts, lost = [], []
    for ordinal, segment in enumerate(split.segments):
        pieces = split.pieces[split.pieces["segment"] == ordinal]
        with _reading(target, segment) as local:
            opened = _open(local)
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
    """Yield the records segment by segment. The records of a partition are in order."""
    for segment, batches in parts:
        with _reading(target, segment) as local:
            for rows in read_records(_open(local), batches, split.topics):
                yield pa.Table.from_batches([rows])


def _sorted(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield all rows sorted by topic id, partition and offset."""
    table = pa.concat_tables(rows).combine_chunks()
    order = np.lexsort([table[name].to_numpy() for name in ("offset", "partition", "topic_id")])
    for first in range(0, len(order), _SORTED_ROWS):
        yield table.take(pa.array(order[first : first + _SORTED_ROWS]))


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
        with _reading(target, segment) as local:
            for rows in read_events(_open(local), split.topics, places):
                if len(rows):
                    yield pa.Table.from_batches([rows])
