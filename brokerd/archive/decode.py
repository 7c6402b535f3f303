# Tests: tests/archive/test_decode.py
"""Batches of records of a sealed segment -> Arrow, without a loop over records.

Thousands of batches are decoded together: their headers become a matrix, each column is gathered
from all of them at once, and Python runs a step or two for each batch, none for each record. Rows
come in the schema of the table ``records`` (docs/archive-format.rst). Every byte is verified before
it is used. Batch layouts are those of docs/wal-format.rst.

Runs in Spark's workers: no Twisted, no Spark, nothing of the broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from brokerd.archive.layout import RECORDS, arrow_schema
from brokerd.archive.sealed import (
    Batch,
    Batches,
    DamagedBatch,
    Gathered,
    Integers,
    Octets,
    SealedSegment,
    gather,
)
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    ARRAY,
    ARRAY_WITH_VALIDITY,
    BATCH_RECORDS_MAX,
    CONSTANT,
    ENTRY_HEADER_BYTES,
    FRAME_BYTES_MAX,
    RECORDS_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryKind,
    FormatError,
    UnsupportedFormat,
    decode_records,
    entry_body,
    parse_entry_header,
)

READ_BYTES = 8 << 20
"""How much is decoded at once, unless one batch is more: bytes of the segment, and `_ROW_BYTES`
for each record, for those may be empty."""
_ROW_BYTES = 64

_HEADERS_BYTES = ENTRY_HEADER_BYTES + RECORDS_HEADER_BYTES
_HEADERS = np.dtype(
    {
        "names": [
            *("kind", "version", "flags", "body_bytes", "topic_id", "partition", "count"),
            *("base_offset", "header_checksum", "body_checksum"),
            *("kinds", "metadata_bytes", "key_bytes", "value_bytes"),
            *(f"constant{column}" for column in range(8)),
        ],
        "formats": [
            *("u1", "u1", "<u2", "<u4", "<u8", "<u4", "<u4", "<i8", "<u8", "<u8"),
            *("<u4", "<u4", "<u4", "<u4"),
            *("<i4", "<u4", "<i8", "<i8", "<i8", "u1", "u1", "<i4"),
        ],
        "offsets": [
            *(0, 1, 2, 4, 8, 16, 20, 24, 32, 40),
            *(48, 52, 56, 60),
            *range(48 + 24, 48 + 88, 8),
        ],
        "itemsize": _HEADERS_BYTES,
    }
)
"""The header of an entry and the fixed part of its body."""

_TYPES = tuple(np.dtype(code) for code in ("<i4", "<u4", "<i8", "<i8", "<i8", "u1", "u1", "<i4"))
_DEFAULTS = (-1, 0, 0, 0, 0, 0, 0, -1)
_KINDS_ALLOWED = np.zeros((8, 16), bool)
for _column, _kinds in enumerate(
    ((0, 1, 2), (1, 2), (1, 2), (0, 1, 2, 3), (0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1, 2))
):
    _KINDS_ALLOWED[_column, list(_kinds)] = True
KEY_LENGTH, VALUE_LENGTH, APPEND_TIME, PRODUCER_TIME, EXPIRES_AT, ENCODING, ORIGIN, META_LENGTH = (
    range(8)
)


def read_records(
    segment: SealedSegment,
    batches: Batches,
    names: Mapping[int, str],
    read_bytes: int = READ_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of some batches of a segment, as rows of the table ``records``.

    ``names`` has the name of each topic by its id. About ``read_bytes`` (`READ_BYTES`) of the
    segment are read and decoded at a time, in the order of the segment; the rows that come
    together are sorted by topic id, partition and offset, so those of one partition are sorted
    altogether.

    Raises `DamagedBatch`, NewerFormat, KeyError for a topic without a name, and OSError:
    FileNotFoundError when the segment is gone.
    """
    batches = batches.select(np.argsort(batches.position, kind="stable"))
    fd = os.open(segment.path, os.O_RDONLY)
    try:
        _check_places(segment.path, batches, os.fstat(fd).st_size)
        size = batches.body_bytes + ENTRY_HEADER_BYTES
        cost = size + _ROW_BYTES * batches.count
        for gathered in gather(fd, batches.position, size, cost, read_bytes):
            some = batches.select(gathered.rows)
            yield _Decoder(segment, some, gathered).rows(names)
    finally:
        os.close(fd)


def _check_places(path: str, batches: Batches, size: int) -> None:
    """Raise `DamagedBatch` for a batch that is not where, or as large as, a batch can be."""
    position = batches.position
    ends = position + ENTRY_HEADER_BYTES + batches.body_bytes
    wrong = (
        (position % 8 != 0)
        | (position < SEGMENT_HEADER_BYTES)
        | (batches.body_bytes < RECORDS_HEADER_BYTES)
        | (batches.body_bytes > FRAME_BYTES_MAX)
        | (batches.count < 1)
        | (batches.count > BATCH_RECORDS_MAX)
    )
    wrong[1:] |= ends[:-1] > position[1:]
    _raise_first(path, batches, wrong, "the index tells of a batch that cannot be there")
    _raise_first(path, batches, ends > size, f"the segment ends at {size}, within the batch")


def _raise_first(path: str, batches: Batches, wrong: npt.NDArray[np.bool_], problem: str) -> None:
    if wrong.any():
        raise DamagedBatch(batches.batch(path, int(wrong.argmax())), problem)


class _Bytes(NamedTuple):
    """A column of byte strings: the length of each, below 0 for none, and all of their bytes."""

    lengths: npt.NDArray[Any]
    data: bytes

    def array(self) -> pa.Array:
        lengths = self.lengths
        offsets = np.zeros(len(lengths) + 1, np.int32)
        validity, nulls = None, 0
        absent = lengths < 0
        if absent.any():
            nulls = int(absent.sum())
            validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
            lengths = np.where(absent, 0, lengths)
        np.cumsum(lengths, out=offsets[1:])
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers, nulls)


class _Decoder:
    """Decodes batches whose bytes are in memory."""

    def __init__(self, segment: SealedSegment, batches: Batches, gathered: Gathered) -> None:
        self._segment = segment
        order = np.lexsort((batches.base_offset, batches.partition, batches.topic_id))
        self._batches = batches.select(order)
        self._data: Octets = gathered.data
        self._view = gathered.data.data
        self._at: Integers = gathered.position[order]
        self._end = gathered.end
        self._count = self._batches.count
        self._first_row = np.cumsum(self._count) - self._count
        self._total = int(self._count.sum())
        self._row = np.arange(self._total, dtype=np.int64)

    def rows(self, names: Mapping[int, str]) -> pa.RecordBatch:
        """All records of the batches, verified."""
        self._require(self._at + ENTRY_HEADER_BYTES + self._batches.body_bytes <= self._end)
        words = self._data[: len(self._data) & ~7].view("<u8")
        headers = words[(self._at // 8)[:, None] + np.arange(_HEADERS_BYTES // 8)]
        self._headers = headers.view(_HEADERS)[:, 0]
        self._verify()
        self._find_columns()
        batches, offset = self._batches, self._per_batch(self._batches.base_offset)
        offset += self._row - self._per_batch(self._first_row)
        keys, values, metadata = self._all_bytes()
        producer_time = pa.array(self._numbers(PRODUCER_TIME), mask=self._no_producer_time())
        columns = [
            self._topics(names),
            pa.array(self._per_batch(batches.topic_id)),
            pa.array(self._per_batch(batches.partition.astype(np.int32))),
            pa.array(offset),
            pa.array(self._numbers(APPEND_TIME)).view(pa.timestamp("us", tz="UTC")),
            producer_time,
            pa.array(self._per_batch(batches.position + self._segment.first_lsn)),
            keys.array(),
            values.array(),
            pa.array(self._numbers(ENCODING).view(np.int8)),
            metadata.array(),
            pa.array(self._numbers(EXPIRES_AT)),
            pa.array(self._numbers(ORIGIN).view(np.int8)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(RECORDS))

    # -- Whether the bytes are what was written --------------------------------------------------

    def _require(self, sound: npt.NDArray[np.bool_]) -> None:
        """Raise for the first batch that is not sound, saying exactly why."""
        if sound.all():
            return
        row = int((~sound).argmax())
        batch = self._batches.batch(self._segment.path, row)
        at = int(self._at[row])
        data = self._view[at : min(self._end, at + ENTRY_HEADER_BYTES + batch.body_bytes)]
        try:
            head = parse_entry_header(data, self._segment.salt)
            decode_records(entry_body(data, head, 0), head.count)
        except UnsupportedFormat as error:
            raise NewerFormat(
                f"{batch.path} at {batch.position}: {error}; upgrade brokerd to read it"
            ) from None
        except FormatError as error:
            raise DamagedBatch(batch, str(error)) from None
        raise DamagedBatch(batch, "another entry stands where the index has a batch")

    def _verify(self) -> None:
        """Compare headers with the index, and both checksums of each entry."""
        heads, batches, view = self._headers, self._batches, self._view
        self._require(
            (heads["kind"] == EntryKind.RECORDS)
            & (heads["version"] == 1)
            & (heads["flags"] == 0)
            & (heads["body_bytes"] == batches.body_bytes)
            & (heads["topic_id"] == batches.topic_id.view(np.uint64))
            & (heads["partition"] == batches.partition)
            & (heads["count"] == batches.count)
            & (heads["base_offset"] == batches.base_offset)
        )
        at = self._at.tolist()
        sums = heads["header_checksum"]
        pieces = [view[start : start + 32] for start in at]
        found = list(map(xxh3_64_intdigest, pieces, repeat(self._segment.salt)))
        self._require(sums == np.array(found, np.uint64))
        ends = (self._at + ENTRY_HEADER_BYTES + batches.body_bytes).tolist()
        pieces = [
            view[start + ENTRY_HEADER_BYTES : end] for start, end in zip(at, ends, strict=True)
        ]
        found = list(map(xxh3_64_intdigest, pieces, sums.tolist()))
        self._require(heads["body_checksum"] == np.array(found, np.uint64))

    def _find_columns(self) -> None:
        """Find where each column of each batch begins, and check that they fill the bodies."""
        heads, rows = self._headers, self._count
        self._kinds = [(heads["kinds"] >> np.uint32(4 * c) & 15).astype(np.intp) for c in range(8)]
        self._starts = []
        allowed = np.ones(len(rows), bool)
        start = self._at + _HEADERS_BYTES
        for kind, dtype, allow in zip(self._kinds, _TYPES, _KINDS_ALLOWED, strict=True):
            allowed &= allow[kind]
            has_validity = kind == ARRAY_WITH_VALIDITY
            start = start + np.where(has_validity, rows + 7 & ~7, 0)
            self._starts.append(start)
            start = start + np.where(kind >= ARRAY, rows * dtype.itemsize + 7 & ~7, 0)
        ends = [start]
        for name in ("metadata_bytes", "key_bytes", "value_bytes"):
            ends.append(ends[-1] + heads[name])
        self._ends = ends
        body_end = self._at + ENTRY_HEADER_BYTES + self._batches.body_bytes
        self._require(allowed & (ends[-1] == body_end))

    # -- Columns ---------------------------------------------------------------------------------

    def _per_batch(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value a batch -> one a row."""
        return np.repeat(values, self._count)

    def _numbers(self, column: int) -> npt.NDArray[Any]:
        """A column of numbers, one a row; its default where it is absent."""
        kind = self._kinds[column]
        constants = self._headers[f"constant{column}"]
        wanted = np.where(kind == CONSTANT, constants, _DEFAULTS[column]).astype(_TYPES[column])
        return self._fill(wanted, kind >= ARRAY, self._starts[column])

    def _fill(
        self,
        constant: npt.NDArray[Any],
        is_array: npt.NDArray[np.bool_],
        starts: Integers,
    ) -> npt.NDArray[Any]:
        """One value a row: the batch's constant, or from the array that begins at ``starts``."""
        width = constant.dtype.itemsize
        source = self._data[: len(self._data) & ~7].view(constant.dtype)
        if is_array.all():
            where = self._row + self._per_batch(starts // width - self._first_row)
            found: npt.NDArray[Any] = source[where]
            return found
        filled = self._per_batch(constant)
        if is_array.any():
            rows = np.flatnonzero(self._per_batch(is_array))
            shift = np.repeat((starts // width - self._first_row)[is_array], self._count[is_array])
            filled[rows] = source[rows + shift]
        return filled

    def _no_producer_time(self) -> npt.NDArray[np.bool_] | None:
        """Which rows have none; None: all have one."""
        kind = self._kinds[PRODUCER_TIME]
        present = ((kind == CONSTANT) | (kind == ARRAY)).astype(np.uint8)
        starts = self._starts[PRODUCER_TIME] - (self._count + 7 & ~7)
        valid = self._fill(present, kind == ARRAY_WITH_VALIDITY, starts)
        return None if valid.all() else valid == 0

    def _all_bytes(self) -> tuple[_Bytes, _Bytes, _Bytes]:
        """Keys, values and metadata of all rows."""
        columns_end, metadata_end, keys_end, values_end = self._ends
        return (
            self._bytes(KEY_LENGTH, metadata_end, keys_end),
            self._bytes(VALUE_LENGTH, keys_end, values_end),
            self._bytes(META_LENGTH, columns_end, metadata_end),
        )

    def _bytes(self, column: int, first: Integers, end: Integers) -> _Bytes:
        lengths = self._numbers(column)
        total = np.add.reduceat(np.maximum(lengths, 0), self._first_row, dtype=np.int64)
        self._require(total == end - first)
        view = self._view
        some = np.flatnonzero(total)
        places = zip(first[some].tolist(), end[some].tolist(), strict=True)
        return _Bytes(lengths, b"".join([view[start:stop] for start, stop in places]))

    def _topics(self, names: Mapping[int, str]) -> pa.Array:
        ids, where = np.unique(self._batches.topic_id, return_inverse=True)
        texts = pa.array([names[topic_id] for topic_id in ids.tolist()], pa.string())
        return texts.take(pa.array(self._per_batch(where)))


__all__ = ["Batch", "Batches", "DamagedBatch", "read_records"]
