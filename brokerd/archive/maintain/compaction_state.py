# Tests: tests/archive/test_compaction_state.py
"""The state of compaction, so that a run examines only new records.

The state is the file ``compaction`` beside the tables: docs/archive-tables.rst. It only saves work.
Without it a run examines all records. A wrong state cannot remove a record.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store

FILE_NAME = "compaction"
FILE_BYTES_MAX = 1 << 30
VERSION = 2
_MAGIC = b"brokerd compaction "


class PartitionState(NamedTuple):
    """The progress of compaction in a partition."""

    topic_id: int
    partition: int
    end: int
    """The end offset of its records."""
    below: int
    """Its ``compact_below``."""
    tombstone_us: int
    """The append time of the oldest tombstone that was too young to be removed; 0 if none was."""
    again: bool
    """Whether old tombstones wait for older records of their keys, and the run removed some."""


class CompactionState(Struct, frozen=True):
    """The content of the file."""

    log_id: str = ""
    version: int = 0
    """The version of the table of records."""
    expiry: dict[int, int] = {}
    """The next expiry time of each file, by its footer's checksum; 0 if no record expires."""
    partitions: list[PartitionState] = []


def read_state(root: Place, log_id: str, version: int) -> CompactionState:
    """Read the file. Return an empty state if it is missing or unusable.

    :param version: of the table of records. A state of a later version is unusable, because the
        table was restored.
    :raises ArchiveUnavailable: the archive cannot be read.
    """
    empty = CompactionState(log_id)
    try:
        data = open_store(root).read(FILE_NAME, FILE_BYTES_MAX)
    except FileNotFoundError:
        return empty
    head, _, body = data.partition(b"\n")
    if head != _head(body):
        return empty
    try:
        state = msgspec.msgpack.decode(body, type=CompactionState)
    except msgspec.MsgspecError:
        return empty
    return state if state.log_id == log_id and state.version <= version else empty


def write_state(root: Place, state: CompactionState) -> None:
    """Replace the file. Raises ArchiveUnavailable."""
    body = msgspec.msgpack.encode(state)
    open_store(root).put(FILE_NAME, _head(body) + b"\n" + body, durable=False)


def _head(body: bytes) -> bytes:
    return _MAGIC + f"{VERSION} {xxh3_64_hexdigest(body)}".encode()
