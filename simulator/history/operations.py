# Tests: tests/simulator/test_history.py
"""What the clients of a run asked and saw, and when: all that the oracle knows.

Free of any wire format. Times are integer microseconds of the world, which never jump and go on
while a machine is down; NEVER means that it did not happen. An operation is recorded when its
request is handed to the network, and completed when its answer arrives whole. One that was never
answered may or may not have happened.

Payloads and metadata are compared as bytes: a client records what it sent and what it got in one
encoding of its own (Mamamia: MessagePack).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simulator.rules import SubscriptionRules

NEVER = -1


class Message(NamedTuple):
    """One message as it was sent. ``partition`` None leaves the choice to the broker."""

    payload: bytes
    metadata: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    delay_us: int | None = None
    """To be stored only after so long; None: at once."""
    ttl_us: int | None = None
    """To be gone after so long; None: as the topic says."""
    timestamp: int | None = None
    """The producer's own, where the format has one, in its unit."""


class Place(NamedTuple):
    """Where a record stands in its topic."""

    partition: int
    offset: int


class Delivery(NamedTuple):
    """One record as it was leased. What a format does not tell is None."""

    place: Place
    payload: bytes
    metadata: bytes | None = None
    key: bytes | None = None
    token: int | None = None
    grants: int | None = None
    """How often the group has leased the record, this time included."""
    remaining_us: int | None = None
    """What was left of the lease when the answer was made."""
    tells_key: bool = False
    """Whether ``key`` None says that there is none; so it does where a token is told."""
    timestamp: int | None = None


class Settlement(NamedTuple):
    """One settle as it was asked. Without a token it is the owner who settles."""

    place: Place
    success: bool
    token: int | None = None
    delay_us: int | None = None
    reason: str = ""
    """Why it failed, if that is said."""
    dead: bool = False
    """Whether the failure is to make it a dead letter at once."""


@dataclass(kw_only=True)
class Operation:
    """One request. ``error`` is the broker's text if it refused it, and nothing was applied."""

    number: int
    """The order in which requests were handed to the network."""
    client: str
    """Who asked; the owner of leases, where the format has one."""
    boot: int = NEVER
    """The boot of the machine that the connection led to."""
    sent_us: int = NEVER
    arrived_us: int = NEVER
    """When the broker's Protocol was given the last byte of the request."""
    written_us: int = NEVER
    """When the broker's Protocol wrote the last byte of the answer."""
    answered_us: int = NEVER
    """When the client had all of the answer."""
    error: str = ""
    connection: int = NEVER
    """Which connection it was sent on, if that is told; those of one are carried out in order."""
    lost_us: int = NEVER
    """When the broker's Protocol was told that the connection was lost; nothing of an unanswered
    request happens after it. NEVER: not lost, or not told."""

    @property
    def succeeded(self) -> bool:
        return self.answered_us != NEVER and not self.error


@dataclass(kw_only=True)
class Produce(Operation):
    """All the messages are stored, or none."""

    topic: str
    messages: tuple[Message, ...]
    places: tuple[Place | None, ...] = ()
    """Where they stand, in the order of the messages, once answered; None: it waits."""
    schedules: tuple[int | None, ...] = ()
    """The schedule id of each message that waits; empty when none does."""
    producer_id: str = ""
    """Who sends it, if it may be sent again; "" for nobody."""
    sequence: int = 0
    """Its number among those of ``producer_id``."""
    is_silent: bool = False
    """Whether its answer tells no places; they are all None, and nothing waits."""
    is_promised: bool = True
    """Whether its answer means that it is stored."""
    in_transaction: bool = False
    """Whether it is stored together with the others that have its number."""


@dataclass(kw_only=True)
class Acquire(Operation):
    topic: str
    group: str
    duration_us: int
    limit: int = 1
    wait_us: int = 0
    by_default: bool = False
    """The duration was left to the group; ``duration_us`` is not what was asked for."""
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
    """Where a group stands, as the broker says; sums over the partitions."""

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
        """Whether the lag is of leases for sure: where a group only commits it is of that.

        That is so for each partition by itself.
        """
        if self.committed is None:
            return True
        return self.partitions == 1 and bool(self.leased or self.delayed or self.dead)


@dataclass(kw_only=True)
class Look(Operation):
    """A question for a group's state."""

    topic: str
    group: str
    view: GroupView | None = None


class Letter(NamedTuple):
    """A dead letter, as the broker lists it."""

    place: Place
    reason: str
    grants: int
    failures: int
    first_ago_us: int | None = None
    """How long ago the first attempt was when it was listed; None: not told."""
    last_ago_us: int | None = None
    """How long ago the record died."""


@dataclass(kw_only=True)
class Letters(Operation):
    """A question for a group's dead letters."""

    topic: str
    group: str
    letters: tuple[Letter, ...] = ()


# -- what operators do -----------------------------------------------------------------------------


class GroupRules(NamedTuple):
    """The settings of a group."""

    max_attempts: int = 3
    counts_grants: bool = False
    """Whether grants are what meets max_attempts, rather than failures."""
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
    """Something that is done to a group as a whole."""

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
    """The leases of ``owner`` end, and are no failures."""

    owner: str
    places: tuple[Place, ...] | None = None
    """None: all of them."""
    released: int = 0
    is_partial: bool = False
    """Whether there were more than one call ends: nobody is told which those were."""


@dataclass(kw_only=True)
class LetterChange(GroupChange):
    """What is done to the dead letters of a range."""

    partition: int | None = None
    first: int = 0
    end: int | None = None
    reason: str | None = None
    """Only those with this reason; None: with any."""
    aged_us: int | None = None
    """Only those that died so long ago; None: whenever."""
    count: int = 0
    """How many it was done to."""

    def concerns(self, place: Place) -> bool:
        """Whether it is about dead letters at that place, whatever their reason."""
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
class Trim(Operation):
    """The records of a partition below an offset are removed."""

    topic: str
    partition: int
    offset: int
    start: int = 0
    """Where the partition starts then."""


@dataclass(kw_only=True)
class DeleteTopic(Operation):
    topic: str


@dataclass(kw_only=True)
class ConfigureTopic(Operation):
    """A topic is given settings; all of them."""

    topic: str
    rules: TopicRules


class TopicView(NamedTuple):
    """A topic as the broker describes it."""

    topic_id: int
    starts: tuple[int, ...]
    """The start offset of each partition."""
    nexts: tuple[int, ...]
    waiting: int
    """How many messages are scheduled and were not stored yet."""


@dataclass(kw_only=True)
class Describe(Operation):
    topic: str
    view: TopicView | None = None
    """None: there is no such topic."""


@dataclass(kw_only=True)
class Cancel(Operation):
    """A message that waits is not to be stored."""

    topic: str
    schedule_id: int
    cancelled: bool = False


@dataclass(kw_only=True)
class Boot:
    """One life of the broker on its machine."""

    number: int
    begun_us: int
    ready_us: int = NEVER
    """When it began to serve; leases that were live get their full duration from here."""
    ended_us: int = NEVER
    end: str = ""
    """How it ended: stopped (cleanly), killed (SIGKILL), power (power loss), failed (it gave up
    because of a storage error), refused (it would not start). Empty while it lives."""
    reason: str = ""
    """What it said when it failed or refused, or the crash model after power loss."""
    durability: str = "fsync"
    damages: tuple[str, ...] = ()
    """Damage that its recovery reported."""
    power_lost: bool | None = None
    """Whether power went at its end, or later but before the next boot; None: not told."""


class Compacted(NamedTuple):
    """A record that the archive has no longer, because a later one has its key."""

    at_us: int
    topic: str
    partition: int
    offset: int


class Published(NamedTuple):
    """A bound that the broker gave to the job that keeps its archive."""

    at_us: int
    """When the job could read it."""
    topic: str
    partition: int
    below: int
    """No group has a record to do below this offset."""


class ClockStep(NamedTuple):
    """A step of the machine's wall clock; forward when positive."""

    at_us: int
    step_us: int


@dataclass
class History:
    """One run. The last boot's tail, from ``audit_us`` on, is an audit without faults.

    The audit reads every topic whole through a group of its own whose name begins with ``audit``,
    waits until every lease and delay is over, and then drains every other group: leases all there
    is to lease, settles it, and asks for its state and its dead letters.
    """

    rules: GroupRules = field(default_factory=GroupRules)
    """What groups begin with."""
    topic_rules: TopicRules = field(default_factory=TopicRules)
    """What topics begin with."""
    given_topics: tuple[str, ...] = ()
    """Topics that are made at every start of the broker, if they are not there."""
    subscriptions: SubscriptionRules = field(default_factory=SubscriptionRules)
    operations: list[Operation] = field(default_factory=list)
    boots: list[Boot] = field(default_factory=list)
    audit_us: int = NEVER
    clock_steps: list[ClockStep] | None = None
    """Every step of the wall clock; None: not told, there may have been any."""
    is_steady: bool = False
    """Whether the disk had room for everything, and in good time; False also when not told."""
    compacted: list[Compacted] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    rotted: bool = False
    """Whether bytes that were synced were changed, so that the broker may rightly report damage."""
