# Tests: tests/simulator/test_machine.py
"""A simulated computer: the real broker core on a simulated disk, clock and threads.

`Machine.boot` starts the core as `brokerd.server.service` does: lock, replay, listeners. A machine
can be stopped cleanly, killed (the page cache stays) or lose its power, at a time or at any disk
call, and boot again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.python.failure import Failure

from brokerd.archive.contract.bounds import FILE_NAME as BOUNDS_NAME
from brokerd.errors import BrokerdError, DirectoryLocked, StorageFailed
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.schemas.checker import CheckRunner, InlineCheckRunner
from brokerd.server.assembly import BrokerCore
from brokerd.server.config import Config
from brokerd.server.host import OpenArchive
from brokerd.server.service import DRAIN_SECONDS
from simulator.archive.view import SimArchive
from simulator.history.operations import NEVER, Boot
from simulator.machine.bare import DATA_DIR, STATE_DIR, WALL_SECONDS
from simulator.machine.disk import Call, CrashModel, PowerLost, SimDisk
from simulator.machine.network import Service
from simulator.machine.threads import Process, SimMutex, SimThreads, current_thread
from simulator.machine.world import Event, World
from simulator.plan import DiskTimes

MAMAMIA = "mamamia"
FILES_MAX = 1_000_000
MEMORY_BYTES = 4 << 30
"""Memory of the simulated computer."""
SYNCS = ("sync", "sync_directory")
BOUNDS = f"{STATE_DIR}/{BOUNDS_NAME}"
ARCHIVE_US = 3_000
"""The longest time of a read of the archive, unless it is slow."""


class SimReactor:
    """The reactor of a process: its monotonic clock and its delayed calls."""

    def __init__(self, process: Process, base_us: int) -> None:
        self._process = process
        self._base_us = base_us

    def seconds(self) -> float:
        return (self._process.world.now_us + self._base_us) / 1_000_000

    def callLater(
        self, delay: float, function: Callable[..., object], *args: object, **kw: object
    ) -> Event:
        process = self._process
        call = partial(function, **kw) if kw else function
        return process.world.call_later(delay, process.if_alive, call, *args)

    def callFromThread(self, function: Callable[..., object], *args: object) -> None:
        self._process.call_after(0, function, *args)


class SimLock:
    """The lock on the data directory, for one process at a time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._held = False

    def acquire(self, file_system: str = "", allow_network: bool = False) -> None:
        if self._machine.locked:
            raise DirectoryLocked(f"{DATA_DIR} is in use by another broker")
        self._machine.locked = self._held = True

    def release(self) -> None:
        if self._held:
            self._machine.locked = self._held = False


class SimHost:
    """The `brokerd.server.host.Host` of one process."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.reactor = SimReactor(process, machine.monotonic_base_us)
        self.disk = machine.disk
        self._machine = machine
        self._process = process

    def prepare(self) -> int:
        return FILES_MAX

    def begin_replay(self) -> None: ...

    def call_at_turn_end(self, function: Callable[[], None]) -> None:
        self.reactor.callLater(0, function)

    def begin_serving(self, before_heavy: Callable[[], None]) -> Callable[[], bool]:
        return lambda: False

    def records_kept(self, count: int) -> None: ...

    def end_serving(self) -> None: ...

    def lock(self, data_dir: Path) -> SimLock:
        return SimLock(self._machine)

    def threads(self, name: str, count: int = 1, *, is_awaited: bool = False) -> SimThreads:
        return SimThreads(self._process, count, self._machine.lag_us, self._machine.begins_in_time)

    def make_lock(self) -> SimMutex:
        return SimMutex(self._process)

    def random_bytes(self, count: int) -> bytes:
        return self._machine.ids.randbytes(count)

    def wall_seconds(self) -> float:
        return self._machine.wall_seconds()

    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def trim_memory(self) -> None:
        """Do nothing: the memory is that of this process."""

    def descriptors_left(self) -> int:
        return FILES_MAX

    @property
    def open_archive(self) -> OpenArchive | None:
        archive = self._machine.archive
        if archive is None:
            return None
        return lambda path, log_id: archive.opened(log_id, self._look)

    def schema_check_runner(self) -> CheckRunner:
        return InlineCheckRunner()

    def _look(self) -> None:
        """Let the time of a read of the archive pass."""
        self._process.sleep(self._machine.archive_us())


class _Crash:
    """A crash of the machine's process after a given number of disk calls."""

    def __init__(
        self, calls: int, name: str | None, is_stuck: bool, happen: Callable[[], None]
    ) -> None:
        self._left = calls
        self._name = name
        self._is_stuck = is_stuck
        self.happen = happen

    def counts(self, call: Call, is_stuck: bool) -> bool:
        """Count a call at its begin. Return whether the crash happens now."""
        if self._name in (None, call.name) and (is_stuck or not self._is_stuck):
            self._left -= 1
            return self._left == 0
        return False


class Machine:
    """A computer with one data directory. Callbacks are attributes.

    It calls ``on_ready(core)`` in each life of the broker before the first connection, and
    ``on_end(boot)`` at the end of a life. ``formats`` are the wire formats of its listeners.
    """

    def __init__(
        self,
        world: World,
        disk: SimDisk,
        config: Config,
        times: DiskTimes,
        formats: Iterable[str] = (MAMAMIA,),
        archive: SimArchive | None = None,
    ) -> None:
        self.world = world
        self.disk = disk
        self.archive = archive
        self.config = config
        self.times = times
        self.boots: list[Boot] = []
        self.core: BrokerCore | None = None
        """The core of the current or the last life."""
        self.locked = False
        self.wall_step_us = 0
        """The sum of all steps of the wall clock."""
        self.slow_factor = 1
        self.ids = world.chance("ids")
        self.calls = 0
        """Disk calls of all lives."""
        self.reactor_calls: list[Call] = []
        """Disk calls in the reactor's thread while it served. Each blocked it."""
        self.monotonic_base_us = 0
        self.has_deleted_segments = False
        """Whether the broker deleted segments of the log."""
        self.has_deleted_events = False
        """Whether one of them was not archived."""
        self.on_ready: Callable[[BrokerCore], None] = lambda core: None
        self.on_end: Callable[[Boot], None] = lambda boot: None
        self.on_bounds: Callable[[], None] = lambda: None
        """Called when the broker has written its bounds for the rollup."""
        self._chance = world.chance("machine")
        self._archive_chance = world.chance("archive")
        self._wait_chance = world.chance("wait")
        self._process: Process | None = None
        self._formats = tuple(formats)
        self._factories: dict[str, ConnectionFactory] = {}
        """The Protocol factory of each format while the broker serves."""
        self._crashes: list[_Crash] = []
        disk.enter, disk.leave = self._enter, self._leave

    # -- the interface of a process ----------------------------------------------------------------

    def wall_seconds(self) -> float:
        return WALL_SECONDS + (self.world.now_us + self.wall_step_us) / 1_000_000

    def lag_us(self) -> int:
        """Draw the delay before a thread begins, or before the reactor learns of its end."""
        return self._chance.randint(1, 60)

    def begins_in_time(self) -> bool:
        """Draw whether a thread begins while the reactor waits for it for a short time."""
        return self._wait_chance.randrange(2) == 0

    def archive_us(self) -> int:
        """Draw the time of a read of the archive."""
        assert self.archive is not None, "somebody looks into it"
        return self._archive_chance.randint(50, ARCHIVE_US) * self.archive.slow_factor

    def service(self, wire_format: str = MAMAMIA) -> Service | None:
        """Return the service on the machine's port for a format, or None."""
        if not self._factories or self._process is None:
            return None
        return Service(self._process, self.boots[-1].number, self._factories[wire_format])

    # -- life -----------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a process runs, serving or not."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        return bool(self._factories)

    def boot(self) -> None:
        """Start the broker, unless it runs."""
        if self._process is not None:
            return
        boot = Boot(
            number=len(self.boots),
            begun_us=self.world.now_us,
            durability=self.config.wal.durability,
            power_lost=False,
        )
        self.boots.append(boot)
        self.world.trace(f"boot {boot.number}")
        self._process = process = Process(self.world)
        core = BrokerCore(self.config, Path(DATA_DIR), SimHost(self, process))
        core.on_fatal = partial(self._failed, core)
        try:
            core.lock()
            opened = core.open()
        except PowerLost:
            return
        opened.addCallback(lambda _: self._serve(core, boot))
        opened.addErrback(self._refused, core)

    def _serve(self, core: BrokerCore, boot: Boot) -> None:
        if self.boots[-1] is not boot or not self._process:
            return
        boot.ready_us = self.world.now_us
        assert core.recovery is not None, "it has opened"
        boot.damages = tuple(map(str, core.recovery.damages))
        self.core = core
        self.on_ready(core)
        self._factories = {name: core.factory(name) for name in self._formats}
        for factory in self._factories.values():
            factory.doStart()
        self.world.trace(f"ready; damages: {list(boot.damages)}" if boot.damages else "ready")

    def _refused(self, failure: Failure, core: BrokerCore) -> None:
        if self._process is None or failure.check(PowerLost):
            return
        core.abandon()
        if not failure.check(BrokerdError, OSError):
            self.world.trace(f"fault: {failure.getTraceback()}")
        self._end("refused", f"{type(failure.value).__name__}: {failure.value}")

    def _failed(self, core: BrokerCore, error: BaseException) -> None:
        """End the process, because the core failed, for example after a failed write."""
        if self._process is not None:
            self._factories = {}
            if self.boots[-1].stopping_us == NEVER:
                self.boots[-1].stopping_us = self.world.now_us
            self._process.call_after(0, self._leave_failed, core, str(error))

    def _leave_failed(self, core: BrokerCore, reason: str) -> None:
        core.abandon()
        self._end("failed", reason)

    def stop(self, stopped: Callable[[], None] = lambda: None) -> None:
        """If the broker serves, stop it cleanly, then call ``stopped``."""
        core, factories, self._factories = self.core, self._factories, {}
        if core is not None and factories:
            self.world.trace("stop")
            self.boots[-1].stopping_us = self.world.now_us
            stopping = Deferred.fromCoroutine(self._stop(core))
            stopping.addErrback(self._stop_failed, core)
            stopping.addCallback(lambda _: stopped())

    async def _stop(self, core: BrokerCore) -> None:
        assert self._process is not None
        try:
            reactor: Any = SimReactor(self._process, self.monotonic_base_us)
            await core.drain().addTimeout(DRAIN_SECONDS, reactor)
        except TimeoutError:
            self.world.trace("some answers did not leave in time")
        await core.close()
        self._end("stopped", "")

    def _stop_failed(self, failure: Failure, core: BrokerCore) -> None:
        if self._process is None or failure.check(PowerLost):
            return
        core.abandon()
        if not failure.check(StorageFailed, OSError):
            self.world.trace(f"fault: {failure.getTraceback()}")
        self._end("failed", f"closing: {failure.value}")

    def unwind(self) -> None:
        """End all threads at the end of a run, without callbacks."""
        if self._process is not None:
            process, self._process = self._process, None
            process.end()

    def kill(self) -> None:
        """End the process at once; the page cache stays."""
        if self._process is not None:
            self._end("killed", "")

    def power_off(self, model: CrashModel, chance: random.Random) -> None:
        """Lose power. The model decides which unsynced data survives. The machine may be down."""
        if self._process is not None:
            self._end("power", model.value)
        else:
            self.world.trace(f"power lost while down ({model.value})")
        if self.boots:
            self.boots[-1].power_lost = True
        self.disk.crash(model, chance)
        if self.archive is not None:
            self.archive.lose_power(model)
        self.monotonic_base_us = self._chance.randrange(1 << 32) - self.world.now_us

    def _end(self, how: str, reason: str) -> None:
        process, self._process = self._process, None
        assert process is not None
        boot = self.boots[-1]
        boot.ended_us, boot.end, boot.reason = self.world.now_us, how, reason
        self.world.trace(f"boot {boot.number} {how} {reason}".rstrip())
        self._factories = {}
        self.locked = False
        self._crashes.clear()
        process.end()
        self.disk.kill()
        self.on_end(boot)
        self.core = None

    # -- disk calls -----------------------------------------------------------------------------

    def crash_at_call(
        self,
        nth: int,
        crash: Callable[[], None],
        name: str | None = None,
        is_stuck: bool = False,
    ) -> None:
        """Call ``crash`` at the ``nth`` disk call from now on, before its effect.

        With a ``name`` only calls of that name count, with ``is_stuck`` only syncs that get stuck.
        If the process ends before, ``crash`` is not called.
        """
        self._crashes.append(_Crash(nth, name, is_stuck, crash))

    def disarm(self) -> None:
        """Cancel `crash_at_call`."""
        self._crashes.clear()

    def _enter(self, call: Call) -> None:
        if self._process is None:
            raise PowerLost
        process = self._process
        self.calls += 1
        is_stuck = self._gets_stuck(call.name)
        struck = [crash for crash in self._crashes if crash.counts(call, is_stuck)]
        if current_thread() is None and self.is_ready:
            self.reactor_calls.append(call)
        process.sleep(self._time_us(call.name, is_stuck) * self.slow_factor)
        for crash in struck:
            crash.happen()
            raise PowerLost

    def _gets_stuck(self, name: str) -> bool:
        stuck_permille = self.times.stuck_permille
        if name not in SYNCS or not stuck_permille:
            return False
        return self._chance.randrange(1_000) < stuck_permille

    def _time_us(self, name: str, is_stuck: bool) -> int:
        times = self.times
        if is_stuck:
            return self._chance.randint(times.sync_us_max, times.stuck_us_max)
        if name in SYNCS:
            return self._chance.randint(times.sync_us_min, times.sync_us_max)
        if name == "pwrite":
            return self._chance.randint(times.write_us_min, times.write_us_max)
        if name == "pread":
            return self._chance.randint(times.read_us_min, times.read_us_max)
        return self._chance.randint(times.other_us_min, times.other_us_max)

    def _leave(self, call: Call) -> None:
        name = call.path.rpartition("/")[2]
        if call.name == "create" and name.endswith(".deleted"):
            self.has_deleted_segments = True
            end_lsn = int(name.removesuffix(".deleted").rpartition("-")[2])
            archived = 0 if self.archive is None else self.archive.events_lsn()
            self.has_deleted_events |= archived < end_lsn
        self.world.trace(f"disk {call.name} {name} {call.position}+{call.length}")
        if call.name == "rename" and call.path == BOUNDS:
            self.on_bounds()
