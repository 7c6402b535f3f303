# Tests: tests/test_walformat.py
"""Frames: made of entries, and complete or absent (docs/wal-format.rst, section "Frame")."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from brokerd.walformat.entries import (
    CHECKSUM_FIELDS,
    ENTRY_FIELDS,
    ENTRY_HEADER_BYTES,
    Entry,
    entry_body,
    entry_size,
    parse_entry_header,
)
from brokerd.walformat.layout import (
    ALIGNMENT,
    FORMAT_VERSION,
    PADDING,
    Bytes,
    FormatError,
    UnsupportedFormat,
)
from brokerd.walformat.segments import segment_salt

FRAME_MAGIC = b"BKfr"
FRAME_HEADER_BYTES = 64
FRAME_BYTES_MAX = 128 << 20
"""The largest frame. A larger length is not the length of a frame."""

_FRAME = struct.Struct("<4sHHIIQ16sQq")
_U64 = struct.Struct("<Q")


class FrameHeader(NamedTuple):
    """The header of a frame. Every byte below LSN ``last_synced`` was synced before the frame."""

    length: int
    entry_count: int
    lsn: int
    segment_id: bytes
    last_synced: int
    time_us: int


def frame_size(entries: Sequence[Entry]) -> int:
    """Return the bytes of the frame that :func:`encode_frame` makes of these entries."""
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
    """Encode a frame as byte strings, which a writer joins once for several frames.

    ``salt``, that of ``segment_id``, saves computing it again. Raises ValueError for a frame over
    ``FRAME_BYTES_MAX``.
    """
    if salt is None:
        salt = segment_salt(segment_id)
    digest, pack, pack_checksums = xxh3_64_intdigest, ENTRY_FIELDS.pack, CHECKSUM_FIELDS.pack
    parts = [b""]
    length = FRAME_HEADER_BYTES
    for kind, topic_id, partition, base_offset, count, large in entries:
        body = large if isinstance(large, bytes) else bytes(large)
        size = len(body)
        head = pack(kind, 1, 0, size, topic_id, partition, count, base_offset)
        checksum = digest(head, salt)
        parts += (head, pack_checksums(checksum, digest(body, checksum)), body)
        if size & 7:
            parts.append(PADDING[size & 7])
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
    """Encode one frame. Raises ValueError for one over ``FRAME_BYTES_MAX``."""
    return b"".join(frame_parts(entries, lsn, segment_id, last_synced, time_us))


def parse_frame_header(data: Bytes, salt: int, position: int = 0) -> FrameHeader:
    """Decode the frame header at ``position``, without its entries.

    Raises FormatError for other bytes, UnsupportedFormat for a newer version.
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


def iter_entries(frame: Bytes, salt: int, verify: bool = True) -> Iterator[Entry]:
    """Yield the entries of one whole frame, in order.

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
