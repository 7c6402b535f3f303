# Tests: tests/archive/test_events.py
"""Decodes events of consumer groups to Arrow, in the schema of the table ``events``.

`brokerd.archive.journal.entry_scan` finds the entries. This module decodes many at once. Formats:
docs/archive-format.rst, section "Table ``events``"; docs/wal-format.rst, section "Group events".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.contract.layout import EVENTS, arrow_schema
from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.archive.journal.columns import (
    Bodies,
    Integers,
    Mask,
    RowColumns,
    byte_strings,
    fields,
    find_columns,
    padded,
)
from brokerd.archive.journal.entry_scan import EntryChunk, EntryScan
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    ARRAY,
    CONSTANT,
    ENTRY_EVENTS_MAX,
    ENTRY_HEADER_BYTES,
    EVENTS_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    EventKind,
)

_CODES = ("u1", "<i8", "<i8", "<u8", "<u4", "<u4", "<u4")
_TYPES = tuple(map(np.dtype, _CODES))
_KINDS_ALLOWED = np.isin(np.arange(16), (CONSTANT, ARRAY))[None, :].repeat(len(_TYPES), 0)
_HEADERS = fields(
    {
        "kinds": ("<u4", 0),
        "texts": ("<u4", 4),
        "text_bytes": ("<u4", 8),
        **{f"constant{column}": (code, 16 + 8 * column) for column, code in enumerate(_CODES)},
    },
    EVENTS_HEADER_BYTES,
)
KIND, OFFSET, AMOUNT, TOKEN, COUNT, OWNER, REASON = range(7)

_KIND_NAMES = pa.array([None, *(kind.name for kind in EventKind)], pa.string())
assert list(EventKind) == list(range(1, len(EventKind) + 1)), "names are found by number"


def read_events(
    segment: SealedSegment,
    names: Mapping[int, str],
    known_damage: Iterable[tuple[int, int]] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a segment in groups, in the order of the log.

    :param names: topic names by id. Events of other topics are skipped.
    :param known_damage: known damaged places, first position and end. Unreadable events there are
        skipped.
    :raises DamagedSegment: another place is damaged.
    :raises NewerFormat: a later version of brokerd wrote the segment.
    :raises FileNotFoundError: the segment was deleted.
    :raises OSError: the segment cannot be read.
    """
    known = DisjointRanges(known_damage)

    def is_wanted(header: EntryHeader) -> bool:
        return header.kind == EntryKind.GROUP_EVENTS and header.topic_id in names

    fd = os.open(segment.path, os.O_RDONLY)
    try:
        for chunk in EntryScan(fd, segment, is_wanted, known).chunks():
            if chunk.positions:
                events = _Decoder(segment, chunk, known).rows(names)
                if len(events):
                    yield events
    finally:
        os.close(fd)


class _Decoder:
    """Decodes entries in memory."""

    def __init__(
        self, segment: SealedSegment, chunk: EntryChunk, known_damage: DisjointRanges
    ) -> None:
        self._segment = segment
        self._known_damage = known_damage
        self._bodies = Bodies(np.frombuffer(chunk.data, np.uint8))
        self._position = np.array(chunk.positions, np.int64)
        self._time_us = np.array(chunk.times_us, np.int64)
        self._entries = np.array(
            [(h.topic_id, h.partition, h.count, h.body_bytes) for h in chunk.headers], np.int64
        )
        self._at = self._position + (ENTRY_HEADER_BYTES - chunk.base)
        sums = np.array([(h.header_checksum, h.body_checksum) for h in chunk.headers], np.uint64)
        self._select(self._sound(sums))

    def _sound(self, sums: npt.NDArray[np.uint64]) -> Mask:
        """Return a mask of the sound bodies. Raise if an unsound body is outside known damage."""
        end = self._at + self._entries[:, 3]
        found = self._bodies.checksums(self._at, end, sums[:, 0].tolist())
        sound: Mask = found == sums[:, 1]
        for row in np.flatnonzero(~sound).tolist():
            position = int(self._position[row])
            size = ENTRY_HEADER_BYTES + int(self._entries[row, 3])
            if not self._known_damage.overlap(position, position + size):
                raise DamagedSegment(
                    self._segment.path, position, "entry body checksum does not match"
                )
        return sound

    def _select(self, wanted: Mask) -> None:
        self._position, self._time_us = self._position[wanted], self._time_us[wanted]
        self._entries, self._at = self._entries[wanted], self._at[wanted]

    def _require(self, sound: Mask, problem: str) -> None:
        if not sound.all():
            position = int(self._position[int((~sound).argmax())])
            raise DamagedSegment(self._segment.path, position, problem)

    def rows(self, names: Mapping[int, str]) -> pa.RecordBatch:
        """Return all events of the entries as rows."""
        schema = arrow_schema(EVENTS)
        if not len(self._at):
            return pa.RecordBatch.from_pylist([], schema=schema)
        topic_id, partition, count, size = self._entries.T
        problem = "an entry of events with sound checksums is invalid"
        fits = (size >= EVENTS_HEADER_BYTES) & (count >= 1) & (count <= ENTRY_EVENTS_MAX)
        self._require(fits, problem)
        self._heads = self._bodies.headers(self._at, _HEADERS)
        self._columns = RowColumns(self._bodies, count)
        sound = self._find_columns(self._at + size)
        self._require(sound, problem)
        strings = self._strings()
        repeat = self._columns.repeat
        first_text = np.cumsum(self._heads["texts"], dtype=np.int64) - self._heads["texts"]
        ids, where = np.unique(topic_id, return_inverse=True)
        topics = pa.array([names[one] for one in ids.tolist()], pa.string())
        columns = [
            topics.take(pa.array(repeat(where))),
            pa.array(repeat(topic_id)),
            pa.array(repeat(partition.astype(np.int32))),
            strings.take(pa.array(repeat(first_text))),
            pa.array(repeat(self._position + self._segment.first_lsn)),
            pa.array(self._columns.row_in_body().astype(np.int32)),
            pa.array(repeat(self._time_us)).view(schema.field("time").type),
            self._kind_names(),
            pa.array(self._numbers(OFFSET)),
            pa.array(self._numbers(AMOUNT)),
            pa.array(self._numbers(TOKEN).view(np.int64)),
            pa.array(self._numbers(COUNT).astype(np.int64)),
            self._texts(OWNER, strings, first_text),
            self._texts(REASON, strings, first_text),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    # -- Columns ---------------------------------------------------------------------------------

    def _find_columns(self, end: Integers) -> Mask:
        """Compute the starts of columns and strings. Return a mask of the bodies that they fill."""
        heads, start = self._heads, self._at + EVENTS_HEADER_BYTES
        found = find_columns(heads["kinds"], start, self._columns.count, _TYPES, _KINDS_ALLOWED)
        self._kinds, self._starts, self._lengths_start, allowed = found
        texts = heads["texts"].astype(np.int64)
        self._strings_start = self._lengths_start + padded(texts * 4)
        self._strings_end = self._strings_start + heads["text_bytes"]
        filled: Mask = allowed & (texts >= 1) & (self._strings_end == end)
        return filled

    def _numbers(self, column: int) -> npt.NDArray[Any]:
        """Return a column of numbers."""
        constants = self._heads[f"constant{column}"].astype(_TYPES[column])
        return self._columns.fill(constants, self._kinds[column] == ARRAY, self._starts[column])

    def _strings(self) -> pa.Array:
        """Return the string tables of all entries, joined in order."""
        texts = RowColumns(self._bodies, self._heads["texts"].astype(np.int64))
        every = np.ones(len(self._at), bool)
        lengths = texts.fill(np.zeros(len(self._at), np.uint32), every, self._lengths_start)
        fits = texts.sums(lengths) == self._strings_end - self._strings_start
        self._require(fits, "the strings of an entry of events do not fill it")
        data = self._bodies.joined(self._strings_start, self._strings_end)
        found = byte_strings(lengths, data, pa.binary())
        strings = found.view(pa.string())
        try:
            strings.validate(full=True)
        except pa.ArrowInvalid:
            pieces = found.to_pylist()
            return pa.array([piece.decode("utf-8", "backslashreplace") for piece in pieces])
        return strings

    def _texts(self, column: int, strings: pa.Array, first_text: Integers) -> pa.Array:
        """Return owners or reasons. Index 0 is null; others point into the entry's string table."""
        repeat = self._columns.repeat
        index = self._numbers(column).astype(np.int64)
        is_there = index < repeat(self._heads["texts"])
        if not is_there.all():
            at = int(repeat(self._position)[int((~is_there).argmax())])
            problem = "an event refers to a missing string"
            raise DamagedSegment(self._segment.path, at, problem)
        return strings.take(pa.array(index + repeat(first_text), mask=index == 0))

    def _kind_names(self) -> pa.Array:
        kinds = self._numbers(KIND)
        is_unknown = (kinds < 1) | (kinds > len(EventKind))
        if is_unknown.any():
            row = int(is_unknown.argmax())
            at = int(self._columns.repeat(self._position)[row])
            raise NewerFormat(
                f"{self._segment.path} at {at}: event kind {int(kinds[row])}; "
                "upgrade brokerd to read it"
            )
        return _KIND_NAMES.take(pa.array(kinds))
