# Tests: tests/test_config.py
"""The sections of the configuration: every option, its type and its default.

etc/brokerd.toml explains each option; :mod:`brokerd.server.config` reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_type_hints

from msgspec import Meta, Struct, field

from brokerd.groups.settings import MAX_ATTEMPTS_LIMIT, MAX_DURATION_US
from brokerd.values import MAX_PARTITIONS, Format
from brokerd.walformat import FRAME_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

FORMATS = tuple(
    wire_format.name.lower() for wire_format in Format if wire_format is not Format.UNKNOWN
)
"""The wire formats."""
FIRST_BYTES = {
    "mamamia": b"\0",
    "flymq": b"\xaf",
    "blipmq": b"\0\1",
    "rustlog": b"\0",
}
"""The bytes with which a client may begin: FlyMQ's magic, or the high byte of a length. MEGA's
clients may begin with any.
"""

COUNT_MAX = 1_000_000_000
SECONDS_MAX = MAX_DURATION_US // 1_000_000
"""A hundred years; longer times overflow the broker's units."""

Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Attempts = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS_LIMIT)]
Seconds = Annotated[int, Meta(ge=0, le=SECONDS_MAX)]
PositiveSeconds = Annotated[int, Meta(ge=1, le=SECONDS_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=SECONDS_MAX * 1000)]
PositiveMilliseconds = Annotated[int, Meta(ge=1, le=SECONDS_MAX * 1000)]
Size = Annotated[int, Meta(ge=0, le=TIB, extra={"unit": "bytes"})]
GatheredSize = Annotated[int, Meta(ge=64 * KIB, le=GIB, extra={"unit": "bytes"})]
FrameSize = Annotated[int, Meta(ge=64 * KIB, le=FRAME_BYTES_MAX // 2, extra={"unit": "bytes"})]
"""Half of the journal's limit, because the last request may exceed the target."""
RetainedSize = Annotated[int, Meta(ge=0, le=1024 * TIB, extra={"unit": "bytes"})]
SegmentSize = Annotated[int, Meta(ge=MIB, le=GIB, extra={"unit": "bytes"})]


class Wal(Struct, frozen=True):
    """The journal."""

    durability: str = "fsync"
    segment_bytes: SegmentSize = 64 * MIB
    segment_age_seconds: PositiveSeconds = 900
    snapshot_interval_bytes: SegmentSize = 256 * MIB
    allow_network_fs: bool = False
    free_bytes: Size = 64 * MIB


class Broker(Struct, frozen=True):
    """Memory and batching."""

    tail_cache_bytes: Size = 64 * MIB
    read_cache_bytes: Size = 32 * MIB
    frame_bytes: FrameSize = 8 * MIB
    max_uncommitted_bytes: GatheredSize = 32 * MIB
    mark_quiet_ms: PositiveMilliseconds = 100


class Groups(Struct, frozen=True):
    """Defaults of consumer groups."""

    max_attempts: Attempts = 3
    attempts: Literal["failures", "grants"] = "failures"
    backoff_base_ms: Milliseconds = 0
    backoff_max_ms: Milliseconds = 600_000


class Retention(Struct, frozen=True):
    """Defaults of a topic's retention; 0 is no limit."""

    seconds: Seconds = 0
    bytes: RetainedSize = 0
    ttl_seconds: Seconds = 0
    dead_letter_seconds: Seconds = 604_800
    stream_hold_seconds: Seconds = 604_800
    stream_hold_bytes: RetainedSize = 10 * GIB
    check_seconds: PositiveSeconds = 60


class Clock(Struct, frozen=True):
    """When the broker trusts the wall clock for the age of records."""

    tolerance_seconds: PositiveSeconds = 60
    grace_seconds: PositiveSeconds = 3_600


class Archive(Struct, frozen=True):
    """The archive: its place, and options of the broker and of ``brokerd-rollup`` for it."""

    uri: str = ""
    group: str = ""
    mode: str = ""
    poll_seconds: PositiveSeconds = 5
    delete_segments: bool = True
    keep_wal_bytes: RetainedSize = GIB
    behind_seconds: Seconds = 86_400
    master: str = "local[*]"
    driver_memory_bytes: Annotated[
        int, Meta(ge=512 * MIB, le=64 * GIB, extra={"unit": "bytes"})
    ] = 512 * MIB
    lot_bytes: Annotated[int, Meta(ge=MIB, le=TIB, extra={"unit": "bytes"})] = 4 * GIB
    local_lot_bytes: Annotated[int, Meta(ge=0, le=TIB, extra={"unit": "bytes"})] = 128 * MIB
    file_bytes: Annotated[int, Meta(ge=MIB, le=GIB, extra={"unit": "bytes"})] = 128 * MIB
    follow_seconds: PositiveSeconds = 10
    maintain_seconds: PositiveSeconds = 3_600
    derived: bool = True
    typed: bool = False
    retention: bool = True
    compaction: bool = True
    tombstone_seconds: Seconds = 86_400
    rewrite_percent: Annotated[int, Meta(ge=1, le=100)] = 20
    merge: bool = True
    vacuum: bool = True
    vacuum_hours: Annotated[int, Meta(ge=0, le=876_000)] = 24
    events_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    iceberg: bool = False
    iceberg_catalog: str = ""
    iceberg_namespace: str = "brokerd"


MEMORY_BYTES_MIN = 64 * MIB
"""The least ``limits.memory``, besides 0."""
TRANSACTION_SHARE = 4
"""Open transactions may take the budget of memory divided by this."""


class Limits(Struct, frozen=True):
    """Limits of one client and of all clients together."""

    memory: Size = 0
    connections: Positive = 10_000
    connections_per_address: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    first_byte_seconds: Seconds = 120
    login_seconds: Seconds = 60
    frame_bytes: Annotated[int, Meta(ge=KIB, le=GIB, extra={"unit": "bytes"})] = 32 * MIB
    idle_seconds: Seconds = 0
    unfinished_frame_seconds: Seconds = 60
    in_flight_requests: Positive = 10_000
    in_flight_bytes: GatheredSize = 4 * MIB
    max_topics: Positive = 100_000
    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)] = 1_000
    groups: Positive = 200_000
    group_state_bytes: Annotated[int, Meta(ge=MIB, le=TIB, extra={"unit": "bytes"})] = GIB
    producers: Positive = 100_000
    subscriptions: Positive = 100_000
    streams: Annotated[int, Meta(ge=1, le=1_000)] = 100
    transaction_bytes: Annotated[int, Meta(ge=MIB, le=TIB, extra={"unit": "bytes"})] = 192 * MIB
    transaction_seconds: PositiveSeconds = 60


class Blipmq(Struct, frozen=True):
    """Options of BlipMQ."""

    api_keys: tuple[str, ...] = ()
    api_keys_file: str = ""
    max_deliveries: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS_LIMIT)] = 3
    retry_base_ms: PositiveMilliseconds = 100
    subscription_grace_seconds: PositiveSeconds = 3600
    look_back_ms: Milliseconds = 0
    message_ttl_seconds: Seconds = 0
    principal: str = ""


class Mamamia(Struct, frozen=True):
    """Options of Mamamia."""

    principal: str = ""


class Mega(Struct, frozen=True):
    """Options of MEGA."""

    principal: str = ""


class Flymq(Struct, frozen=True):
    """Options of FlyMQ."""

    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)] = 1
    error_layout: Literal["auto", "seed", "sdk"] = "auto"
    cluster_id: str = "standalone"
    advertised: str = ""
    principal: str = ""
    auth_success_layout: Literal["seed", "sdk", "neutral", "padded"] = "seed"
    delay_max_seconds: Annotated[int, Meta(ge=1, le=315_360_000)] = 86_400


class Rustlog(Struct, frozen=True):
    """Options of RustLog."""

    group_rules: Literal["seed", "reference"] = "seed"
    principal: str = ""


class Log(Struct, frozen=True):
    """The operator's log."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warn", "error", "critical"] = "info"
    rotate_bytes: Size = 1_000_000


class Admin(Struct, frozen=True):
    """The admin site. The endpoint ``none`` turns it off."""

    endpoint: str = "tcp:9644"
    hosts: tuple[str, ...] = ()


class Telemetry(Struct, frozen=True):
    """Spans of records that carry a trace context; no endpoint turns them off."""

    endpoint: str = ""
    service_name: str = "brokerd"
    headers: tuple[str, ...] = ()
    headers_file: str = ""
    ca_file: str = ""
    timeout_seconds: Annotated[int, Meta(ge=1, le=600)] = 10
    interval_ms: Annotated[int, Meta(ge=100, le=600_000)] = 1_000
    queue_spans: Annotated[int, Meta(ge=512, le=1_000_000)] = 8_192
    open_leases: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000


class Security(Struct, frozen=True):
    """Authentication and authorization."""

    auth: Literal["off", "on"] = "off"
    admin_user: str = "admin"
    admin_password: tuple[str, ...] = ()
    admin_password_file: str = ""
    allow_anonymous: bool = False
    default_public: bool = False
    allow_insecure: bool = False
    audit: bool = True
    audit_seconds: PositiveSeconds = 7_776_000


class Tls(Struct, frozen=True):
    """TLS of listeners; it needs a certificate and its key."""

    certificate_file: str = ""
    key_file: str = ""
    listeners: tuple[str, ...] = ()
    client_ca_file: str = ""
    client_auth: Literal["none", "optional", "required"] = "none"
    principals: tuple[str, ...] = ()


DEFAULT_LISTENERS = {
    "mamamia": "tcp:9000",
    "flymq+rustlog": "tcp:9092",
    "blipmq": "tcp:5555",
    "mega": "tcp:8080",
}


class Config(Struct, frozen=True):
    """The whole configuration.

    ``listen`` maps a format, or several that share an endpoint as in ``flymq+rustlog``, to it.
    """

    data_dir: str = "./brokerd-data"
    listen: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_LISTENERS))
    wal: Wal = Wal()
    broker: Broker = Broker()
    archive: Archive = Archive()
    groups: Groups = Groups()
    retention: Retention = Retention()
    clock: Clock = Clock()
    limits: Limits = Limits()
    mamamia: Mamamia = Mamamia()
    blipmq: Blipmq = Blipmq()
    mega: Mega = Mega()
    flymq: Flymq = Flymq()
    rustlog: Rustlog = Rustlog()
    log: Log = Log()
    admin: Admin = Admin()
    telemetry: Telemetry = Telemetry()
    security: Security = Security()
    tls: Tls = Tls()


SECRETS = {
    "blipmq.api_keys": "blipmq.api_keys_file",
    "security.admin_password": "security.admin_password_file",
    "telemetry.headers": "telemetry.headers_file",
}
"""Secret options -> the options that name a file with them, one per line."""
FIRST_LINES = ("security.admin_password",)
"""Secrets whose file has only one, its first line."""
SECTIONS: dict[str, type[Struct]] = {
    name: kind
    for name, kind in get_type_hints(Config).items()
    if isinstance(kind, type) and issubclass(kind, Struct)
}
