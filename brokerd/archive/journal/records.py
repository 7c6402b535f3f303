# Tests: tests/archive/test_records.py
"""Decodes batches of records to Arrow, without a loop over records.

The module decodes thousands of batches together. Their headers become a matrix, and each column is
gathered from all batches at once. Python runs a step or two per batch, and no step per record.
Rows have the schema of the table ``records`` (docs/archive-format.rst). Every byte is verified
before use. docs/wal-format.rst has the layout of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS, arrow_schema
from brokerd.archive.journal.columns import (
    ENTRY_FIELDS,
    Bodies,
    Integers,
    Mask,
    RowColumns,
    byte_strings,
    fields,
    find_columns,
    padded,
)
from brokerd.archive.journal.sealed import (
    Batches,
    DamagedBatch,
    Pieces,
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
"""The limit of a decoding step, unless one batch is larger: bytes of the segment, and `_ROW_BYTES`
for each record, which may be empty."""
_ROW_BYTES = 64

_SCHEMA = arrow_schema(RECORDS)
COLUMNS = tuple(_SCHEMA.names)
"""The columns in the files of the table ``records``."""

_CODES = ("<i4", "<u4", "<i8", "<i8", "<i8", "u1", "u1", "<i4")
_TYPES = tuple(map(np.dtype, _CODES))
_HEADERS_BYTES = ENTRY_HEADER_BYTES + RECORDS_HEADER_BYTES
_HEADERS = fields(
    {
        **ENTRY_FIELDS,
        "kinds": ("<u4", 48),
        "metadata_bytes": ("<u4", 52),
        "key_bytes": ("<u4", 56),
        "value_bytes": ("<u4", 60),
        **{f"constant{column}": (code, 72 + 8 * column) for column, code in enumerate(_CODES)},
    },
    _HEADERS_BYTES,
)
"""The header of an entry and the fixed part of its body."""

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
    """Yield the records of batches of a segment, as rows of the table ``records``.

    Each step decodes about ``read_bytes`` of the segment, in its order. The rows of a step are
    sorted by topic id, partition and offset. The rows of one partition are sorted across steps.

    :param names: topic names by id.
    :raises DamagedBatch: a batch has wrong bytes.
    :raises NewerFormat: a later version of brokerd wrote a batch.
    :raises KeyError: a topic has no name.
    :raises FileNotFoundError: the segment was deleted.
    :raises OSError: the segment cannot be read.
    """
    fd = os.open(segment.path, os.O_RDONLY)
    try:
        yield from read_records_of(fd, segment, batches, names, read_bytes=read_bytes)
    finally:
        os.close(fd)


class BatchFile(Protocol):
    """A journal file with batches: a `SealedSegment`, or a file without an index."""

    @property
    def path(self) -> str: ...

    @property
    def first_lsn(self) -> int: ...

    @property
    def salt(self) -> int:
        """Return the seed of its checksums."""


def read_records_of(
    fd: int,
    file: BatchFile,
    batches: Batches,
    names: Mapping[int, str],
    columns: Sequence[str] = COLUMNS,
    read_bytes: int = READ_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield records from an open file as `read_records` does, but only the named columns."""
    batches = batches.select(np.argsort(batches.position, kind="stable"))
    _check_places(file.path, batches, os.fstat(fd).st_size)
    size = batches.body_bytes + ENTRY_HEADER_BYTES
    cost = size + _ROW_BYTES * batches.count
    for gathered in gather(fd, batches.position, size, cost, read_bytes):
        some = batches.select(gathered.rows)
        yield _Decoder(file, some, gathered).rows(names, columns)


def lost_batches(
    batches: Batches,
    places: Iterable[tuple[int, int]],
    read: Callable[[Batches], Iterable[pa.RecordBatch]],
) -> Mask:
    """Return a mask of the unreadable batches in places of known damage.

    :param places: first position and end of each place in the file.
    :param read: reads batches, and raises `DamagedBatch`.
    """
    lost = np.zeros(len(batches.position), np.bool_)
    ends = batches.position + ENTRY_HEADER_BYTES + batches.body_bytes
    for first, end in places:
        for row in np.flatnonzero((batches.position < end) & (ends > first)).tolist():
            try:
                for _ in read(batches.select(slice(row, row + 1))):
                    pass
            except DamagedBatch:
                lost[row] = True
    return lost


def _check_places(path: str, batches: Batches, size: int) -> None:
    """Raise `DamagedBatch` for a batch with an impossible position or size."""
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
    _raise_first(path, batches, wrong, "the index has a batch at an impossible place")
    _raise_first(path, batches, ends > size, f"the segment ends at {size}, within the batch")


def _raise_first(path: str, batches: Batches, wrong: Mask, problem: str) -> None:
    if wrong.any():
        raise DamagedBatch(batches.batch(path, int(wrong.argmax())), problem)


class _Decoder:
    """Decodes batches in memory."""

    def __init__(self, file: BatchFile, batches: Batches, gathered: Pieces) -> None:
        self._file = file
        order = np.lexsort((batches.base_offset, batches.partition, batches.topic_id))
        self._batches = batches.select(order)
        self._bodies = Bodies(gathered.data)
        self._at: Integers = gathered.position[order]
        self._body_end = self._at + ENTRY_HEADER_BYTES + self._batches.body_bytes
        self._end = gathered.end
        self._columns = RowColumns(self._bodies, self._batches.count)

    def rows(self, names: Mapping[int, str], columns: Sequence[str]) -> pa.RecordBatch:
        """Verify the batches, and return their records."""
        self._verify()
        self._find_columns()
        schema = pa.schema([_SCHEMA.field(name) for name in columns])
        arrays = [self._column(name, names) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, name: str, names: Mapping[int, str]) -> pa.Array:
        """Return a column of the table ``records``."""
        batches, repeat = self._batches, self._columns.repeat
        match name:
            case "topic":
                return self._topics(names)
            case "topic_id":
                return pa.array(repeat(batches.topic_id))
            case "partition":
                return pa.array(repeat(batches.partition.astype(np.int32)))
            case "offset":
                return pa.array(repeat(batches.base_offset) + self._columns.row_in_body())
            case "append_time":
                return pa.array(self._numbers(APPEND_TIME)).view(pa.timestamp("us", tz="UTC"))
            case "producer_time":
                return pa.array(self._numbers(PRODUCER_TIME), mask=self._no_producer_time())
            case "lsn":
                return pa.array(repeat(batches.position + self._file.first_lsn))
            case "key":
                return self._pieces(KEY_LENGTH, self._keys_start, self._values_start)
            case "value":
                return self._pieces(VALUE_LENGTH, self._values_start, self._body_end)
            case "encoding":
                return pa.array(self._numbers(ENCODING).view(np.int8))
            case "metadata":
                return self._pieces(META_LENGTH, self._metadata_start, self._keys_start)
            case "expires_at":
                return pa.array(self._numbers(EXPIRES_AT))
            case _:
                return pa.array(self._numbers(ORIGIN).view(np.int8))

    # -- Verification ----------------------------------------------------------------------------

    def _require(self, sound: Mask) -> None:
        """Raise `DamagedBatch` for the first batch that is not sound, with its exact problem."""
        if sound.all():
            return
        row = int((~sound).argmax())
        batch = self._batches.batch(self._file.path, row)
        data = self._bodies.view[int(self._at[row]) : min(self._end, int(self._body_end[row]))]
        try:
            head = parse_entry_header(data, self._file.salt)
            decode_records(entry_body(data, head, 0), head.count)
        except UnsupportedFormat as error:
            raise NewerFormat(
                f"{batch.path} at {batch.position}: {error}; upgrade brokerd to read it"
            ) from None
        except FormatError as error:
            raise DamagedBatch(batch, str(error)) from None
        raise DamagedBatch(batch, "the index has a batch where another entry is")

    def _verify(self) -> None:
        """Compare headers with the index, and verify both checksums of each entry; may raise."""
        batches, bodies = self._batches, self._bodies
        self._require(self._body_end <= self._end)
        heads = self._headers = bodies.headers(self._at, _HEADERS)
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
        seeds = heads["header_checksum"]
        found = bodies.checksums(self._at, self._at + 32, repeat(self._file.salt))
        self._require(seeds == found)
        body = self._at + ENTRY_HEADER_BYTES
        found = bodies.checksums(body, self._body_end, seeds.tolist())
        self._require(heads["body_checksum"] == found)

    def _find_columns(self) -> None:
        """Compute the start of each column of each batch. Check that columns fill the bodies."""
        heads, start = self._headers, self._at + _HEADERS_BYTES
        found = find_columns(heads["kinds"], start, self._batches.count, _TYPES, _KINDS_ALLOWED)
        self._kinds, self._starts, self._metadata_start, allowed = found
        self._keys_start = self._metadata_start + heads["metadata_bytes"]
        self._values_start = self._keys_start + heads["key_bytes"]
        values_end = self._values_start + heads["value_bytes"]
        self._require(allowed & (values_end == self._body_end))

    # -- Columns ---------------------------------------------------------------------------------

    def _numbers(self, column: int) -> npt.NDArray[Any]:
        """Return a column of numbers, with its default in batches that lack it."""
        kind = self._kinds[column]
        constants = self._headers[f"constant{column}"]
        wanted = np.where(kind == CONSTANT, constants, _DEFAULTS[column]).astype(_TYPES[column])
        return self._columns.fill(wanted, kind >= ARRAY, self._starts[column])

    def _no_producer_time(self) -> Mask | None:
        """Return a mask of the rows without a producer time, or None if all rows have one."""
        kind = self._kinds[PRODUCER_TIME]
        present = ((kind == CONSTANT) | (kind == ARRAY)).astype(np.uint8)
        starts = self._starts[PRODUCER_TIME] - padded(self._batches.count)
        valid = self._columns.fill(present, kind == ARRAY_WITH_VALIDITY, starts)
        return None if valid.all() else valid == 0

    def _topics(self, names: Mapping[int, str]) -> pa.Array:
        """Return the column of topic names."""
        ids, where = np.unique(self._batches.topic_id, return_inverse=True)
        topics = pa.array([names[topic_id] for topic_id in ids.tolist()], pa.string())
        return topics.take(pa.array(self._columns.repeat(where)))

    def _pieces(self, column: int, first: Integers, end: Integers) -> pa.Array:
        """Return a column of byte strings. A negative length gives null."""
        lengths = self._numbers(column)
        self._require(self._columns.sums(lengths) == end - first)
        return byte_strings(lengths, self._bodies.joined(first, end), pa.binary())
