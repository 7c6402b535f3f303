# Tests: tests/sim/test_clients.py
"""One connection of a Mamamia client: requests go out, answers complete the operations asked.

Answers are paired with requests by order, as the format says. An answer that is not one to its
request is the broker's fault, and no oracle could make sense of what comes after it: `WrongAnswer`
ends the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.packing import pack
from brokerd.errors import BrokerdError
from brokerd.sim.clients.describe import asked, outcome
from brokerd.sim.clients.links import Connect
from brokerd.sim.history import (
    NEVER,
    Acquire,
    Cancel,
    Delivery,
    Extend,
    GroupView,
    History,
    Look,
    Operation,
    Place,
    Produce,
    Release,
    Settle,
)
from brokerd.sim.world import World

HEADER_BYTES = 6


class WrongAnswer(BrokerdError):
    """The broker broke the wire's rules."""


class Ask(NamedTuple):
    """A request and the operation that it is in the history."""

    request: mm.Request
    operation: Operation


class _Asked(NamedTuple):
    operation: Operation
    command: int
    end: int
    """Position in the stream after the request's last byte."""


class Conversation:
    """A connection of its own, begun at once. Ends with `hang_up` or with ``lost(why)``."""

    def __init__(
        self,
        name: str,
        world: World,
        connect: Connect,
        history: History,
        answered: Callable[[Operation], None],
        lost: Callable[[str], None],
    ) -> None:
        self._name = name
        self._world = world
        self._history = history
        self._answered = answered
        self._lost = lost
        self._reader = mm.FrameReader()
        self._in_flight: deque[_Asked] = deque()
        self._number = NEVER
        """The connection's, in the history: that of its first operation."""
        self._sent = 0
        self._received = 0
        self.is_over = False
        self._link = connect()
        self._link.on_data = self._data
        self._link.on_lost = self._gone

    @property
    def unanswered(self) -> list[Operation]:
        """What waits for an answer, or will never have one; in order."""
        return [asked.operation for asked in self._in_flight]

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def oldest_us(self) -> int:
        """When the oldest request without an answer was sent, or NEVER."""
        return self._in_flight[0].operation.sent_us if self._in_flight else NEVER

    def ask(self, *asks: Ask) -> None:
        """Send requests in one piece, and add their operations to the history."""
        if not asks:
            return
        pieces: list[bytes] = []
        for request, operation in asks:
            data = mm.encode_request(request)
            self._sent += len(data)
            operation.number = len(self._history.operations)
            operation.sent_us = self._world.now_us
            if self._number == NEVER:
                self._number = operation.number
            operation.connection = self._number
            operation.boot = self._link.boot
            self._history.operations.append(operation)
            self._in_flight.append(_Asked(operation, mm.COMMANDS[type(request)], self._sent))
            self._world.trace(f"{self._name} #{operation.number} {asked(operation)}")
            pieces.append(data)
        self._link.send(b"".join(pieces))

    def hang_up(self) -> None:
        """End it from this side."""
        if not self.is_over:
            self.is_over = True
            self._world.trace(f"{self._name} hangs up")
            self._link.close()
            self.note_arrivals()

    def note_arrivals(self) -> None:
        """Note when requests arrived that were never answered.

        Some may arrive after the end of the connection: ask again at the end of the run.
        """
        for operation, _, end in self._in_flight:
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
        for command, body in self._reader.feed(data):
            if self.is_over:
                return
            self._received += HEADER_BYTES + len(body)
            self._answer(command, body)
        if self._reader.error is not None:
            raise WrongAnswer(f"{self._name} was sent a broken frame: {self._reader.error}")

    def _answer(self, command: int, body: bytes) -> None:
        if not self._in_flight:
            raise WrongAnswer(f"{self._name} was sent an answer to nothing: command {command}")
        operation, expected, end = self._in_flight.popleft()
        where = f"{self._name} #{operation.number} ({asked(operation)})"
        if command != expected:
            raise WrongAnswer(f"{where} was answered with command {command}")
        try:
            complete(operation, mm.decode_response(command, body))
        except mm.BodyError as error:
            raise WrongAnswer(f"{where}: {error}") from error
        operation.boot = self._link.boot
        operation.arrived_us = self._link.arrived_us(end)
        operation.written_us = self._link.written_us(self._received)
        operation.answered_us = self._world.now_us
        self._world.trace(f"{self._name} #{operation.number} {outcome(operation)}")
        self._answered(operation)


def place_of(message_id: int) -> Place:
    return Place(*mm.split_message_id(message_id))


def microseconds(seconds: float) -> int:
    """What the broker makes of a number of seconds."""
    return int(seconds * 1_000_000)


def packed(metadata: Mapping[str | bytes, Any] | None) -> bytes | None:
    """Metadata as the history has it, and as it stands in a request."""
    return None if metadata is None else pack(metadata)


def complete(operation: Operation, answer: mm.Answer) -> None:
    """Put what an answer tells into its operation.

    Raises WrongAnswer when it does not answer what was asked.
    """
    match operation, answer:
        case _, mm.Failed(text=text):
            operation.error = text or "no reason given"
        case Produce(messages=[_]), mm.Produced(message_id=message_id):
            operation.places = (place_of(message_id),)
        case Produce(messages=[_]), mm.Scheduled(schedule_id=schedule_id):
            operation.places, operation.schedules = (None,), (schedule_id,)
        case Produce(), mm.ProducedBatch() if len(answer.message_ids) == len(operation.messages):
            _produced(operation, answer)
        case Acquire(), mm.Acquired(message=None):
            operation.deliveries = ()
        case Acquire(), mm.Acquired(message=mm.Message() as message):
            if message.log_id != operation.topic:
                raise WrongAnswer(f"a message of {message.log_id!r} came from {operation.topic!r}")
            operation.deliveries = (_delivery(message),)
        case Acquire(), mm.AcquiredBatch(messages=messages) if len(messages) <= operation.limit:
            operation.deliveries = tuple(map(_batch_delivery, messages))
        case Settle(), mm.Settled():
            operation.results = ("",)
        case Settle(), mm.SettledBatch(results=results) if len(results) == len(
            operation.settlements
        ):
            operation.results = tuple("" if text == mm.SETTLED else text for text in results)
        case Release(), mm.Released(released=released):
            operation.released = released
        case Cancel(), mm.Cancelled(cancelled=cancelled):
            operation.cancelled = cancelled
        case Extend(), mm.Extended(remaining=remaining):
            operation.remaining_us = round(remaining * 1_000_000)
        case Look(), mm.GroupState():
            operation.view = GroupView(*(getattr(answer, name) for name in GroupView._fields))
        case _:
            raise WrongAnswer(f"{asked(operation)} was answered with {answer!r:.200}")


def _produced(operation: Produce, answer: mm.ProducedBatch) -> None:
    """Where each message of a batch stands, or under which id it waits."""
    ids = answer.message_ids
    operation.places = tuple(None if each is None else place_of(each) for each in ids)
    operation.schedules = answer.schedule_ids or ()
    waits = [each is not None for each in operation.schedules or [None] * len(ids)]
    if waits != [place is None for place in operation.places]:
        raise WrongAnswer(f"{asked(operation)} was answered with {answer!r:.200}")


def _delivery(message: mm.Message) -> Delivery:
    return Delivery(place_of(message.id), pack(message.payload), packed(message.metadata))


def _batch_delivery(message: mm.LeasedMessage) -> Delivery:
    remaining = message.remaining
    return Delivery(
        place_of(message.id),
        pack(message.payload),
        packed(message.metadata),
        message.key,
        message.token,
        message.grants,
        None if remaining is None else round(remaining * 1_000_000),
    )
