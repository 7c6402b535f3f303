# Tests: tests/wal/test_verify.py, tests/broker/test_shrunk_log.py
"""The offsets that a snapshot says were given, and from which on the log has to hold them.

For whoever finds the log to know of fewer: what lies below was removed, or an archive has it.

Of a chunk's body this module reads what a repair needs; all of it is the broker's
(brokerd/broker/model/state.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgpack

from brokerd.errors import NewerFormat
from brokerd.wal.recovery.report import LostRange
from brokerd.wal.snapshot import SnapshotChunk
from brokerd.walformat import Entry, EntryKind

SNAPSHOT_TOPIC = 2
"""The kind of a chunk that holds a topic."""


def given_offsets(chunk: SnapshotChunk) -> list[LostRange]:
    """The offsets of records in a chunk of a snapshot: those below the next that are in no gap.

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
            for first, end in _between(gaps.get(index, ()), next_offset)
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _newer(error) from None


def needed_from(chunk: SnapshotChunk) -> dict[tuple[int, int], int]:
    """From which offsets on the log has to hold records, by (topic id, partition), as a chunk says.

    Raises NewerFormat for a topic that this version cannot read.
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
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _newer(error) from None


def moved_need(entry: Entry) -> tuple[tuple[int, int], int] | None:
    """((topic id, partition), offset) if an entry lets the log hold no records below it."""
    if entry.kind != EntryKind.TOPIC:
        return None
    try:
        fields = msgpack.unpackb(entry.body)
        if fields["op"] not in ("start", "archived"):
            return None
        return (entry.topic_id, entry.partition), fields["offset"]
    except (ValueError, TypeError, KeyError):
        return None  # not the broker's


def _newer(error: Exception) -> NewerFormat:
    return NewerFormat(f"a topic in a snapshot cannot be read ({error!r}); upgrade brokerd")


def _between(gaps: Iterable[tuple[int, int]], next_offset: int) -> Iterator[tuple[int, int]]:
    """What is below an offset and in no gap."""
    first = 0
    for gap_first, gap_end in sorted(gaps):
        if first < gap_first:
            yield first, gap_first
        first = max(first, gap_end)
    if first < next_offset:
        yield first, next_offset
