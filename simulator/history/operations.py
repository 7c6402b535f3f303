# Tests: tests/simulator/test_history.py
"""The operations of a history: the requests of clients, their answers, and the times of both.

The types are independent of wire formats. Times are integer microseconds of the simulated world:
they never jump and continue while a machine is down. NEVER means that an event did not happen.

An operation is recorded when the network takes its request, and completed when its answer has
arrived whole. An operation without an answer may or may not have taken effect. Payloads and
metadata are compared as bytes in an encoding of the client (Mamamia: MessagePack).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simulator.rules import (
    AccessRules,
    ClockRules,
    ConnectionRules,
    LimitRules,
    SubscriptionRules,
)

NEVER = -1


class Message(NamedTuple):
    """One message as sent. ``partition`` None leaves the choice to the broker."""

    payload: bytes
    metadata: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    delay_us: int | None = None
    """Delay; None: stored at once."""
    ttl_us: int | None = None
    """Time to live; None: that of the topic."""
    timestamp: int | None = None
    """Timestamp of the producer, in its unit, if the format has one."""


class Place(NamedTuple):
    """Position of a record in its topic."""

    partition: int
    offset: int


class Delivery(NamedTuple):
    """One leased record. Fields that the format does not report are None."""

    place: Place
    payload: bytes
    metadata: bytes | None = None
    key: bytes | None = None
    token: int | None = None
    grants: int | None = None
    """Number of leases by the group, this one included."""
    remaining_us: int | None = None
    """Remaining lease when the answer was made."""
    tells_key: bool = False
    """Whether ``key`` None means that the record has no key, as in answers with a token."""
    timestamp: int | None = None


class Settlement(NamedTuple):
    """One requested settle. Without a token the owner identifies the lease."""

    place: Place
    success: bool
    token: int | None = None
    delay_us: int | None = None
    reason: str = ""
    """Reason of a failure, if given."""
    dead: bool = False
    """Whether the failure makes it a dead letter at once."""


@dataclass(kw_only=True)
class Operation:
    """One request. If ``error`` has a text, the broker refused the request and applied nothing."""

    number: int
    """Order in which the network took requests."""
    client: str
    """Client; the owner of leases, if the format has one."""
    boot: int = NEVER
    """Number of the boot that the connection belongs to."""
    sent_us: int = NEVER
    arrived_us: int = NEVER
    """When the broker's Protocol received the last byte of the request."""
    written_us: int = NEVER
    """When the broker's Protocol wrote the last byte of the answer."""
    answered_us: int = NEVER
    """When the client had received the whole answer."""
    error: str = ""
    connection: int = NEVER
    """Number of the connection (`Connected`), if recorded; its requests run in order."""
    lost_us: int = NEVER
    """When the broker's Protocol learned that the connection was lost; an unanswered request has no
    effect afterwards. NEVER: not lost, or not recorded.
    """

    @property
    def succeeded(self) -> bool:
        return self.answered_us != NEVER and not self.error


@dataclass(kw_only=True)
class Produce(Operation):
    """Stores all messages or none."""

    topic: str
    messages: tuple[Message, ...]
    places: tuple[Place | None, ...] = ()
    """Their positions in order, once answered; None: delayed."""
    schedules: tuple[int | None, ...] = ()
    """Schedule id of each delayed message; empty without any."""
    producer_id: str = ""
    """Producer id, if it may be resent; "" otherwise."""
    sequence: int = 0
    """Sequence number of ``producer_id``."""
    is_silent: bool = False
    """Whether its answer has no positions; then all are None and no message is delayed."""
    is_promised: bool = True
    """Whether its answer confirms that it is stored."""
    in_transaction: bool = False
    """Whether it is stored together with the others of its number."""


@dataclass(kw_only=True)
class Acquire(Operation):
    topic: str
    group: str
    duration_us: int
    limit: int = 1
    wait_us: int = 0
    by_default: bool = False
    """Whether the group chose the duration; ``duration_us`` was not requested then."""
    deliveries: tuple[Delivery, ...] = ()


@dataclass(kw_only=True)
class Settle(Operation):
    topic: str
    group: str
    settlements: tuple[Settlement, ...]
    results: tuple[str, ...] = ()
    """"" for each that was accepted, else the error's text."""


@dataclass(kw_only=True)
class Extend(Operation):
    topic: str
    group: str
    place: Place
    duration_us: int
    token: int | None = None
    remaining_us: int = 0


class GroupView(NamedTuple):
    """The state of a group as reported; sums over the partitions."""

    floor: int
    next: int
    lag: int
    leased: int
    ready: int
    delayed: int
    dead: int
    committed: int | None = None
    partitions: int = 1

    @property
    def tells_settled(self) -> bool:
        """Whether the lag certainly counts leases. The lag of a partition whose group only commits
        counts from the commit.
        """
        if self.committed is None:
            return True
        return self.partitions == 1 and bool(self.leased or self.delayed or self.dead)


@dataclass(kw_only=True)
class Look(Operation):
    """Queries a group's state."""

    topic: str
    group: str
    view: GroupView | None = None


class Letter(NamedTuple):
    """A dead letter in a listing."""

    place: Place
    reason: str
    grants: int
    failures: int
    first_ago_us: int | None = None
    """Age of the first attempt at the listing; None: not reported."""
    last_ago_us: int | None = None
    """Age of the death at the listing."""


@dataclass(kw_only=True)
class Letters(Operation):
    """Queries a group's dead letters."""

    topic: str
    group: str
    letters: tuple[Letter, ...] = ()


# -- changes by operators --------------------------------------------------------------------------


class GroupRules(NamedTuple):
    """The settings of a group."""

    max_attempts: int = 3
    counts_grants: bool = False
    """Whether max_attempts counts grants instead of failures."""
    backoff_base_us: int = 0
    backoff_max_us: int = 600_000_000
    default_duration_us: int = 30_000_000
    key_ordered: bool = False


class TopicRules(NamedTuple):
    """The settings of a topic; 0: no limit."""

    retention_us: int = 0
    retention_bytes: int = 0
    ttl_us: int = 0

    @property
    def removes(self) -> bool:
        """Whether the broker may move the start offsets by itself."""
        return bool(self.retention_us or self.retention_bytes)


@dataclass(kw_only=True)
class GroupChange(Operation):
    """A change of a whole group."""

    topic: str
    group: str


@dataclass(kw_only=True)
class Pause(GroupChange):
    pass


@dataclass(kw_only=True)
class Resume(GroupChange):
    pass


@dataclass(kw_only=True)
class Configure(GroupChange):
    rules: GroupRules


@dataclass(kw_only=True)
class Seek(GroupChange):
    to: int | Literal["start", "end"]
    partition: int | None = None
    """None: all partitions."""


@dataclass(kw_only=True)
class DeleteGroup(GroupChange):
    pass


@dataclass(kw_only=True)
class Release(GroupChange):
    """Ends the leases of ``owner`` without a failure."""

    owner: str
    places: tuple[Place, ...] | None = None
    """None: all of them."""
    released: int = 0
    is_partial: bool = False
    """Whether there were more leases than one call ends; the answer does not name the ended
    ones.
    """


@dataclass(kw_only=True)
class LetterChange(GroupChange):
    """A change of the dead letters in a range."""

    partition: int | None = None
    first: int = 0
    end: int | None = None
    reason: str | None = None
    """Letters with this reason; None: with any."""
    aged_us: int | None = None
    """Letters of at least this age; None: of any."""
    count: int = 0
    """Number of changed letters."""

    def concerns(self, place: Place) -> bool:
        """Return whether it includes letters at this position, for any reason."""
        return (
            self.partition in (None, place.partition)
            and self.first <= place.offset
            and (self.end is None or place.offset < self.end)
        )


@dataclass(kw_only=True)
class Replay(LetterChange):
    pass


@dataclass(kw_only=True)
class Purge(LetterChange):
    pass


@dataclass(kw_only=True)
class SetClock(Operation):
    """Declares the wall clock right: broker time continues from it."""


@dataclass(kw_only=True)
class Trim(Operation):
    """Removes the records of a partition below an offset."""

    topic: str
    partition: int
    offset: int
    start: int = 0
    """Start offset afterwards."""


@dataclass(kw_only=True)
class ReportStream(Operation):
    """Reports the position of a named stream of one topic."""

    stream: str
    topic: str
    offsets: tuple[int, ...]
    """The next offset of each partition."""
    holds: bool
    """Whether it asks that retention waits."""
    is_held: bool = False
    """Whether retention waits afterwards."""
    starts: tuple[int, ...] = ()
    """The start offsets of the partitions then."""


@dataclass(kw_only=True)
class DropStream(Operation):
    stream: str
    existed: bool = False


@dataclass(kw_only=True)
class DeleteTopic(Operation):
    topic: str


@dataclass(kw_only=True)
class ConfigureTopic(Operation):
    """Sets all settings of a topic."""

    topic: str
    rules: TopicRules


class LifeEvent(NamedTuple):
    """An event of a group about a record."""

    lsn: int
    group: str
    event: str
    """The name of the kind, for example ``leased``."""
    token: int | None = None
    reason: str = ""
    first: int | None = None
    """First offset of a range, or the position of a seek."""
    end: int | None = None
    """End of a range, exclusive."""


@dataclass(kw_only=True)
class Explain(Operation):
    """Queries the events of all groups about a record."""

    topic: str
    place: Place
    exists: bool = False
    """Whether the record can be read."""
    is_whole: bool = False
    """Whether the answer has all events of journal and archive, on one page."""
    from_lsn: int = 0
    """The answer has no events below this LSN: they are in neither, or older than the record."""
    archive_lsn: int = 0
    """Events below this LSN come from the archive; 0: none."""
    events: tuple[LifeEvent, ...] = ()


class AuditRow(NamedTuple):
    """An event of the audit trail."""

    id: int
    type: str
    user: str
    format: str
    """The wire format, or ``admin``."""
    resource: str
    result: str


@dataclass(kw_only=True)
class AuditSearch(Operation):
    """Queries a page of the audit trail, newest first. Empty fields match everything."""

    types: tuple[str, ...] = ()
    user: str = ""
    resource: str = ""
    """Part of the resource."""
    before: int | None = None
    limit: int
    rows: tuple[AuditRow, ...] = ()
    next_before: int | None = None
    """``before`` of the next page; None: no older event matches."""
    unreadable: int = 0


class TopicView(NamedTuple):
    """The description of a topic."""

    topic_id: int
    starts: tuple[int, ...]
    """The start offset of each partition."""
    nexts: tuple[int, ...]
    waiting: int
    """Number of delayed messages that are not yet stored."""


@dataclass(kw_only=True)
class Describe(Operation):
    topic: str
    view: TopicView | None = None
    """None: the topic does not exist."""


@dataclass(kw_only=True)
class Cancel(Operation):
    """Cancels a delayed message."""

    topic: str
    schedule_id: int
    cancelled: bool = False


@dataclass(kw_only=True)
class Boot:
    """One life of the broker on its machine."""

    number: int
    begun_us: int
    ready_us: int = NEVER
    """When it began to serve; live leases get their full duration again then."""
    ended_us: int = NEVER
    end: str = ""
    """How it ended: stopped (cleanly), killed (SIGKILL), power (power loss), failed (it gave up
    because of a storage error), refused (it would not start). Empty while it lives."""
    reason: str = ""
    """Its message after a failure or refusal, or the crash model after power loss."""
    durability: str = "fsync"
    damages: tuple[str, ...] = ()
    """Damage in its recovery report."""
    stopping_us: int = NEVER
    """When a clean stop or a failure began."""
    power_lost: bool | None = None
    """Whether the power failed at its end or before the next boot; None: not recorded."""


@dataclass(kw_only=True)
class Connected:
    """A connection at the broker's end."""

    number: int
    """Number of the connection, which its requests have."""
    client: str
    """Name of the client in the plan. Its leases have its identity, which clients may share."""
    boot: int
    opened_us: int
    others: int
    """Open connections at this moment, besides this one."""
    is_refused: bool = False
    """Whether the broker closed it before its Protocol began."""
    first_us: int = NEVER
    """When the first byte arrived."""
    arrived_us: int = NEVER
    """When the last byte arrived."""
    last_us: int = NEVER
    """When a byte last arrived or was written, or the Protocol read on."""
    held_us: int = NEVER
    """Since when the Protocol does not read; NEVER: it reads."""
    is_unfinished: bool = False
    """Whether all bytes of the client are a part of a frame."""
    closing_us: int = NEVER
    """When the broker closed it, before the client did."""
    lost_us: int = NEVER
    """When the Protocol lost it."""


class Compacted(NamedTuple):
    """A record that compaction removed from the archive, because a later one has its key."""

    at_us: int
    topic: str
    partition: int
    offset: int


class Published(NamedTuple):
    """A bound that the broker published for the archive's job."""

    at_us: int
    """When the job could read it."""
    topic: str
    partition: int
    below: int
    """Every group has finished all records below this offset."""


class ClockStep(NamedTuple):
    """A step of the machine's wall clock; forward when positive."""

    at_us: int
    step_us: int


@dataclass
class History:
    """The history of one run.

    From ``audit_us`` on, the last boot is an audit without faults. The audit reads every topic
    through a new group whose name begins with ``audit``. It waits until all leases and delays are
    over, and drains every other group: it leases and settles all records, and queries the state and
    the dead letters.
    """

    rules: GroupRules = field(default_factory=GroupRules)
    """Settings of new groups."""
    topic_rules: TopicRules = field(default_factory=TopicRules)
    """Settings of new topics."""
    given_topics: tuple[str, ...] = ()
    """Topics that the broker creates at its start if they do not exist."""
    subscriptions: SubscriptionRules = field(default_factory=SubscriptionRules)
    clock: ClockRules = field(default_factory=ClockRules)
    access: AccessRules = field(default_factory=AccessRules)
    connection_rules: ConnectionRules = field(default_factory=ConnectionRules)
    limits: LimitRules = field(default_factory=LimitRules)
    stream_hold_us: int = 7 * 86_400_000_000
    """How long a named stream holds back retention after its last report."""
    transaction_us: int = 60_000_000
    """Time after which an open transaction is rolled back."""
    operations: list[Operation] = field(default_factory=list)
    boots: list[Boot] = field(default_factory=list)
    audit_us: int = NEVER
    clock_steps: list[ClockStep] | None = None
    """All steps of the wall clock; None: not recorded, any are possible."""
    is_steady: bool = False
    """Whether the disk always had room in good time; False also if not recorded."""
    compacted: list[Compacted] = field(default_factory=list)
    has_deleted_events: bool = False
    """Whether the broker deleted a segment that was not archived."""
    published: list[Published] = field(default_factory=list)
    connections: list[Connected] = field(default_factory=list)
    """The connections that reached a broker, in this order."""
    vandals: frozenset[str] = frozenset()
    """Clients that send invalid input."""
    ended_us: int = 1 << 62
    """The end of the run."""
    principal: str = ""
    """The account of all clients; "" if security is off."""
    formats: dict[str, str] = field(default_factory=dict)
    """Client -> wire format; clients without one speak Mamamia."""
    rotted: bool = False
    """Whether synced bytes were changed, so that the broker may report damage."""
