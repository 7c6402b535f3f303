# Tests: tests/archive/test_pin.py
"""The file ``state/archived``: which archive a log relies on, and up to where.

All that the log lacks below ``lsn`` is in that archive, or was removed. The broker writes it, whole
and durable, before it deletes segments because of an archive; from then on neither the broker nor
the job uses another archive, or an older copy of this one. The layout is docs/wal-format.rst.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from brokerd.errors import DamagedData
from brokerd.walformat import segment_salt

FILE_NAME = "archived"
FILE_BYTES_MAX = 1024

GIVE_UP = "or give up what only that one has (docs/operations.rst, section Giving an archive up)"

_LINE = re.compile(rb"brokerd archived (([0-9a-f]{16}|-) ([0-9]{20})) ([0-9a-f]{16})\n")


class Pin(NamedTuple):
    """What a log relies on."""

    archive_id: str
    """`brokerd.archive.contract.view.ArchiveView.archive_id`."""
    lsn: int
    """The archive has the log up to there."""

    def problem(self, archive_id: str, lsn: int) -> str:
        """Why an archive that has the log up to ``lsn`` is not what is relied on; "" if it is."""
        if archive_id != self.archive_id:
            return (
                f"it is another archive than the one that has what the log let go of: id "
                f"{archive_id or '-'}, not {self.archive_id or '-'}"
            )
        if lsn < self.lsn:
            return (
                f"it has the log up to LSN {lsn} only, and the log let go of what is below "
                f"{self.lsn}: an older copy of it was brought back, or commits were lost"
            )
        return ""


def archive_id(drawn: int) -> str:
    """The id of an archive, by the number that was drawn for it; "" for none."""
    return f"{drawn:016x}" if drawn else ""


def segment_mark(segment_id: bytes) -> int:
    """62 bits that tell a segment of a log from any other: a hash of its random id."""
    return segment_salt(segment_id) >> 2


def encode_pin(relied: Pin) -> bytes:
    """The bytes of the file."""
    text = f"{relied.archive_id or '-'} {relied.lsn:020d}"
    return f"brokerd archived {text} {xxh3_64_hexdigest(text.encode())}\n".encode()


def decode_pin(data: bytes) -> Pin:
    """Read the file. Raises DamagedData."""
    match = _LINE.fullmatch(data)
    if match is None or xxh3_64_hexdigest(match[1]).encode() != match[4]:
        raise DamagedData(f"{FILE_NAME} is not as a broker wrote it")
    archive = match[2].decode()
    return Pin("" if archive == "-" else archive, int(match[3]))
