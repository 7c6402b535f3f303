# Tests: tests/test_walformat.py
"""Entries: the parts of a frame (docs/wal-format.rst, section "Entry")."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from brokerd.walformat.layout import Bytes, FormatError, UnsupportedFormat

ENTRY_HEADER_BYTES = 48

LARGE_BODY_BYTES = 1 << 20
"""Size from which the body of a batch is `BodyParts`."""

ENTRY_FIELDS = struct.Struct("<BBHIQIIq")
CHECKSUM_FIELDS = struct.Struct("<QQ")


class EntryKind(IntEnum):
    """The kind of an entry, which determines the content of its body."""

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
    STREAM = 11


class Entry(NamedTuple):
    """One entry of a frame. ``count`` and ``base_offset`` are 0 where they mean nothing.

    In a frame that waits for its writer, the body of a large batch is `BodyParts`.
    """

    kind: int
    topic_id: int
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count() gives way to the field
    body: bytes | BodyParts


class BodyParts:
    """The parts of a large body. The writer of the frame joins them, in its own thread.

    :param size: the bytes of all parts.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes], size: int) -> None:
        self.parts = parts
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


class EntryHeader(NamedTuple):
    """The header of an entry. Its body may still be damaged."""

    kind: int
    topic_id: int
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count() gives way to the field
    body_bytes: int
    header_checksum: int
    body_checksum: int


def entry_size(body_bytes: int) -> int:
    """Return the bytes of an entry in a frame, padding included."""
    return (ENTRY_HEADER_BYTES + body_bytes + 7) & ~7


def parse_entry_header(data: Bytes, salt: int, position: int = 0) -> EntryHeader:
    """Decode the entry header at ``position``, without its body.

    Raises FormatError for a damaged header, UnsupportedFormat for a newer one.
    """
    if len(data) - position < ENTRY_HEADER_BYTES:
        raise FormatError(f"entry header is cut short: {len(data) - position} bytes of 48")
    kind, version, flags, size, topic_id, partition, count, base_offset = ENTRY_FIELDS.unpack_from(
        data, position
    )
    checksum, body_checksum = CHECKSUM_FIELDS.unpack_from(data, position + 32)
    if checksum != xxh3_64_intdigest(memoryview(data)[position : position + 32], salt):
        raise FormatError("entry header checksum does not match")
    if version > 1 or flags or not 1 <= kind <= EntryKind.STREAM:
        raise UnsupportedFormat(f"entry kind {kind}, version {version}, flags {flags:#x}")
    return EntryHeader(kind, topic_id, partition, base_offset, count, size, checksum, body_checksum)


def entry_body(data: Bytes, header: EntryHeader, position: int, verify: bool = True) -> bytes:
    """Return the body of the entry whose header is at ``position``.

    Raises FormatError for a damaged body.
    """
    start = position + ENTRY_HEADER_BYTES
    body = bytes(data[start : start + header.body_bytes])
    if len(body) != header.body_bytes:
        raise FormatError(f"entry body is cut short: {len(body)} bytes of {header.body_bytes}")
    if verify and xxh3_64_intdigest(body, header.header_checksum) != header.body_checksum:
        raise FormatError("entry body checksum does not match")
    return body
