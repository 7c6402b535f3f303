# Tests: tests/test_size.py
"""Run a whole broker in this process, as ``twistd`` does, with access to its objects.

Contract: :func:`run` starts the service on free ports with a real disk, calls a scenario once
everything listens, and ends the reactor, which can run only once in a process. The scenario uses
the broker's methods, as the wire formats do. Afterwards the broker stops cleanly, or leaves its
data directory as a crash would, as the scenario's ``leave`` says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.twisted import MetricsResource
from twisted.internet.defer import Deferred
from twisted.logger import globalLogBeginner

from brokerd.broker import Broker
from brokerd.server.assembly import BrokerCore, make_core
from brokerd.server.config import Setting, load
from brokerd.server.logs import make_observer
from brokerd.server.process_exit import ProcessExit
from brokerd.tap import assemble, use_monotonic_clock

Result = TypeVar("Result")

_POLL_SECONDS = 0.002
_LOOPBACK = "tcp:0:interface=127.0.0.1"


class InsideFailed(Exception):
    """The broker did not start; the message has its output."""


class Inside:
    """The running broker and its reactor."""

    def __init__(self, reactor: Any, core: BrokerCore, addresses: dict[str, str]) -> None:
        self.reactor = reactor
        self.broker: Broker = core.broker
        self.address = addresses["mamamia"]
        self.admin = addresses["admin"]
        self.start_processor_seconds = 0.0
        """Processor time of the start, all threads."""
        self.leave = False
        """Whether to leave the data directory as a crash would, without a clean stop."""

    def sleep(self, seconds: float = 0.0) -> Deferred[None]:
        """Return a Deferred that fires after at least ``seconds`` of reactor turns."""
        slept: Deferred[None] = Deferred()
        self.reactor.callLater(seconds, slept.callback, None)
        return slept

    def uncongested(self) -> Deferred[None]:
        """Return a Deferred that fires when a call that raised ``Congested`` may be repeated."""
        free: Deferred[None] = Deferred()
        self.broker.group_commit.when_uncongested(lambda: free.callback(None))
        return free

    def durable(self) -> Deferred[None]:
        """Return a Deferred that fires when all earlier changes are durable."""
        group_commit = self.broker.group_commit
        ticket = group_commit.ticket()
        done: Deferred[None] = Deferred()
        if ticket <= group_commit.durable_ticket:
            done.callback(None)
        else:
            group_commit.when_durable(ticket, lambda: done.callback(None))
        return done


def run(
    data_dir: Path,
    settings: Sequence[str],
    scenario: Callable[[Inside, float], Awaitable[Result]],
) -> tuple[Result, float]:
    """Start a broker, run ``scenario(inside, start_seconds)``, end the broker.

    The start is timed from the lock to readiness, replay included.

    :return: the scenario's result, and the duration of the stop in seconds.
    :raises InsideFailed: the broker does not start.
    """
    from twisted.internet import reactor

    use_monotonic_clock(reactor)
    with (data_dir.parent / f"{data_dir.name}.log").open("a") as log:
        # Comes before anything else; otherwise the first events go to stderr.
        globalLogBeginner.beginLoggingTo(
            [make_observer(log, "text", "info")], redirectStandardIO=False
        )
        return _Run(reactor, data_dir, settings, scenario).go()


class _Run:
    def __init__(self, reactor: Any, data_dir: Path, settings: Sequence[str], scenario: Any):
        self._reactor = reactor
        self._scenario = scenario
        self._listeners = data_dir / "run" / "listeners.json"
        self._cores: list[BrokerCore] = []
        named = [
            Setting("data_dir", str(data_dir), "benchmark", True),
            Setting("admin.endpoint", _LOOPBACK, "benchmark", True),
        ]
        config = load(None, {}, settings, [f"mamamia={_LOOPBACK}"], named).config
        self._service = assemble(
            config, {}, reactor, self._make_core, MetricsResource, ProcessExit(lambda leave: None)
        )
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._start_seconds = self._stop_seconds = 0.0

    def _make_core(self, config: Any, data_dir: Path, reactor: Any) -> BrokerCore:
        self._cores.append(make_core(config, data_dir, reactor))
        return self._cores[0]

    def go(self) -> Any:
        self._listeners.unlink(missing_ok=True)
        self._began, self._processor = time.monotonic(), time.process_time()
        self._service.startService()
        self._reactor.callWhenRunning(self._wait)
        self._reactor.addSystemEventTrigger("before", "shutdown", self._stop)
        self._reactor.run(installSignalHandlers=False)
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise InsideFailed(str(self._service.status()["reason"]))
        return self._outcome[0], self._stop_seconds

    def _wait(self) -> None:
        if not self._listeners.exists():
            self._reactor.callLater(_POLL_SECONDS, self._wait)
            return
        self._start_seconds = time.monotonic() - self._began
        self._processor = time.process_time() - self._processor
        Deferred.fromCoroutine(self._play()).addErrback(self._failed)

    async def _play(self) -> None:
        status = self._service.status()
        inside = Inside(self._reactor, self._cores[0], status["listeners"])
        inside.start_processor_seconds = self._processor
        self._outcome = (await self._scenario(inside, self._start_seconds),)
        self._leave = inside.leave
        self._reactor.stop()

    _leave = False

    def _failed(self, failure: Any) -> None:
        self._error = failure.value
        self._leave = True
        self._reactor.stop()

    def _stop(self) -> Deferred[None] | None:
        began = time.monotonic()
        if self._leave:
            self._cores[0].abandon()
            return None

        def stopped(_: object) -> None:
            self._stop_seconds = time.monotonic() - began

        return self._service.stopService().addCallback(stopped)


def rss_bytes(field: str = "VmRSS") -> int:
    """Return resident memory of this process: ``VmRSS`` now, ``VmHWM`` at its peak."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise InsideFailed(f"/proc has no {field}")
