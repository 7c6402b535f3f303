# Tests: tests/broker/test_broker.py
"""Build a broker from its settings, its log and its threads.

Each service is a cached property of `_Wiring`, made when another service first needs it. Where two
services need each other, one of them gets a lambda that finds the other when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from brokerd.broker.archive.access import ArchiveAccess
from brokerd.broker.archive.admin import ArchiveAdmin
from brokerd.broker.archive.append_times import ArchiveAppendTimes
from brokerd.broker.archive.bounds_writer import BoundsWriter
from brokerd.broker.archive.pairing_check import PairingCheck
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.archive.read_ahead import ReadAhead
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.broker import Broker
from brokerd.broker.clock import BrokerTime, Clock
from brokerd.broker.clock_admin import ClockAdmin
from brokerd.broker.context import Context
from brokerd.broker.delayed.delivery import DelayedDelivery
from brokerd.broker.delayed.prefetch import DelayedPrefetch
from brokerd.broker.delayed.schedule import Schedule, ScheduleCounters
from brokerd.broker.group_commit import EVENT_PAIR_BYTES, GroupCommit
from brokerd.broker.leases.group_admin import GroupAdmin
from brokerd.broker.leases.reaper import GroupReaper
from brokerd.broker.leases.removed_records import RemovedRecords
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.leases.waiters import Waiters
from brokerd.broker.model.chunks import Chunk, ChunkCache
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.broker.model.state import State
from brokerd.broker.producers import Producers
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.cold_reader import ColdReader
from brokerd.broker.records.fetch import Expiry, RecordReader
from brokerd.broker.records.topic_writer import TopicWriter
from brokerd.broker.retention.limits import RetentionLimits
from brokerd.broker.retention.retention import Retention
from brokerd.broker.retention.segment_cleaner import SegmentCleaner
from brokerd.broker.schemas.registry import Schemas
from brokerd.broker.security.accounts import Accounts
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.security.audit_search import AuditSearcher
from brokerd.broker.settings import BrokerSettings
from brokerd.broker.slices import SliceQueue
from brokerd.broker.status.clock_events import report_ahead, report_jump
from brokerd.broker.status.counters import Counters
from brokerd.broker.status.damage import DamageRegistry
from brokerd.broker.status.damage_report import DamageReport
from brokerd.broker.status.event_indexer import EventIndexer
from brokerd.broker.status.overview import Overview
from brokerd.broker.status.record_history import RecordHistory
from brokerd.broker.streams import HoldLimits, Streams
from brokerd.broker.subscriptions import Subscriptions
from brokerd.broker.topic_admin import TopicAdmin
from brokerd.broker.transactions import Transactions
from brokerd.schemas.checker import Checker, InlineCheckRunner
from brokerd.security.passwords import Passwords, inline_passwords
from brokerd.wal import Snapshots, Wal
from brokerd.worker_pool import WorkerPool, run_inline


def build_broker(
    wal: Wal,
    snapshots: Snapshots,
    read_threads: WorkerPool,
    snapshot_writer: WorkerPool,
    clock: Clock,
    wall: Callable[[], float],
    settings: BrokerSettings,
    data_dir: str = "DATA_DIR",
    archive: ArchiveAccess | None = None,
    passwords: Passwords | None = None,
    checker: Checker | None = None,
    call_at_turn_end: Callable[[Callable[[], None]], object] | None = None,
) -> Broker:
    """Return a broker that has replayed nothing yet.

    ``wall`` returns seconds since 1970. ``data_dir`` is the directory that messages name.
    ``call_at_turn_end`` is that of `GroupCommit`; by default a timer of ``clock``.
    """
    wiring = _Wiring(
        wal,
        snapshots,
        read_threads,
        snapshot_writer,
        clock,
        wall,
        settings,
        data_dir,
        archive,
        passwords or inline_passwords(),
        checker or Checker(run_inline, InlineCheckRunner().check),
        call_at_turn_end or partial(clock.callLater, 0),
    )
    return wiring.broker()


@dataclass
class _Wiring:
    wal: Wal
    snapshots: Snapshots
    read_threads: WorkerPool
    snapshot_writer: WorkerPool
    clock: Clock
    wall: Callable[[], float]
    settings: BrokerSettings
    data_dir: str
    archive_access: ArchiveAccess | None
    passwords: Passwords
    checker: Checker
    call_at_turn_end: Callable[[Callable[[], None]], object]

    def __post_init__(self) -> None:
        self.state = State(self.settings.groups, self.settings.max_group_state_bytes)
        self.counters = Counters()
        self.damage = DamageRegistry(self.data_dir)
        self.damage_report = DamageReport(self.state, self.damage)
        self.waiters = Waiters(self.clock)
        self.reaper = GroupReaper(self.clock)
        self.slices = SliceQueue(self.clock)
        self.tail = ChunkCache(self.settings.tail_cache_bytes, self._is_durable)
        self.read_cache = ChunkCache(self.settings.read_cache_bytes, lambda chunk: True)
        self.frame_bytes = min(self.settings.frame_bytes, self.wal.options.segment_bytes // 4)
        self.archive_threads = (
            self.read_threads if self.archive_access is None else self.archive_access.threads
        )

    def broker(self) -> Broker:
        """Make the broker. A snapshot has its parts in this order; a start reads any order."""
        return Broker(
            settings=self.settings,
            context=self.context,
            group_commit=self.context.group_commit,
            appender=self.appender,
            producers=self.producers,
            reader=self.reader,
            leases=self.leases,
            groups=self.groups,
            topics=self.topics,
            transactions=self.transactions,
            audit=self.audit,
            topic_writer=self.topic_writer,
            subscriptions=self.subscriptions,
            streams=self.streams,
            delivery=self.delivery,
            delayed=self.delayed,
            accounts=Accounts(self.context, self.audit, self.passwords, self.settings.security),
            schemas=self.schemas,
            overview=self.overview,
            record_history=RecordHistory(
                self.context, self.read_threads, self.archive_reader, self.archive_refresher
            ),
            event_indexer=EventIndexer(self.context, self.read_threads),
            damage=self.damage,
            archive_admin=ArchiveAdmin(
                self.context,
                self.archive_access,
                self.archive_refresher,
                self.archive_reader,
                self.segment_cleaner,
                self.bounds,
                self.settings.archive,
            ),
            archive_refresher=self.archive_refresher,
            archive_reader=self.archive_reader,
            segment_cleaner=self.segment_cleaner,
            clock_admin=ClockAdmin(self.context, self.snapshotter),
            snapshotter=self.snapshotter,
            waiters=self.waiters,
            retention=self.retention,
            reaper=self.reaper,
            removed_records=self.removed_records,
            slices=self.slices,
            cold_reader=self.cold_reader,
            tail=self.tail,
            read_cache=self.read_cache,
            pin=self.pin,
            bounds=self.bounds,
            damage_report=self.damage_report,
        )

    # -- state and journal --------------------------------------------------------------------

    @cached_property
    def context(self) -> Context:
        return Context(
            self.state, self.group_commit, self.wal, self.clock, self.time, self.counters
        )

    @cached_property
    def time(self) -> BrokerTime:
        return BrokerTime(
            self.wall,
            self.clock.seconds,
            report_jump,
            lambda: report_ahead(self.time),
            self.settings.clock,
        )

    @cached_property
    def group_commit(self) -> GroupCommit:
        return GroupCommit(
            self.wal,
            self.clock,
            self.call_at_turn_end,
            self.time,
            self.tail,
            frame_bytes=self.frame_bytes,
            max_uncommitted_bytes=self.settings.max_uncommitted_bytes,
            mark_quiet_us=self.settings.mark_quiet_us,
            before_frame=lambda changed: self.leases.serve_changed(changed),
            after_frame=self.snapshotter.step,
            traffic=self.counters.traffic,
        )

    @cached_property
    def snapshotter(self) -> Snapshotter:
        return Snapshotter(
            self.state,
            self.wal,
            self.snapshots,
            self.snapshot_writer,
            self.clock,
            self.time,
            self.settings.snapshot_interval_bytes,
            idle=lambda: not self.group_commit.gathered_bytes,
        )

    def _is_durable(self, chunk: Chunk) -> bool:
        is_framed = len(chunk.times_us) == len(chunk.values)
        return is_framed and chunk.ticket <= self.group_commit.durable_ticket

    # -- records ------------------------------------------------------------------------------

    @cached_property
    def appender(self) -> RecordAppender:
        return RecordAppender(self.context, self.tail, self.settings.retention.topics.ttl_us or 0)

    @cached_property
    def topic_writer(self) -> TopicWriter:
        return TopicWriter(self.context, self.topics, self.appender, self.audit)

    @cached_property
    def expiry(self) -> Expiry:
        return Expiry(self.time)

    @cached_property
    def reader(self) -> RecordReader:
        return RecordReader(
            self.context, self.expiry, self.cold_reader, self.read_threads, self.archive_reader
        )

    @cached_property
    def cold_reader(self) -> ColdReader:
        read_ahead = ReadAhead(self.archive_reader, self.clock, self.settings.read_cache_bytes)
        return ColdReader(self.wal, self.read_threads, self.read_cache, self.damage, read_ahead)

    # -- topics, groups and clients -----------------------------------------------------------

    @cached_property
    def removed_records(self) -> RemovedRecords:
        return RemovedRecords(self.context, self.slices)

    @cached_property
    def topics(self) -> TopicAdmin:
        return TopicAdmin(
            self.context,
            self.snapshotter,
            self.waiters,
            self.tail,
            self.read_cache,
            self.settings.max_topics,
            self.settings.max_partitions,
            self.removed_records,
            self._bounds_changed,
        )

    @cached_property
    def leases(self) -> LeaseService:
        events_max = self.frame_bytes // (2 * EVENT_PAIR_BYTES)
        return LeaseService(self.context, self.waiters, events_max, self.settings.max_groups)

    @cached_property
    def groups(self) -> GroupAdmin:
        return GroupAdmin(
            self.context,
            self.leases,
            self._bounds_changed,
            lambda topic, group: self.subscriptions.end_with_group(topic, group),
        )

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(
            self.context,
            self.leases,
            self.topics.create,
            self.reader.offset_at_time,
            self.settings.max_subscriptions,
        )

    @cached_property
    def streams(self) -> Streams:
        return Streams(
            self.context,
            self.audit,
            lambda: None if self.bounds is None else self.bounds.log_id,
            self.settings.max_streams,
            HoldLimits(
                self.settings.retention.stream_hold_us, self.settings.retention.stream_hold_bytes
            ),
            self._bounds_changed,
        )

    @cached_property
    def producers(self) -> Producers:
        return Producers(self.context, self.settings.max_producers)

    @cached_property
    def transactions(self) -> Transactions:
        return Transactions(
            self.context,
            self.appender,
            self.topics,
            self.topics.find,
            self.settings.max_transaction_bytes,
            self.settings.transaction_us,
        )

    @cached_property
    def audit(self) -> AuditTrail:
        return AuditTrail(
            self.context,
            self.appender,
            AuditSearcher(
                self.context, self.topics.find, self.reader.fetch, self.reader.offset_at_time
            ),
            self.topics.own_topic,
            self.settings.audit_keep_us,
        )

    @cached_property
    def overview(self) -> Overview:
        return Overview(
            self.context,
            self.settings.groups.max_attempts,
            ArchiveAppendTimes(self.archive_reader),
        )

    # -- delayed messages ---------------------------------------------------------------------

    @cached_property
    def schedule_counters(self) -> ScheduleCounters:
        return ScheduleCounters()

    @cached_property
    def delivery(self) -> DelayedDelivery:
        return DelayedDelivery(
            self.context,
            self.appender,
            self.leases,
            self.cold_reader,
            self.expiry,
            self.schedule_counters,
            DelayedPrefetch(self.context, self.read_threads, self.archive_reader),
            self.topics.remove,
        )

    @cached_property
    def delayed(self) -> Schedule:
        return Schedule(
            self.context,
            self.appender,
            self.leases,
            self.schedule_counters,
            self.topics.internal_topic,
            self.delivery.message_added,
            self.delivery.message_settled,
        )

    # -- archive and removal ------------------------------------------------------------------

    @cached_property
    def pin(self) -> ArchivePin:
        return ArchivePin(self.archive_access, self.snapshot_writer)

    @cached_property
    def archive_refresher(self) -> ArchiveRefresher:
        return ArchiveRefresher(
            self.archive_threads,
            self.clock,
            self.settings.archive.poll_us,
            self.pairing_check.check,
        )

    @cached_property
    def pairing_check(self) -> PairingCheck:
        return PairingCheck(self.context, self.pin, self.damage_report.places)

    @cached_property
    def archive_reader(self) -> ArchiveReader:
        return ArchiveReader(self.archive_threads, self.clock, self.archive_refresher)

    @cached_property
    def bounds(self) -> BoundsWriter | None:
        if self.archive_access is None:
            return None
        return BoundsWriter(
            self.context,
            self.archive_access,
            self.snapshot_writer,
            self.overview.commit_place,
            self.damage_report.places,
            self.schemas.stored,
            self.streams.held_from,
        )

    @cached_property
    def schemas(self) -> Schemas:
        return Schemas(self.context, self.audit, self.checker)

    def _bounds_changed(self) -> None:
        if self.bounds is not None:
            self.bounds.changed()

    @cached_property
    def segment_cleaner(self) -> SegmentCleaner:
        return SegmentCleaner(
            self.context,
            self.snapshotter,
            self.read_threads,
            self.snapshot_writer,
            self.archive_threads,
            self.archive_refresher,
            self.pairing_check,
            self.pin,
            self.bounds,
            self.topics.set_archived_ends,
            self.settings.archive,
        )

    @cached_property
    def retention(self) -> Retention:
        return Retention(
            self.context,
            RetentionLimits(self.wal, self.read_threads, self.archive_reader),
            self.topics.remove,
            self.segment_cleaner,
            self.settings.retention,
            self.streams.held_from,
            self.streams.drop_holds,
            self.slices,
        )
