# Tests: tests/archive/test_bounds.py
"""The file ``state/bounds``: the records that the job may remove, and the existing topics.

The broker replaces the whole file durably. The job reads it, with or without a running broker. Its
facts were durable before, and stay true: topics stay deleted, start offsets only grow, and the job
removes nothing at or above ``compact_below``. docs/archive-format.rst has the layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct, field, structs
from xxhash import xxh3_64_hexdigest

from brokerd.errors import DamagedData, NewerFormat

VERSION = 1
FILE_NAME = "bounds"
FILE_BYTES_MAX = 1 << 30

SEGMENT_NAME = re.compile(r"([0-9]{20})\.wal")
MAGIC = b"brokerd bounds "

Decoded = TypeVar("Decoded")


class PartitionBounds(Struct, frozen=True, array_like=True):
    """One partition of a topic."""

    start: int
    """The broker has removed the records below this offset."""
    compact_below: int
    """Every group has settled the records below this offset, without dead letters."""
    next: int
    """The offset that the next record gets."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets without a record because of damage: first and end (exclusive)."""


class TopicBounds(Struct, frozen=True, array_like=True):
    """One topic."""

    id: int
    name: str
    internal_of: int
    """The id of the topic that an internal topic serves; 0: not internal."""
    compact: bool
    """Whether the topic keeps only the latest record of each key."""
    partitions: list[PartitionBounds]


class DamagedPlace(NamedTuple):
    """A known damaged range of a segment file; positions in bytes."""

    file: str
    position: int
    end: int


def damaged_lsns(places: Iterable[DamagedPlace]) -> Iterator[tuple[int, int]]:
    """Yield the LSNs of places in segments: first and end (exclusive)."""
    for file, position, end in places:
        if (found := SEGMENT_NAME.fullmatch(file)) is not None:
            yield int(found[1]) + position, int(found[1]) + end


class Bounds(Struct, frozen=True):
    """The content of the file."""

    log_id: str
    """The random id of the log: 32 hexadecimal digits."""
    lsn: int
    """The log was durable up to this LSN."""
    time_us: int
    """The time for removal at that LSN: broker time, or earlier while that is not trusted."""
    time_settled: bool
    """False in a file of an older broker whose clock had jumped: no record counts as old."""
    next_topic_id: int
    """A smaller id that ``topics`` lacks belongs to a deleted topic."""
    topics: list[TopicBounds]
    damage: list[DamagedPlace] = field(default_factory=list)
    reached_lsn: int = 0
    """Every fact in the file was synced in the log below this LSN. 0 in files of older brokers."""
    segment_lsn: int = 0
    """The first LSN of the segment that holds the byte before ``reached_lsn``."""
    segment_id: str = ""
    """The id of that segment: 32 hexadecimal digits; "" if no segment holds the byte."""

    @property
    def synced_lsn(self) -> int:
        """Return the LSN up to which the log was synced."""
        return max(self.lsn, self.reached_lsn)

    def partitions(self) -> Iterator[tuple[TopicBounds, int, PartitionBounds]]:
        """Yield each partition with its topic and index."""
        for topic in self.topics:
            for index, partition in enumerate(topic.partitions):
                yield topic, index, partition

    def start_offsets(self) -> dict[tuple[int, int], int]:
        """Return start offsets above 0 by (topic id, partition)."""
        return {
            (topic.id, index): partition.start
            for topic, index, partition in self.partitions()
            if partition.start > 0
        }


def encode_topic(topic: TopicBounds) -> bytes:
    """Encode a topic for `encode_bounds`. So the caller can encode 100,000 topics in slices."""
    return msgspec.json.encode(topic)


def encode_bounds(bounds: Bounds, topics: Sequence[bytes] = ()) -> bytes:
    """Encode the file: a line with version and checksum, then JSON.

    :param topics: further topics, encoded by `encode_topic`.
    """
    all_topics = [*map(encode_topic, bounds.topics), *topics]
    fields = {**structs.asdict(bounds), "topics": Raw(b"[" + b",".join(all_topics) + b"]")}
    body = msgspec.json.encode(fields)
    return MAGIC + f"{VERSION} {xxh3_64_hexdigest(body)}\n".encode() + body + b"\n"


class BoundsHead(Struct, frozen=True):
    """The fields that are decoded without the topics."""

    log_id: str
    lsn: int
    reached_lsn: int = 0

    @property
    def synced_lsn(self) -> int:
        """Return the LSN up to which the log was synced."""
        return max(self.lsn, self.reached_lsn)


def decode_bounds(data: bytes) -> Bounds:
    """Decode the file. Raises DamagedData, and NewerFormat for a later version."""
    return _decode(data, Bounds)


def decode_bounds_head(data: bytes) -> BoundsHead:
    """Decode only `BoundsHead`, which is faster if the file has many topics.

    Raises DamagedData and NewerFormat.
    """
    return _decode(data, BoundsHead)


def _decode(data: bytes, kind: type[Decoded]) -> Decoded:
    head, _, rest = data.partition(b"\n")
    words = head.removeprefix(MAGIC).split(b" ")
    if not (head.startswith(MAGIC) and len(words) == 2 and words[0].isdigit() and int(words[0])):
        raise DamagedData("the first line is not that of a bounds file")
    if int(words[0]) > VERSION:
        raise NewerFormat(f"bounds version {int(words[0])}; upgrade brokerd to read it")
    body = rest.removesuffix(b"\n")
    if words[1] != xxh3_64_hexdigest(body).encode():
        raise DamagedData("the checksum does not match")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise DamagedData(f"the content is invalid: {error}") from None
