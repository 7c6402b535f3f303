# Tests: tests/archive/test_pin.py
"""The file ``state/archived``: the archive that a log relies on, and an LSN.

The archive holds all records that the log deleted below the LSN. The broker replaces the whole file
durably before it deletes archived segments. After that, broker and job refuse another archive, and
an older copy of this archive. docs/wal-format.rst has the layout.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from brokerd.errors import DamagedData
from brokerd.walformat import segment_salt

FILE_NAME = "archived"
FILE_BYTES_MAX = 1024

_LINE = re.compile(rb"brokerd archived (([0-9a-f]{16}|-) ([0-9]{20})) ([0-9a-f]{16})\n")


class Pin(NamedTuple):
    """The archive that a log relies on."""

    archive_id: str
    """`brokerd.archive.contract.view.ArchiveView.archive_id`."""
    lsn: int
    """The archive holds the log below this LSN."""


def archive_id(number: int) -> str:
    """Format the id of an archive as 16 hexadecimal digits. Return "" for 0, which is no id."""
    return f"{number:016x}" if number else ""


def segment_hash(segment_id: bytes) -> int:
    """Hash the random id of a segment to 62 bits, which identify the segment."""
    return segment_salt(segment_id) >> 2


def encode_pin(pin: Pin) -> bytes:
    """Encode the file."""
    text = f"{pin.archive_id or '-'} {pin.lsn:020d}"
    return f"brokerd archived {text} {xxh3_64_hexdigest(text.encode())}\n".encode()


def decode_pin(data: bytes) -> Pin:
    """Decode the file. Raises DamagedData."""
    match = _LINE.fullmatch(data)
    if match is None or xxh3_64_hexdigest(match[1]).encode() != match[4]:
        raise DamagedData(f"{FILE_NAME} is not as a broker wrote it")
    archive = match[2].decode()
    return Pin("" if archive == "-" else archive, int(match[3]))
