"""A broker in memory with one strange client at a time, a witness beside it, and the oracle.

What must never happen, whatever the client sends (docs/fuzzing.rst):

``fault``      a traceback in the log, or an exception that leaves the broker
``hang``       turns without end, or a connection that its peer has ended and the broker has not
``slow``       one turn that computes too long
``held``       more of an unfinished frame, or of answers, than the limits allow
``memory``     more memory asked for than what was really sent accounts for
``answers``    bytes that are no answers; more answers or fewer than requests
``witness``    a wrong answer to a valid request on another connection, also after a restart
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from random import Random
from time import thread_time
from typing import Any

from twisted.logger import LogLevel, globalLogPublisher

from brokerd.broker import BrokerSettings
from brokerd.protocols.connection import Limits
from brokerd.wal import WalOptions
from tests.fuzz.case import Case, Delivery
from tests.fuzz.wire import WireFormat
from tests.house import Client, House

TURNS_MAX = 20_000
SLOW_MS = 250.0
"""Of processor time; a turn that computes longer is told, unless no limit is asked for."""
IN_FLIGHT_BYTES = 256 << 10
SEGMENT_BYTES = 1 << 20
MEMORY_BYTES = 6 << 20
"""What a broker may ask for while it serves a client that sends next to nothing: the segment it
allocates, the frames it commits, and what Python needs."""
MEMORY_FACTOR = 40
"""And for each byte that was really sent or answered: objects of requests, records in the caches,
on the simulated disk, in the transport's buffers."""
ANSWER_BYTES_MAX = 1 << 20
"""More than any answer to what the fuzzer stores."""


class Found(Exception):
    """Something that must not happen. ``kind`` is a word of the list above."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    @property
    def signature(self) -> str:
        """The same for what is most likely the same mistake."""
        lines = self.text.splitlines() or [""]
        return f"{self.kind}: {re.sub('[0-9][0-9,]*', 'N', lines[-1])[:120]}"


@dataclass
class Counts:
    """What has been tried."""

    frames: int = 0
    """Whole requests that the broker took in while the connection was open, right or wrong."""
    connections: int = 0
    answers: int = 0
    closed: int = 0
    """Connections that the broker ended."""
    witnessed: int = 0
    """Steps of the witness, each with right answers."""
    restarts: int = 0
    longest_turn_ms: float = 0.0
    """Of processor time."""

    def add(self, other: Counts) -> None:
        self.frames += other.frames
        self.connections += other.connections
        self.answers += other.answers
        self.closed += other.closed
        self.witnessed += other.witnessed
        self.restarts += other.restarts
        self.longest_turn_ms = max(self.longest_turn_ms, other.longest_turn_ms)


class _FuzzedHouse(House):
    """A house of a given format, whose turns are watched."""

    def __init__(self, wire: WireFormat, frame_bytes: int, disk: Any = None) -> None:
        super().__init__(
            disk,
            BrokerSettings(tail_cache_bytes=1 << 20, read_cache_bytes=1 << 20),
            WalOptions(segment_bytes=SEGMENT_BYTES, free_bytes_min=0),
            Limits(frame_bytes=frame_bytes, in_flight_bytes=IN_FLIGHT_BYTES),
        )
        self.factory = wire.factory(self.broker, self.clock, self.limits)
        self.factory.startFactory()
        self.longest_turn_ms = 0.0

    def timed(self, call: Callable[..., None], *arguments: object) -> None:
        """Call something that is part of a reactor's turn."""
        began = thread_time()
        call(*arguments)
        self.longest_turn_ms = max(self.longest_turn_ms, (thread_time() - began) * 1e3)

    def run(self) -> None:
        for _ in range(TURNS_MAX):
            self.timed(self.turn)
            if not (self._step() or self._is_due()):
                return
        raise Found("hang", f"there is still work after {TURNS_MAX:,} turns")

    def _is_due(self) -> bool:
        calls = self.clock.getDelayedCalls()
        return any(call.getTime() <= self.clock.seconds() for call in calls)


class Desk:
    """One broker, from its start to its end. Methods raise `Found`."""

    def __init__(
        self, wire: WireFormat, frame_bytes: int, counts: Counts, slow_ms: float = inf
    ) -> None:
        self._wire = wire
        self._slow_ms = slow_ms
        self._frame_bytes = frame_bytes
        self._counts = counts
        self._house = _FuzzedHouse(wire, frame_bytes)
        self._witness = wire.witness(Random("witness"))
        self._beside: Client | None = None

    def deliver(self, delivery: Delivery, measured: bool = False) -> None:
        """Let one client do what it does, with the witness at work in the middle of it."""
        self._counts.connections += 1
        if measured:
            with _no_more_memory_than_due(self._wire, delivery) as answered:
                answered[0] = self._deliver(delivery)
        else:
            self._deliver(delivery)

    def finish(self) -> None:
        """Stop the broker and start it again: all that the witness was told is there."""
        self._ask_aside(self._witness.read_back)
        self._house.stop()
        with _faults_are_found():
            self._house = _FuzzedHouse(self._wire, self._frame_bytes, self._house.disk)
        self._beside = None
        self._ask_aside(self._witness.read_back)
        self._counts.restarts += 1

    # -- one connection -----------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> int:
        house = self._house
        house.longest_turn_ms = 0.0
        with _faults_are_found():
            client = house.connect()
            if not delivery.reads:
                client.stop_reading()
            taken = self._send(client, delivery.chunks)
            self._end(client, delivery)
            if house.failures:
                raise Found("fault", f"the log has failed: {house.failures[0]!r}")
        received = client.received_bytes()
        self._judge_answers(delivery, taken, received)
        if house.longest_turn_ms > self._slow_ms:
            raise Found("slow", f"a turn computed for {house.longest_turn_ms:.0f} ms")
        self._counts.longest_turn_ms = max(self._counts.longest_turn_ms, house.longest_turn_ms)
        return len(received)

    def _send(self, client: Client, pieces: tuple[bytes, ...]) -> int:
        """Send chunk after chunk; how many bytes the broker took in."""
        house = self._house
        sent = 0
        for number, piece in enumerate(pieces):
            if not client.is_open:
                break
            house.timed(client.send_bytes, piece)
            sent += len(piece)
            self._look(client)
            if number == len(pieces) // 2:
                self._ask_aside(self._witness.step)
                self._counts.witnessed += 1
            elif number % 4 == 3:
                house.run()
        house.run()
        self._look(client)
        return sent - client.unread_bytes

    def _look(self, client: Client) -> None:
        """What the connection holds is within the limits."""
        connection = client.protocol
        most = min(self._frame_bytes, self._wire.frame_bytes_max) + 64
        held = self._wire.held(connection)
        if held > most:
            raise Found("held", f"{held:,} bytes of an unfinished frame, and {most:,} are allowed")
        waiting = connection.queued_bytes + len(client.transport.buffered)
        most = 2 * IN_FLIGHT_BYTES + self._frame_bytes + ANSWER_BYTES_MAX
        if waiting > most:
            raise Found("held", f"{waiting:,} bytes of answers wait, and {most:,} are allowed")

    def _end(self, client: Client, delivery: Delivery) -> None:
        """End the connection as the client does; it has to be gone soon after."""
        house = self._house
        if delivery.ending == "cut":
            client.disconnect()
        else:
            if delivery.ending == "silence":
                self._wait_for_the_broker(client)
            client.read_on()
            house.run()
            self._counts.closed += not client.is_open
            client.send_no_more()
        house.run()
        if client.transport.connected:
            raise Found(
                "hang", "the client has sent its last byte, and nobody closes the connection"
            )

    def _wait_for_the_broker(self, client: Client) -> None:
        """Nothing more comes; a frame that is not finished must be given up in time."""
        house = self._house
        unfinished = client.protocol.unfinished and not client.protocol.holds
        seconds = 0.0
        while seconds < house.limits.unfinished_frame_us / 1e6 + 2 * house.limits.sweep_seconds:
            seconds += house.limits.sweep_seconds
            house.wall_seconds += house.limits.sweep_seconds
            house.timed(house.clock.advance, house.limits.sweep_seconds)
            house.run()
        if unfinished and client.is_open:
            raise Found("hang", "a frame was not finished in time, and the connection is open")

    # -- judging ------------------------------------------------------------------------------

    def _judge_answers(self, delivery: Delivery, taken: int, received: bytes) -> None:
        wire = self._wire
        limit = min(self._frame_bytes, wire.frame_bytes_max)
        requests, is_wrong = wire.split(b"".join(delivery.chunks)[:taken], limit)
        try:
            answers = wire.read_answers(received, requests)
        except Exception as error:
            raise Found("answers", f"{error!r} in {received[-200:].hex(' ')}") from error
        self._counts.frames += len(requests)
        self._counts.answers += answers
        if answers > len(requests) + (is_wrong or delivery.ending == "silence"):
            raise Found("answers", f"{answers} answers to {len(requests)} requests")
        if delivery.ending == "eof":
            self._judge_missing(answers, requests)

    def _judge_missing(self, answers: int, requests: list[bytes]) -> None:
        """Whatever came before the first request that may end the connection is answered."""
        owed = 0
        for request in requests:
            if self._wire.closes_upon(request):
                break
            owed += self._wire.owes(request)
        if answers < owed:
            last = requests[answers : answers + 1] or [b""]
            raise Found(
                "answers",
                f"{answers} answers where {owed} are owed, perhaps to {last[0][:200].hex(' ')}",
            )

    # -- the witness --------------------------------------------------------------------------

    def _ask_aside(self, ask: Callable[[Callable[[bytes], bytes]], None]) -> None:
        """Let the witness do something over its own connection."""
        house = self._house
        with _faults_are_found():
            if self._beside is None or not self._beside.is_open:
                self._beside = house.connect()
                greeting = b"".join(self._wire.greeting)
                if greeting:
                    self._beside.send_bytes(greeting)
                    house.run()
                    self._beside.received_bytes()
            client = self._beside

            def exchange(data: bytes) -> bytes:
                client.send_bytes(data)
                house.run()
                return client.received_bytes()

            try:
                ask(exchange)
            except Found:
                raise
            except Exception as error:
                raise Found("witness", f"{type(error).__name__}: {error}") from error
            if not client.is_open:
                raise Found("witness", "its connection was closed")


@contextmanager
def _faults_are_found() -> Iterator[None]:
    """Raise `Found` for an exception, and for what the log says of one."""
    logged: list[str] = []

    def observe(event: Any) -> None:
        failure = event.get("log_failure")
        if failure is not None:
            logged.append(failure.getTraceback())
        elif event.get("log_level") in (LogLevel.error, LogLevel.critical):
            logged.append(str(event.get("log_format")))

    globalLogPublisher.addObserver(observe)
    try:
        yield
    except Found:
        raise
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = place.tb_frame.f_code.co_filename if place is not None else "?"
        line = place.tb_lineno if place is not None else 0
        raise Found("fault", f"{where}:{line}\n{type(error).__name__}: {error}") from error
    finally:
        globalLogPublisher.removeObserver(observe)
    if logged:
        raise Found("fault", logged[0].strip())


@contextmanager
def _no_more_memory_than_due(wire: WireFormat, delivery: Delivery) -> Iterator[list[int]]:
    """Raise `Found` when more was asked for than what came and went accounts for."""
    answered = [0]
    tracemalloc.start()
    try:
        yield answered
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sent = sum(map(len, delivery.chunks))
    due = MEMORY_BYTES + MEMORY_FACTOR * (sent + answered[0])
    if peak > due:
        raise Found("memory", f"{peak:,} bytes for {sent:,} sent and {answered[0]:,} answered")


def run_case(wire: WireFormat, case: Case, slow_ms: float = inf) -> Found | None:
    """Let a case happen to a new broker; what must not happen, if it does."""
    try:
        desk = Desk(wire, case.frame_bytes, Counts(), slow_ms)
        for delivery in case.deliveries:
            desk.deliver(delivery, measured=True)
        desk.finish()
    except Found as found:
        return found
    return None
