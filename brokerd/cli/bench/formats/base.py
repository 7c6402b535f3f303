# Tests: tests/test_bench_formats.py
"""The interface between a measurement and a wire format, and helpers of the formats."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from brokerd.cli.bench.formats.connect_options import PLAIN, ConnectOptions, connect
from brokerd.cli.bench.scenarios import Role
from brokerd.cli.credentials import Credentials
from brokerd.client import addresses
from brokerd.errors import ConfigError

PROBE_SECONDS = 30.0
"""Longest wait for the answer to the first request. Most formats make a topic with it, on a disk
that may be busy.
"""
FILL_WINDOW = 1000
FILL_SILENCE_SECONDS = 60.0
READ_BYTES = 1 << 18


class BenchFailed(Exception):
    """The load could not run; the message says why."""


@dataclass(frozen=True)
class LoadSpec:
    """The task of one worker; every field has a JSON type."""

    scenario: str
    address: str
    """``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    connections: int
    window: int
    """Requests in flight on each connection."""
    size: int
    """Payload bytes."""
    seconds: float
    topic: str
    group: str
    """The consumer group, or BlipMQ's subscription id."""
    worker: str
    """Prefix of the client ids of this worker."""
    batch: int = 100
    """Messages in one request of the batch scenarios."""
    lease_seconds: float = 60.0
    format: str = "mamamia"
    records: int = 0
    """Number of records in the topic, if the scenario reads by offset."""
    connection: ConnectOptions = PLAIN
    rate: float = 0.0
    """Requests a second of this worker; 0: as fast as the answers come."""


class TargetSpec(NamedTuple):
    """The topic and the backlog to prepare."""

    scenario: str
    address: str
    topic: str
    """The topic's name."""
    size: int
    batch: int
    backlog: int
    """Messages to produce first, if the scenario consumes."""
    connection: ConnectOptions = PLAIN


class LoadTarget(NamedTuple):
    """The prepared topic; fields as of `LoadSpec`."""

    topic: str
    group: str = "bench"
    records: int = 0


class BenchFormat(Protocol):
    """A wire format of the load generator."""

    port: int
    """Default address."""
    scenarios: tuple[str, ...]
    batched: tuple[str, ...]
    """Scenarios with several messages in a request."""

    def consumes(self, scenario: str) -> bool:
        """Return whether a scenario needs a backlog."""

    def prepare(self, target: TargetSpec) -> LoadTarget:
        """Check that a broker answers in this format; make the topic and the backlog.

        :raises BenchFailed: when no broker answers, or the broker refuses.
        """

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Exchange the first messages of a new, blocking connection.

        :raises OSError: when the broker refuses the login.
        """

    def role(self, spec: LoadSpec, number: int) -> Role:
        """Make the role of connection ``number`` of a worker."""


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
    """Return the number of requests in flight for a backlog, with ``batch`` messages each."""
    return max(1, min(FILL_WINDOW // (64 if batch > 1 else 1), -(-backlog // batch)))


def pump(
    target: TargetSpec, open_connection: Callable[[socket.socket, Credentials], None], role: Role
) -> int:
    """Let a role produce the backlog; return the number of messages, which may be a little larger.

    :raises BenchFailed: when no broker answers, or the broker refuses.
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
