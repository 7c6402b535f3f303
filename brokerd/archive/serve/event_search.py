# Tests: tests/archive/test_event_search.py
"""Searches the table ``events`` for the events that may concern one record.

The names of files have ranges of LSNs. Statistics of row groups leave out those below an LSN, and
those of other topics. Of the others, three columns are read first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.layout import parse_events_name
from brokerd.archive.contract.view import ArchivedEvent, EventPlace, EventSlice
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.walformat import EventKind

GROUPS_MAX = 32
"""Row groups, each of 8,192 rows at most, that one slice reads."""
EXAMINED_MAX = 4_096
"""Row groups whose statistics one slice looks at."""

_TOKENS = 1 << 64


@cache
def _wide_kinds() -> pa.Array:
    """Return the kinds that name no single record. The first call makes Arrow look for pandas."""
    return pa.array([kind.name for kind in EventKind if kind > EventKind.DEAD])


class EventFile(NamedTuple):
    """A file of the table: path, bytes, and the end of its LSNs."""

    path: str
    size: int
    end_lsn: int


def event_files(files: pa.Table) -> list[EventFile]:
    """Return the files of a version of the table, by LSN.

    ``files`` is `brokerd.archive.delta.log_files.Snapshot.files`. Raises ForeignArchive.
    """
    paths, sizes = files["path"].to_pylist(), files["size"].to_pylist()
    named = [(parse_events_name(path), path, size) for path, size in zip(paths, sizes, strict=True)]
    named.sort(key=lambda one: one[0].first)
    return [EventFile(path, size, name.end) for name, path, size in named]


def search_events(
    files: Sequence[EventFile],
    open_file: Callable[[str, int], ArchiveFile],
    topic_id: int,
    partition: int,
    offset: int,
    from_lsn: int,
    place: EventPlace,
) -> EventSlice:
    """Implements `brokerd.archive.contract.view.EventView.events`."""
    events: list[ArchivedEvent] = []
    number, group = place
    read = examined = 0
    while number < len(files):
        if files[number].end_lsn > from_lsn:
            file = open_file(files[number].path, files[number].size)
            while group < len(file.groups):
                if read == GROUPS_MAX or examined == EXAMINED_MAX:
                    return EventSlice(events, EventPlace(number, group))
                examined += 1
                if _may_hold(file, group, topic_id, from_lsn):
                    read += 1
                    events += _events(file, group, topic_id, partition, offset)
                group += 1
        number, group = number + 1, 0
    return EventSlice(events, None)


def _may_hold(file: ArchiveFile, group: int, topic_id: int, from_lsn: int) -> bool:
    lsns, topics = file.bounds(group, "lsn"), file.bounds(group, "topic_id")
    return lsns[1] >= from_lsn and topics[0] <= topic_id <= topics[1]


def _events(
    file: ArchiveFile, group: int, topic_id: int, partition: int, offset: int
) -> list[ArchivedEvent]:
    columns = ["partition", "kind", "offset"]
    if file.bounds(group, "topic_id") != (topic_id, topic_id):
        columns.append("topic_id")
    keys = file.read_table([group], columns, as_dictionary=("kind",)).combine_chunks()
    chosen = pc.equal(keys["offset"], pa.scalar(offset, pa.int64()))
    kinds = keys["kind"].chunk(0)
    is_wide = pc.is_in(kinds.dictionary, value_set=_wide_kinds())
    if pc.any(is_wide).as_py():
        chosen = pc.or_(chosen, is_wide.take(kinds.indices))
    if not pc.any(chosen).as_py():
        return []
    chosen = pc.and_(chosen, pc.equal(keys["partition"], pa.scalar(partition, pa.int32())))
    if "topic_id" in columns:
        chosen = pc.and_(chosen, pc.equal(keys["topic_id"], pa.scalar(topic_id, pa.int64())))
    if not pc.any(chosen).as_py():
        return []
    rows = file.read_table([group]).filter(chosen)
    times = pc.cast(rows["time"], pa.int64()).to_pylist()
    return [
        ArchivedEvent(
            row["lsn"],
            row["seq"],
            time_us,
            row["group_name"],
            (
                EventKind[row["kind"]].value,
                row["offset"],
                row["amount"],
                row["token"] % _TOKENS,
                row["count"],
                row["owner"] or "",
                row["reason"] or "",
            ),
        )
        for row, time_us in zip(rows.drop_columns(["time"]).to_pylist(), times, strict=True)
    ]
