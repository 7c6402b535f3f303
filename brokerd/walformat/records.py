# Tests: tests/test_walformat.py
"""The body of a RECORDS entry (docs/wal-format.rst, section "Batch of records")."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.walformat.columns import (
    ABSENT,
    ARRAY_WITH_VALIDITY,
    CONSTANT,
    ColumnReader,
    encode_column,
    pad,
)
from brokerd.walformat.entries import LARGE_BODY_BYTES, BodyParts
from brokerd.walformat.layout import Bytes, FormatError

RECORDS_HEADER_BYTES = 88
BATCH_RECORDS_MAX = 1 << 20

_RECORDS = struct.Struct("<IIIIq i4x I4x q q q B7x B7x i4x")
_VALUES_BYTES = struct.Struct("<12xI")
"""The bytes of all values, in this header."""
_PLAIN_KINDS = CONSTANT << 4 | CONSTANT << 8 | CONSTANT << 20 | CONSTANT << 24
"""Columns of a record without key, producer time, expiry and metadata."""
_PLAIN_TIMED_KINDS = _PLAIN_KINDS | CONSTANT << 12


class RecordColumns(NamedTuple):
    """A batch of n records. A column has n values, or is one value for all, or None if absent.

    A decoded batch has the same records. A column whose values are all equal may come back as a
    constant or absent.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    encodings: Sequence[int] | int = 0
    metadata: Sequence[bytes | None] | None = None
    append_time_us: Sequence[int] | int = 0
    producer_time: Sequence[int | None] | None = None
    expires_at_us: Sequence[int] | None = None
    producer_format: Sequence[int] | int = 0


def _lengths(items: Sequence[bytes | None]) -> Sequence[int]:
    """Return the lengths of the items, -1 for None."""
    try:
        return list(map(len, items))  # type: ignore[arg-type]  # None raises TypeError
    except TypeError:
        return [-1 if item is None else len(item) for item in items]


def _optional_bytes(items: Sequence[bytes | None] | None) -> tuple[int, int, bytes, bytes]:
    """Encode keys or metadata as (kind, constant, column of lengths, joined items)."""
    if items is None:
        return ABSENT, 0, b"", b""
    kind, constant, data = encode_column("i", _lengths(items))
    return kind, constant, data, b"".join(filter(None, items))


def _producer_times(times: Sequence[int | None] | None) -> tuple[int, int, bytes]:
    if times is None:
        return ABSENT, 0, b""
    present = [time for time in times if time is not None]
    if len(present) == len(times):
        return encode_column("q", present)
    if not present:
        return ABSENT, 0, b""
    validity = bytes(time is not None for time in times)
    filled = [time or 0 for time in times]
    return ARRAY_WITH_VALIDITY, 0, pad(validity) + struct.pack(f"<{len(times)}q", *filled)


def _number_column(code: str, values: Sequence[int] | int) -> tuple[int, int, bytes]:
    return (CONSTANT, values, b"") if isinstance(values, int) else encode_column(code, values)


def encode_records(columns: RecordColumns) -> bytes:
    """Encode the body of a RECORDS entry.

    Raises ValueError for an empty batch, columns of unequal length, or a number out of range.
    """
    parts = _encode_columns(columns)
    parts += columns.values
    return b"".join(parts)


def encode_plain_record(
    value: bytes,
    append_time_us: int,
    producer_time: int | None,
    encoding: int,
    producer_format: int,
) -> bytes:
    """Encode a batch of one record without key, metadata and expiry.

    All its columns are constants: the bytes are those that `encode_records` makes. Raises
    ValueError for a number out of range.
    """
    size, origin = len(value), producer_format
    kinds = _PLAIN_TIMED_KINDS
    if producer_time is None:
        kinds, producer_time = _PLAIN_KINDS, 0
    try:
        head = _RECORDS.pack(
            kinds, 0, 0, size, 0, 0, size, append_time_us, producer_time, 0, encoding, origin, 0
        )
    except struct.error as error:
        raise ValueError(f"a number of the record does not fit its column: {error}") from None
    return head + value


def encode_large_records(columns: RecordColumns) -> bytes | BodyParts:
    """Encode a body as `encode_records` does, without a copy of the values if it is large."""
    parts = _encode_columns(columns)
    (values_bytes,) = _VALUES_BYTES.unpack_from(parts[0])
    size = values_bytes + sum(map(len, parts))
    parts += columns.values
    return BodyParts(parts, size) if size >= LARGE_BODY_BYTES else b"".join(parts)


def _encode_columns(columns: RecordColumns) -> list[bytes]:
    """Return the parts of a body before the values."""
    values, keys, encodings, metadata, append_time, producer_time, expires_at, origin = columns
    rows = len(values)
    if not 1 <= rows <= BATCH_RECORDS_MAX:
        raise ValueError(f"a batch holds 1 to {BATCH_RECORDS_MAX} records, not {rows}")
    for name, column in zip(columns._fields, columns, strict=True):
        if column is not None and not isinstance(column, int) and len(column) != rows:
            raise ValueError(f"column {name} has {len(column)} rows, not {rows}")
    try:
        key_kind, key_constant, key_data, all_keys = _optional_bytes(keys)
        value_lengths = list(map(len, values))
        value_kind, value_constant, value_data = encode_column("I", value_lengths)
        append_kind, append_constant, append_data = _number_column("q", append_time)
        time_kind, time_constant, time_data = _producer_times(producer_time)
        expiry_kind, expiry_constant, expiry_data, expiry_max = ABSENT, 0, b"", 0
        if expires_at is not None:
            expiry_kind, expiry_constant, expiry_data = encode_column("q", expires_at)
            expiry_max = max(expires_at) if min(expires_at) > 0 else 0
        encoding_kind, encoding_constant, encoding_data = _number_column("B", encodings)
        origin_kind, origin_constant, origin_data = _number_column("B", origin)
        meta_kind, meta_constant, meta_data, all_metadata = _optional_bytes(metadata)
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
            value_constant * rows if value_kind == CONSTANT else sum(value_lengths),
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
    return [
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
    ]


def _read_producer_times(
    reader: ColumnReader, kind: int, constant: int
) -> Sequence[int | None] | None:
    if kind == ARRAY_WITH_VALIDITY:
        validity = reader.numbers("B")
        times = reader.numbers("q")
        return [t if valid else None for valid, t in zip(validity, times, strict=True)]
    column = reader.column(kind, "q", constant)
    return [column] * reader.rows if isinstance(column, int) else column


def _cut_optional(
    reader: ColumnReader, lengths: Sequence[int] | int | None, total: int
) -> Sequence[bytes | None] | None:
    """Cut keys or metadata. A length of -1 gives None; only such lengths give None for all."""
    if isinstance(lengths, int):
        lengths = (lengths,) * reader.rows
    if lengths is None or max(lengths) < 0:
        return None
    if min(lengths) >= 0:
        return reader.cut(lengths, total)
    pieces = reader.cut([max(length, 0) for length in lengths], total)
    return [None if n < 0 else piece for n, piece in zip(lengths, pieces, strict=True)]


def decode_records(body: Bytes, count: int) -> RecordColumns:
    """Decode a body of ``count`` records. Raises FormatError."""
    body = bytes(body)
    if len(body) < RECORDS_HEADER_BYTES or not 1 <= count <= BATCH_RECORDS_MAX:
        raise FormatError(f"a body of {len(body)} bytes is not a batch of {count} records")
    kinds, meta_bytes, key_bytes, value_bytes, _, *slots = _RECORDS.unpack_from(body)
    kind = [kinds >> shift & 15 for shift in range(0, 32, 4)]
    reader = ColumnReader(body, count, RECORDS_HEADER_BYTES)
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
    """Return the broker time at which all records have expired, 0 if one never does.

    Raises FormatError.
    """
    if len(body) < RECORDS_HEADER_BYTES:
        raise FormatError(f"a body of {len(body)} bytes is not a batch of records")
    expires_at: int = struct.unpack_from("<q", body, 16)[0]
    return expires_at
