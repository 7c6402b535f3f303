# Tests: tests/simulator/test_clients.py
"""One connection of a client: it sends requests, and answers complete their operations.

A `Wire` holds the bytes of a format. An answer that does not fit its request raises `WrongAnswer`
and ends the run, because no oracle can judge later answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from brokerd.errors import BrokerdError
from simulator.clients.describe import asked, outcome
from simulator.clients.links import Connect
from simulator.history.operations import NEVER, History, Operation
from simulator.machine.world import World


class WrongAnswer(BrokerdError):
    """The broker sent bytes that break the format's rules."""


class RefusedGreeting(BrokerdError):
    """The login of the greeting has to wait, because other logins of its address failed."""


class Ask(NamedTuple):
    """A request of a format, and its operation in the history."""

    request: Any
    operation: Operation


class EncodedRequest(NamedTuple):
    """A request in bytes, and a probe after it that shows its result."""

    data: bytes
    probe: bytes = b""


class AnswerPart(NamedTuple):
    """A part of the bytes that the broker sent."""

    size: int
    """Bytes since the previous part."""
    done: int = 1
    """Number of the oldest requests that it completes, with their operations."""


class Wire(Protocol):
    """One connection in one format: requests to bytes, bytes to answers."""

    @property
    def greeting(self) -> bytes:
        """Return the bytes to send first. Answers to them complete no request."""

    def encode(self, asks: Sequence[Ask]) -> list[EncodedRequest]:
        """Encode requests that the client sends in one piece."""

    def feed(self, data: bytes) -> Iterator[AnswerPart]:
        """Take bytes; yield the parts that complete requests.

        Raises WrongAnswer for bytes that do not answer the request.
        """


class _Asked(NamedTuple):
    operation: Operation
    end: int
    """Position in the stream after the request's last byte."""


class Conversation:
    """A connection, opened at once. It ends with `hang_up` or with ``lost(why)``."""

    def __init__(
        self,
        name: str,
        world: World,
        connect: Connect,
        history: History,
        answered: Callable[[Operation], None],
        lost: Callable[[str], None],
        wire: Wire,
    ) -> None:
        self._name = name
        self._world = world
        self._history = history
        self._answered = answered
        self._lost = lost
        self._wire = wire
        self._in_flight: deque[_Asked] = deque()
        self._sent = len(wire.greeting)
        self._received = 0
        self.is_over = False
        self._link = connect()
        self._link.on_data = self._data
        self._link.on_lost = self._gone
        if wire.greeting:
            self._link.send(wire.greeting)

    @property
    def unanswered(self) -> list[Operation]:
        """Return the operations without an answer, in order."""
        return [asked.operation for asked in self._in_flight]

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def oldest_us(self) -> int:
        """Return the time at which the oldest request without an answer was sent, or NEVER."""
        return self._in_flight[0].operation.sent_us if self._in_flight else NEVER

    def ask(self, *asks: Ask) -> None:
        """Send requests in one piece, and add their operations to the history."""
        if not asks:
            return
        pieces: list[bytes] = []
        for (_, operation), sent in zip(asks, self._wire.encode(asks), strict=True):
            operation.number = len(self._history.operations)
            operation.sent_us = self._world.now_us
            operation.connection = self._link.number
            operation.boot = self._link.boot
            self._history.operations.append(operation)
            self._in_flight.append(_Asked(operation, self._sent + len(sent.data)))
            self._world.trace(f"{self._name} #{operation.number} {asked(operation)}")
            self._sent += len(sent.data) + len(sent.probe)
            pieces += sent
        self._link.send(b"".join(pieces))

    def hang_up(self) -> None:
        """Close the connection from this side."""
        if not self.is_over:
            self.is_over = True
            self._world.trace(f"{self._name} hangs up")
            self._link.close()
            self.note_arrivals()

    def note_arrivals(self) -> None:
        """Note the arrival times of requests without an answer.

        A request may arrive after the connection ended, so call this again at the end of the run.
        """
        for operation, end in self._in_flight:
            operation.boot = self._link.boot
            operation.arrived_us = self._link.arrived_us(end)
            operation.lost_us = self._link.lost_us

    def _gone(self, why: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._world.trace(f"{self._name} lost its connection: {why}")
            self.note_arrivals()
            self._lost(why)

    def _data(self, data: bytes) -> None:
        try:
            for size, done in self._wire.feed(data):
                if self.is_over:
                    return
                self._received += size
                for _ in range(done):
                    self._complete()
        except RefusedGreeting:
            self.hang_up()
            self._lost("the login failed")
        except WrongAnswer as error:
            raise WrongAnswer(f"{self._name} {error}") from error

    def _complete(self) -> None:
        """Complete the oldest request. Its operation holds the answer."""
        operation, end = self._in_flight.popleft()
        operation.boot = self._link.boot
        operation.arrived_us = self._link.arrived_us(end)
        operation.written_us = self._link.written_us(self._received)
        operation.answered_us = self._world.now_us
        self._world.trace(f"{self._name} #{operation.number} {outcome(operation)}")
        self._answered(operation)
