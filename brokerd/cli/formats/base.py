# Tests: tests/test_bench_formats.py
"""Values that a measurement and a format exchange, and what every format does to make ready."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from brokerd.cli.credentials import Credentials
from brokerd.cli.formats.connect_options import PLAIN, ConnectOptions, connect
from brokerd.cli.scenarios import Role
from brokerd.client import addresses
from brokerd.errors import ConfigError

PROBE_SECONDS = 5.0
"""How long a broker may take to answer its first request."""
FILL_WINDOW = 1000
FILL_SILENCE_SECONDS = 60.0
READ_BYTES = 1 << 18


class BenchFailed(Exception):
    """The load could not be made; the message says why."""


@dataclass(frozen=True)
class LoadSpec:
    """What one worker is to do; every field is plain, so that it travels as JSON."""

    scenario: str
    address: str
    """``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    connections: int
    window: int
    """Requests in flight on each connection."""
    size: int
    """Payload bytes."""
    seconds: float
    log: str
    group: str
    """The consumer group, or BlipMQ's subscription id."""
    worker: str
    """Makes the client ids of this worker its own."""
    batch: int = 100
    """Messages in one request of the batch scenarios."""
    lease_seconds: float = 60.0
    format: str = "mamamia"
    records: int = 0
    """Records that the topic has to read, where the scenario reads by offset."""
    connection: ConnectOptions = PLAIN


class TargetSpec(NamedTuple):
    """What the ground is made ready for."""

    scenario: str
    address: str
    log: str
    """The topic's name."""
    size: int
    batch: int
    backlog: int
    """Messages to put there first, if the scenario consumes."""
    connection: ConnectOptions = PLAIN


class LoadTarget(NamedTuple):
    """What was made ready; fields as of `LoadSpec`."""

    log: str
    group: str = "bench"
    records: int = 0


class BenchFormat(Protocol):
    """What the load generator must know of a wire format."""

    port: int
    """Where it listens unless configured."""
    scenarios: tuple[str, ...]
    batched: tuple[str, ...]
    """Scenarios whose requests carry, or ask for, many messages."""

    def consumes(self, scenario: str) -> bool:
        """Whether a scenario works on a backlog."""

    def prepare(self, target: TargetSpec) -> LoadTarget:
        """Make sure that a broker answers in this format, and make ready what is wanted.

        :raises BenchFailed: there is none, or it refuses.
        """

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Say and hear on a new connection, which blocks, what comes before the first request.

        :raises OSError: the broker lets nobody in so.
        """

    def role(self, spec: LoadSpec, number: int) -> Role:
        """The role of connection ``number`` of a worker."""


def parse_address(address: str) -> tuple[int, str | tuple[str, int]]:
    """Split ``host:port``, ``[v6]:port`` or ``unix:PATH`` into a socket family and its address.

    :raises ValueError: naming the address and the forms that are understood.
    """
    found = addresses.parse_address(address)
    if found.path is not None:
        return socket.AF_UNIX, found.path
    family = socket.AF_INET6 if ":" in found.host else socket.AF_INET
    return family, (found.host, found.port)


def fill_window(backlog: int, batch: int = 1) -> int:
    """How many requests of ``batch`` messages a backlog is made with: no more than it needs."""
    return max(1, min(FILL_WINDOW // (64 if batch > 1 else 1), -(-backlog // batch)))


def pump(
    target: TargetSpec, open_connection: Callable[[socket.socket, Credentials], None], role: Role
) -> int:
    """Let a role produce the backlog, or a little more; how many messages it were.

    :raises BenchFailed: when the broker is not there, refuses, or stops answering.
    """
    address = target.address
    try:
        with connect(address, target.connection) as sock:
            sock.settimeout(FILL_SILENCE_SECONDS)
            open_connection(sock, target.connection.credentials)
            _pump(sock, role, target.backlog)
    except (OSError, ValueError, ConfigError) as error:
        raise BenchFailed(f"{address}: {error}") from error
    if role.tally.errors:
        raise BenchFailed(f"{address}: refused the backlog: {role.tally.example}")
    return role.tally.produced


def _pump(sock: socket.socket, role: Role, messages: int) -> None:
    data, due = role.first()
    inbox = b""
    while due and not role.tally.errors:
        sock.sendall(data)
        part = sock.recv(READ_BYTES)
        if not part:
            raise OSError("the connection ended during the backlog")
        inbox += part
        step = role.answers(inbox)
        inbox = inbox[step.consumed :]
        if role.tally.produced >= messages:
            role.stop()
        data = step.reply
        due += step.replies - step.answers
