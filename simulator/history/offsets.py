# Tests: tests/simulator/test_oracle_offsets.py
"""Operations of formats that read by offset; see `simulator.history.operations`.

RustLog, MEGA and FlyMQ read records by offset and keep committed offsets. They return the value of
a record as bytes; `simulator.payloads` maps a payload to its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.history.operations import NEVER, Operation, Place


class Reading(NamedTuple):
    """One record as read. Fields that the format does not report are None."""

    place: Place
    value: bytes
    key: bytes | None = None
    tells_key: bool = False
    """Whether ``key`` None means that the record has no key."""
    timestamp: int | None = None
    """Timestamp of the producer, in its unit."""


@dataclass(kw_only=True)
class Read(Operation):
    """A read of records of one partition, in order, from an offset."""

    topic: str
    partition: int
    offset: int
    """The requested offset."""
    group: str = ""
    """Group whose committed offset replaces ``offset`` if it is higher; "" for none."""
    by_reference: bool = False
    """Whether the committed offset always replaces ``offset``, and without one there is no record.
    """
    limit: int = 1
    """Most records."""
    limit_bytes: int | None = None
    """Most bytes of values after the first record; None: no limit."""
    pattern: str = ""
    """Filter of the records (FlyMQ); "" for all."""
    exact: bool = False
    """Whether the read accepts only the record at ``offset``."""
    stops_at_gaps: bool = False
    """Whether an answer ends before removed records and never begins there."""
    readings: tuple[Reading, ...] = ()
    next: int | None = None
    """Next offset to read, if the answer has it."""


@dataclass(kw_only=True)
class Commit(Operation):
    """Commits a group's offset in a partition."""

    topic: str
    group: str
    partition: int
    offset: int
    is_kept: bool = True
    """Whether it outlives the broker: RustLog's reference rules keep others in memory."""


@dataclass(kw_only=True)
class ResetOffset(Operation):
    """Sets a group's offset to the start or the end of a partition."""

    topic: str
    group: str
    partition: int
    to: str
    """``earliest`` or ``latest``."""


@dataclass(kw_only=True)
class Committed(Operation):
    """Queries a group's offset in a partition."""

    topic: str
    group: str
    partition: int
    offset: int | None = None
    """None: no offset, or 0 stands for none (`told_as_zero`)."""
    told_as_zero: bool = False
    """Whether the format answers 0 if nothing is committed."""
    latest: int | None = None
    """Next offset of the partition, if the answer has it."""
    lag: int | None = None


@dataclass(kw_only=True)
class Position(Operation):
    """Queries the offset at which to begin."""

    topic: str
    group: str
    partition: int
    mode: str
    """``earliest``, ``latest`` or ``commit``."""
    offset: int = NEVER


@dataclass(kw_only=True)
class CreateTopic(Operation):
    topic: str
    partitions: int
    existed: bool = False
    """Whether it was refused because the topic exists."""


@dataclass(kw_only=True)
class ListTopics(Operation):
    """Lists all topics."""

    topics: tuple[tuple[str, int | None], ...] = ()
    """Topic -> number of partitions, if the answer has it."""
