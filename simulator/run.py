# Tests: tests/simulator/test_run.py
"""Runs a plan: boots the broker, runs clients and faults, audits the result, and judges it.

A run has three parts. In the first, clients work while faults strike. Then all faults end, the
machine loses its power once more, and the broker boots. The last part is the audit: clients read
and drain all topics, the broker stops cleanly, and its files are verified. The oracle judges the
history. This module checks facts outside the history.
"""

from __future__ import annotations

import gc
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure

from brokerd.archive.contract.bounds import decode_bounds
from brokerd.broker.model.topics import TopicSettings
from brokerd.server.assembly import BrokerCore
from brokerd.server.config import Config, Groups, Limits, Retention
from brokerd.server.sections import Archive as ArchiveConfig
from brokerd.server.sections import Blipmq, Clock, Flymq, Mamamia, Mega, Rustlog, Security
from brokerd.server.sections import Broker as BrokerConfig
from brokerd.server.sections import Wal as WalConfig
from brokerd.wal.damage.verify import verify
from simulator import oracle
from simulator.archive.rollup import Archiver, offsets_in_log
from simulator.archive.view import SimArchive
from simulator.clients import (
    AuditFailed,
    Auditor,
    Credentials,
    DirectClient,
    WrongAnswer,
    make_client,
)
from simulator.clients.blipmq import KEY as BLIPMQ_KEY
from simulator.clients.format_audits import auditor_name, make_audit
from simulator.directory.state_text import state_of, without_newest_snapshot, without_snapshots
from simulator.faults import Faults
from simulator.history.operations import NEVER, Boot, History, Letters, Published, ReportStream
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import CrashModel, PowerLost, SimDisk
from simulator.machine.machine import BOUNDS, MAMAMIA, Machine
from simulator.machine.network import Network
from simulator.machine.passwords import quick_passwords
from simulator.machine.world import World
from simulator.oracle import Violation
from simulator.plan import Plan, Rollup, Settings

FREE_BYTES = 64 << 20
"""Bytes that the broker leaves free on any disk; a small disk is this much larger than its usable
space.
"""
NO_DIGITS = str.maketrans("", "", "0123456789")
OWN_FAULT = "own fault"
AUDIT_SECONDS = 3_600
MEGA_CANNOT = "INTERNAL_ERROR"
"""Error that MEGA's auditor gets for an unreadable record."""
HOLD_SLACK_SECONDS = 60
"""Time that a round of retention may take."""
EVENTS_MAX = 3_000_000
"""Limit of steps; a longer run is in an endless loop."""


@dataclass
class Result:
    """The result of one run."""

    plan: Plan
    history: History
    violations: list[Violation]
    lines: list[str]
    """The trace."""
    digest: str
    """Digest of the trace and of the final disk: equal for equal runs."""
    counts: Counter[str]
    """Counts of log events by event_id, faults, disk calls and others."""

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def config_of(settings: Settings) -> Config:
    """Return the broker's configuration. Some sizes are below the minimum of an operator."""
    return Config(
        wal=WalConfig(
            durability=settings.durability,
            segment_bytes=settings.segment_bytes,
            segment_age_seconds=settings.segment_age_seconds,
            snapshot_interval_bytes=settings.snapshot_interval_bytes,
        ),
        broker=BrokerConfig(
            tail_cache_bytes=settings.tail_cache_bytes,
            read_cache_bytes=settings.read_cache_bytes,
            frame_bytes=settings.frame_bytes,
            max_uncommitted_bytes=settings.max_uncommitted_bytes,
            mark_quiet_ms=settings.mark_quiet_ms,
        ),
        groups=Groups(
            max_attempts=settings.max_attempts,
            attempts=settings.attempts,
            backoff_base_ms=settings.backoff_base_us // 1_000,
            backoff_max_ms=settings.backoff_max_us // 1_000,
        ),
        retention=Retention(
            seconds=settings.retention_seconds,
            bytes=settings.retention_bytes,
            ttl_seconds=settings.ttl_seconds,
            check_seconds=settings.retention_check_seconds,
            dead_letter_seconds=settings.dead_letter_seconds,
            stream_hold_seconds=settings.stream_hold_seconds,
        ),
        clock=Clock(
            tolerance_seconds=settings.clock_tolerance_seconds,
            grace_seconds=settings.clock_grace_seconds,
        ),
        archive=ArchiveConfig(
            poll_seconds=settings.archive_poll_seconds,
            delete_segments=settings.archive_deletes,
            keep_wal_bytes=settings.archive_keep_wal_bytes,
        ),
        limits=Limits(
            in_flight_requests=settings.in_flight_requests,
            in_flight_bytes=settings.in_flight_bytes,
            transaction_seconds=settings.transaction_seconds,
            subscriptions=settings.subscriptions_max,
            connections=settings.connections_max,
            first_byte_seconds=settings.first_byte_seconds,
            login_seconds=settings.login_seconds,
            idle_seconds=settings.idle_seconds,
            unfinished_frame_seconds=settings.unfinished_frame_seconds,
        ),
        blipmq=Blipmq(
            max_deliveries=settings.blipmq_max_deliveries,
            retry_base_ms=settings.blipmq_retry_base_us // 1_000,
            subscription_grace_seconds=settings.blipmq_grace_seconds,
            look_back_ms=settings.blipmq_look_back_us // 1_000,
            message_ttl_seconds=settings.blipmq_ttl_seconds,
            api_keys=(BLIPMQ_KEY,) if settings.principal else (),
            principal=settings.principal,
        ),
        mamamia=Mamamia(principal=settings.principal),
        flymq=Flymq(
            principal=settings.principal, delay_max_seconds=settings.flymq_delay_max_seconds
        ),
        rustlog=Rustlog(
            principal=settings.principal,
            group_rules="reference" if settings.rustlog_reference_groups else "seed",
        ),
        mega=Mega(principal=settings.principal),
        security=Security(
            auth="on" if settings.principal else "off",
            default_public=settings.default_public,
            allow_anonymous=settings.allow_anonymous,
        ),
    )


def run(plan: Plan) -> Result:
    """Run a plan from beginning to end. A failure of the broker does not raise."""
    with _without_collections():
        one = _Run(plan)
        with one.simulated():
            result = one.result()
        del one
        # A Deferred reports an unhandled error only when it is garbage-collected. An error that
        # begins during the collection is no fault: the collection closes coroutines of ended
        # processes, and their `finally` clauses run code that ended with a real process.
        newest = Failure(RuntimeError("none")).count
        late: list[LogEvent] = []
        globalLogPublisher.addObserver(cast(ILogObserver, late.append))
        gc.collect()
        globalLogPublisher.removeObserver(cast(ILogObserver, late.append))
    result.violations += [
        Violation(OWN_FAULT, event["log_failure"].getTraceback(), (), NEVER)
        for event in late
        if is_fault(event) and event["log_failure"].count < newest
    ]
    return result


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python from looking for cycles of garbage.

    A collection closes coroutines of ended processes, which runs code of theirs. Its time depends
    on earlier runs of the same process of Python.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _archive_of(plan: Plan, world: World) -> SimArchive | None:
    if plan.settings.archive and plan.settings.archive_files:
        from simulator.archive.files import FiledArchive  # It loads pyarrow and deltalake.

        return FiledArchive(world)
    return SimArchive() if plan.settings.archive else None


def _archiver_of(
    archive: SimArchive | None, machine: Machine, failed: Callable[[str], None]
) -> Archiver:
    if archive is not None and archive.has_files:
        from simulator.archive.files import FiledArchive, FiledArchiver

        assert isinstance(archive, FiledArchive)
        return FiledArchiver(machine.world, machine.disk, archive, failed, machine.wall_seconds)
    return Archiver(machine.world, machine.disk, archive or SimArchive(), failed)


def is_fault(event: LogEvent) -> bool:
    """Return whether a log event shows a bug of brokerd, other than that the process ended."""
    return "log_failure" in event and event["log_failure"].check(PowerLost) is None


class _Run:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._world = world = World(plan.seed)
        capacity = plan.settings.capacity_bytes
        self._disk = SimDisk(None if capacity is None else capacity + FREE_BYTES)
        self._config = config_of(plan.settings)
        self._archive = _archive_of(plan, world)
        self._machine = machine = Machine(
            world, self._disk, self._config, plan.disk, plan.formats, self._archive
        )
        self._network = Network(world, plan.network, machine.service)
        self._archiver = _archiver_of(self._archive, machine, self._rollup_failed)
        self._faults = Faults(world, machine, self._network, plan.faults, self._archiver)
        self._history = History(rules=plan.settings.group_rules(), boots=machine.boots)
        self._history.clock_steps = self._faults.clock_steps
        self._history.is_steady = plan.is_steady
        self._history.principal = plan.settings.principal
        self._history.formats = {client.name: client.format for client in plan.clients}
        self._history.formats |= {auditor_name(name): name for name in plan.formats}
        self._history.vandals = frozenset(
            client.name for client in plan.clients if client.role == "vandal"
        )
        self._history.given_topics = tuple(topic.name for topic in plan.topics)
        self._history.subscriptions = plan.settings.subscription_rules()
        self._history.clock = plan.settings.clock_rules()
        self._history.topic_rules = plan.settings.topic_rules()
        self._history.connections = self._network.connected
        self._history.connection_rules = plan.settings.connection_rules()
        self._history.access = plan.settings.access_rules()
        self._history.limits = plan.settings.limit_rules()
        self._history.stream_hold_us = plan.settings.stream_hold_seconds * 1_000_000
        self._history.transaction_us = plan.settings.transaction_seconds * 1_000_000
        self._audits = [name for name in plan.formats if name != MAMAMIA]
        """Formats whose audit is still to come."""
        credentials = Credentials()
        self._clients = [
            make_client(
                client,
                world,
                partial(
                    self._network.connect, client.name, partial(machine.service, client.format)
                ),
                machine,
                self._history,
                credentials,
            )
            for client in plan.clients
        ]
        self._begun = self._auditing = self._over = False
        self._violations: list[Violation] = []
        self._counts: Counter[str] = Counter()
        machine.on_ready = self._ready
        machine.on_end = self._ended
        machine.on_bounds = self._published

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Return the context of the whole run."""
        archive = nullcontext() if self._archive is None else self._archive.simulated()
        with quick_passwords(), archive:
            yield

    def result(self) -> Result:
        logged = cast(ILogObserver, self._logged)
        globalLogPublisher.addObserver(logged)
        try:
            self._machine.boot()
            while not self._over and self._step():
                if self._world.events > EVENTS_MAX:
                    self._violate("liveness", f"no end after {EVENTS_MAX} events")
                    break
            else:
                if not self._over:
                    self._violate("liveness", "nothing is due any more, and the audit is not over")
        except WrongAnswer as error:
            self._violate("wire", str(error))
        except AuditFailed as error:
            if self._has_another_id() or self._is_about_damage(error):
                self._world.trace(f"the audit ends: {error}")
            else:
                self._violate("wire", str(error))
        finally:
            self._archiver.kill()
            self._machine.unwind()
            globalLogPublisher.removeObserver(logged)
        for client in self._clients:
            client.note_arrivals()
        self._history.ended_us = self._world.now_us
        self._history.rotted = self._faults.has_rotted or self._faults.has_damaged_archive
        self._history.compacted = self._archiver.compacted
        self._history.has_deleted_events = self._machine.has_deleted_events
        for call in self._machine.reactor_calls[:1]:
            self._violate("reactor", f"it waited for the disk itself: {call.name} {call.path}")
        judgement = oracle.judge(self._history)
        self._violations += judgement.violations
        self._counts["undecided"] = judgement.undecided
        self._count()
        return Result(
            self._plan,
            self._history,
            self._violations,
            self._world.lines,
            f"{self._world.digest()[:16]}-{self._disk.digest()[:16]}",
            self._counts,
        )

    def _step(self) -> bool:
        try:
            return self._world.step()
        except PowerLost:
            return True  # the machine's end met the reactor's own code
        except (WrongAnswer, AuditFailed):
            raise
        except Exception:  # a reactor would log it and continue; later events prove nothing
            self._violate(OWN_FAULT, traceback.format_exc())
            self._over = True
            return False

    def _violate(self, promise: str, text: str) -> None:
        self._world.trace(f"VIOLATION of {promise}: {text}")
        self._violations.append(Violation(promise, text, (), self._world.now_us))

    def _logged(self, event: LogEvent) -> None:
        if is_fault(event):
            self._violate(OWN_FAULT, event["log_failure"].getTraceback())
        elif "event_id" in event:
            self._counts[event["event_id"]] += 1
            self._world.trace(f"log {event['event_id']}")

    # -- the first part -------------------------------------------------------------------------

    def _ready(self, core: BrokerCore) -> None:
        self._judge_damage()
        self._judge_marks(core)
        for topic in self._plan.topics:
            settings = TopicSettings(compact=True) if topic.compact else None
            core.broker.topics.create(topic.name, topic.partitions, settings)
        if self._auditing:
            self._world.call_after(0, self._audit)
        elif not self._begun:
            self._begun = True
            self._world.call_after(0, self._begin)

    def _judge_damage(self) -> None:
        """Check that a start found no damage.

        Without fsync, too, a power loss only shortens the log. But then a snapshot, which is always
        synced, may know more than the log.
        """
        boot = self._machine.boots[-1]
        knows = any(path.endswith(".snap") for path in self._disk.files())
        if boot.damages and not knows and not self._faults.has_rotted:
            text = f"boot {boot.number} reports damage that nobody did: {boot.damages[0]}"
            self._violate("P6-tear", text)

    def _published(self) -> None:
        """Note the bounds as the rollup will read them."""
        bounds = decode_bounds(self._disk.read(BOUNDS))
        self._history.published += (
            Published(self._world.now_us, topic.name, number, partition.compact_below)
            for topic in bounds.topics
            if not topic.internal_of
            for number, partition in enumerate(topic.partitions)
        )

    def _is_about_damage(self, error: AuditFailed) -> bool:
        """Return whether the audit ended at records that the archive lost.

        Some formats cannot continue after them.
        """
        return self._faults.has_damaged_archive and any(
            words in str(error) for words in ("damaged", MEGA_CANNOT)
        )

    def _has_another_id(self) -> bool:
        """Return whether rot destroyed both files with the log's id, so that the id is new."""
        core = self._machine.core
        if not self._faults.has_rotted or self._archive is None or core is None:
            return False
        return bool(core.broker.archive_admin.status()["log_id"] != self._archive.log_id)

    def _rollup_failed(self, reason: str) -> None:
        if not self._broken_modes():
            self._violate("rollup", f"the archive's job cannot go on: {reason}")

    def _judge_marks(self, core: BrokerCore) -> None:
        """Check that archived records that the log lacks are removed, or known to be archived."""
        if self._archive is None or self._broken_modes():
            return
        in_log = offsets_in_log(self._disk)
        covered = self._archive.covered()
        for topic in core.broker.topics.all():
            for each in (topic, topic.internal):
                for partition in each.partitions if each is not None else ():
                    key = partition.topic.topic_id, partition.index
                    known = max(partition.start_offset, partition.archived_end)
                    for first, end in covered.get(key, ()):
                        lacking = set(range(max(first, known), end)) - in_log.get(key, set())
                        if lacking:
                            text = f"{topic.name}/{partition.index} lacks {sorted(lacking)[:5]}"
                            self._violate("P1-mark", f"{text} in the log, and does not know why")

    def _begin(self) -> None:
        self._faults.begin()
        for client in self._clients:
            client.start()
        self._world.call_after(self._plan.end_us, self._part_two)
        self._watch()

    def _watch(self) -> None:
        """Begin the second part when all clients have finished. Until then read the status."""
        if self._machine.is_ready and self._machine.core is not None:
            self._machine.core.status()  # as the metrics do
        if all(client.finished for client in self._clients):
            self._part_two()
        else:
            self._world.call_after(100_000, self._watch)

    def _ended(self, boot: Boot) -> None:
        if self._machine.core is not None:
            status = self._machine.core.broker.status()
            for name in ("leases_granted", "settled", "failed", "expired", "reads_from_disk"):
                self._counts[name] += status[name]
            archived = self._machine.core.broker.archive_admin.status()
            if archived:
                for name in ("deleted_segments", "reads", "failed_reads", "failed_refreshes"):
                    self._counts[f"archive {name}"] += archived[name]
        later = self._world.chance(f"gone/{boot.number}")
        is_silent = boot.end == "power"
        self._network.machine_gone(lambda: later.randrange(2_000_000) if is_silent else 100)
        if self._auditing:
            self._over = True
            if boot.end != "stopped" and not self._may_refuse(boot):
                text = f"without any fault, the broker {boot.end}: {boot.reason}"
                self._violate("P7-alive", text)
        else:
            self._faults.ended(boot)

    def _may_refuse(self, boot: Boot) -> bool:
        """Return whether the broker may refuse to start, because rot destroyed its files."""
        return self._faults.has_rotted and boot.reason.startswith(("DamagedData", "NewerFormat"))

    # -- the second part ------------------------------------------------------------------------

    def _part_two(self) -> None:
        if self._auditing:
            return
        self._world.trace("end of the first part")
        for client in self._clients:
            client.hang_up()
        self._faults.end()
        model = CrashModel.DROP if self._plan.settings.durability == "fsync" else CrashModel.KEEP
        self._archiver.kill()
        self._machine.power_off(model, random.Random(self._plan.seed))
        self._compare()
        self._auditing = True
        self._machine.boot()

    def _compare(self) -> None:
        """Check that a snapshot and the whole log give the same state.

        If segments were deleted, the log needs a snapshot. Then the older one must give it.
        """
        if self._broken_modes():
            return
        is_whole = not self._machine.has_deleted_segments
        other_way = (without_snapshots if is_whole else without_newest_snapshot)(self._disk)
        if other_way is None:
            return
        try:
            quick = state_of(self._disk, self._config)
            slow = state_of(other_way, self._config)
        except Exception:  # any error: a broker would meet it at its start
            text = f"the directory cannot be read: {traceback.format_exc()}"
            self._violate("P1-readings", text)
            return
        for one, other in zip(quick, slow, strict=False):
            if one != other:
                self._violate("P1-readings", f"a snapshot says\n  {one}\nand the log\n  {other}")
                return
        if len(quick) != len(slow):
            text = f"snapshots tell of {len(quick)} things, the log of {len(slow)}"
            self._violate("P1-readings", text)

    def _broken_modes(self) -> bool:
        """Return whether acknowledged work may be lost, so that files may contradict each other."""
        return self._plan.settings.durability != "fsync" or self._faults.has_rotted

    # -- the third part -------------------------------------------------------------------------

    def _audit(self) -> None:
        self._world.trace("audit")
        if self._archive is not None:
            self._archiver.start(Rollup(at_us=0, vacuums=True))
        self._world.call_later(AUDIT_SECONDS + self._plan.longest_us / 1e6, self._audit_hangs)
        Auditor(
            self._plan,
            self._world,
            partial(self._network.connect, "auditor"),
            DirectClient("auditor", self._world, self._machine, self._history),
            self._history,
            self._audit_format,
        ).start()

    def _audit_format(self) -> None:
        """Begin the audit of the next format."""
        if not self._audits:
            self._audited()
            return
        wire_format = self._audits.pop(0)
        name = auditor_name(wire_format)
        make_audit(
            wire_format,
            self._plan,
            self._world,
            partial(self._network.connect, name, partial(self._machine.service, wire_format)),
            DirectClient(name, self._world, self._machine, self._history),
            self._history,
            self._audit_format,
        ).start()

    def _audit_hangs(self) -> None:
        self._violate("liveness", "the audit does not come to its end")
        self._over = True

    def _audited(self) -> None:
        self._world.trace("end of the audit")
        self._judge_holds()
        self._machine.stop(self._verify)

    def _judge_holds(self) -> None:
        """Check that no silent stream holds back retention for ever."""
        core, settings = self._machine.core, self._plan.settings
        if core is None:
            return
        slack = 2 * settings.retention_check_seconds + HOLD_SLACK_SECONDS
        since_us = self._world.now_us - (settings.stream_hold_seconds + slack) * 1_000_000
        heard_us: dict[str, int] = {}
        for op in self._history.operations:
            if isinstance(op, ReportStream):
                heard_us[op.stream] = op.sent_us if op.answered_us == NEVER else op.answered_us
        for stream in core.broker.streams.all():
            last_us = max(self._machine.boots[-1].ready_us, heard_us.get(stream.name, 0))
            if stream.holds and last_us < since_us:
                text = f"the stream {stream.name!r} was silent since {last_us} and holds still"
                self._violate("P5-hold", text)

    def _verify(self) -> None:
        report = verify(self._disk.fork(), WAL_DIR, STATE_DIR)
        if self._broken_modes():
            return
        for problem in report.problems:
            self._violate("P6-verify", f"after a clean stop: {problem}")

    def _count(self) -> None:
        counts = self._counts
        counts["runs"] = 1
        for operation in self._history.operations:
            if isinstance(operation, Letters):
                counts["dead letters"] += len(operation.letters)
            elif operation.error:
                counts[f"refused: {operation.error.translate(NO_DIGITS)[:60]}"] += 1
        counts["boots"] = len(self._history.boots)
        counts["operations"] = len(self._history.operations)
        counts["unanswered"] = sum(op.answered_us == NEVER for op in self._history.operations)
        counts["disk calls"] = self._machine.calls
        counts["faults"] = len(self._faults.done)
        counts["rollups"] = self._archiver.runs
        counts["rollup lots"] = self._archiver.lots
        counts["compacted"] = len(self._archiver.compacted)
        for boot in self._history.boots:
            counts[f"boots {boot.end}"] += 1
            counts["boots with damage"] += bool(boot.damages)
