"""A broker in memory with fuzzing clients, a witness beside them, and the oracle.

docs/fuzzing.rst lists the forbidden outcomes, which no input may cause.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, zip_longest
from math import inf
from random import Random

from brokerd.protocols.base.connection import Hold
from tests.fuzz.brokers import SETUPS, FuzzedHouse
from tests.fuzz.case import Case, Delivery
from tests.fuzz.found import Found, faults_are_found, no_more_memory_than_due
from tests.fuzz.judge import judge
from tests.fuzz.wire import Ask, FuzzedFormat, Wires
from tests.house import Client

SLOW_MS = 250.0
"""Default limit of a turn's processor time in milliseconds; a longer turn is a finding."""
PAUSE_SECONDS = 0.15
LONG_POLL_SECONDS = 6.0
"""Longer than the long polls of the fuzzer; mutated ones may wait for ever."""
LONG_POLLS = 20
"""The most long polls in a row."""
ANSWER_BYTES_MAX = 8 << 20
"""More than any answer to the fuzzer's records."""


@dataclass
class Counts:
    """Counters of a run."""

    frames: int = 0
    """Number of whole requests, right or wrong, that the broker took on open connections."""
    connections: int = 0
    answers: int = 0
    closed: int = 0
    """Number of connections that the broker closed."""
    witnessed: int = 0
    """Number of steps of the witness, each with right answers."""
    restarts: int = 0
    longest_turn_ms: float = 0.0
    """Processor time in milliseconds."""


class _Talk:
    """One open connection."""

    def __init__(self, wire: FuzzedFormat, client: Client, delivery: Delivery) -> None:
        self.wire = wire
        self.client = client
        self.delivery = delivery
        self.has_given_up = False
        self._sent = 0
        if not delivery.reads:
            client.stop_reading()

    def send(self, chunk: bytes) -> None:
        if self.client.is_open:
            self.client.send_bytes(chunk)
            self._sent += len(chunk)

    @property
    def ending(self) -> str:
        """The real end of the connection."""
        return "cut" if self.has_given_up else self.delivery.ending

    @property
    def taken(self) -> bytes:
        """The bytes that the broker has taken."""
        return b"".join(self.delivery.chunks)[: self._sent - self.client.unread_bytes]


class Desk:
    """One broker, from its start to its end. Methods raise `Found`."""

    def __init__(self, wires: Wires, setup: str, counts: Counts, slow_ms: float = inf) -> None:
        self._wires = wires
        self._setup = SETUPS[setup]
        self._slow_ms = slow_ms
        self._counts = counts
        self._house = FuzzedHouse(wires, self._setup)
        if self._setup.stock_bytes:
            self._house.stock(list(dict.fromkeys(t for w in wires.values() for t in w.topics)))
        self._witnesses = {name: wire.witness(Random("witness")) for name, wire in wires.items()}
        self._turns = cycle(wires)
        self._beside: dict[str, Client] = {}

    def deliver(self, deliveries: Sequence[Delivery], measured: bool = False) -> None:
        """Run the clients side by side, with the witness at work among them."""
        self._counts.connections += len(deliveries)
        self._house.longest_turn_ms = 0.0
        if measured:
            sent = sum(len(chunk) for one in deliveries for chunk in one.chunks)
            inflated = sum(map(self._inflated_bytes, deliveries))
            besides = inflated + self._setup.stock_bytes
            with no_more_memory_than_due(sent, besides) as answered:
                answered += self._deliver(deliveries)
        else:
            self._deliver(deliveries)
        longest_ms = self._house.longest_turn_ms
        self._counts.longest_turn_ms = max(self._counts.longest_turn_ms, longest_ms)
        if longest_ms > self._slow_ms:
            raise Found("slow", f"a turn computed for {longest_ms:.0f} ms")

    def _inflated_bytes(self, delivery: Delivery) -> int:
        """Return the most bytes that a compressed frame may give, and be copied once."""
        wire = self._wires[delivery.wire]
        limit = min(self._setup.limits.frame_bytes, wire.frame_bytes_max)
        return 2 * limit if wire.inflates else 0

    def finish(self) -> None:
        """Stop the broker, start it again, and check that all data of the witness is there."""
        self._read_back()
        with faults_are_found():
            self._house.stop()
            self._house = FuzzedHouse(self._wires, self._setup, self._house.disk)
        self._beside.clear()
        self._read_back()
        self._counts.restarts += 1

    # -- connections --------------------------------------------------------------------------

    def _deliver(self, deliveries: Sequence[Delivery]) -> list[int]:
        """Run all clients; return the number of answered bytes of each connection."""
        house = self._house
        with faults_are_found():
            talks = [
                _Talk(self._wires[one.wire], house.client(one.wire), one) for one in deliveries
            ]
            self._send(talks)
            # Silent clients come last: their end takes time, which ends others, too.
            for talk in sorted(talks, key=lambda talk: talk.delivery.ending == "silence"):
                self._end(talk)
            if house.failures:
                raise Found("fault", f"the log has failed: {house.failures[0]!r}")
        return [self._judge(talk) for talk in talks]

    def _send(self, talks: Sequence[_Talk]) -> None:
        """Send the chunks; the clients take turns."""
        house = self._house
        steps = [
            (talk, chunk)
            for row in zip_longest(*(talk.delivery.chunks for talk in talks))
            for talk, chunk in zip(talks, row, strict=True)
            if chunk is not None
        ]
        last = {talk: number for number, (talk, _) in enumerate(steps)}
        for number, (talk, chunk) in enumerate(steps):
            talk.send(chunk)
            self._look(talk)
            if number == last[talk] and talk.delivery.ending == "haste":
                talk.client.send_no_more()
            if number == len(steps) // 2:
                self._step_aside()
            elif number % 16 == 7:
                house.let_pass(PAUSE_SECONDS)
            elif number % 4 == 3:
                house.run()
        house.run()
        for talk in talks:
            self._look(talk)

    def _look(self, talk: _Talk) -> None:
        """Check that the memory of the connection is within the limits."""
        wire, client = talk.wire, talk.client
        connection = client.protocol
        limits = self._setup.limits
        most = min(limits.frame_bytes, wire.frame_bytes_max) + wire.header_bytes
        held = wire.held(connection)
        if held > most:
            raise Found("held", f"{held:,} bytes of an unfinished frame, and {most:,} are allowed")
        waiting = connection.queued_bytes + len(client.transport.buffered)
        # One answer with inflated records may be as large as a frame.
        answer_bytes = max(ANSWER_BYTES_MAX, most if wire.inflates else 0)
        most = 2 * limits.in_flight_bytes + client.READ_BYTES + answer_bytes
        if waiting > most:
            raise Found("held", f"{waiting:,} bytes of answers wait, and {most:,} are allowed")

    def _end(self, talk: _Talk) -> None:
        """End a connection as its client does; the broker has to close it soon after."""
        house, client = self._house, talk.client
        if talk.delivery.ending == "cut":
            client.disconnect()
        else:
            if talk.delivery.ending == "silence":
                self._wait_for_the_broker(client)
            client.read_on()
            house.run()
            self._counts.closed += not client.is_open
            client.send_no_more()
        house.run()
        if client.transport.connected and talk.wire.has_long_polls:
            self._outwait_long_polls(talk)
        if client.transport.connected:
            raise Found("hang", "the client has sent its last byte, and the connection stays")

    def _wait_for_the_broker(self, client: Client) -> None:
        """Send nothing more; check that an unfinished frame is given up in time."""
        limits = self._setup.limits
        unfinished = client.protocol.unfinished and not client.protocol.holds
        seconds = 0.0
        while seconds < limits.unfinished_frame_us / 1e6 + 2 * limits.sweep_seconds:
            seconds += limits.sweep_seconds
            self._house.let_pass(limits.sweep_seconds)
        if unfinished and client.is_open:
            raise Found("hang", "a frame was not finished in time, and the connection is open")

    def _outwait_long_polls(self, talk: _Talk) -> None:
        """Wait for the long polls. The broker does not read a peer with too many of them."""
        for _ in range(LONG_POLLS):
            if talk.client.protocol.holds != Hold.BACKLOG:
                return
            self._house.let_pass(LONG_POLL_SECONDS)
        talk.client.disconnect()
        talk.has_given_up = True

    def _judge(self, talk: _Talk) -> int:
        """Check that the answers are valid and as many as due; return their bytes."""
        received = talk.client.received_bytes()
        limit = self._setup.limits.frame_bytes
        judged = judge(talk.wire, limit, talk.taken, received, talk.ending)
        self._counts.frames += judged.requests
        self._counts.answers += judged.answers
        return len(received)

    # -- the witness --------------------------------------------------------------------------

    def _step_aside(self) -> None:
        """Let the next witness do a step; the formats take turns."""
        name = next(self._turns)
        self._ask_aside(name, self._witnesses[name].step)
        self._counts.witnessed += 1

    def _read_back(self) -> None:
        for name, witness in self._witnesses.items():
            self._ask_aside(name, witness.read_back)

    def _ask_aside(self, name: str, act: Callable[[Ask], None]) -> None:
        """Let a witness act over its own connection."""
        with faults_are_found():
            client = self._connected(name)
            try:
                act(lambda data, _: self._exchange(client, data))
            except Found:
                raise
            except Exception as error:
                raise Found("witness", f"{name}: {type(error).__name__}: {error}") from error
            if not client.is_open:
                raise Found("witness", f"{name}: its connection was closed")

    def _connected(self, name: str) -> Client:
        client = self._beside.get(name)
        if client is None or not client.is_open:
            client = self._beside[name] = self._house.client(name)
            self._exchange(client, b"".join(self._wires[name].greeting))
        return client

    def _exchange(self, client: Client, data: bytes) -> bytes:
        client.send_bytes(data)
        self._house.run()
        return client.received_bytes()


def groups(deliveries: Iterable[Delivery]) -> list[list[Delivery]]:
    """Return the deliveries in groups that run at the same time."""
    found: list[list[Delivery]] = []
    for delivery in deliveries:
        if delivery.beside and found:
            found[-1].append(delivery)
        else:
            found.append([delivery])
    return found


def run_case(wires: Wires, case: Case, slow_ms: float = inf) -> Found | None:
    """Run a case with a new broker; return the finding, or None."""
    try:
        desk = Desk(wires, case.setup, Counts(), slow_ms)
        for group in groups(case.deliveries):
            desk.deliver(group, measured=True)
        desk.finish()
    except Found as found:
        return found
    finally:
        gc.collect()
    return None
