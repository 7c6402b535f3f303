# Tests: tests/admin/test_openapi.py
"""Requests and answers about groups and leases; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from brokerd.admin.shapes.common import Index, NextPlace, Offset, Query, Seconds, Time
from brokerd.admin.shapes.topics import RecordShape

Attempts = Literal["failures", "grants"]


class GroupSettingsShape(Struct):
    """The settings of a group."""

    max_attempts: int
    attempts: Attempts
    backoff_base_seconds: float
    backoff_max_seconds: float
    default_duration_seconds: float
    key_ordered: bool
    lease_doubling: bool
    """Whether each further lease of a record lasts twice as long, as in subscriptions."""


class GroupAdmin(Struct, forbid_unknown_fields=True):
    """Settings to change. null: the broker's default; left out: unchanged."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000000)] | UnsetType | None = UNSET
    attempts: Attempts | UnsetType | None = UNSET
    backoff_base_seconds: Seconds | UnsetType | None = UNSET
    backoff_max_seconds: Seconds | UnsetType | None = UNSET
    default_duration_seconds: Seconds | UnsetType | None = UNSET
    key_ordered: bool | UnsetType | None = UNSET
    create: bool = False
    """Create the group if it does not exist."""


class GroupPartitionShape(Struct):
    """Position and counts of a group in one partition."""

    partition: int
    floor: int
    next: int
    lag: int
    leased: int
    delayed: int
    dead: int
    committed: int | None
    lag_by_commit: bool
    """Whether ``lag`` counts from the committed offset, because the group never leased here."""


class GroupShape(Struct):
    """Position and counts of a group: in total, and for the first 1,000 partitions."""

    topic: str
    group: str
    paused: bool
    partitions: int
    floor: int
    next: int
    lag: int
    leased: int
    ready: int
    delayed: int
    dead: int
    committed: int | None
    oldest_age_seconds: float | None
    settings: GroupSettingsShape
    by_partition: list[GroupPartitionShape]


class GroupBrief(Struct):
    """Counts of a group over all partitions."""

    group: str
    paused: bool
    lag: int
    leased: int
    delayed: int
    dead: int
    committed: int | None


class GroupList(Struct):
    """A page of groups. ``next`` is ``first`` of the next page."""

    groups: list[GroupBrief]
    next: int | None


class TopicGroupBrief(GroupBrief):
    """Counts of a group over all partitions of its topic."""

    topic: str


class AllGroups(Struct):
    """A page of the groups of all topics. ``next`` is ``first`` of the next page."""

    groups: list[TopicGroupBrief]
    next: int | None


class Pause(Struct, forbid_unknown_fields=True):
    """Stop granting leases. ``create`` creates the group if it does not exist."""

    create: bool = False


class Seek(Struct, forbid_unknown_fields=True):
    """The new position of a group: ``to`` an offset, "start" or "end", or ``to_time``."""

    to: Offset | Literal["start", "end"] | None = None
    to_time: Time | None = None
    partition: Index | None = None
    """null: all partitions."""
    create: bool = False
    """Create the group if it does not exist."""


class SeekQuery(Query, frozen=True):
    """The seek to preview: ``to`` an offset, "start" or "end", or ``to_time``."""

    to: Offset | Literal["start", "end"] | None = None
    to_time: Time | None = None
    partition: Index | None = None
    """Left out: all partitions."""


class SeekPartition(Struct):
    """What a seek would change in one partition."""

    partition: int
    floor: int
    new_floor: int
    lag: int
    new_lag: int
    """Records from the new floor on, removed ones included."""
    leased: int
    """Leases that would end."""
    delayed: int
    """Delays that would end."""
    dead: int
    """Dead letters; those from the new floor on would be ready again."""
    committed: int | None
    """The committed offset, which would become the new floor; null: there is none."""


class SeekPreview(Struct):
    """What a seek would change: in total, and in the first 1,000 partitions that it would move."""

    partitions: int
    lag: int
    new_lag: int
    leased: int
    by_partition: list[SeekPartition]


class LeaseShape(Struct):
    """One lease."""

    partition: int
    offset: int
    client: str
    token: int
    grants: int
    failures: int
    duration_seconds: float
    remaining_seconds: float


class LeaseList(Struct):
    """A page of leases."""

    leases: list[LeaseShape]
    next: NextPlace | None


class Release(Struct, forbid_unknown_fields=True):
    """The leases to end: all leases of a client, or the lease of one record."""

    client: str | None = None
    offset: Offset | None = None
    partition: Index = 0
    delay_seconds: Seconds = 0


class Released(Struct):
    """Number of leases that were ended."""

    released: int


class LetterShape(Struct):
    """One dead letter."""

    partition: int
    offset: int
    reason: str
    grants: int
    failures: int
    first_attempt: datetime | None
    last_attempt: datetime | None


class LetterList(Struct):
    """A page of dead letters."""

    dead_letters: list[LetterShape]
    next: NextPlace | None


class LetterWithRecord(LetterShape):
    """One dead letter with its record, or the reason why it has none."""

    record: RecordShape | None
    record_error: str | None


class LetterChoice(Struct, forbid_unknown_fields=True):
    """The dead letters that match every given field. ``end`` is exclusive."""

    partition: Index | None = None
    first: Offset = 0
    end: Offset | None = None
    reason: str | None = None
    before: Time | None = None


class Changed(Struct):
    """Number of dead letters that were changed."""

    count: int
