"""A broker with its service and its admin site in memory, as an operator sees it.

watched = Watched(tmp_path)
watched.pass_time(1)              # the conditions are checked every second
watched.seen()                    # what health, metrics, page and log say of conditions
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport
from twisted.logger import LogEvent, Logger, capturedLogs
from twisted.web.resource import Resource

from brokerd import __version__
from brokerd.admin.health import Health
from brokerd.admin.site import make_site
from brokerd.archive.contract.view import Archive
from brokerd.server.assembly import BrokerCore
from brokerd.server.compiled import is_compiled
from brokerd.server.config import Config
from brokerd.server.notify import Notifier
from brokerd.server.process_exit import ProcessExit
from brokerd.server.service import BrokerdService
from simulator.machine.bare import DATA_DIR
from simulator.machine.disk import SimDisk
from tests.corehouse import HandHost
from tests.house import Client

PAGE = Path(__file__).resolve().parent.parent / "brokerd" / "admin" / "static" / "page.js"
NODE = shutil.which("node")

_BROWSER = """{
const made = {};
const element = () => ({ textContent: "", className: "", hidden: false, children: [],
  replaceChildren(...all) { this.children = all; },
  insertRow() { return element(); }, insertCell() { return element(); } });
globalThis.document = { getElementById: (id) => (made[id] ??= element()), createElement: element };
globalThis.fetch = async () => ({ json: async () => JSON.parse(process.argv[1]) });
globalThis.setTimeout = () => {
  const items = (made.conditions?.children ?? []).map((item) => item.textContent);
  console.log(JSON.stringify([made.phase.textContent, (made.damage?.hidden ?? true) ? [] : items]));
};
}
"""


class Seen(NamedTuple):
    """What an operator sees."""

    ready: int
    """Status code of ``/health/ready``."""
    health: list[str]
    metrics: list[str]
    status: list[str]
    """The conditions of ``/api/v1/status``, which the page shows."""


class Printed(Resource):
    """Prints a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def render_GET(self, request: Any) -> bytes:
        return generate_latest(self._registry)


class Watched:
    """One run of a broker, from its service to its disk."""

    def __init__(
        self,
        directory: Path,
        config: Config | None = None,
        disk: SimDisk | None = None,
        open_archive: Callable[[str], Archive] | None = None,
    ) -> None:
        self.disk = disk or SimDisk()
        self.host = HandHost(self.disk)
        self.clock = self.host.reactor
        if open_archive is not None:
            self.host.open_archive = lambda place, log_id: open_archive(log_id)
        self.core = BrokerCore(config or Config(), Path(DATA_DIR), self.host)
        self.broker = self.core.broker
        self.wal = self.core._wal
        self.health = Health()
        log = Logger()
        self.service = BrokerdService(
            self.clock,
            directory,
            self.core,
            [],
            self.health,
            ProcessExit(at_exit=lambda leave: None),
            Notifier({}, log),
            log,
            {"version": __version__, "compiled": is_compiled()},
        )
        self.site = make_site(
            self.service.status, self.core.api(), self.health, Printed, self.clock, log
        )
        self.service.startService()
        self.run()

    def turn(self) -> None:
        """End the turn of the reactor; the threads do nothing."""
        self.clock.advance(0)

    def run(self) -> None:
        """Run until no work is left for now."""
        self.clock.advance(0)
        while any([threads.step() for threads in self.host.at_work]):
            self.clock.advance(0)

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Advance both clocks and run the work that becomes due."""
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            self.run()
            seconds -= step

    def connect(self) -> Client:
        """Return a new Mamamia connection."""
        return Client(self.core.factory("mamamia"), self.clock)

    def get(self, path: str) -> tuple[int, str]:
        """Return status code and body of a page of the admin site."""
        wire = StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 4000))
        channel: Any = self.site.buildProtocol(None)
        channel.makeConnection(wire)
        channel.dataReceived(f"GET {path} HTTP/1.0\r\nhost: here\r\n\r\n".encode())
        head, _, body = wire.value().partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def seen(self) -> Seen:
        """Return the conditions that an operator sees."""
        ready, health = self.get("/health/ready")
        status = json.loads(self.get("/api/v1/status")[1])
        gauges = re.findall(
            r'^brokerd_condition\{condition="([\w-]+)"\} 1\.0$', self.get("/metrics")[1], re.M
        )
        return Seen(
            ready,
            json.loads(health).get("conditions", []),
            gauges,
            [name for name, reason in status["conditions"].items() if reason],
        )

    def page(self) -> tuple[str, list[str]]:
        """Return the phase and the listed conditions of the page, run by Node.js."""
        assert NODE is not None
        program = _BROWSER + PAGE.read_text()
        status = self.get("/api/v1/status")[1]
        done = subprocess.run(
            [NODE, "-e", program, status], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        phase, items = json.loads(done.stdout)
        return phase, items


@contextmanager
def logged() -> Iterator[list[LogEvent]]:
    """Collect the events of the log."""
    with capturedLogs() as events:
        yield events


def began(events: list[LogEvent]) -> list[str]:
    """Return the conditions whose beginning was logged."""
    return [one["condition"] for one in events if one.get("event_id") == "condition-began"]


def ended(events: list[LogEvent]) -> list[str]:
    """Return the conditions whose end was logged."""
    return [one["condition"] for one in events if one.get("event_id") == "condition-ended"]
