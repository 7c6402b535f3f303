# Tests: tests/archive/test_bounds.py
"""The file ``state/bounds``: what a broker tells the job that keeps its archive.

The broker writes it, whole and durable; the job reads it, also while no broker runs. What it says
was durable when it was written, and stays true: topics stay deleted, start offsets only grow, and
the job removes nothing at or above ``compact_below``. The layout is docs/archive-format.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct, field, structs
from xxhash import xxh3_64_hexdigest

from brokerd.errors import DamagedData, NewerFormat

VERSION = 1
FILE_NAME = "bounds"
FILE_BYTES_MAX = 1 << 30
MAGIC = b"brokerd bounds "


Said = TypeVar("Said")


class PartitionBounds(Struct, frozen=True, array_like=True):
    """One partition of a topic."""

    start: int
    """Records below this offset are removed."""
    compact_below: int
    """Below it no group has a record that is leased, delayed, dead or not settled yet."""
    next: int
    """The next offset to be assigned."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets, first and end (exclusive), at which damage left no record."""


class TopicBounds(Struct, frozen=True, array_like=True):
    """One topic that is not deleted."""

    id: int
    name: str
    internal_of: int
    """Id of the topic that this one serves, 0 for one that people named."""
    compact: bool
    """Whether only the latest record of each key has to be kept."""
    partitions: list[PartitionBounds]


class DamagedPlace(NamedTuple):
    """A damaged place of the log that the broker knows; positions are bytes of the file."""

    file: str
    position: int
    end: int


class Bounds(Struct, frozen=True):
    """All of the file."""

    log_id: str
    """Names the log: 32 hexadecimal digits, made once."""
    lsn: int
    """The log was durable up to here."""
    time_us: int
    """Broker time then."""
    time_settled: bool
    """Whether anything may expire by it."""
    next_topic_id: int
    """An id below it that is not among the topics is that of a deleted one."""
    topics: list[TopicBounds]
    damage: list[DamagedPlace] = field(default_factory=list)


def encode_topic(topic: TopicBounds) -> bytes:
    """A topic for `encode_bounds`: so that a hundred thousand need not be encoded in one go."""
    return msgspec.json.encode(topic)


def encode_bounds(bounds: Bounds, topics: Sequence[bytes] = ()) -> bytes:
    """The bytes of the file: a line with version and checksum, then JSON.

    ``topics`` are by `encode_topic`, and follow those of ``bounds``.
    """
    all_topics = [*map(encode_topic, bounds.topics), *topics]
    fields = {**structs.asdict(bounds), "topics": Raw(b"[" + b",".join(all_topics) + b"]")}
    body = msgspec.json.encode(fields)
    return MAGIC + f"{VERSION} {xxh3_64_hexdigest(body)}\n".encode() + body + b"\n"


class BoundsHead(Struct, frozen=True):
    """What the file says besides topics and damage."""

    log_id: str
    lsn: int


def decode_bounds(data: bytes) -> Bounds:
    """Read the file. Raises DamagedData, and NewerFormat for one of a later version."""
    return _decode(data, Bounds)


def decode_bounds_head(data: bytes) -> BoundsHead:
    """Read some of the file, which is quicker where there are many topics; raises the same."""
    return _decode(data, BoundsHead)


def _decode(data: bytes, kind: type[Said]) -> Said:
    head, _, rest = data.partition(b"\n")
    words = head.removeprefix(MAGIC).split(b" ")
    if not (head.startswith(MAGIC) and len(words) == 2 and words[0].isdigit() and int(words[0])):
        raise DamagedData("it does not begin as a bounds file does")
    if int(words[0]) > VERSION:
        raise NewerFormat(f"bounds version {int(words[0])}; upgrade brokerd to read it")
    body = rest.removesuffix(b"\n")
    if words[1] != xxh3_64_hexdigest(body).encode():
        raise DamagedData("its checksum does not match")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise DamagedData(f"it says what no broker says: {error}") from None
