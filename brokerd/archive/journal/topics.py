# Tests: tests/archive/test_segment_list.py, tests/spark/test_journal.py
"""Reads changes of topics and schemas from sealed segments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.archive.journal.entry_scan import EntryScan
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, open_sealed
from brokerd.archive.journal.segment_list import damaged_places, first_lsns
from brokerd.walformat import (
    ENTRY_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    FormatError,
    entry_body,
)

CHANGES = (EntryKind.TOPIC, EntryKind.SCHEMA)
"""The kinds of entries that are changes."""


class TopicChange(NamedTuple):
    """A TOPIC entry: creates, configures or deletes a topic, or sets a start offset.

    Or a SCHEMA entry: registers or deletes versions of a schema.
    """

    lsn: int
    topic_id: int
    partition: int
    fields: dict[str, Any]
    kind: int = EntryKind.TOPIC


def topic_changes(
    segment: SealedSegment, damage: Iterable[tuple[int, int]] = ()
) -> Iterator[TopicChange]:
    """Yield the changes of topics and schemas of a segment, in order.

    :param damage: known damaged places of the file, first position and end. Unreadable entries
        there are skipped.
    :raises DamagedSegment: another place is damaged.
    :raises NewerFormat: a later version of brokerd wrote the segment.
    :raises OSError: the segment cannot be read.
    """
    known = DisjointRanges(damage)
    fd = os.open(segment.path, os.O_RDONLY)
    try:
        for chunk in EntryScan(fd, segment, _is_change, known).chunks():
            for position, header in zip(chunk.positions, chunk.headers, strict=True):
                try:
                    body = entry_body(chunk.data, header, position - chunk.base)
                except FormatError as error:
                    if known.overlap(position, position + ENTRY_HEADER_BYTES + header.body_bytes):
                        continue
                    raise DamagedSegment(segment.path, position, str(error)) from None
                lsn = segment.first_lsn + position
                fields = msgpack.unpackb(body)
                yield TopicChange(lsn, header.topic_id, header.partition, fields, header.kind)
    finally:
        os.close(fd)


def _is_change(header: EntryHeader) -> bool:
    return header.kind in CHANGES


def new_topics(wal: Path, bounds: Bounds) -> dict[int, str]:
    """Return the names, by id, of topics that were created after the bounds. Raises OSError.

    Skip open and damaged segments, because the job does not archive them.
    """
    found: dict[int, str] = {}
    damage = damaged_places(bounds)
    lsns = first_lsns(wal)
    for first_lsn, next_lsn in zip(lsns, [*lsns[1:], None], strict=True):
        if next_lsn is not None and next_lsn <= bounds.lsn:
            continue
        with suppress(FileNotFoundError, DamagedSegment):
            segment = open_sealed(wal / f"{first_lsn:020d}.wal")
            for change in topic_changes(segment, damage.get(os.path.basename(segment.path), ())):
                if change.fields.get("op") == "created":
                    found[change.topic_id] = change.fields["name"]
    return found
