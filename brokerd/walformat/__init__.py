# Tests: tests/test_walformat.py
"""Bytes of the write-ahead log: segments, frames, entries and columnar bodies, both directions.

Pure: no disk, no clock, nothing of ours imported, so that Spark executors can read a log with this
module alone. The layout is docs/wal-format.rst, and section names below are that page's.

Readers raise :class:`FormatError` for bytes that are not what the layout says, and
:class:`UnsupportedFormat` for sound bytes of a newer version. Encoders raise :class:`ValueError`
for values a column cannot hold. Times are broker time in microseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

Bytes = bytes | bytearray | memoryview

FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 4096
FRAME_HEADER_BYTES = 64
ENTRY_HEADER_BYTES = 48
RECORDS_HEADER_BYTES = 88
EVENTS_HEADER_BYTES = 72

FRAME_BYTES_MAX = 128 << 20
"""No frame is larger; a length above it is not a frame."""
SEGMENT_BYTES_DEFAULT = 64 << 20
SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_BYTES_MAX = 1 << 30
BATCH_RECORDS_MAX = 1 << 20
ENTRY_EVENTS_MAX = 1 << 20
ALIGNMENT = 8

SEGMENT_MAGIC = b"BRKDWAL\0"
FRAME_MAGIC = b"BKfr"
_SALT_SEED = 0x62726F6B65726477

_PAD = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
_SEGMENT = struct.Struct("<8sHHI16sQQq")
_FRAME = struct.Struct("<4sHHIIQ16sQq")
_ENTRY = struct.Struct("<BBHIQIIq")
_U64 = struct.Struct("<Q")
_U64_PAIR = struct.Struct("<QQ")


class FormatError(ValueError):
    """Bytes are not what the layout says: damage, or not this kind of thing at all."""


class UnsupportedFormat(FormatError):
    """Sound bytes of a newer version, an unknown kind, or a flag this version cannot read."""


class EntryKind(IntEnum):
    """What an entry's body is (section "Entry")."""

    RECORDS = 1
    GROUP_EVENTS = 2
    TOPIC = 3
    SCHEDULE = 4
    SECURITY = 5
    SCHEMA = 6
    MARK = 7
    LOST = 8
    PRODUCER = 9
    SUBSCRIPTION = 10


class EventKind(IntEnum):
    """What happened to a consumer group (section "Group events", which tabulates the fields)."""

    LEASED = 1
    EXTENDED = 2
    SETTLED = 3
    FAILED = 4
    RELEASED = 5
    EXPIRED = 6
    DEAD = 7
    COMMITTED = 8
    SETTLED_RANGE = 9
    SEEK = 10
    CONFIGURED = 11
    DELETED = 12
    PAUSED = 13
    RESUMED = 14
    REPLAYED = 15
    PURGED = 16


GroupEvent = tuple[int, int, int, int, int, str, str]
"""(kind, offset, amount, token, count, owner, reason)"""


class Entry(NamedTuple):
    """One entry of a frame. ``count`` and ``base_offset`` are 0 where they mean nothing."""

    kind: int
    topic_id: int
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count() gives way to the field
    body: bytes


class EntryHeader(NamedTuple):
    """An entry's header as found at some position; its body may still be damaged."""

    kind: int
    topic_id: int
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count() gives way to the field
    body_bytes: int
    header_checksum: int
    body_checksum: int


class FrameHeader(NamedTuple):
    """A frame's header. ``last_synced``: every byte below it was synced before this frame."""

    length: int
    entry_count: int
    lsn: int
    segment_id: bytes
    last_synced: int
    time_us: int


class SegmentHeader(NamedTuple):
    """The header block of a segment file. ``size`` is the file's size as allocated, in bytes."""

    segment_id: bytes
    first_lsn: int
    size: int
    created_us: int


class RecordColumns(NamedTuple):
    """A batch of n records as columns, each of length n, or one number for all, or None: absent.

    Decoding what was encoded gives the same record by record; a column may come back constant or
    absent where all its values were equal.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    encodings: Sequence[int] | int = 0
    metadata: Sequence[bytes | None] | None = None
    append_time_us: Sequence[int] | int = 0
    producer_time: Sequence[int | None] | None = None
    expires_at_us: Sequence[int] | None = None
    producer_format: Sequence[int] | int = 0


# -- Segments ------------------------------------------------------------------------------------


def segment_salt(segment_id: bytes) -> int:
    """The 64-bit seed of every checksum in the segment with this 16-byte id."""
    return xxh3_64_intdigest(segment_id, _SALT_SEED)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The header block of a segment: ``SEGMENT_HEADER_BYTES`` bytes."""
    head = _SEGMENT.pack(
        SEGMENT_MAGIC,
        FORMAT_VERSION,
        0,
        SEGMENT_HEADER_BYTES,
        header.segment_id,
        header.first_lsn,
        header.size,
        header.created_us,
    )
    return (head + _U64.pack(xxh3_64_intdigest(head, 0))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def decode_segment_header(data: Bytes) -> SegmentHeader:
    """Read a header block (at least its first 64 bytes). Raises FormatError, UnsupportedFormat."""
    if len(data) < _SEGMENT.size + 8:
        raise FormatError(f"segment header is cut short: {len(data)} bytes of 64")
    magic, version, flags, size, segment_id, first_lsn, allocated, created_us = (
        _SEGMENT.unpack_from(data)
    )
    if magic != SEGMENT_MAGIC:
        raise FormatError(f"not a segment: magic is {magic!r}")
    if _U64.unpack_from(data, 56)[0] != xxh3_64_intdigest(memoryview(data)[:56], 0):
        raise FormatError("segment header checksum does not match")
    if version > FORMAT_VERSION or flags or size != SEGMENT_HEADER_BYTES:
        raise UnsupportedFormat(f"segment version {version}, flags {flags:#x}, header {size} bytes")
    return SegmentHeader(segment_id, first_lsn, allocated, created_us)


# -- Frames and entries --------------------------------------------------------------------------


def entry_size(body_bytes: int) -> int:
    """Bytes an entry with this body length takes in a frame, padding included."""
    return (ENTRY_HEADER_BYTES + body_bytes + 7) & ~7


def frame_size(entries: Sequence[Entry]) -> int:
    """Bytes :func:`encode_frame` will return for these entries."""
    size = FRAME_HEADER_BYTES
    for entry in entries:
        size += (ENTRY_HEADER_BYTES + len(entry[5]) + 7) & ~7
    return size


def frame_parts(
    entries: Sequence[Entry],
    lsn: int,
    segment_id: bytes,
    last_synced: int,
    time_us: int,
    salt: int | None = None,
) -> list[bytes]:
    """The byte strings whose concatenation is the frame, so that a writer joins only once.

    ``salt`` saves computing it again. Raises ValueError when the frame would be too large.
    """
    if salt is None:
        salt = segment_salt(segment_id)
    digest = xxh3_64_intdigest
    parts = [b""]
    length = FRAME_HEADER_BYTES
    for kind, topic_id, partition, base_offset, count, body in entries:
        size = len(body)
        head = _ENTRY.pack(kind, 1, 0, size, topic_id, partition, count, base_offset)
        checksum = digest(head, salt)
        parts += (head, _U64_PAIR.pack(checksum, digest(body, checksum)), body)
        if size & 7:
            parts.append(_PAD[size & 7])
        length += (ENTRY_HEADER_BYTES + size + 7) & ~7
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
    head = _FRAME.pack(
        FRAME_MAGIC, FORMAT_VERSION, 0, length, len(entries), lsn, segment_id, last_synced, time_us
    )
    parts[0] = head + _U64.pack(digest(head, salt))
    return parts


def encode_frame(
    entries: Sequence[Entry], lsn: int, segment_id: bytes, last_synced: int, time_us: int
) -> bytes:
    """One frame (section "Frame"). Raises ValueError when it would be too large."""
    return b"".join(frame_parts(entries, lsn, segment_id, last_synced, time_us))


def parse_frame_header(data: Bytes, salt: int, position: int = 0) -> FrameHeader:
    """Read the frame header at ``position``. Entries are not looked at.

    Raises FormatError when there is none, UnsupportedFormat when it is a newer version's.
    """
    if len(data) - position < FRAME_HEADER_BYTES:
        raise FormatError(f"frame header is cut short: {len(data) - position} bytes of 64")
    magic, version, flags, length, entry_count, lsn, segment_id, last_synced, time_us = (
        _FRAME.unpack_from(data, position)
    )
    if magic != FRAME_MAGIC:
        raise FormatError("no frame here: wrong magic")
    checksum = xxh3_64_intdigest(memoryview(data)[position : position + 56], salt)
    if _U64.unpack_from(data, position + 56)[0] != checksum:
        raise FormatError("frame header checksum does not match")
    if version > FORMAT_VERSION or flags:
        raise UnsupportedFormat(f"frame version {version}, flags {flags:#x}")
    if not FRAME_HEADER_BYTES <= length <= FRAME_BYTES_MAX or length % ALIGNMENT:
        raise FormatError(f"frame length {length} is impossible")
    return FrameHeader(length, entry_count, lsn, segment_id, last_synced, time_us)


def parse_entry_header(data: Bytes, salt: int, position: int = 0) -> EntryHeader:
    """Read the entry header at ``position``; the body is not looked at.

    Raises FormatError when the header is damaged, UnsupportedFormat when it is newer.
    """
    if len(data) - position < ENTRY_HEADER_BYTES:
        raise FormatError(f"entry header is cut short: {len(data) - position} bytes of 48")
    kind, version, flags, size, topic_id, partition, count, base_offset = _ENTRY.unpack_from(
        data, position
    )
    checksum, body_checksum = _U64_PAIR.unpack_from(data, position + 32)
    if checksum != xxh3_64_intdigest(memoryview(data)[position : position + 32], salt):
        raise FormatError("entry header checksum does not match")
    if version > 1 or flags or not 1 <= kind <= EntryKind.SUBSCRIPTION:
        raise UnsupportedFormat(f"entry kind {kind}, version {version}, flags {flags:#x}")
    return EntryHeader(kind, topic_id, partition, base_offset, count, size, checksum, body_checksum)


def entry_body(data: Bytes, header: EntryHeader, position: int, verify: bool = True) -> bytes:
    """The body of the entry whose header is at ``position``. Raises FormatError when damaged."""
    start = position + ENTRY_HEADER_BYTES
    body = bytes(data[start : start + header.body_bytes])
    if len(body) != header.body_bytes:
        raise FormatError(f"entry body is cut short: {len(body)} bytes of {header.body_bytes}")
    if verify and xxh3_64_intdigest(body, header.header_checksum) != header.body_checksum:
        raise FormatError("entry body checksum does not match")
    return body


def iter_entries(frame: Bytes, salt: int, verify: bool = True) -> Iterator[Entry]:
    """The entries of one whole frame, in order.

    ``verify=False`` skips the checksums of bodies. Raises FormatError, UnsupportedFormat.
    """
    header = parse_frame_header(frame, salt)
    if len(frame) < header.length:
        raise FormatError(f"frame is cut short: {len(frame)} bytes of {header.length}")
    position = FRAME_HEADER_BYTES
    for _ in range(header.entry_count):
        head = parse_entry_header(frame, salt, position)
        body = entry_body(frame, head, position, verify)
        yield Entry(*head[:5], body)
        position += entry_size(head.body_bytes)
    if position != header.length:
        raise FormatError(f"entries end at {position}, the frame at {header.length}")


# -- Columns -------------------------------------------------------------------------------------

ABSENT, CONSTANT, ARRAY, ARRAY_WITH_VALIDITY = range(4)
"""Kinds of a column."""

_WIDTHS = {"B": 1, "I": 4, "i": 4, "q": 8, "Q": 8}


def _padded(data: bytes) -> bytes:
    return data + _PAD[len(data) & 7]


def _column(code: str, values: Sequence[int]) -> tuple[int, int, bytes]:
    """(kind, constant, bytes) of a column without gaps; constant when all values are equal."""
    first = values[0]
    if values.count(first) == len(values):
        return CONSTANT, first, b""
    return ARRAY, 0, _padded(struct.pack(f"<{len(values)}{code}", *values))


class _ColumnReader:
    """Reads columns in their order and remembers where the next one begins."""

    def __init__(self, body: bytes, rows: int, position: int) -> None:
        self.body = body
        self.rows = rows
        self.position = position

    def numbers(self, code: str) -> tuple[int, ...]:
        size = self.rows * _WIDTHS[code]
        if self.position + size > len(self.body):
            raise FormatError(f"column at {self.position} runs past the end of the body")
        found = struct.unpack_from(f"<{self.rows}{code}", self.body, self.position)
        self.position += (size + 7) & ~7
        return found

    def column(self, kind: int, code: str, constant: int) -> Sequence[int] | int | None:
        if kind == ARRAY:
            return self.numbers(code)
        if kind == CONSTANT:
            return constant
        if kind == ABSENT:
            return None
        raise FormatError(f"column kind {kind} is not allowed here")

    def cut(self, lengths: Sequence[int], total: int) -> list[bytes]:
        """Slice ``total`` bytes into pieces of these lengths."""
        body, start = self.body, self.position
        ends = list(accumulate(lengths, initial=start))
        if ends[-1] != start + total or ends[-1] > len(body):
            raise FormatError(f"lengths add up to {ends[-1] - start} bytes, not {total}")
        self.position = ends[-1]
        return [body[begin:end] for begin, end in pairwise(ends)]


# -- Batch of records ----------------------------------------------------------------------------

_RECORDS = struct.Struct("<IIIIq i4x I4x q q q B7x B7x i4x")


def _lengths(items: Sequence[bytes | None]) -> Sequence[int]:
    """Lengths of the items, -1 for None."""
    try:
        return list(map(len, items))  # type: ignore[arg-type]  # None raises TypeError
    except TypeError:
        return [-1 if item is None else len(item) for item in items]


def _optional_bytes(items: Sequence[bytes | None] | None) -> tuple[int, int, bytes, bytes]:
    """(kind, constant, column bytes, all items joined) of keys or metadata."""
    if items is None:
        return ABSENT, 0, b"", b""
    kind, constant, data = _column("i", _lengths(items))
    return kind, constant, data, b"".join(filter(None, items))


def _producer_times(times: Sequence[int | None] | None) -> tuple[int, int, bytes]:
    if times is None:
        return ABSENT, 0, b""
    present = [time for time in times if time is not None]
    if len(present) == len(times):
        return _column("q", present)
    if not present:
        return ABSENT, 0, b""
    validity = bytes(time is not None for time in times)
    filled = [time or 0 for time in times]
    return ARRAY_WITH_VALIDITY, 0, _padded(validity) + struct.pack(f"<{len(times)}q", *filled)


def _number_column(code: str, values: Sequence[int] | int) -> tuple[int, int, bytes]:
    return (CONSTANT, values, b"") if isinstance(values, int) else _column(code, values)


def encode_records(columns: RecordColumns) -> bytes:
    """The body of a RECORDS entry (section "Batch of records"), for at least one record.

    Raises ValueError for an empty batch, columns of unequal length, or a number out of range.
    """
    values, keys, encodings, metadata, append_time, producer_time, expires_at, origin = columns
    rows = len(values)
    if not 1 <= rows <= BATCH_RECORDS_MAX:
        raise ValueError(f"a batch holds 1 to {BATCH_RECORDS_MAX} records, not {rows}")
    for name, column in zip(columns._fields, columns, strict=True):
        if column is not None and not isinstance(column, int) and len(column) != rows:
            raise ValueError(f"column {name} has {len(column)} rows, not {rows}")
    try:
        key_kind, key_constant, key_data, all_keys = _optional_bytes(keys)
        value_kind, value_constant, value_data = _column("I", list(map(len, values)))
        append_kind, append_constant, append_data = _number_column("q", append_time)
        time_kind, time_constant, time_data = _producer_times(producer_time)
        expiry_kind, expiry_constant, expiry_data, expiry_max = ABSENT, 0, b"", 0
        if expires_at is not None:
            expiry_kind, expiry_constant, expiry_data = _column("q", expires_at)
            expiry_max = max(expires_at) if min(expires_at) > 0 else 0
        encoding_kind, encoding_constant, encoding_data = _number_column("B", encodings)
        origin_kind, origin_constant, origin_data = _number_column("B", origin)
        meta_kind, meta_constant, meta_data, all_metadata = _optional_bytes(metadata)
        all_values = b"".join(values)
        kinds = (
            key_kind
            | value_kind << 4
            | append_kind << 8
            | time_kind << 12
            | expiry_kind << 16
            | encoding_kind << 20
            | origin_kind << 24
            | meta_kind << 28
        )
        head = _RECORDS.pack(
            kinds,
            len(all_metadata),
            len(all_keys),
            len(all_values),
            expiry_max,
            key_constant,
            value_constant,
            append_constant,
            time_constant,
            expiry_constant,
            encoding_constant,
            origin_constant,
            meta_constant,
        )
    except struct.error as error:
        raise ValueError(f"a number of the batch does not fit its column: {error}") from None
    return b"".join(
        (
            head,
            key_data,
            value_data,
            append_data,
            time_data,
            expiry_data,
            encoding_data,
            origin_data,
            meta_data,
            all_metadata,
            all_keys,
            all_values,
        )
    )


def _read_producer_times(
    reader: _ColumnReader, kind: int, constant: int
) -> Sequence[int | None] | None:
    if kind == ARRAY_WITH_VALIDITY:
        validity = reader.numbers("B")
        times = reader.numbers("q")
        return [t if valid else None for valid, t in zip(validity, times, strict=True)]
    column = reader.column(kind, "q", constant)
    return [column] * reader.rows if isinstance(column, int) else column


def _cut_optional(
    reader: _ColumnReader, lengths: Sequence[int] | int | None, total: int
) -> Sequence[bytes | None] | None:
    """Keys or metadata: pieces, None where the length is -1, None altogether when all are."""
    if isinstance(lengths, int):
        lengths = (lengths,) * reader.rows
    if lengths is None or max(lengths) < 0:
        return None
    if min(lengths) >= 0:
        return reader.cut(lengths, total)
    pieces = reader.cut([max(length, 0) for length in lengths], total)
    return [None if n < 0 else piece for n, piece in zip(lengths, pieces, strict=True)]


def decode_records(body: Bytes, count: int) -> RecordColumns:
    """The records of a batch's body. Raises FormatError when it is not one of ``count`` records."""
    body = bytes(body)
    if len(body) < RECORDS_HEADER_BYTES or not 1 <= count <= BATCH_RECORDS_MAX:
        raise FormatError(f"a body of {len(body)} bytes is no batch of {count} records")
    kinds, meta_bytes, key_bytes, value_bytes, _, *slots = _RECORDS.unpack_from(body)
    kind = [kinds >> shift & 15 for shift in range(0, 32, 4)]
    reader = _ColumnReader(body, count, RECORDS_HEADER_BYTES)
    key_lengths = reader.column(kind[0], "i", slots[0])
    value_lengths = reader.column(kind[1], "I", slots[1])
    append_time = reader.column(kind[2], "q", slots[2])
    producer_time = _read_producer_times(reader, kind[3], slots[3])
    expires_at = reader.column(kind[4], "q", slots[4])
    encodings = reader.column(kind[5], "B", slots[5])
    origin = reader.column(kind[6], "B", slots[6])
    meta_lengths = reader.column(kind[7], "i", slots[7])
    if value_lengths is None or append_time is None:
        raise FormatError("value lengths and append times must not be absent")
    metadata = _cut_optional(reader, meta_lengths, meta_bytes)
    keys = _cut_optional(reader, key_lengths, key_bytes)
    if isinstance(value_lengths, int):
        value_lengths = (value_lengths,) * count
    values = reader.cut(value_lengths, value_bytes)
    if reader.position != len(body):
        raise FormatError(f"{len(body) - reader.position} bytes follow the last value")
    return RecordColumns(
        values,
        keys,
        0 if encodings is None else encodings,
        metadata,
        append_time,
        producer_time,
        (expires_at,) * count if isinstance(expires_at, int) else expires_at,
        0 if origin is None else origin,
    )


def records_expire_at_us(body: Bytes) -> int:
    """Broker time at which every record of the batch has expired, 0 if one never does."""
    if len(body) < RECORDS_HEADER_BYTES:
        raise FormatError(f"a body of {len(body)} bytes is no batch of records")
    expires_at: int = struct.unpack_from("<q", body, 16)[0]
    return expires_at


# -- Group events --------------------------------------------------------------------------------

_EVENTS = struct.Struct("<IIII B7x q q Q I4x I4x I4x")
_EVENT_CODES = ("B", "q", "q", "Q", "I", "I", "I")
_ALL_CONSTANT = 0x1111111


def _strings(texts: Sequence[str]) -> tuple[bytes, bytes]:
    """(lengths column, all bytes) of a string table."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return _padded(struct.pack(f"<{len(encoded)}I", *map(len, encoded))), b"".join(encoded)


def _one_event(event: GroupEvent) -> tuple[list[str], list[int]]:
    """(owner and reason that are not empty, constants of the seven columns)."""
    kind, offset, amount, token, count, owner, reason = event
    texts = [text for text in (owner, reason) if text]
    owner_at = 1 if owner else 0
    reason_at = len(texts) if reason else 0
    return texts, [kind, offset, amount, token, count, owner_at, reason_at]


def _event_columns(events: Sequence[GroupEvent]) -> tuple[list[str], list[Sequence[int]]]:
    """(owners and reasons, each once; the seven columns of numbers) of several events."""
    columns: list[Any] = list(zip(*events, strict=True))
    index = dict.fromkeys(("", *columns[5], *columns[6]), 0)
    texts = list(index)[1:]
    index.update(zip(texts, range(1, len(texts) + 1), strict=True))
    columns[5] = list(map(index.__getitem__, columns[5]))
    columns[6] = list(map(index.__getitem__, columns[6]))
    return texts, columns


def encode_group_events(group: str, events: Sequence[GroupEvent]) -> bytes:
    """The body of a GROUP_EVENTS entry, for at least one event.

    Raises ValueError for no events, too many, or a number that does not fit.
    """
    if not 1 <= len(events) <= ENTRY_EVENTS_MAX:
        raise ValueError(f"an entry holds 1 to {ENTRY_EVENTS_MAX} events, not {len(events)}")
    kinds, data = _ALL_CONSTANT, b""
    try:
        if len(events) == 1:
            texts, constants = _one_event(events[0])
        else:
            texts, fields = _event_columns(events)
            columns = list(map(_column, _EVENT_CODES, fields))
            kinds = sum(column[0] << 4 * at for at, column in enumerate(columns))
            constants = [column[1] for column in columns]
            data = b"".join(column[2] for column in columns)
        lengths, table = _strings([group, *texts])
        head = _EVENTS.pack(kinds, len(texts) + 1, len(table), 0, *constants)
    except struct.error as error:
        raise ValueError(f"a number of the events does not fit its column: {error}") from None
    return b"".join((head, data, lengths, table))


def _read_strings(reader: _ColumnReader, count: int, total: int) -> list[str]:
    reader.rows = count
    pieces = reader.cut(reader.numbers("I"), total)
    try:
        return [piece.decode("utf-8", "surrogatepass") for piece in pieces]
    except UnicodeDecodeError as error:
        raise FormatError(f"a string of the table is not UTF-8: {error}") from None


def decode_group_events(body: Bytes, count: int) -> tuple[str, list[GroupEvent]]:
    """(group, events) of a body. Raises FormatError when it is not one of ``count`` events."""
    body = bytes(body)
    if len(body) < EVENTS_HEADER_BYTES or not 1 <= count <= ENTRY_EVENTS_MAX:
        raise FormatError(f"a body of {len(body)} bytes is no entry of {count} events")
    kinds, texts_count, text_bytes, _, *constants = _EVENTS.unpack_from(body)
    reader = _ColumnReader(body, count, EVENTS_HEADER_BYTES)
    fields: list[Sequence[int]] = []
    for shift, code in enumerate(_EVENT_CODES):
        column = reader.column(kinds >> 4 * shift & 15, code, constants[shift])
        if column is None:
            raise FormatError("a column of group events must not be absent")
        fields.append((column,) * count if isinstance(column, int) else column)
    texts = _read_strings(reader, texts_count, text_bytes)
    if not texts or reader.position != len(body):
        raise FormatError("the string table does not end with the body")
    group, texts[0] = texts[0], ""
    if max(max(fields[5]), max(fields[6])) >= len(texts):
        raise FormatError("an event names a string that the table does not have")
    owners = [texts[at] for at in fields[5]]
    reasons = [texts[at] for at in fields[6]]
    return group, list(zip(*fields[:5], owners, reasons, strict=True))
