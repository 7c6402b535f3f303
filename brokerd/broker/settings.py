# Tests: tests/test_config.py
"""Limits and policies of one broker; server/config.py makes them from the options."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd.broker.archive.access import ArchiveSettings
from brokerd.broker.clock import ClockSettings
from brokerd.broker.retention.retention import RetentionSettings
from brokerd.groups import GroupSettings
from brokerd.security.directory import Policy


@dataclass(frozen=True)
class BrokerSettings:
    """Limits and policies of one broker; see etc/brokerd.toml for the reasons."""

    tail_cache_bytes: int = 64 << 20
    read_cache_bytes: int = 32 << 20
    frame_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 32 << 20
    mark_quiet_us: int = 100_000
    snapshot_interval_bytes: int = 256 << 20
    max_topics: int = 100_000
    max_partitions: int = 1_000
    """The most partitions of a topic. A change of a whole group writes events in each."""
    max_groups: int = 200_000
    max_group_state_bytes: int = 1 << 30
    """The most memory of the state of all groups; beyond it only changes that need none succeed."""
    max_producers: int = 100_000
    max_subscriptions: int = 100_000
    max_streams: int = 100
    """The most named streams. Each has series in the metrics."""
    max_transaction_bytes: int = 192 << 20
    """The most memory of all open transactions together."""
    transaction_us: int = 60_000_000
    """The longest time that a transaction may be open."""
    clock: ClockSettings = field(default_factory=ClockSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    audit_keep_us: int | None = None
    """How long the audit trail keeps its events; None: the broker has no trail."""
    security: Policy = field(default_factory=Policy)
