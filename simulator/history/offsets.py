# Tests: tests/simulator/test_oracle_offsets.py
"""What clients of formats that read by offset asked and saw: the rest of
`simulator.history.operations`.

RustLog, MEGA and FlyMQ read records where they stand and keep committed offsets. They show the
value of a record, which is bytes; `simulator.payloads` says what a payload's value is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.history.operations import NEVER, Operation, Place


class Reading(NamedTuple):
    """One record as it was read. What a format does not tell is None."""

    place: Place
    value: bytes
    key: bytes | None = None
    tells_key: bool = False
    """Whether ``key`` None says that there is none."""
    timestamp: int | None = None
    """The producer's, in its own unit."""


@dataclass(kw_only=True)
class Read(Operation):
    """Records of one partition, in order, from an offset on."""

    topic: str
    partition: int
    offset: int
    """What was asked for."""
    group: str = ""
    """Whose committed offset counts instead, if it is higher; "" for nobody's."""
    limit: int = 1
    """How many records at most."""
    limit_bytes: int | None = None
    """How many bytes of values at most, beyond the first record; None: whatever fits."""
    pattern: str = ""
    """What a record must match to be shown; "" for all (FlyMQ's filters)."""
    exact: bool = False
    """Whether only the record at ``offset`` will do."""
    stops_at_gaps: bool = False
    """Whether an answer ends before records that were removed, and shows none that begins there."""
    readings: tuple[Reading, ...] = ()
    next: int | None = None
    """From where to go on, if that is told."""


@dataclass(kw_only=True)
class Commit(Operation):
    """A group's offset in a partition is stored."""

    topic: str
    group: str
    partition: int
    offset: int


@dataclass(kw_only=True)
class ResetOffset(Operation):
    """A group's offset in a partition is set to where the partition starts or ends."""

    topic: str
    group: str
    partition: int
    to: str
    """``earliest`` or ``latest``."""


@dataclass(kw_only=True)
class Committed(Operation):
    """A question for a group's offset in a partition."""

    topic: str
    group: str
    partition: int
    offset: int | None = None
    """None: there is none, or it is not told apart from 0 (`told_as_zero`)."""
    told_as_zero: bool = False
    """Whether the format says 0 where nothing is committed."""
    latest: int | None = None
    """The next offset to be written, if that is told."""
    lag: int | None = None


@dataclass(kw_only=True)
class Position(Operation):
    """A question for where reading may begin."""

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
    """Whether it was refused because there is one of that name."""


@dataclass(kw_only=True)
class ListTopics(Operation):
    """A question for all topics."""

    topics: tuple[tuple[str, int | None], ...] = ()
    """Each with its number of partitions, if that is told."""
