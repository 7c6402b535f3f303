"""The whole core of a broker in memory: a simulated disk, and clocks, threads and turns by hand.

house = CoreHouse(Config(...))    # opened, as the service opens it
wire = house.connect("mega")      # a connection of a listener's own factory
wire.send_bytes(...)
house.run()                       # the turn ends, commits happen, answers leave
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.schemas.checker import CheckRunner, InlineCheckRunner
from brokerd.server.assembly import BrokerCore
from brokerd.server.config import Config
from brokerd.server.host import OpenArchive
from brokerd.worker_pool import STOP_SECONDS
from simulator.machine.bare import DATA_DIR, MONOTONIC_SECONDS, WALL_SECONDS, counting_ids
from simulator.machine.disk import SimDisk
from simulator.machine.inline import InlinePool
from tests.house import Wire


class HandThreads(InlinePool):
    """A pool whose threads do a piece of work on request."""

    def start(self) -> None: ...

    def stop(self, seconds: float = STOP_SECONDS) -> list[str]:
        self.run()
        return []


class HandClock(Clock):
    """A reactor whose turns the test makes."""

    def callFromThread(self, function: Any, *arguments: Any) -> None:
        self.callLater(0, function, *arguments)

    def callWhenRunning(self, function: Any, *arguments: Any) -> None:
        self.callLater(0, function, *arguments)


class _Lock:
    """A lock that is always free."""

    def acquire(self, file_system: str = "", allow_network: bool = False) -> None: ...

    def release(self) -> None: ...


class HandHost:
    """A `brokerd.server.host.Host` whose clocks and threads the test drives."""

    open_archive: OpenArchive | None = None

    def __init__(self, disk: SimDisk) -> None:
        self.reactor = HandClock()
        self.reactor.advance(MONOTONIC_SECONDS)
        self.disk = disk
        self.at_work: list[HandThreads] = []
        self.kept_records = 0
        """Records of which the broker has told that they are complete."""
        self.random_bytes = counting_ids(b"")
        self.wall_ahead_seconds = 0.0
        """How far the wall clock is wrong."""

    def prepare(self) -> int:
        return 1_000_000

    def memory_bytes(self) -> int:
        return 4 << 30

    def trim_memory(self) -> None: ...

    def descriptors_left(self) -> int:
        return 1_000_000

    def begin_replay(self) -> None: ...

    def call_at_turn_end(self, function: Callable[[], None]) -> None:
        self.reactor.callLater(0, function)

    def begin_serving(self, before_heavy: Callable[[], None]) -> Callable[[], bool]:
        return lambda: False

    def records_kept(self, count: int) -> None:
        self.kept_records += count

    def end_serving(self) -> None: ...

    def lock(self, data_dir: Path) -> _Lock:
        return _Lock()

    def threads(self, name: str, count: int = 1, *, is_awaited: bool = False) -> HandThreads:
        self.at_work.append(HandThreads())
        return self.at_work[-1]

    def make_lock(self) -> threading.Lock:
        return threading.Lock()

    def wall_seconds(self) -> float:
        return WALL_SECONDS + self.reactor.seconds() + self.wall_ahead_seconds

    def schema_check_runner(self) -> CheckRunner:
        return InlineCheckRunner()


class CoreHouse:
    """One run of the core."""

    def __init__(self, config: Config | None = None, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.host = HandHost(self.disk)
        self.clock = self.host.reactor
        self.core = BrokerCore(config or Config(), Path(DATA_DIR), self.host)
        self.broker = self.core.broker
        self.core.lock()
        self._wait(self.core.open())

    def _wait(self, deferred: Any) -> None:
        deferred.addErrback(lambda failure: failures.append(failure))
        failures: list[Any] = []
        self.run()
        assert deferred.called and not failures, failures

    def run(self) -> None:
        """Run until no work is left for now."""
        self.clock.advance(0)
        while any([threads.step() for threads in self.host.at_work]):
            self.clock.advance(0)

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Advance both clocks and run the work that becomes due."""
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            self.run()
            seconds -= step

    def factory(self, form: str) -> ConnectionFactory:
        """Return the factory of a listener."""
        return self.core.factory(form)

    def connect_to(self, factory: ConnectionFactory) -> Wire:
        """Return a new connection."""
        return Wire(factory, self.clock)

    def stop(self) -> None:
        """Stop as the service does."""
        self._wait(self.core.drain())
        self._wait(self.core.close())
