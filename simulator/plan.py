# Tests: tests/simulator/test_plan.py
"""The plan of a run as plain data: settings, network, disk, clients and faults.

Every random choice of a run is in the plan or follows from a ``seed`` field of the part that it
belongs to. So a plan can be written as JSON, run again anywhere, and shrunk to the parts that a
failure needs. `simulator.draw` makes one from a seed.

Times are integer microseconds of the world from the moment the broker serves and has the topics.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from simulator.history.operations import GroupRules, TopicRules
from simulator.rules import (
    AccessRules,
    ClockRules,
    ConnectionRules,
    LimitRules,
    SubscriptionRules,
)

DiskCall = Literal[
    "create",
    "open",
    "pread",
    "pwrite",
    "rename",
    "sync",
    "sync_directory",
    "truncate",
    "unlink",
]
ErrorName = Literal["EIO", "ENOSPC", "EDQUOT"]
PowerModel = Literal["drop", "keep", "tear", "reorder"]
WireFormat = Literal["mamamia", "rustlog", "mega", "blipmq", "flymq"]
Role = Literal["producer", "consumer", "worker", "watcher", "vandal", "operator", "registrar"]
Action = Literal[
    "produce",
    "produce_batch",
    "acquire",
    "acquire_batch",
    "settle",
    "settle_batch",
    "extend",
    "settle_again",
    "settle_foreign",
    "settle_blind",
    "forget",
    "release",
    "cancel",
    "look",
    # of formats that read by offset
    "read",
    "read_one",
    "commit",
    "committed",
    "reset_offset",
    "lag",
    "position",
    "create_topic",
    "list_topics",
    # of FlyMQ
    "begin",
    "stage",
    "commit_transaction",
    "roll_back",
    # of BlipMQ
    "subscribe",
    "poll",
    "acknowledge",
    "acknowledge_again",
    # of operators
    "pause",
    "resume",
    "configure",
    "seek",
    "delete_group",
    "replay",
    "purge",
    "letters",
    "trim",
    "configure_topic",
    "delete_topic",
    "describe",
    "set_clock",
    "report_stream",
    "drop_stream",
    "explain",
    "search_audit",
    # of registrars
    "create_account",
    "update_account",
    "delete_account",
    "set_list",
    "delete_list",
    "set_password",
    "make_key",
    "revoke_key",
    "log_in",
    "probe",
    "register_schema",
    "schema_mode",
    "delete_schema",
    "validate",
    "set_quota",
    "delete_quota",
    "inspect",
]

DEFAULT_SEGMENT_BYTES = 1 << 20
DEFAULT_DURATION_US = 30_000_000
"""Default duration of a lease. Operators set shorter ones only."""
OPERATOR_BACKOFF_US = 5_000_000
"""The longest back-off that an operator sets."""
PATIENCE_US = 60_000_000
"""Time after which the reference client gives up an answer and connects again."""


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of a plan; changed with `msgspec.structs.replace`."""


class Settings(Part, frozen=True, kw_only=True):
    """The broker's options. They are smaller than usual, so that a run reaches each limit soon."""

    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    segment_age_seconds: int = 900
    snapshot_interval_bytes: int = 256 << 20
    tail_cache_bytes: int = 64 << 20
    read_cache_bytes: int = 32 << 20
    frame_bytes: int = 8 << 20
    """Limit of a frame of the log. The limit of a request stays at its default."""
    max_uncommitted_bytes: int = 32 << 20
    in_flight_bytes: int = 4 << 20
    in_flight_requests: int = 10_000
    max_attempts: int = 3
    attempts: Literal["failures", "grants"] = "failures"
    backoff_base_us: int = 0
    """A multiple of 1,000, like ``backoff_max_us``."""
    backoff_max_us: int = 600_000_000
    durability: str = "fsync"
    """As the option ``wal.durability``: ``fsync``, ``interval:<ms>`` or ``os``."""
    retention_check_seconds: int = 60
    """Time between two checks of retention."""
    blipmq_max_deliveries: int = 3
    blipmq_retry_base_us: int = 100_000
    """A multiple of 1,000."""
    blipmq_grace_seconds: int = 3_600
    blipmq_look_back_us: int = 0
    """A multiple of 1,000."""
    blipmq_ttl_seconds: int = 0
    """Time to live of all messages of BlipMQ; 0: that of the topic."""
    rustlog_reference_groups: bool = False
    """Whether RustLog's binary dialect has the reference's group rules."""
    transaction_seconds: int = 60
    mark_quiet_ms: int = 100
    clock_tolerance_seconds: int = 60
    clock_grace_seconds: int = 3_600
    dead_letter_seconds: int = 604_800
    stream_hold_seconds: int = 604_800
    retention_seconds: int = 0
    """Retention of topics without their own; 0: no limit. The next two likewise."""
    retention_bytes: int = 0
    ttl_seconds: int = 0
    subscriptions_max: int = 100_000
    connections_max: int = 10_000
    first_byte_seconds: int = 120
    login_seconds: int = 60
    idle_seconds: int = 0
    unfinished_frame_seconds: int = 60
    flymq_delay_max_seconds: int = 86_400
    """The longest delay of a FlyMQ record."""
    archive: bool = False
    """Whether the broker has an archive. A `Rollup` fills it."""
    archive_poll_seconds: int = 5
    archive_keep_wal_bytes: int = 0
    """Bytes of the log to keep, below the minimum of an operator."""
    archive_deletes: bool = True
    archive_files: bool = False
    """Whether the archive has real files, which the steps of the real job write."""
    capacity_bytes: int | None = None
    """Disk space of the broker's files until the audit, besides the space that it keeps free."""
    principal: str = ""
    """The account of all clients. With one, security is on."""
    default_public: bool = False
    allow_anonymous: bool = False

    @property
    def longest_backoff_us(self) -> int:
        doubled = self.backoff_base_us << min(self.max_attempts, 40)
        return min(doubled, self.backoff_max_us)

    def subscription_rules(self) -> SubscriptionRules:
        """Return the settings of subscriptions for the oracle."""
        return SubscriptionRules(
            self.blipmq_max_deliveries,
            self.blipmq_retry_base_us,
            self.blipmq_grace_seconds * 1_000_000,
            self.blipmq_look_back_us,
            self.blipmq_ttl_seconds * 1_000_000,
        )

    def topic_rules(self) -> TopicRules:
        """Return the settings of topics without their own, for the oracle."""
        return TopicRules(
            self.retention_seconds * 1_000_000, self.retention_bytes, self.ttl_seconds * 1_000_000
        )

    def connection_rules(self) -> ConnectionRules:
        """Return the limits of connections for the oracle."""
        return ConnectionRules(
            self.connections_max,
            self.first_byte_seconds * 1_000_000,
            self.idle_seconds * 1_000_000,
            self.unfinished_frame_seconds * 1_000_000,
            self.login_seconds * 1_000_000 if self.principal else 0,
        )

    def access_rules(self) -> AccessRules:
        """Return the permissions without lists and accounts for the oracle."""
        return AccessRules(self.default_public, self.allow_anonymous)

    def limit_rules(self) -> LimitRules:
        """Return the limits for the oracle."""
        return LimitRules(
            self.subscriptions_max,
            self.flymq_delay_max_seconds * 1_000_000,
            self.dead_letter_seconds * 1_000_000,
        )

    def clock_rules(self) -> ClockRules:
        """Return the clock options for the oracle."""
        return ClockRules(
            self.clock_tolerance_seconds * 1_000_000, self.clock_grace_seconds * 1_000_000
        )

    def group_rules(self) -> GroupRules:
        """Return the settings of groups for the oracle."""
        return GroupRules(
            self.max_attempts,
            self.attempts == "grants",
            self.backoff_base_us,
            self.backoff_max_us,
        )


class Network(Part, frozen=True, kw_only=True):
    """The times of pieces of bytes. Pieces of one direction never overtake each other."""

    latency_us_min: int = 50
    latency_us_max: int = 50
    split_permille: int = 0
    """Thousandths of pieces that are split."""


class DiskTimes(Part, frozen=True, kw_only=True):
    """The times of disk calls. ``other`` covers renames, sizes and directories."""

    read_us_min: int = 20
    read_us_max: int = 20
    write_us_min: int = 20
    write_us_max: int = 20
    sync_us_min: int = 200
    sync_us_max: int = 200
    other_us_min: int = 5
    other_us_max: int = 5
    stuck_permille: int = 0
    """Thousandths of syncs that get stuck, while other calls go on."""
    stuck_us_max: int = 0


class Topic(Part, frozen=True, kw_only=True):
    """A topic that exists before clients begin; the audit reads it."""

    name: str
    partitions: int = 1
    compact: bool = False
    """Whether the archive keeps only the latest record of each key."""


class ClientPlan(Part, frozen=True, kw_only=True):
    """One client. ``mix`` has the weight of each action."""

    name: str
    """Its name in the trace and in its payloads."""
    identity: str
    """The client_id, which two clients may share."""
    role: Role
    seed: int
    format: WireFormat = "mamamia"
    begin_us: int = 0
    operations: int
    window: int = 1
    """The most unanswered requests."""
    think_us: int = 0
    """The longest pause between two bursts of requests."""
    topics: tuple[Topic, ...]
    groups: tuple[str, ...] = ()
    mix: dict[Action, int] = {}
    batch_max: int = 10
    payload_bytes_max: int = 100
    is_plain: bool = False
    """Whether all payloads are byte strings, so that PRODUCE requests may form a run."""
    large_permille: int = 0
    """Thousandths of payloads that are 20 to 200 KiB, also above ``payload_bytes_max``."""
    empty_permille: int = 0
    """Thousandths of payloads that are empty, and so equal."""
    keys: int = 0
    """Number of different keys; 0: no keys."""
    partition_permille: int = 0
    """Thousandths of messages that name their partition."""
    metadata_permille: int = 0
    duration_us_min: int = 30_000_000
    duration_us_max: int = 30_000_000
    wait_us_max: int = 0
    failure_permille: int = 0
    delay_us_max: int = 0
    """The longest delay of a failed settle; 0: no delays."""
    late_permille: int = 0
    """Thousandths of leases that it settles after their end."""
    token_permille: int = 0
    """Thousandths of settles in batches that have a token."""
    verdict_permille: int = 0
    """Thousandths of failed settles with a reason, or that are final, or both."""
    delayed_permille: int = 0
    """Thousandths of messages with a delay."""
    schedule_us_max: int = 0
    """The longest such delay."""
    ttl_permille: int = 0
    """Thousandths of messages with a time to live."""
    ttl_us_max: int = 0
    default_permille: int = 0
    """Thousandths of acquires without a duration, which take that of the group."""
    resends: bool = False
    """Whether batches have sequence numbers, and are sent again if the answer is lost."""
    filter_permille: int = 0
    """Thousandths of fetches with a filter, where the format allows one."""
    qos_0_permille: int = 0
    """Thousandths of messages and subscriptions with QoS 0."""
    owners: tuple[str, ...] = ()
    """Of an operator: owners whose leases it releases."""
    ordered_permille: int = 0
    """Of an operator: thousandths of group configurations with key order."""
    aged_permille: int = 0
    """Of an operator: thousandths of replays and purges of old dead letters only."""
    aged_us_max: int = 5_000_000
    configures_first: bool = False
    """Of an operator: whether it configures all groups first."""
    retention_us_max: int = 0
    """Of an operator: the longest retention that it sets; 0: no limit."""
    retention_bytes_max: int = 0
    """Of an operator: the largest retention in bytes of a partition that it sets."""
    quota_requests_max: int = 0
    """Of a registrar: the highest quota of Mamamia's listener, in requests a second; 0: none."""
    quota_bytes_max: int = 0
    """The same in bytes of produces a second, above 1,000; 0: none. It needs the other one."""
    quota_answers_max: int = 0
    """The same in bytes of answers a second, above 100; 0: none. It needs the first one."""
    quota_connections_max: int = 0
    """Of a registrar: the highest quota of connections of Mamamia's listener; 0: none."""
    has_passwords: bool = False
    """Of a registrar: whether accounts get passwords, and some exist from the beginning."""
    login: str = ""
    """The account as which it logs in, where the format has logins; "": it does not, or with the
    key of the configuration.
    """
    wrong_permille: int = 0
    """Thousandths of logins with an old or wrong password or key."""
    has_reference_groups: bool = False
    """Of RustLog: whether the broker has the reference's group rules."""
    patience_us: int = PATIENCE_US
    """Time after which it gives up an answer, closes the connection and connects again."""
    reconnect_us_max: int = 1_000_000


# -- faults ----------------------------------------------------------------------------------------


class Fault(Part, frozen=True, kw_only=True, tag_field="kind"):
    """A fault at a time. JSON has its type as ``kind``."""

    at_us: int


class CallFault(Fault, frozen=True, kw_only=True):
    """A fault that may also strike at a disk call of the broker."""

    at_call: int | None = None
    """Strike as the nth disk call (from 1) after ``at_us`` begins; None strikes at ``at_us``."""
    at_name: DiskCall | None = None
    """Of a crash: count only the disk calls of this name."""
    at_stuck: bool = False
    """Of a crash: count only syncs that got stuck, and strike at the end of the time stuck."""
    from_boot: bool = False
    """Count calls from the first boot that begins after ``at_us``: to strike in a recovery."""


class Kill(CallFault, frozen=True, kw_only=True, tag="kill"):
    """SIGKILL: the process ends, written data stays."""

    down_us: int


class PowerLoss(CallFault, frozen=True, kw_only=True, tag="power_loss"):
    """Power loss: the model decides about unsynced data."""

    model: PowerModel
    seed: int
    down_us: int


class Stop(Fault, frozen=True, kw_only=True, tag="stop"):
    """A clean stop, and a start again."""

    down_us: int


class DiskError(CallFault, frozen=True, kw_only=True, tag="disk_error"):
    """A disk call fails: the ``at_call``-th one of the name ``call``.

    If the broker gives up, it is started again after ``down_us``, and power goes first if ``power``
    names a crash model.
    """

    call: DiskCall
    error: ErrorName
    short: bool = False
    """Of a write: some of it reached the file before it failed."""
    power: PowerModel | None = None
    seed: int
    down_us: int


class NoSpace(Fault, frozen=True, kw_only=True, tag="no_space"):
    """The disk is full for a while."""

    for_us: int


class SlowDisk(Fault, frozen=True, kw_only=True, tag="slow_disk"):
    """Every disk call takes ``factor`` times longer."""

    for_us: int
    factor: int


class Drop(Fault, frozen=True, kw_only=True, tag="drop"):
    """Both sides lose a client's connection."""

    client: str


class Stall(Fault, frozen=True, kw_only=True, tag="stall"):
    """No bytes pass in either direction for a while."""

    for_us: int
    client: str


class StopReading(Fault, frozen=True, kw_only=True, tag="stop_reading"):
    """A client does not read for a while."""

    for_us: int
    client: str


class Rot(Fault, frozen=True, kw_only=True, tag="rot"):
    """A bit of a file changes, in the page cache and on the disk."""

    seed: int
    """Decides the file, the byte and the bit."""


class Rollup(Fault, frozen=True, kw_only=True, tag="rollup"):
    """The rollup runs, unless it is running already."""

    step_us: int = 1_000
    """Time of each step."""
    steps_max: int | None = None
    """Steps after which it is killed; None: it is not killed."""
    lot_segments: int = 1_000
    """Segments of one commit."""
    cleans: bool = True
    """Whether it removes records by retention and compaction."""
    vacuums: bool = False
    """Whether it deletes replaced files at once."""


class Seal(Fault, frozen=True, kw_only=True, tag="seal"):
    """An operator asks the broker to seal its log."""


class ArchiveAway(Fault, frozen=True, kw_only=True, tag="archive_away"):
    """The archive cannot be reached for a while."""

    for_us: int
    gone: bool = False
    """Whether it looks like an archive that never existed."""
    older: bool = False
    """Whether an older copy comes back. It still has all segments that the log deleted."""


class ArchiveSlow(Fault, frozen=True, kw_only=True, tag="archive_slow"):
    """Each read of the archive takes ``factor`` times longer."""

    for_us: int
    factor: int


class ArchiveDamage(Fault, frozen=True, kw_only=True, tag="archive_damage"):
    """Some records of one partition become unreadable in the archive."""

    seed: int


class ClockStep(Fault, frozen=True, kw_only=True, tag="clock_step"):
    """The machine's wall clock is set; ``by_us`` may be negative."""

    by_us: int


AnyFault = (
    Kill
    | PowerLoss
    | Stop
    | DiskError
    | NoSpace
    | SlowDisk
    | Drop
    | Stall
    | StopReading
    | ClockStep
    | Rot
    | Rollup
    | Seal
    | ArchiveAway
    | ArchiveSlow
    | ArchiveDamage
)


class Plan(Part, frozen=True, kw_only=True):
    """One run."""

    seed: int
    end_us: int
    """Time at which faults end and clients stop, unless they finish before."""
    settings: Settings = Settings()
    network: Network = Network()
    disk: DiskTimes = DiskTimes()
    topics: tuple[Topic, ...] = ()
    clients: tuple[ClientPlan, ...] = ()
    faults: tuple[AnyFault, ...] = ()
    """Faults in order of time."""

    @property
    def longest_us(self) -> int:
        """Return the time without requests after which all leases and delays have ended."""
        waits = [0]
        backoffs = [self.settings.longest_backoff_us]
        for client in self.clients:
            waits += client.duration_us_max, client.delay_us_max, client.schedule_us_max
            if client.role == "operator":
                waits.append(DEFAULT_DURATION_US)
                backoffs.append(OPERATOR_BACKOFF_US)
        return max(waits) + max(backoffs)

    @property
    def is_steady(self) -> bool:
        """Whether disk and archive have their usual times, the disk has space, and no request waits
        for a quota.
        """
        if any(client.quota_requests_max for client in self.clients):
            return False
        return self.settings.capacity_bytes is None and not any(
            isinstance(fault, NoSpace | SlowDisk | Rot | ArchiveAway | ArchiveSlow | ArchiveDamage)
            or (isinstance(fault, DiskError) and fault.error != "EIO")
            for fault in self.faults
        )

    @property
    def formats(self) -> tuple[WireFormat, ...]:
        """The wire formats of the broker's listeners: Mamamia, and those of the clients."""
        spoken: list[WireFormat] = [client.format for client in self.clients]
        return tuple(dict.fromkeys(["mamamia", *spoken]))

    @property
    def longest_flight_us(self) -> int:
        """Return the time without requests after which no subscription has a message in flight."""
        rules = self.settings.subscription_rules()
        return rules.flight_us(max(1, rules.max_deliveries))

    def pairs(self) -> list[tuple[str, str]]:
        """Return each (topic, group) that a client may use, in order."""
        return sorted(
            {
                (topic.name, group)
                for client in self.clients
                for topic in client.topics
                for group in client.groups
            }
        )

    def to_json(self) -> bytes:
        """Return JSON for `from_json`. Fields with their defaults are omitted."""
        return msgspec.json.format(msgspec.json.encode(self))

    @classmethod
    def from_json(cls, text: bytes | str) -> Plan:
        """Read JSON of `to_json`. Raises msgspec.ValidationError, which names the wrong field."""
        return msgspec.json.decode(text, type=cls)
