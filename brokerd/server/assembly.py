# Tests: tests/test_assembly.py
"""Assembles the core of a broker: disk, threads, log, broker, factories.

`brokerd.server.service` starts and stops it. `make_core` opens nothing. The methods of `BrokerCore`
take the lock, open files and start threads; the service calls them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from brokerd.admin.api import make_api
from brokerd.admin.conditions import Condition
from brokerd.admin.http.authentication import Authenticator
from brokerd.admin.http.routing import Api
from brokerd.archive.storage.address import address
from brokerd.broker import (
    ArchiveAccess,
    ArchiveSettings,
    Broker,
    BrokerSettings,
    ClockSettings,
    RetentionSettings,
    TopicSettings,
    build_broker,
)
from brokerd.broker.callbacks import run_callback
from brokerd.broker.tracing import FrameTracer
from brokerd.errors import StorageFailed, error_text
from brokerd.groups import GroupSettings
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.first_byte import FirstByteFactory
from brokerd.protocols.base.memory import MemoryBudget
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.protocols.mega.connection import MegaFactory
from brokerd.protocols.rustlog.connection import RustlogFactory, RustlogSettings
from brokerd.schemas.checker import Checker
from brokerd.security.passwords import Passwords
from brokerd.security.places import Places
from brokerd.server.certificate_log import CertificateLog
from brokerd.server.config import Config, parse_durability, telemetry_headers
from brokerd.server.disk_state import DiskState
from brokerd.server.guards import audit_keep_us, make_guard, policy, prepare_accounts
from brokerd.server.host import Host, RealHost
from brokerd.server.sections import FIRST_BYTES, GIB, MEMORY_BYTES_MIN, TRANSACTION_SHARE, Blipmq
from brokerd.server.telemetry import Telemetry, check_packages
from brokerd.wal import RecoveryReport, Snapshots, Wal, WalOptions
from brokerd.worker_pool import WorkerPool

READ_THREADS = 2
ARCHIVE_THREADS = 2
"""One reads while the other checks for a newer version."""
CLOSE_SECONDS = 60.0
"""Longest wait of a stop for the last commit, sync and snapshot. A hung disk never ends them."""
JOIN_SECONDS = 5.0
"""Longest wait of a stop for the threads after that."""
ARCHIVE_STOP_SECONDS = 5.0
"""Longest wait for the archive's threads; their requests are already answered or refused."""
PASSWORD_THREADS = 2
"""Cores that logins may use at once."""
SCHEMA_THREADS = 2
"""Schemas and messages that are checked at once, each in its own process."""
TICK_SECONDS = 1.0
"""Interval at which the broker checks the age of the open segment and retries a failed
allocation.
"""

MEMORY_SHARE = 8
"""Without ``limits.memory``, peers may claim the process's memory divided by this."""
TRIM_SECONDS = 1.0
"""Time from a fall of the claims to the return of memory to the system."""

RESERVED_DESCRIPTORS = 128
"""File descriptors reserved for segments, indexes, snapshots and the admin site.

Otherwise a broker with too many clients could not begin a segment and would have to stop.
"""


def memory_budget_bytes(config: Config, memory_bytes: int) -> int:
    """Return ``limits.memory``, or its default for a process that may use ``memory_bytes``."""
    default = min(GIB, max(MEMORY_BYTES_MIN, memory_bytes // MEMORY_SHARE))
    return config.limits.memory or default


class FactoryContext(NamedTuple):
    """The arguments of a factory of a wire format."""

    broker: Broker
    clock: Any
    limits: Limits
    config: Config


FACTORIES: dict[str, Callable[[FactoryContext], ConnectionFactory]] = {
    "mamamia": lambda context: MamamiaFactory(context.broker, context.clock, context.limits),
    "flymq": lambda context: FlymqFactory(
        context.broker,
        context.clock,
        context.limits,
        FlymqSettings(**structs.asdict(context.config.flymq)),
    ),
    "blipmq": lambda context: BlipmqFactory(
        context.broker, context.clock, context.limits, blipmq_settings(context.config.blipmq)
    ),
    "rustlog": lambda context: RustlogFactory(
        context.broker,
        context.clock,
        context.limits,
        RustlogSettings(context.config.rustlog.group_rules),
    ),
    "mega": lambda context: MegaFactory(context.broker, context.clock, context.limits),
}
"""Wire format -> its factory."""


def make_core(config: Config, data_dir: Path, reactor: Any) -> BrokerCore:
    """Make the core for ``config``; open nothing."""
    return BrokerCore(config, data_dir, RealHost(reactor))


def broker_settings(config: Config, transaction_bytes_max: int | None = None) -> BrokerSettings:
    """Convert the configuration into the broker's settings.

    ``transaction_bytes_max`` limits the memory of open transactions besides their own option.
    """
    transaction_bytes = config.limits.transaction_bytes
    if transaction_bytes_max is not None:
        transaction_bytes = min(transaction_bytes, transaction_bytes_max)
    return BrokerSettings(
        tail_cache_bytes=config.broker.tail_cache_bytes,
        read_cache_bytes=config.broker.read_cache_bytes,
        frame_bytes=config.broker.frame_bytes,
        max_uncommitted_bytes=config.broker.max_uncommitted_bytes,
        mark_quiet_us=config.broker.mark_quiet_ms * 1000,
        snapshot_interval_bytes=config.wal.snapshot_interval_bytes,
        max_topics=config.limits.max_topics,
        max_partitions=config.limits.partitions,
        max_groups=config.limits.groups,
        max_group_state_bytes=config.limits.group_state_bytes,
        max_producers=config.limits.producers,
        max_subscriptions=config.limits.subscriptions,
        max_streams=config.limits.streams,
        max_transaction_bytes=transaction_bytes,
        transaction_us=config.limits.transaction_seconds * 1_000_000,
        groups=GroupSettings(
            max_attempts=config.groups.max_attempts,
            attempts=config.groups.attempts,
            backoff_base_us=config.groups.backoff_base_ms * 1000,
            backoff_max_us=config.groups.backoff_max_ms * 1000,
        ),
        retention=RetentionSettings(
            TopicSettings(
                retention_us=config.retention.seconds * 1_000_000,
                retention_bytes=config.retention.bytes,
                ttl_us=config.retention.ttl_seconds * 1_000_000,
            ),
            dead_letter_us=config.retention.dead_letter_seconds * 1_000_000,
            check_us=config.retention.check_seconds * 1_000_000,
            stream_hold_us=config.retention.stream_hold_seconds * 1_000_000,
            stream_hold_bytes=config.retention.stream_hold_bytes,
        ),
        archive=ArchiveSettings(
            poll_us=config.archive.poll_seconds * 1_000_000,
            delete_segments=config.archive.delete_segments,
            keep_wal_bytes=config.archive.keep_wal_bytes,
            behind_us=config.archive.behind_seconds * 1_000_000,
        ),
        clock=ClockSettings(
            tolerance_us=config.clock.tolerance_seconds * 1_000_000,
            grace_us=config.clock.grace_seconds * 1_000_000,
        ),
        audit_keep_us=audit_keep_us(config),
        security=policy(config),
    )


def blipmq_settings(section: Blipmq) -> BlipmqSettings:
    """Convert the section ``blipmq`` into its settings."""
    return BlipmqSettings(
        api_keys=section.api_keys,
        max_deliveries=section.max_deliveries,
        retry_base_us=section.retry_base_ms * 1000,
        grace_us=section.subscription_grace_seconds * 1_000_000,
        look_back_us=section.look_back_ms * 1000,
        message_ttl_us=section.message_ttl_seconds * 1_000_000,
    )


def connection_limits(config: Config, descriptors: int | None = None) -> Limits:
    """Convert the section ``limits`` into limits of a listener.

    ``descriptors`` is the process's limit on open files; connections leave some for the log.
    """
    connections = config.limits.connections
    if descriptors is not None:
        connections = max(1, min(connections, descriptors - RESERVED_DESCRIPTORS))
    return Limits(
        connections=connections,
        connections_per_address=config.limits.connections_per_address or max(1, connections // 2),
        first_byte_us=config.limits.first_byte_seconds * 1_000_000,
        login_us=config.limits.login_seconds * 1_000_000,
        frame_bytes=config.limits.frame_bytes,
        in_flight_requests=config.limits.in_flight_requests,
        in_flight_bytes=config.limits.in_flight_bytes,
        idle_us=config.limits.idle_seconds * 1_000_000,
        unfinished_frame_us=config.limits.unfinished_frame_seconds * 1_000_000,
    )


def _run(pool: WorkerPool, work: Callable[[], Any]) -> Deferred[Any]:
    """Run work in a pool; fire with its result."""
    result: Deferred[Any] = Deferred()

    def done(value: Any, error: Exception | None) -> None:
        if result.called:  # cancelled
            return
        if error is None:
            result.callback(value)
        else:
            result.errback(error)

    pool.submit(work, done)
    return result


class BrokerCore:
    """The core of the broker; `brokerd.server.service.Core` is its contract."""

    _log = Logger(namespace="brokerd")

    def __init__(self, config: Config, data_dir: Path, host: Host) -> None:
        self.on_fatal: Callable[[BaseException], None] = lambda error: None
        self._config = config
        self._host = host
        self._reactor = host.reactor
        self._data_dir = data_dir
        self._lock = host.lock(data_dir)
        mode, self._sync_interval_ms = parse_durability(config.wal.durability)
        self._wal_writer = host.threads("wal-commit", is_awaited=True)
        self._background = host.threads("wal-segments")
        self._snapshot_writer = host.threads("snapshots")
        self._readers = host.threads("reads", READ_THREADS)
        self._archive_threads = host.threads("archive", ARCHIVE_THREADS)
        password_threads = host.threads("passwords", PASSWORD_THREADS)
        schema_threads = host.threads("schemas", SCHEMA_THREADS)
        self._schema_check_runner = host.schema_check_runner()
        self._threads = (
            self._wal_writer,
            self._background,
            self._snapshot_writer,
            self._readers,
            password_threads,
            schema_threads,
        )
        self._wal = Wal(
            host.disk,
            str(data_dir / "wal"),
            WalOptions(
                segment_bytes=config.wal.segment_bytes,
                durability=mode,
                seal_age_us=config.wal.segment_age_seconds * 1_000_000,
                free_bytes_min=config.wal.free_bytes,
            ),
            self._wal_writer,
            self._background,
            host.random_bytes,
            self._reactor.seconds,
            host.make_lock,
        )
        self._wal.on_fatal = self._failed
        settings, claims_bytes = self._shared_memory(config)
        self.memory = MemoryBudget(claims_bytes, host.reactor)
        """The memory that peers claim besides transactions."""
        self.memory.on_freed = self._trim_later
        self._trim_call: Any = None
        self.broker = build_broker(
            self._wal,
            Snapshots(
                host.disk,
                str(data_dir / "state"),
                host.random_bytes,
                lambda: int(host.wall_seconds() * 1_000_000),
            ),
            self._readers,
            self._snapshot_writer,
            self._reactor,
            host.wall_seconds,
            settings,
            str(data_dir),
            self._archive_access(),
            Passwords(password_threads.submit, host.random_bytes),
            Checker(schema_threads.submit, self._schema_check_runner.check),
            host.call_at_turn_end,
        )
        self._disk_state = DiskState(
            self._wal,
            self.broker.group_commit,
            host.disk,
            str(data_dir / "wal"),
            self._background,
            self._reactor.seconds,
        )
        self._telemetry: Telemetry | None = None
        self._tracer: FrameTracer | None = None
        if config.telemetry.endpoint:
            self._trace(config)
        self._certificate_log = CertificateLog(self._reactor.seconds)
        self.guard = make_guard(
            config, self.broker, lambda: self.recovery is not None, self._certificate_log
        )
        """Authenticates connections."""
        self._descriptors: int | None = None
        self._limits = connection_limits(config)
        """As configured; `lock` lowers them to the limit on open files."""
        self._factories: dict[str, ConnectionFactory] = {}
        self._places = Places()
        self._loops: list[LoopingCall] = []
        self.recovery: RecoveryReport | None = None
        """Report of the replay, once it is done."""

    def _archive_access(self) -> ArchiveAccess | None:
        """Make the access to the archive; None on a host without archives. Raises ConfigError."""
        root = address(self._config.archive.uri, self._data_dir)
        open_archive = self._host.open_archive
        if open_archive is None:
            return None
        return ArchiveAccess(
            lambda log_id: open_archive(root, log_id),
            self._archive_threads,
            self._host.disk,
            str(self._data_dir / "state"),
            self._host.random_bytes,
            str(root),
        )

    def _trace(self, config: Config) -> None:
        """Observe the frames of the journal. Raises ConfigError for missing packages or files."""
        check_packages(config.telemetry)
        host = self._host
        self._telemetry = Telemetry(
            config.telemetry, telemetry_headers(config), host.threads("telemetry"), self._reactor
        )
        self._tracer = FrameTracer(
            self._telemetry,
            lambda: int.from_bytes(host.random_bytes(8), "big") or 1,
            lambda: int(host.wall_seconds() * 1_000_000) * 1000,
            self.broker.time.monotonic_us,
            config.telemetry.open_leases,
            config.telemetry.queue_spans,
        )
        self.broker.group_commit.observer = self._tracer

    # -- up -----------------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the data directory, or raise DirectoryLocked or UnsafeFileSystem."""
        self._descriptors = descriptors = self._host.prepare()
        self._limits = connection_limits(self._config, descriptors)
        if self._limits.connections < self._config.limits.connections:
            self._log.warn(
                "this process may open {descriptors} files, so it takes {connections} connections "
                "at most; raise the limit on open files (ulimit -n)",
                event_id="few-descriptors",
                descriptors=descriptors,
                connections=self._limits.connections,
            )
        self._lock.acquire(
            self._host.disk.file_system(str(self._data_dir)), self._config.wal.allow_network_fs
        )

    def open(self) -> Deferred[None]:
        """Replay the log in a thread, then begin to serve."""
        for threads in (*self._threads, self._archive_threads):
            threads.start()
        if self._telemetry is not None:
            self._telemetry.start()
        self._host.begin_replay()
        return _run(self._readers, self.broker.replay).addCallback(self._start)

    def _start(self, report: RecoveryReport) -> Deferred[None]:
        self.recovery = report
        self._log_recovery(report)
        self.broker.start()
        group_commit = self.broker.group_commit
        group_commit.light_arrives = self._host.begin_serving(group_commit.answer_light_first)
        group_commit.chunk_closed = self._host.records_kept
        self._loop(TICK_SECONDS, self._tick)
        if self._sync_interval_ms:
            self._loop(self._sync_interval_ms / 1000, self._wal.sync)
        return Deferred.fromCoroutine(prepare_accounts(self._config, self.broker))

    def _loop(self, seconds: float, function: Callable[[], None]) -> None:
        loop = LoopingCall(run_callback, function)
        loop.clock = self._reactor
        loop.start(seconds, now=False)
        self._loops.append(loop)

    def _tick(self) -> None:
        self._wal.seal_if_older(self.broker.time.time_us())
        if self._wal.allocation_error is not None:
            self._wal.retry_allocation()

    def _log_recovery(self, report: RecoveryReport) -> None:
        self._log.info(
            "replayed what no snapshot has: {frames} frames, {bytes} bytes, in {seconds:.3f} s",
            event_id="replayed",
            frames=report.frames,
            bytes=report.bytes,
            seconds=report.seconds,
        )
        if report.cut is not None:
            self._log.warn(
                "the end of {name} was torn and cut at {position} (LSN {lsn}): {problem}",
                event_id="tail-cut",
                **report.cut._asdict(),
            )

    def factory(self, wire_format: str) -> ConnectionFactory:
        """Make the factory of a listener: of one wire format, or of several as in
        ``flymq+rustlog``.
        """
        if "+" in wire_format:
            factory: ConnectionFactory = FirstByteFactory(
                wire_format,
                self.broker,
                self._reactor,
                self._limits,
                [self.factory(part) for part in wire_format.split("+")],
                FIRST_BYTES,
            )
        else:
            factory = FACTORIES[wire_format](
                FactoryContext(self.broker, self._reactor, self._limits, self._config)
            )
        factory.guard = self.guard
        factory.memory = self.memory
        factory.places = self._places
        factory.descriptors_left = self._host.descriptors_left
        self._factories[wire_format] = factory
        factory.count_open = self._count_open
        return factory

    def reconfigure(self, config: Config) -> None:
        """Use the options of ``config`` that can change at run time: limits and BlipMQ's keys."""
        self._config = config
        self._limits = connection_limits(config, self._descriptors)
        for factory in self._factories.values():
            factory.limits = self._limits
            if isinstance(factory, BlipmqFactory):
                factory.accept_keys(config.blipmq.api_keys)
        self.guard.accept_blipmq_keys(config.blipmq.api_keys)
        settings, claims_bytes = self._shared_memory(config)
        self.memory.resize(claims_bytes)
        self.broker.change_limits(settings)

    def _shared_memory(self, config: Config) -> tuple[BrokerSettings, int]:
        """Return the settings of the broker, and the memory for claims besides transactions."""
        budget_bytes = memory_budget_bytes(config, self._host.memory_bytes())
        settings = broker_settings(config, budget_bytes // TRANSACTION_SHARE)
        return settings, budget_bytes - settings.max_transaction_bytes

    def _trim_later(self) -> None:
        """Return memory to the system in a moment, when the freed buffers are gone."""
        if self._trim_call is None:
            self._trim_call = self._reactor.callLater(TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        self._trim_call = None
        self._host.trim_memory()

    def _count_open(self) -> int:
        """Return the number of connections at all listeners."""
        return sum(len(factory.connections) for factory in self._factories.values())

    # -- down ---------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        try:
            for factory in self._factories.values():
                factory.abort_all()
        finally:
            self.on_fatal(error)

    def fail(self, what: str, error: Exception) -> None:
        """Stop acknowledging and call ``on_fatal``: changes in memory may be incomplete."""
        self._wal.fail(what, error)

    def drain(self) -> Deferred[None]:
        """Take no new requests; fire when every answer that is due has left.

        Cancelling makes it fail with CancelledError.
        """
        for factory in self._factories.values():
            factory.close_all()
        return Deferred.fromCoroutine(self._drained())

    async def _drained(self) -> None:
        for factory in self._factories.values():
            await factory.when_empty()

    async def _close(self) -> None:
        self._stop_timers()
        hung = ""
        try:
            closing = Deferred.fromCoroutine(self._write_last())
            await closing.addTimeout(CLOSE_SECONDS, self._reactor)
        except TimeoutError:
            hung = f"the log and its snapshot took more than {CLOSE_SECONDS:g} s"
        finally:
            self._host.end_serving()
        self._schema_check_runner.end()
        if self._telemetry is not None:
            await self._telemetry.stop()
        hung = self._stop_threads() or hung
        if hung:
            raise StorageFailed(
                f"{hung}; does the disk of {self._data_dir} hang? Nothing acknowledged is lost: "
                "the next start replays the log"
            )
        if self._archive_threads.stop(ARCHIVE_STOP_SECONDS):
            self._log.warn(
                "the archive did not answer within {seconds} s; the stop goes on without it",
                event_id="archive-hangs",
                seconds=ARCHIVE_STOP_SECONDS,
            )
        self._lock.release()

    def _stop_threads(self) -> str:
        """End the threads within JOIN_SECONDS; return which are still running, "" if none."""
        end = self._reactor.seconds() + JOIN_SECONDS
        names = [
            name
            for threads in self._threads
            for name in threads.stop(max(0.0, end - self._reactor.seconds()))
        ]
        return f"thread {', '.join(names)} did not end" if names else ""

    async def _write_last(self) -> None:
        self.broker.stop()
        closed: Deferred[StorageFailed | None] = Deferred()
        self._wal.close(closed.callback)
        failure = await closed
        if failure is not None:
            raise failure
        writes = await _run(self._snapshot_writer, self.broker.last_writes)
        # The last one is the snapshot.
        pools = [self._background] * (len(writes) - 1) + [self._snapshot_writer]
        running = [_run(pool, write) for pool, write in zip(pools, writes, strict=True)]
        for written in running:
            try:
                await written
            except CancelledError:
                raise
            except Exception as error:
                self._log.warn(
                    "no snapshot was written at the stop: {error}; the next start replays the log",
                    event_id="snapshot-failed",
                    error=error_text(error),
                )

    def close(self) -> Deferred[None]:
        """Write the mark and the snapshot, close and unlock."""
        return Deferred.fromCoroutine(self._close())

    def abandon(self) -> None:
        """Release everything at once, as a crash would; write nothing."""
        self._stop_timers()
        self._schema_check_runner.end()
        if self._telemetry is not None:
            self._telemetry.abandon()
        self._host.end_serving()
        for factory in self._factories.values():
            factory.abort_all()
        if self.recovery is not None:
            self._lock.release()
        # Otherwise a thread may still replay: the lock stays until the process ends.

    def _stop_timers(self) -> None:
        for loop in self._loops:
            if loop.running:
                loop.stop()
        if self._trim_call is not None:
            self._trim_call.cancel()
            self._trim_call = None

    # -- status --------------------------------------------------------------------------------

    def api(self) -> Api:
        """Make the JSON API."""
        return make_api(
            self.broker,
            Authenticator(self.guard, self._reactor.seconds, self._host.random_bytes(32)),
        )

    def conditions(self) -> Iterable[Condition]:
        """Return the conditions of disk, log, archive and clock."""
        damage, archive = self.broker.damage, self.broker.archive_admin

        def archive_unreadable() -> str:
            damaged = damage.reason if damage.in_archive else ""
            return "; ".join(filter(None, (archive.reason, damaged)))

        return [
            *self._disk_state.conditions(),
            Condition("log-damaged", lambda: damage.reason if damage.in_log else ""),
            Condition("archive-unreadable", archive_unreadable),
            Condition("archive-unusable", lambda: archive.uselessness),
            Condition("archive-behind", lambda: archive.lateness),
            Condition("clock-ahead", lambda: self.broker.time.problem),
        ]

    def measure(self) -> None:
        """Start the measurements that the conditions need, and compare the clocks."""
        if self.broker.ready:
            self._disk_state.measure()
            self.broker.time.time_us()

    def commit_seconds(self) -> float:
        """Return the time for which the commit under way has waited for the disk; 0 without one."""
        return self._wal.commit_seconds

    def _memory_status(self) -> dict[str, Any]:
        """Return the figures of ``limits.memory``: of the claims, and of transactions as a kind.

        ``budget_bytes`` is the whole of it, and ``limit_bytes`` the part for claims.
        """
        status = self.memory.status()
        transactions = self.broker.transactions
        status["budget_bytes"] = self.memory.total_bytes + transactions.held_bytes_max
        status["claimed_bytes"]["transactions"] = transactions.held_bytes
        status["kind_limit_bytes"]["transactions"] = transactions.held_bytes_max
        return status

    def status(self) -> dict[str, Any]:
        """Describe the core, in values that JSON can hold."""
        status: dict[str, Any] = {
            "durability": self._config.wal.durability,
            "connections": {name: len(f.connections) for name, f in self._factories.items()},
            "request_times": {n: f.request_times.status() for n, f in self._factories.items()},
            "unread_bytes": {name: f.unread_bytes() for name, f in self._factories.items()},
            "slow_readers": {name: f.slow_readers() for name, f in self._factories.items()},
            "connections_refused": {name: f.refused for name, f in self._factories.items()},
            "memory": self._memory_status(),
            "formats": {name: f.counters() for name, f in self._factories.items()},
            "certificates_refused": self._certificate_log.count,
        }
        if self._telemetry is not None and self._tracer is not None:
            status["telemetry"] = {**self._tracer.status(), **self._telemetry.status()}
        if self.broker.ready:
            status |= self.broker.status()
            segments = self._wal.segments()
            status["wal"] = {
                "frames": self._wal.durable_ticket,
                "commits": self._wal.commits,
                "commit_times": self._wal.commit_times.status(),
                "write_times": self._wal.write_times.status(),
                "durable_lsn": self._wal.durable_lsn,
                "segments": len(segments),
                "segments_deleted": self._wal.deleter.segments,
                "bytes": sum(segment.size for segment in segments),
                "room_bytes": self._wal.room,
                "starved": int(self._wal.shortage is not None),
                "shortage": self._wal.shortage,
                "disk_free_bytes": self._disk_state.free_bytes,
                "commit_seconds": round(self._wal.commit_seconds, 6),
                "allocation_error": self._wal.allocation_error,
            }
        if self.recovery is not None:
            status["recovery"] = {
                "seconds": round(self.recovery.seconds, 6),
                "frames": self.recovery.frames,
                "bytes": self.recovery.bytes,
                "damages": len(self.recovery.damages),
                "cut": None if self.recovery.cut is None else self.recovery.cut._asdict(),
            }
        return status
