# Tests: tests/wal/test_verify.py, tests/broker/test_shrunk_log.py
"""Offsets that snapshots and TOPIC entries tell of: assigned ones, and where partitions start.

A repair compares them with the log, which may have lost some of them. This module decodes only
these fields of a body; the broker decodes the rest (brokerd/broker/model/state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from brokerd.errors import NewerFormat
from brokerd.wal.recovery.report import LostRange, ranges_outside
from brokerd.wal.snapshot import SnapshotChunk
from brokerd.walformat import Entry, EntryKind

SNAPSHOT_TOPIC = 2
"""The kind of a chunk that holds a topic."""

TOPIC_OPERATIONS = frozenset(("created", "configured", "deleted", "start", "archived"))
"""The values of ``op`` in docs/wal-format.rst, section "TOPIC body"."""

_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)


def assigned_offsets(chunk: SnapshotChunk, file: str) -> list[LostRange]:
    """List the offsets that a chunk of the snapshot ``file`` says have records.

    Raises NewerFormat for a topic that this version cannot read.
    """
    if chunk.kind != SNAPSHOT_TOPIC:
        return []
    try:
        fields = msgpack.unpackb(chunk.body, strict_map_key=False)
        gaps = fields.get("gaps", {})
        return [
            LostRange(fields["topic_id"], index, first, end)
            for index, next_offset in enumerate(fields["next_offsets"])
            for first, end in ranges_outside(gaps.get(index, ()), next_offset)
        ]
    except _UNREADABLE as error:
        raise _newer(f"{file}: a topic", error) from None


def log_starts(chunk: SnapshotChunk, file: str) -> dict[tuple[int, int], int]:
    """Map (topic id, partition) to the offset below which the log need not hold records.

    ``file`` is the snapshot of ``chunk``. Raises NewerFormat for a topic that this version cannot
    read.
    """
    if chunk.kind != SNAPSHOT_TOPIC:
        return {}
    try:
        fields = msgpack.unpackb(chunk.body, strict_map_key=False)
        starts, archived = fields.get("starts", {}), fields.get("archived", {})
        return {
            (fields["topic_id"], index): max(starts.get(index, 0), archived.get(index, 0))
            for index in starts.keys() | archived.keys()
        }
    except _UNREADABLE as error:
        raise _newer(f"{file}: a topic", error) from None


def log_start(entry: Entry, frame: str) -> tuple[tuple[int, int], int] | None:
    """Return ((topic id, partition), offset) for an entry that moves where a partition starts.

    None for any other entry. ``frame`` names the file and the position. Raises NewerFormat for a
    TOPIC entry that this version cannot read.
    """
    if entry.kind != EntryKind.TOPIC:
        return None
    try:
        fields: Mapping[str, Any] = msgpack.unpackb(entry.body)
        operation = fields["op"]
        if operation not in TOPIC_OPERATIONS:
            raise ValueError(f"unknown op {operation!r}")
        if operation not in ("start", "archived"):
            return None
        return (entry.topic_id, entry.partition), int(fields["offset"])
    except _UNREADABLE as error:
        raise _newer(f"{frame}: a TOPIC entry of topic id {entry.topic_id}", error) from None


def _newer(what: str, error: Exception) -> NewerFormat:
    return NewerFormat(
        f"{what} cannot be read ({error!r}); it is of a newer brokerd: use that version"
    )
