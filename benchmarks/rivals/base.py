# Tests: tests/test_compare.py
"""A broker to compare with: its program, its command line, and its load."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.cli.bench.formats import BenchFormat
from brokerd.cli.bench.formats.base import BenchFailed, LoadSpec, LoadTarget, TargetSpec, pump
from brokerd.cli.bench.formats.connect_options import connect
from brokerd.cli.bench.scenarios import Role, Step, Tally
from brokerd.cli.credentials import Credentials

PAIRS = "acquire-settle"
PRODUCE = "produce"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/lib/rabbitmq/bin:/usr/sbin:/sbin"
"""Directories of the servers. RabbitMQ's script comes before Debian's, which changes the user."""
_VERSION_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Rival:
    """A broker of another project."""

    name: str
    program: str
    """Name of its executable file."""
    package: str
    """The package of Debian that has it."""
    version_command: tuple[str, ...]
    """A command that prints the version and starts no server."""
    command: Callable[[str, Path, int], list[str]]
    """Return the command line of a server for (program, data directory, port of loopback)."""
    durability: Callable[[str], str]
    """Say in words when the answer to a produce is sent, for a version."""
    load: BenchFormat
    environment: Callable[[Path, int], Mapping[str, str]] = lambda directory, port: {}
    """Return the further variables of the server's process, of the same arguments."""
    helper: Callable[[int], list[str]] | None = None
    """Return the command line of a program that the server needs, for its port."""
    start_seconds: float = 20.0
    unlike: Mapping[str, str] = field(default_factory=dict)
    """By scenario, the difference of its requests to brokerd's."""

    def find(self) -> str | None:
        """Return the path of its program, or None if it is not installed."""
        return shutil.which(self.program, path=_PATH)

    def version(self) -> str:
        """Return its version, or "" if it does not tell."""
        program = shutil.which(self.version_command[0], path=_PATH)
        if program is None:
            return ""
        ran = subprocess.run(
            [program, *self.version_command[1:]],
            env={**os.environ, "ERL_FLAGS": "-start_epmd false"},  # a daemon of RabbitMQ's tools
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
        )
        found = re.search(r"\d+\.\d+(\.\d+)?", ran.stdout + ran.stderr)
        return "" if found is None else found[0]


class RivalLoad:
    """Base of the loads: a `BenchFormat` with one role for each scenario."""

    port = 0
    scenarios: tuple[str, ...] = (PRODUCE, PAIRS)
    batched: tuple[str, ...] = ()

    def consumes(self, scenario: str) -> bool:
        return scenario == PAIRS

    def prepare(self, target: TargetSpec) -> LoadTarget:
        try:
            with connect(target.address, target.connection) as sock:
                sock.settimeout(_ANSWER_SECONDS)
                self.open(sock, target.connection.credentials)
                self.make_topic(sock, target.topic)
        except OSError as error:
            raise BenchFailed(f"{target.address}: {error}") from error
        if self.consumes(target.scenario):
            spec = LoadSpec(
                PRODUCE, target.address, 1, 500, target.size, 1.0, target.topic, "bench", "fill"
            )
            pump(target, self.open, self.role(spec, 0))
        return LoadTarget(target.topic)

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Exchange the first messages of a connection."""

    def make_topic(self, sock: socket.socket, topic: str) -> None:
        """Make what the scenarios need. Raises OSError."""

    def role(self, spec: LoadSpec, number: int) -> Role:
        raise NotImplementedError


class PatternRole:
    """A role that recognises answers by one pattern of bytes.

    ``following`` gets each match and returns the next request, or None if there is no further one.
    ``prefix`` comes before the first request and has no answer. A match of the group ``ping`` is
    answered by ``pong``.
    """

    def __init__(
        self,
        request: bytes,
        window: int,
        pattern: re.Pattern[bytes],
        following: Callable[[re.Match[bytes], Tally], bytes | None],
        prefix: bytes = b"",
        pong: bytes = b"",
    ) -> None:
        self.tally = Tally()
        self._first = prefix + request * window
        self._window = window
        self._pong = pong
        self._match = pattern.match
        self._following = following
        self._stopped = False

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._first, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        found = requests = at = 0
        reply: list[bytes] = []
        while (match := self._match(data, at)) is not None:
            at = match.end()
            if match.lastgroup == "ping":  # no answer
                reply.append(self._pong)
                continue
            found += 1
            request = self._following(match, self.tally)
            if request is not None:
                reply.append(request)
                requests += 1
        if self._stopped:
            reply, requests = [], 0
        return Step(found, at, b"".join(reply), requests)


def producer(
    request: bytes,
    window: int,
    pattern: re.Pattern[bytes],
    prefix: bytes = b"",
    pong: bytes = b"",
) -> PatternRole:
    """Return a role that repeats a request. The group ``done`` of the pattern is a confirmation."""

    def following(match: re.Match[bytes], tally: Tally) -> bytes:
        if match["done"] is None:
            tally.refused(match[0])
        else:
            tally.produced += 1
        return request

    return PatternRole(request, window, pattern, following, prefix, pong)


def ask(sock: socket.socket, request: bytes, ends: bytes) -> bytes:
    """Send a request and return the bytes up to ``ends``. Raises OSError."""
    sock.sendall(request)
    answer = b""
    while not answer.endswith(ends):
        part = sock.recv(_READ_BYTES)
        if not part:
            raise OSError(f"the connection ended after {answer[-200:]!r}")
        answer += part
    return answer
