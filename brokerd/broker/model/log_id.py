# Tests: tests/broker/test_log_id.py
"""The file ``state/log_id``: names the log, so that an archive is matched with its own log.

The first start writes it, and syncs it before the first acknowledgement. The layout is
docs/wal-format.rst, section "Log id". If the file is lost, ``state/bounds`` has the id too. If both
are lost, the log gets a new id, and an archive with the old id belongs to another log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from brokerd.archive.contract.bounds import FILE_NAME as BOUNDS_NAME
from brokerd.archive.contract.bounds import decode_bounds
from brokerd.archive.contract.log_id import (
    FILE_BYTES_MAX,
    FILE_NAME,
    decode_log_id,
    encode_log_id,
)
from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal import Disk
from brokerd.wal.disk import write_atomically

BOUNDS_BYTES_MAX = 1 << 30
"""The largest file of bounds that a broker writes."""


class LogId(NamedTuple):
    """The id of a log, and its origin."""

    text: str
    """32 hexadecimal digits."""
    is_new: bool
    """Whether this start generated it."""
    problem: str
    """The reason why the file could not be used. Empty if it was used or did not exist."""


def find_log_id(disk: Disk, directory: str, random_bytes: Callable[[int], bytes]) -> LogId:
    """Return the id of the log whose state is in ``directory``.

    If the log has no id, generate one and write it durably. Raises OSError if the directory cannot
    be read or written.
    """
    problem = ""
    if FILE_NAME in disk.list(directory):
        try:
            data = _read(disk, directory, FILE_NAME, FILE_BYTES_MAX)
            return LogId(decode_log_id(data), False, "")
        except DamagedData as error:
            problem = str(error)
    text = _in_bounds(disk, directory)
    is_new = text is None
    if text is None:
        text = random_bytes(16).hex()
    disk.make_directory(directory)
    write_atomically(disk, directory, FILE_NAME, [encode_log_id(text)])
    return LogId(text, is_new, problem)


def _in_bounds(disk: Disk, directory: str) -> str | None:
    """Return the id in the bounds; None if they are missing or unreadable."""
    if BOUNDS_NAME not in disk.list(directory):
        return None
    try:
        return decode_bounds(_read(disk, directory, BOUNDS_NAME, BOUNDS_BYTES_MAX)).log_id
    except (DamagedData, NewerFormat):
        return None


def _read(disk: Disk, directory: str, name: str, most: int) -> bytes:
    file = disk.open(os.path.join(directory, name))
    try:
        return file.pread(min(file.size(), most), 0)
    finally:
        file.close()
