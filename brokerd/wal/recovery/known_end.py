# Tests: tests/broker/test_log_end.py
"""Reads how far the log was synced, from the files in ``state/`` other than snapshots.

The bounds and the archive pin were written after the log was synced up to their LSN, at every
durability. A log that ends before that has lost its end. The rules are docs/wal-format.rst, section
"Reading a log back". Read-only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

from brokerd.archive.contract import bounds as bounds_file
from brokerd.archive.contract import log_id as log_id_file
from brokerd.archive.contract import pin as pin_file
from brokerd.archive.contract.bounds import Bounds, decode_bounds
from brokerd.archive.contract.log_id import decode_log_id
from brokerd.archive.contract.pin import decode_pin
from brokerd.errors import DamagedData
from brokerd.wal.disk import Disk
from brokerd.wal.recovery.damage_fingerprint import NOT_A_FILE
from brokerd.wal.recovery.report import NOTHING_KNOWN, KnownEnd, LostRange, ranges_outside

_PROOF = (
    "The file proves how far the log was on the disk. If it stays unreadable, move it away; a log "
    "that has lost its end then looks complete"
)
_ADVICE = {
    bounds_file.FILE_NAME: _PROOF,
    pin_file.FILE_NAME: f"{_PROOF}, and the broker trusts the archive at archive.uri",
    log_id_file.FILE_NAME: "If it stays unreadable, move it away; the broker makes it again from "
    "state/bounds",
}


def read_known_end(disk: Disk, state_path: str) -> KnownEnd:
    """Read ``state/bounds`` and ``state/archived``. A damaged or missing file proves nothing.

    Bounds with another log id than ``state/log_id`` prove nothing either. Raises NewerFormat and
    OSError. A file that the disk cannot read is an error: a start without it would soon replace it,
    and with it the only proof that the log has lost its end.
    """
    known = NOTHING_KNOWN
    bounds = _read_bounds(disk, state_path)
    if bounds is not None:
        known = KnownEnd(
            bounds.synced_lsn,
            bounds.segment_lsn,
            bytes.fromhex(bounds.segment_id),
            bounds.next_topic_id,
            list(_assigned_offsets(bounds)),
            bounds.start_offsets(),
        )
    data = _read(disk, state_path, pin_file.FILE_NAME, pin_file.FILE_BYTES_MAX)
    if data is not None:
        with suppress(DamagedData):  # the broker reports it, and removes the file
            known = known._replace(lsn=max(known.lsn, decode_pin(data).lsn))
    return known


def _read_bounds(disk: Disk, state_path: str) -> Bounds | None:
    data = _read(disk, state_path, bounds_file.FILE_NAME, bounds_file.FILE_BYTES_MAX)
    if data is None:
        return None
    try:
        bounds = decode_bounds(data)
    except DamagedData:
        return None
    data = _read(disk, state_path, log_id_file.FILE_NAME, log_id_file.FILE_BYTES_MAX)
    if data is not None:
        with suppress(DamagedData):  # the broker makes it again, from the bounds
            if decode_log_id(data) != bounds.log_id:
                return None
    return bounds


def _assigned_offsets(bounds: Bounds) -> Iterator[LostRange]:
    for topic, index, partition in bounds.partitions():
        for first, end in ranges_outside(partition.gaps, partition.next):
            yield LostRange(topic.id, index, first, end)


def _read(disk: Disk, directory: str, name: str, bytes_max: int) -> bytes | None:
    """Read a file. None if it is missing or not a regular file."""
    path = os.path.join(directory, name)
    try:
        file = disk.open(path)
        try:
            return file.pread(min(file.size(), bytes_max), 0)
        finally:
            file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in NOT_A_FILE:
            return None
        if error.errno == errno.EIO:
            raise OSError(error.errno, f"{error.strerror}. {_ADVICE[name]}", path) from error
        raise
