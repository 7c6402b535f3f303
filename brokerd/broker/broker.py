# Tests: tests/broker/test_broker.py
"""The broker: topics, records, leases. Values in, values out; no wire, no disk.

Every method applies its change at once and returns; `Broker.journal` says with which commit it
becomes durable, and the Protocol holds the answer until then. All methods must be called in one
thread, the reactor's; only `Broker.replay` may run elsewhere, before `Broker.start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

from twisted.logger import Logger

from brokerd.archive.contract.bounds import DamagedPlace
from brokerd.broker.archive.access import ArchiveAccess, ArchiveSettings
from brokerd.broker.archive.admin import ArchiveAdmin
from brokerd.broker.archive.append_times import ArchiveAppendTimes
from brokerd.broker.archive.bounds_writer import BoundsWriter
from brokerd.broker.archive.guard import ArchiveGuard
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.archive.read_ahead import ReadAhead
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.clock import BrokerTime, ClockSettings
from brokerd.broker.clock_admin import ClockAdmin
from brokerd.broker.delayed.delivery import DelayedDelivery
from brokerd.broker.delayed.prefetch import DelayedPrefetch
from brokerd.broker.delayed.schedule import Schedule, ScheduleCounters
from brokerd.broker.journal import EVENT_FRAME_BYTES, Clock, Journal
from brokerd.broker.leases.group_admin import GroupAdmin
from brokerd.broker.leases.reaper import GroupReaper
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.leases.waiters import Waiters
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.broker.model.state import State
from brokerd.broker.model.topic_admin import TopicAdmin
from brokerd.broker.producers import Producers
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.chunks import Chunk, ChunkCache
from brokerd.broker.records.cold_reader import ColdReader
from brokerd.broker.records.fetch import Expiry, RecordReader
from brokerd.broker.records.writer import RecordWriter
from brokerd.broker.retention.limits import RetentionLimits
from brokerd.broker.retention.retention import Retention, RetentionSettings
from brokerd.broker.retention.segment_cleaner import SegmentCleaner
from brokerd.broker.schemas.registry import Schemas
from brokerd.broker.security.accounts import Accounts
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.security.audit_search import Searches
from brokerd.broker.status.damage import DamageRegistry, OffsetRange, Place
from brokerd.broker.status.overview import Counters, Overview
from brokerd.broker.subscriptions import Subscriptions
from brokerd.broker.transactions import Transactions
from brokerd.groups import GroupSettings
from brokerd.schemas.checker import Checker, InlineCheckRunner, at_once
from brokerd.security.directory import Policy
from brokerd.security.passwords import Passwords, passwords_at_once
from brokerd.wal import Committer, Damage, RecoveryReport, Snapshots, Wal


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
    """Of a topic. Each group has state for each of them."""
    max_groups: int = 200_000
    max_producers: int = 100_000
    max_subscriptions: int = 100_000
    max_transaction_bytes: int = 192 << 20
    """Of all open transactions together."""
    transaction_us: int = 60_000_000
    """How long a transaction may be open."""
    clock: ClockSettings = field(default_factory=ClockSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    audit_keep_us: int | None = None
    """How long the audit trail keeps its events; None: there is no trail."""
    security: Policy = field(default_factory=Policy)


class Broker:
    """The one owner of topics, groups and the journal; its services do the work.

    ``writer`` writes by topic name, ``records`` appends and ``reader`` reads; ``leases``,
    ``groups``, ``topics``, ``delayed``, ``transactions``, ``subscriptions``, ``producers``,
    ``accounts``, ``schemas`` and ``audit`` each have a module of their own.
    ``journal`` admits work and tells when it is durable.
    """

    _log = Logger()

    def __init__(
        self,
        wal: Wal,
        snapshots: Snapshots,
        readers: Committer,
        snapshot_writer: Committer,
        clock: Clock,
        wall: Callable[[], float],
        settings: BrokerSettings,
        data_dir: str = "DATA_DIR",
        archive: ArchiveAccess | None = None,
        passwords: Passwords | None = None,
        checker: Checker | None = None,
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.damage = DamageRegistry(data_dir)
        self._wal = wal
        self._clock = clock
        self.time = BrokerTime(
            wall, clock.seconds, self._report_jump, self._report_ahead, settings.clock
        )
        self._state = State(settings.groups)
        self._tail = ChunkCache(settings.tail_cache_bytes, self._is_durable)
        self._cold = ChunkCache(settings.read_cache_bytes, lambda chunk: True)
        self._readers = readers
        archive_threads = readers if archive is None else archive.threads
        self._pin = ArchivePin(archive, snapshot_writer)
        self.archive_reader = ArchiveReader(
            archive_threads,
            clock,
            settings.archive.poll_us,
            ArchiveGuard(self._state, wal, self._pin).check,
        )
        self._cold_reader = ColdReader(
            wal,
            readers,
            self._cold,
            self.damage,
            ReadAhead(self.archive_reader, clock, settings.read_cache_bytes),
        )
        self._waiters = Waiters(clock)
        self._reaper = GroupReaper(clock)
        self._snapshotter = Snapshotter(
            self._state,
            wal,
            snapshots,
            snapshot_writer,
            clock,
            self.time,
            settings.snapshot_interval_bytes,
            idle=lambda: not self.journal.gathered_bytes,
        )
        frame_bytes = min(settings.frame_bytes, wal.options.segment_bytes // 4)
        self.journal = Journal(
            wal,
            clock,
            self.time,
            self._tail,
            frame_bytes=frame_bytes,
            max_uncommitted_bytes=settings.max_uncommitted_bytes,
            mark_quiet_us=settings.mark_quiet_us,
            before_frame=lambda touched: self.leases.serve_touched(touched),
            after_frame=self._snapshotter.step,
        )
        self.overview = Overview(
            self._state,
            wal,
            self.time,
            self.counters,
            settings.groups.max_attempts,
            clock,
            ArchiveAppendTimes(self.archive_reader),
        )
        self._bounds: BoundsWriter | None = None
        if archive is not None:
            self._bounds = BoundsWriter(
                archive,
                self._state,
                wal,
                self.journal,
                snapshot_writer,
                clock,
                self.time,
                self.overview.commit_place,
                self._damaged_places,
            )
        self._bind(clock, frame_bytes // (2 * EVENT_FRAME_BYTES))
        self.accounts = Accounts(
            self._state,
            self.journal,
            self.time,
            self.audit,
            passwords or passwords_at_once(),
            settings.security,
        )
        self.schemas = Schemas(
            self._state,
            self.journal,
            self.time,
            self.audit,
            checker or Checker(at_once, InlineCheckRunner().check),
        )
        self.segment_cleaner = SegmentCleaner(
            self._state,
            self.journal,
            wal,
            self._snapshotter,
            readers,
            snapshot_writer,
            archive_threads,
            self.archive_reader,
            self._pin,
            self.topics.mark_archived,
            settings.archive,
        )
        self._retention = Retention(
            self._state,
            self.journal,
            RetentionLimits(wal, readers, self.archive_reader),
            clock,
            self.time,
            self.topics.remove,
            self.segment_cleaner,
            settings.retention,
        )
        self.archive = ArchiveAdmin(
            archive,
            self._state,
            wal,
            self.journal,
            clock,
            self.archive_reader,
            self.segment_cleaner,
            self._bounds,
        )
        self.clock_admin = ClockAdmin(self.time, self.journal, wal, self._snapshotter)
        self._recovery: RecoveryReport | None = None
        self.ready = False

    def _bind(self, clock: Clock, events_max: int) -> None:
        """Make the services, in the order in which they need one another."""
        settings, state, journal = self.settings, self._state, self.journal
        self.records = RecordAppender(
            journal, self.time, self._tail, self.counters, settings.retention.topics.ttl_us or 0
        )
        self.producers = Producers(state, journal, settings.max_producers)
        expiry = Expiry(self.time)
        self.reader = RecordReader(
            self._wal, journal, clock, expiry, self._cold_reader, self._readers, self.archive_reader
        )
        self.leases = LeaseService(
            state,
            journal,
            clock,
            self.time,
            self._waiters,
            self.counters,
            events_max,
            settings.max_groups,
        )
        bounds_changed = (lambda: None) if self._bounds is None else self._bounds.changed
        self.groups = GroupAdmin(
            state,
            journal,
            self.leases,
            self.time,
            bounds_changed,
            lambda topic, group: self.subscriptions.end_with_group(topic, group),
        )
        self.topics = TopicAdmin(
            state,
            journal,
            self._snapshotter,
            self._waiters,
            self._tail,
            self._cold,
            self.counters,
            settings.max_topics,
            settings.max_partitions,
            bounds_changed,
        )
        self.transactions = Transactions(
            journal,
            clock,
            self.records,
            self.topics,
            self.topics.find,
            settings.max_transaction_bytes,
            settings.transaction_us,
        )
        self.audit = AuditTrail(
            journal,
            self.records,
            Searches(
                journal, clock, self.topics.find, self.reader.fetch, self.reader.offset_at_time
            ),
            clock,
            self.time,
            self.topics.own_topic,
            settings.audit_keep_us,
        )
        self.writer = RecordWriter(state, journal, self.topics, self.records, self.audit)
        self.subscriptions = Subscriptions(
            state,
            journal,
            self.leases,
            clock,
            self.time,
            self.topics.create,
            self.reader.offset_at_time,
            settings.max_subscriptions,
        )
        counters = ScheduleCounters()
        self._delivery = DelayedDelivery(
            state,
            journal,
            clock,
            self.time,
            self.records,
            self.leases,
            self._cold_reader,
            expiry,
            counters,
            DelayedPrefetch(self._wal, self._readers, self.archive_reader, clock, self.time),
            self.topics.remove,
        )
        self.delayed = Schedule(
            state,
            journal,
            self.time,
            self.records,
            self.leases,
            counters,
            self.topics.internal_topic,
            self._delivery.added,
            self._delivery.over,
        )

    # -- life ---------------------------------------------------------------------------------

    def replay(self) -> RecoveryReport:
        """Rebuild the state from the newest snapshot and the log; may take long."""
        self._recovery = self._snapshotter.replay()
        if self._bounds is not None:
            self._bounds.find_log_id()
        self._pin.find()
        return self._recovery

    def start(self) -> None:
        """Begin to serve. Live leases get their full duration again, counted from here."""
        if self._recovery is not None:
            self._tell_damage(self._recovery)
        self.time.resume_from(self._state.last_time_us, self._state.ahead_us)
        now_us = self.time.now_us()
        self._state.let_go = self._reaper.let_go
        self.journal.start()
        if self._recovery is not None and self._recovery.damages:
            self.journal.mark_damage()
        self.leases.start(now_us)
        self.subscriptions.start(
            now_us, self._recovery is not None and bool(self._recovery.damages)
        )
        self._retention.start()
        self._delivery.start()
        self.archive.start()
        self.audit.start()
        self.ready = True

    def stop(self) -> None:
        """Take no new work and hand what is left, and a mark, to the log.

        The caller then closes the log, and may call `write_last_snapshot` after that.
        """
        self.ready = False
        self.leases.timers.stop()
        self.subscriptions.stop()
        self.transactions.stop()
        self._delivery.stop()
        self._retention.stop()
        self.overview.stop()
        self._reaper.stop()
        self._snapshotter.stop()
        self.archive.stop()
        self.audit.stop()
        self.journal.close()

    def write_last_snapshot(self) -> None:
        """Write a snapshot of the state at the end of the closed log, and the bounds. Blocks."""
        if self._bounds is not None:
            self._bounds.write_last()
        self._snapshotter.write_last()

    def _tell_damage(self, report: RecoveryReport) -> None:
        """Say what the replay found damaged, by the names of topics."""
        for damage in self._state.recorded.values():
            self.damage.on_record(_place(damage), self._ranges(damage))
        for damage in report.damages:
            self.damage.found(_place(damage), self._ranges(damage))
        for partition, gaps in self._state.new_gaps.items():
            for first, end in gaps:
                self.damage.left_out(OffsetRange(partition.topic.name, partition.index, first, end))

    def _damaged_places(self) -> set[DamagedPlace]:
        """All that is known by now to be damaged in the log, or to have been."""
        known = {(place.file, place.position, place.end) for place in self._state.known_damage}
        return set(
            starmap(DamagedPlace, known.union(self._state.recorded, self.damage.known_places()))
        )

    def _ranges(self, damage: Damage) -> Iterator[OffsetRange]:
        """What a damage took, by the names of topics."""
        for topic_id, partition, first, end in damage.lost:
            topic = self._state.by_id.get(topic_id)
            name = f"(id {topic_id})" if topic is None else topic.name
            yield OffsetRange(name, partition, first, end)

    def _report_jump(self, from_us: int, to_us: int) -> None:
        self._log.warn(
            "the wall clock jumped forward by {seconds} s, and broker time with it",
            seconds=(to_us - from_us) // 1_000_000,
            event_id="clock-jump",
        )

    def _report_ahead(self) -> None:
        if self.time.ahead_us:
            self._log.warn(
                "{problem}",
                problem=self.time.problem,
                seconds=self.time.ahead_us // 1_000_000,
                event_id="clock-ahead",
            )
        else:
            self._log.info("broker time is trusted again", event_id="clock-right")

    def _is_durable(self, chunk: Chunk) -> bool:
        return (
            len(chunk.times_us) == len(chunk.values) and chunk.ticket <= self.journal.durable_ticket
        )

    # -- what can be seen ---------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Counts and sizes, in values that JSON can hold; the admin site shows them."""
        groups, omitted = self.overview.groups()
        return {
            **self.overview.counts(),
            "uncommitted_bytes": self.journal.uncommitted_bytes,
            "tail_cache_bytes": self._tail.used_bytes,
            "read_cache_bytes": self._cold.used_bytes,
            "reads_from_disk": self._cold_reader.reads,
            "schedule": self.delayed.counters.status(),
            "schedule_held_bytes": self._delivery.held_bytes,
            "producers": self.producers.count,
            "subscriptions": self.subscriptions.count,
            "transactions": self.transactions.status(),
            "long_polls": self._waiters.count,
            "retention": self._retention.status(),
            "archive": self.archive.status(),
            "audit": self.audit.status(),
            "snapshots_written": self._snapshotter.written,
            "snapshot_lsn": self._snapshotter.last_lsn,
            "snapshot_error": self._snapshotter.last_error,
            "clock": self.time.status(),
            "damage": {
                **self.damage.status(),
                "indexes": self._wal.bad_indexes,
                "snapshots": self._snapshotter.damaged,
            },
            "groups": groups,
            "groups_omitted": omitted,
        }


def _place(damage: Damage) -> Place:
    return Place(damage.name, damage.position, damage.end, damage.problem)
