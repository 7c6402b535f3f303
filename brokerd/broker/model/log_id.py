# Tests: tests/broker/test_log_id.py
"""The file ``state/log_id``: names the log, so that an archive is never taken for another's.

It is made once, at the first start, and durable before anything is acknowledged. The layout is
docs/wal-format.rst, section "Log id". Should it be lost, ``state/bounds`` knows the id too; should
both be, the log gets a new id, and what was archived under the old one is that of another log.
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
"""Larger ones are none that a broker wrote."""


class LogId(NamedTuple):
    """The id of a log, and how it was come by."""

    text: str
    """32 hexadecimal digits."""
    is_new: bool
    """Whether it was made just now."""
    problem: str
    """Why the file did not give it, "" if it did or if there was none."""


def find_log_id(disk: Disk, directory: str, random_bytes: Callable[[int], bytes]) -> LogId:
    """The id of the log whose state is in ``directory``; makes it, durably, if there is none.

    Raises OSError when the directory can be neither read nor written.
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
    """What the bounds say the id is; None if nothing can be said."""
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
