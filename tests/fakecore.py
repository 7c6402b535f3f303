"""A core without a journal, for tests of the code around it.

Run as a program it is ``twistd`` with this core in the place of the real one. ``FAKE_CORE`` in the
environment names a fault: a method and an error. ``open:StorageFailed`` fails the open,
``serve:StorageFailed`` fails after the start, and ``open:never`` never ends the replay.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.protocol import Factory, Protocol

from brokerd import errors
from brokerd.admin.calls import configuration
from brokerd.admin.conditions import Condition
from brokerd.admin.http.authentication import Authenticator
from brokerd.admin.http.routing import Api
from brokerd.broker.slices import SliceQueue
from brokerd.security import OPEN_GUARD
from brokerd.server.config import Config

SERVES_SECONDS = 0.2


class Echo(Protocol):
    def dataReceived(self, data: bytes) -> None:
        self.transport.write(data)


class FakeCore:
    """Keeps the order of its calls in ``calls``; ``trouble`` maps a method to its error."""

    def __init__(self, config: Config, data_dir: Path, reactor: Any, trouble: Any = None) -> None:
        self.calls: list[str] = []
        self.trouble: dict[str, Any] = trouble or {}
        self.on_fatal: Any = None
        self.reactor = reactor

    def _call(self, name: str) -> Deferred[None]:
        self.calls.append(name)
        trouble = self.trouble.get(name)
        if isinstance(trouble, Deferred):
            return trouble
        return fail(trouble) if trouble else succeed(None)

    def lock(self) -> None:
        self.calls.append("lock")
        if "lock" in self.trouble:
            raise self.trouble["lock"]

    def open(self) -> Deferred[None]:
        if "serve" in self.trouble:
            self.reactor.callLater(SERVES_SECONDS, self.on_fatal, self.trouble["serve"])
        return self._call("open")

    def factory(self, form: str) -> Factory:
        self.calls.append(f"factory {form}")
        return Factory.forProtocol(Echo)

    def fail(self, what: str, error: Exception) -> None:
        self.on_fatal(error)

    def drain(self) -> Deferred[None]:
        return self._call("drain")

    def close(self) -> Deferred[None]:
        return self._call("close")

    def abandon(self) -> None:
        self.calls.append("abandon")

    def status(self) -> dict[str, Any]:
        return {"topics": 2, "records_produced": {"mamamia": 7}}

    def conditions(self) -> list[Condition]:
        return [Condition("log-damaged", lambda: str(self.trouble.get("degraded", "")))]

    def measure(self) -> None: ...

    def reconfigure(self, config: Config) -> None:
        self.calls.append("reconfigure")

    def commit_seconds(self) -> float:
        return float(self.trouble.get("commit_seconds", 0))

    def api(self) -> Api:
        broker: Any = types.SimpleNamespace(ready=True, slices=SliceQueue(self.reactor))
        return Api(broker, configuration.ROUTES, Authenticator(OPEN_GUARD, lambda: 0.0, bytes(32)))


def _from_environment(config: Config, data_dir: Path, reactor: Any) -> FakeCore:
    method, _, name = os.environ.get("FAKE_CORE", "").partition(":")
    if not method:
        return FakeCore(config, data_dir, reactor)
    if name == "never":
        return FakeCore(config, data_dir, reactor, {method: Deferred()})
    error = getattr(errors, name, RuntimeError)
    return FakeCore(config, data_dir, reactor, {method: error(f"{name} as asked for")})


if __name__ == "__main__":
    sys.modules["brokerd.server.assembly"] = types.SimpleNamespace(make_core=_from_environment)  # type: ignore[assignment]
    from twisted.scripts.twistd import run

    run()
