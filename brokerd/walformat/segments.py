# Tests: tests/test_walformat.py
"""The header block of a segment file (docs/wal-format.rst, section "Segment")."""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from brokerd.walformat.layout import FORMAT_VERSION, Bytes, FormatError, UnsupportedFormat

SEGMENT_MAGIC = b"BRKDWAL\0"
SEGMENT_HEADER_BYTES = 4096
SEGMENT_BYTES_DEFAULT = 64 << 20
SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_BYTES_MAX = 1 << 30

_SALT_SEED = 0x62726F6B65726477
_SEGMENT = struct.Struct("<8sHHI16sQQq")
_U64 = struct.Struct("<Q")


class SegmentHeader(NamedTuple):
    """The header of a segment. ``size`` is the allocated size of the file in bytes."""

    segment_id: bytes
    first_lsn: int
    size: int
    created_us: int


def segment_salt(segment_id: bytes) -> int:
    """Return the 64-bit seed of every checksum in the segment with this 16-byte id."""
    return xxh3_64_intdigest(segment_id, _SALT_SEED)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Encode a header block of ``SEGMENT_HEADER_BYTES`` bytes."""
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
    """Decode a header block, of which at least 64 bytes are given.

    Raises FormatError, UnsupportedFormat.
    """
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
