# Tests: tests/broker/test_broker.py
"""The broker: topics, records, leases. It uses neither the network nor the disk itself.

Each method applies its change at once and returns. `GroupCommit.ticket` gives the ticket of the
frame with the change, and the Protocol holds the answer until that frame is durable. The reactor's
thread calls all methods. Only `Broker.replay` may run in another thread, before `Broker.start`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brokerd.broker.archive.admin import ArchiveAdmin
from brokerd.broker.archive.bounds_writer import BoundsWriter
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.clock_admin import ClockAdmin
from brokerd.broker.connections import ConnectionRegistry
from brokerd.broker.context import Context
from brokerd.broker.delayed.delivery import DelayedDelivery
from brokerd.broker.delayed.schedule import Schedule
from brokerd.broker.group_commit import GroupCommit
from brokerd.broker.leases.group_admin import GroupAdmin
from brokerd.broker.leases.reaper import GroupReaper
from brokerd.broker.leases.removed_records import RemovedRecords
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.leases.waiters import Waiters
from brokerd.broker.light_first import LightFirst
from brokerd.broker.model.chunks import ChunkCache
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.broker.producers import Producers
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.cold_reader import ColdReader
from brokerd.broker.records.fetch import RecordReader
from brokerd.broker.records.topic_writer import TopicWriter
from brokerd.broker.retention.retention import Retention
from brokerd.broker.retention.segment_cleaner import SegmentCleaner
from brokerd.broker.schemas.registry import Schemas
from brokerd.broker.security.accounts import Accounts
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.security.quotas import Quotas
from brokerd.broker.settings import BrokerSettings
from brokerd.broker.slices import SliceQueue
from brokerd.broker.status.damage import DamageRegistry
from brokerd.broker.status.damage_report import DamageReport
from brokerd.broker.status.event_indexer import EventIndexer
from brokerd.broker.status.overview import Overview
from brokerd.broker.status.record_history import RecordHistory
from brokerd.broker.streams import Streams
from brokerd.broker.subscriptions import Subscriptions
from brokerd.broker.topic_admin import TopicAdmin
from brokerd.broker.transactions import Transactions
from brokerd.wal import RecoveryReport


@dataclass(eq=False, repr=False)
class Broker:
    """Holds the services that own topics, groups and the journal.

    `wiring.build_broker` makes it. Wire formats and the admin site use the services of the first
    group. Only this class uses the second group.
    """

    settings: BrokerSettings
    context: Context
    group_commit: GroupCommit
    """Admits work, and calls back when it is durable."""
    topic_writer: TopicWriter
    """Writes by topic name."""
    appender: RecordAppender
    """Appends to a partition."""
    reader: RecordReader
    """Reads by offset or time."""
    leases: LeaseService
    groups: GroupAdmin
    topics: TopicAdmin
    delayed: Schedule
    transactions: Transactions
    subscriptions: Subscriptions
    streams: Streams
    producers: Producers
    accounts: Accounts
    schemas: Schemas
    audit: AuditTrail
    overview: Overview
    record_history: RecordHistory
    event_indexer: EventIndexer
    damage: DamageRegistry
    archive_admin: ArchiveAdmin
    archive_refresher: ArchiveRefresher
    archive_reader: ArchiveReader
    segment_cleaner: SegmentCleaner
    clock_admin: ClockAdmin

    snapshotter: Snapshotter
    waiters: Waiters
    delivery: DelayedDelivery
    retention: Retention
    reaper: GroupReaper
    removed_records: RemovedRecords
    slices: SliceQueue
    """Long work of all connections: some milliseconds in each reactor turn."""
    cold_reader: ColdReader
    tail: ChunkCache
    read_cache: ChunkCache
    pin: ArchivePin
    bounds: BoundsWriter | None
    """None on a host without an archive."""
    damage_report: DamageReport

    def __post_init__(self) -> None:
        self.time = self.context.time
        self.counters = self.context.counters
        self.slices.light_waits = self.group_commit.light_waits
        clock = self.context.clock
        self.slices.gives_way = LightFirst(self.group_commit, clock).gives_way
        self.reaper.gives_way = LightFirst(self.group_commit, clock).gives_way
        self.connections = ConnectionRegistry()
        self.quotas = Quotas(
            self.accounts.directory, self.accounts.change_quota, clock, self.context.time
        )
        self._state = self.context.state
        self._recovery: RecoveryReport | None = None
        self.ready = False

    # -- life ---------------------------------------------------------------------------------

    def replay(self) -> RecoveryReport:
        """Rebuild the state from the newest snapshot and the log. It may take minutes."""
        self._recovery = self.snapshotter.replay()
        if self.bounds is not None:
            self.bounds.find_log_id()
        self.pin.find()
        return self._recovery

    def start(self) -> None:
        """Begin to serve. Live leases get their full duration again, from now on."""
        is_damaged = self._recovery is not None and bool(self._recovery.damages)
        if self._recovery is not None:
            self.damage_report.add_replayed(self._recovery)
        self.time.resume_from(self._state.last_time_us, self._state.ahead_us)
        now_us = self.time.monotonic_us()
        self._state.dispose = self.reaper.dispose
        self._state.stores.free = self.reaper.free
        self.removed_records.start()
        self.group_commit.start()
        if is_damaged:
            self.group_commit.mark_damage()
        self.leases.start(now_us)
        self.subscriptions.start(now_us, is_damaged)
        self.streams.start(now_us)
        self.retention.start()
        self.delivery.start()
        self.archive_admin.start()
        self.audit.start()
        self.event_indexer.start()
        self.ready = True

    def stop(self) -> None:
        """Refuse new work, and append the gathered changes and a mark to the log.

        The caller then closes the log, and may call `write_last_snapshot` after that.
        """
        self.ready = False
        self.leases.stop()
        self.subscriptions.stop()
        self.transactions.stop()
        self.delivery.stop()
        self.retention.stop()
        self.overview.stop()
        self.reaper.stop()
        self.removed_records.stop()
        self.snapshotter.stop()
        self.archive_admin.stop()
        self.audit.stop()
        self.event_indexer.stop()
        self.group_commit.close()

    def write_last_snapshot(self) -> None:
        """Write the bounds, and a snapshot of the state at the end of the closed log. It blocks."""
        for write in self.last_writes():
            write()

    def last_writes(self) -> list[Callable[[], None]]:
        """Capture the bounds. Return functions that write the bounds and the last snapshot.

        The functions block, and may run in two threads at once.
        """
        bounds = [] if self.bounds is None else [self.bounds.last_write()]
        return [*bounds, self.snapshotter.write_last]

    def change_limits(self, settings: BrokerSettings) -> None:
        """Use other limits on topics, partitions, groups, producers, subscriptions, streams and
        transactions.

        What exists beyond a lower limit stays, except producers, which are forgotten.
        """
        self.topics.max_topics = settings.max_topics
        self.topics.max_partitions = settings.max_partitions
        self.leases.limit_groups(settings.max_groups)
        self.context.state.stores.memory_max = settings.max_group_state_bytes
        self.producers.producers_max = settings.max_producers
        self.subscriptions.subscriptions_max = settings.max_subscriptions
        self.streams.streams_max = settings.max_streams
        self.transactions.held_bytes_max = settings.max_transaction_bytes

    # -- status -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return counts and sizes for the admin site, in values that JSON can hold."""
        groups, omitted = self.overview.groups()
        return {
            **self.overview.counts(),
            "uncommitted_bytes": self.group_commit.uncommitted_bytes,
            "tail_cache_bytes": self.tail.used_bytes,
            "read_cache_bytes": self.read_cache.used_bytes,
            "reads_from_disk": self.cold_reader.reads,
            "schedule": self.delayed.counters.status(),
            "schedule_held_bytes": self.delivery.held_bytes,
            "producers": self.producers.count,
            "subscriptions": self.subscriptions.count,
            "streams": self.streams.status(),
            "group_state_bytes": self.context.state.stores.memory_bytes,
            "transactions": self.transactions.status(),
            "long_polls": self.waiters.count,
            "retention": self.retention.status(),
            "archive": self.archive_admin.status(),
            "audit": self.audit.status(),
            "schema_checks": self.schemas.check_status(),
            "snapshots_written": self.snapshotter.written,
            "snapshot_lsn": self.snapshotter.last_lsn,
            "snapshot_error": self.snapshotter.last_error,
            "clock": self.time.status(),
            "damage": {
                **self.damage.status(),
                "indexes": self.context.wal.bad_indexes,
                "snapshots": self.snapshotter.damaged,
            },
            "quotas": self.quotas.status(),
            "groups": groups,
            "groups_omitted": omitted,
        }
