# Tests: tests/archive/test_compaction_state.py
"""What was looked at already, so that a run does not look at everything again.

A note in the file ``compaction`` beside the tables: docs/archive-tables.rst. It is never more than
that. Without it all is looked at again, and nothing that it says can remove a record.
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
VERSION = 1
_MAGIC = b"brokerd compaction "


class PartitionLook(NamedTuple):
    """How far compaction has looked at a partition."""

    topic_id: int
    partition: int
    end: int
    """All records below this offset were known."""
    below: int
    """``compact_below`` then."""
    tombstone_us: int
    """When the oldest tombstone was appended that was too young to go; 0: there was none."""
    again: bool
    """Whether tombstones wait for older records of their keys, of which some went."""


class CompactionState(Struct, frozen=True):
    """All of the note."""

    log_id: str = ""
    version: int = 0
    """Of the table of records, when it was written."""
    expiry: dict[int, int] = {}
    """By the footer's checksum of a file: when the next of its records expires; 0 never."""
    partitions: list[PartitionLook] = []


def read_looked(root: Place, log_id: str, version: int) -> CompactionState:
    """The note, or an empty one if there is none that can be used. Raises ArchiveUnavailable.

    :param version: of the table of records. A note of a later one is of a table that is gone.
    """
    try:
        data = open_store(root).read(FILE_NAME, FILE_BYTES_MAX)
    except FileNotFoundError:
        return CompactionState(log_id)
    head, _, body = data.partition(b"\n")
    if head != _head(body):
        return CompactionState(log_id)
    try:
        found = msgspec.msgpack.decode(body, type=CompactionState)
    except msgspec.MsgspecError:
        return CompactionState(log_id)
    return found if found.log_id == log_id and found.version <= version else CompactionState(log_id)


def write_looked(root: Place, looked: CompactionState) -> None:
    """Replace the note. Raises ArchiveUnavailable."""
    body = msgspec.msgpack.encode(looked)
    open_store(root).put(FILE_NAME, _head(body) + b"\n" + body, durable=False)


def _head(body: bytes) -> bytes:
    return _MAGIC + f"{VERSION} {xxh3_64_hexdigest(body)}".encode()
