# Tests: tests/test_bench.py
"""A worker process of the load generator: many non-blocking connections.

:func:`run` keeps the window of every connection full from ``begin`` until ``seconds`` later. Then
    it sends no more requests and waits a bounded time for the answers still due. Only answers
    between ``begin`` and ``begin + seconds`` count for rate and latency; earlier ones are warm-up.
    If no message was counted by then, counting goes on until the first one, at most a minute. The
    rate of a broker whose disk stalls for longer than ``seconds`` is low then, and not zero.
    Latency is measured per request: from the write that sent it to the read that brought its
    answer.

With ``rate``, requests are due at fixed times, and latency begins when a request is due. So a stall
    of the broker counts for each request that fell due meanwhile. Without that, the stall would
    count once ("coordinated omission": Gil Tene, How NOT to Measure Latency).

:mod:`brokerd.cli.bench.measure` starts ``python -m brokerd.cli.bench.load``. The process reads a
    `LoadSpec` as one line of JSON, connects, and prints ``ready``. It reads the time to begin
    (system-wide monotonic seconds), runs, and prints its :class:`LoadResult` as one line of JSON.
"""

from __future__ import annotations

import json
import math
import selectors
import socket
import ssl
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from brokerd.cli.bench.formats import FORMATS, BenchFormat, LoadSpec
from brokerd.cli.bench.formats.connect_options import PLAIN, ConnectOptions, connect_options_of
from brokerd.cli.bench.formats.connect_options import connect as open_connection
from brokerd.cli.bench.scenarios import Role

_READ_BYTES = 1 << 18
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_DRAIN_SECONDS = 10.0
_FIRST_SECONDS = 60.0


@dataclass
class LoadResult:
    """Counts and latencies of one worker; :func:`merge` adds up several."""

    produced: int = 0
    settled: int = 0
    consumed: int = 0
    requests: int = 0
    empty: int = 0
    errors: int = 0
    example: str = ""
    """Text of the first error answer."""
    seconds: float = 0.0
    """Duration from ``begin`` to the last counted answer."""
    latency_us: Counter[int] = field(default_factory=Counter)
    """Requests by latency, rounded up to three significant digits."""


class _Connection:
    """A non-blocking socket, its role, and its requests in flight."""

    __slots__ = ("answered", "asked", "inbox", "marks", "outbox", "role", "sock")

    def __init__(self, sock: socket.socket, role: Role) -> None:
        self.sock = sock
        self.role = role
        self.inbox = b""
        self.outbox: bytes | memoryview = b""
        self.asked = 0
        self.answered = 0
        self.marks: deque[tuple[int, float]] = deque()
        """(requests asked so far, when) for each write, oldest first."""

    def ask(self, data: bytes | memoryview, requests: int, now: float) -> bool:
        """Send requests; return whether the socket took everything."""
        self.asked += requests
        self.marks.append((self.asked, now))
        if self.outbox:
            self.outbox = bytes(self.outbox) + bytes(data)
            return False
        self.outbox = data
        return self.flush()

    def flush(self) -> bool:
        try:
            sent = self.sock.send(self.outbox)
        except _NOT_NOW:
            return False
        self.outbox = memoryview(self.outbox)[sent:] if sent < len(self.outbox) else b""
        return not self.outbox


def connect(
    address: str, bench_format: BenchFormat, connection: ConnectOptions = PLAIN
) -> socket.socket:
    """Open a connection, send the format's first requests, and make it non-blocking.

    :raises OSError: when the broker refuses the connection or the login.
    :raises ValueError: when the address has no known form.
    """
    sock = open_connection(address, connection)
    bench_format.open(sock, connection.credentials)
    sock.setblocking(False)
    return sock


def run(
    spec: LoadSpec,
    sockets: Iterable[socket.socket],
    begin: float,
    drain_seconds: float = _DRAIN_SECONDS,
    first_seconds: float = _FIRST_SECONDS,
) -> LoadResult:
    """Run the load of ``spec`` and return its result.

    :param begin: system-wide monotonic seconds at which counting starts; the load starts now.
    :param drain_seconds: longest wait for answers that are due at the end.
    :param first_seconds: how much longer counting goes on while no message was counted.
    """
    role = FORMATS[spec.format].role
    load = _Load([_Connection(s, role(spec, n)) for n, s in enumerate(sockets)], spec.rate)
    load.start()
    load.turn(begin, lambda: False)
    counted = load.begin_counting()
    load.turn(begin + spec.seconds, load.is_idle)
    load.turn(time.monotonic() + first_seconds, lambda: load.is_idle() or load.has_more(counted))
    result = load.result(counted)
    load.stop()
    load.turn(time.monotonic() + drain_seconds, load.is_idle)
    return result


class _Load:
    """The loop over all connections of a worker."""

    def __init__(self, connections: list[_Connection], rate: float = 0.0) -> None:
        self._connections = connections
        self._interval_seconds = 1 / rate if rate else 0.0
        self._due_at = 0.0
        """When the next request is due, if there is a rate."""
        self._ready: deque[tuple[_Connection, bytes | memoryview, int]] = deque()
        """Connections without a request in flight, and their next requests."""
        self._selector = selectors.DefaultSelector()
        self._latency_us: Counter[int] = Counter()
        self._lost = 0
        self._due = 0
        self._last_answer = self._began = time.monotonic()

    def start(self) -> None:
        self._due_at = time.monotonic()
        for connection in self._connections:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
            data, requests = connection.role.first()
            try:
                self._ask(connection, data, requests, time.monotonic())
            except OSError as error:
                self._lose(connection, str(error))

    def stop(self) -> None:
        self._ready.clear()
        for connection in self._connections:
            connection.role.stop()

    def is_idle(self) -> bool:
        return self._due == 0 and not self._ready

    def begin_counting(self) -> LoadResult:
        """Clear the latencies of the warm-up; return its counts, to be subtracted at the end."""
        warm_up = self._sum()
        self._latency_us.clear()
        self._began = self._last_answer = time.monotonic()
        return warm_up

    def has_more(self, warm_up: LoadResult) -> bool:
        """Return whether a message or an error was counted since the warm-up."""
        total = self._sum()
        return any(
            getattr(total, name) > getattr(warm_up, name)
            for name in ("produced", "settled", "consumed", "errors")
        )

    def result(self, warm_up: LoadResult) -> LoadResult:
        total = self._sum()
        total.seconds = self._last_answer - self._began
        total.produced -= warm_up.produced
        total.settled -= warm_up.settled
        total.consumed -= warm_up.consumed
        total.empty -= warm_up.empty
        total.requests = self._latency_us.total()
        total.latency_us = Counter(self._latency_us)
        return total

    def _sum(self) -> LoadResult:
        total = LoadResult(errors=self._lost)
        for tally in (connection.role.tally for connection in self._connections):
            total.produced += tally.produced
            total.settled += tally.settled
            total.consumed += tally.consumed
            total.empty += tally.empty
            total.errors += tally.errors
            total.example = total.example or tally.example
        return total

    def turn(self, until: float, is_done: Callable[[], bool]) -> None:
        """Serve the sockets until a moment of monotonic seconds, or until ``is_done()``."""
        while (now := time.monotonic()) < until and not is_done():
            wait_until = until
            if self._ready:
                self._ask_due(now)
                wait_until = min(until, self._due_at) if self._ready else until
            for key, events in self._selector.select(max(0.0, wait_until - now)):
                connection: _Connection = key.data
                try:
                    if events & selectors.EVENT_WRITE and connection.flush():
                        self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
                    if events & selectors.EVENT_READ:
                        self._read(connection)
                except OSError as error:
                    self._lose(connection, str(error))

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except _NOT_NOW:  # an incomplete TLS record
            return
        now = time.monotonic()
        if not data:
            self._lose(connection, "the broker closed the connection")
            return
        if connection.inbox:
            data = connection.inbox + data
        step = connection.role.answers(data)
        connection.inbox = data[step.consumed :]
        if step.answers:
            self._due -= step.answers
            self._last_answer = now
            self._sample(connection, step.answers, now)
        if step.replies:
            self._ask(connection, step.reply, step.replies, now)

    def _ask_due(self, now: float) -> None:
        """Send the requests that are due, while connections are ready."""
        while self._ready and self._due_at <= now:
            connection, data, requests = self._ready.popleft()
            due_at, self._due_at = self._due_at, self._due_at + self._interval_seconds
            try:
                self._send(connection, data, requests, due_at)
            except OSError as error:
                self._lose(connection, str(error))

    def _ask(
        self, connection: _Connection, data: bytes | memoryview, requests: int, now: float
    ) -> None:
        if self._interval_seconds:
            self._ready.append((connection, data, requests))
        else:
            self._send(connection, data, requests, now)

    def _send(
        self, connection: _Connection, data: bytes | memoryview, requests: int, since: float
    ) -> None:
        self._due += requests
        if not connection.ask(data, requests, since):
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(connection.sock, both, connection)

    def _sample(self, connection: _Connection, answers: int, now: float) -> None:
        answered = connection.answered
        goal = connection.answered = answered + answers
        marks = connection.marks
        while answered < goal:
            asked, when = marks[0]
            reached = min(asked, goal)
            self._latency_us[_rounded_us(now - when)] += reached - answered
            answered = reached
            if reached == asked:
                marks.popleft()

    def _lose(self, connection: _Connection, why: str) -> None:
        self._lost += 1
        self._ready = deque(one for one in self._ready if one[0] is not connection)
        self._due -= connection.asked - connection.answered
        connection.role.tally.example = connection.role.tally.example or why
        self._selector.unregister(connection.sock)
        connection.sock.close()


def _rounded_us(seconds: float) -> int:
    """Round up to three significant digits, so that a day of latencies stays a small table."""
    value = math.ceil(seconds * 1e6)
    step = 1
    while value >= 1000 * step:
        step *= 10
    return -(-value // step) * step


def merge(results: Iterable[LoadResult]) -> LoadResult:
    """Add up the results of several workers; ``seconds`` is the longest."""
    total = LoadResult()
    for result in results:
        total.produced += result.produced
        total.settled += result.settled
        total.consumed += result.consumed
        total.requests += result.requests
        total.empty += result.empty
        total.errors += result.errors
        total.example = total.example or result.example
        total.seconds = max(total.seconds, result.seconds)
        total.latency_us += result.latency_us
    return total


def percentile_ms(latency_us: Counter[int], share: float) -> float:
    """Return the latency that ``share`` (0..1) of the requests did not exceed; 0 without
    requests.
    """
    wanted = share * latency_us.total()
    seen = 0
    for value in sorted(latency_us):
        seen += latency_us[value]
        if seen >= wanted:
            return value / 1000
    return 0.0


def result_to_json(result: LoadResult) -> str:
    """Encode a result as one line of JSON."""
    return json.dumps(vars(result))


def result_from_json(line: str) -> LoadResult:
    """Decode the line that a worker process printed."""
    fields = json.loads(line)
    fields["latency_us"] = Counter({int(us): n for us, n in fields["latency_us"].items()})
    return LoadResult(**fields)


def main() -> None:
    """Run as a worker process: read the spec, print ``ready``, read the begin, print the result."""
    fields = json.loads(sys.stdin.readline())
    spec = LoadSpec(**fields | {"connection": connect_options_of(fields["connection"])})
    try:
        bench_format = FORMATS[spec.format]
        sockets = [
            connect(spec.address, bench_format, spec.connection) for _ in range(spec.connections)
        ]
    except OSError as error:
        sys.exit(str(error))
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    print(result_to_json(run(spec, sockets, begin)), flush=True)


if __name__ == "__main__":
    main()
