# Tests: tests/protocols/test_connection.py
"""The connections of one listener: their number, time-outs and close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from brokerd.broker import Broker, Clock, Timer
from brokerd.broker.slices import SliceQueue
from brokerd.protocols.base.connection import Connection, Hold, Limits
from brokerd.protocols.base.memory import UNLIMITED, MemoryBudget
from brokerd.protocols.base.request_times import RequestTimes
from brokerd.protocols.base.transport import peer_text, unsent_bytes
from brokerd.security import OPEN_GUARD, Guard
from brokerd.security.places import KEPT_PART, Places, counted_network

KEPT_DESCRIPTORS: Final = 48
"""File descriptors that connections leave to the log, however many others are in use."""


class ConnectionFactory(Factory):
    """Makes the connections of one listener and enforces their limits."""

    noisy = False
    _log = Logger()

    def __init__(self, name: str, broker: Broker, clock: Clock, limits: Limits) -> None:
        self.name = name
        self.broker = broker
        self.limits = limits
        self.clock = clock
        self.slices = broker.slices if broker.slices.clock is clock else SliceQueue(clock)
        """Long work of all connections of all listeners on this clock."""
        self.request_times = RequestTimes()
        self.memory = MemoryBudget(UNLIMITED, clock)
        """The memory of peers, over all listeners that share it."""
        self.places = Places()
        """The connections of each network, over all listeners that share them."""
        self.connections: dict[Connection, str] = {}
        """Open connections, oldest first, and their networks as `counted_network` has them."""
        self.count_open: Callable[[], int] = lambda: len(self.connections)
        """Returns the number that counts against the limit, over all listeners that share it."""
        self.guard: Guard = OPEN_GUARD
        """Authenticates clients."""
        self.descriptors_left: Callable[[], int] = lambda: KEPT_DESCRIPTORS
        """Returns how many more files the process may open."""
        self.accepted = 0
        self.refused = 0
        self._refused_logged = 0
        self._refused_networks = 0
        """Refused connections since the last log line, for which there were places."""
        self._refused_descriptors = 0
        """Refused connections since the last log line, for lack of descriptors."""
        self._sweep_call: Timer | None = None
        self._empty: list[Deferred[None]] = []

    def new_connection(self) -> Connection:
        """Return a new connection of this factory's format."""
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """Return the counters of this format besides connections, by name."""
        return {}

    def unread_bytes(self) -> int:
        """Return the bytes of answers that peers have not read yet, and of their requests."""
        return sum(one.queued_bytes + unsent_bytes(one.transport) for one in self.connections)

    def slow_readers(self) -> int:
        """Return the number of connections whose peers do not read their answers."""
        return sum(bool(one.holds & Hold.SLOW_READER) for one in self.connections)

    def buildProtocol(self, addr: object) -> Any:
        """Return a connection, or None when there is no place for it."""
        if not self._has_place(getattr(addr, "host", None)):
            self.refused += 1
            return None
        return self.adopt()

    def _has_place(self, host: str | None) -> bool:
        """Return whether a connection of this address gets a place."""
        limits = self.limits
        count = self.count_open()
        if count >= limits.connections:
            return False
        if self.descriptors_left() < KEPT_DESCRIPTORS:
            self._refused_descriptors += 1
            return False
        network = counted_network(host)
        if not network:
            return True
        is_kept = count >= limits.connections - limits.connections // KEPT_PART
        if self.places.count(network) >= limits.connections_per_address or (
            is_kept and not self.guard.knows(network)
        ):
            self._refused_networks += 1
            return False
        return True

    def adopt(self) -> Connection:
        """Return a connection for a peer that this or another listener accepted."""
        self.accepted += 1
        connection = self.new_connection()
        connection.factory = self
        return connection

    def opened(self, connection: Connection) -> None:
        network = counted_network(peer_text(connection.transport))
        self.connections[connection] = network
        connection.connection_id = self.broker.connections.add(connection)
        self.places.add(network)

    def closed(self, connection: Connection) -> None:
        self.places.remove(self.connections.pop(connection, ""))
        self.broker.connections.remove(connection.connection_id)
        if not self.connections:
            waiting, self._empty = self._empty, []
            for empty in waiting:
                empty.callback(None)

    def startFactory(self) -> None:
        """Begin the sweeps: the first port listens."""
        self._sweep_later()

    def stopFactory(self) -> None:
        """End the sweeps: the last port stopped listening."""
        if self._sweep_call is not None:
            self._sweep_call.cancel()
            self._sweep_call = None

    def _sweep_later(self) -> None:
        self._sweep_call = self.clock.callLater(self.limits.sweep_seconds, self._sweep)

    def _sweep(self) -> None:
        """Close connections whose peers exceeded a time-out, and log refused connections."""
        self._sweep_later()
        now_us = self.broker.time.monotonic_us()
        for connection in list(self.connections):
            why = connection.overdue(now_us)
            if why is not None:
                self._log.info(
                    "{listener}: closing {peer}: {why} in time",
                    listener=self.name,
                    peer=connection.transport.getPeer(),
                    why=why,
                    event_id="connection-timed-out",
                )
                connection.cut_off()
        self._log_refused()

    def _log_refused(self) -> None:
        """Write one log line for all connections refused since the last sweep, by reason."""
        short, self._refused_descriptors = self._refused_descriptors, 0
        if short:
            self._refused_logged += short
            self._log.warn(
                "{listener}: {count} connections refused, because the process may open fewer than "
                "{kept} further files; raise the limit on open files (ulimit -n)",
                listener=self.name,
                count=short,
                kept=KEPT_DESCRIPTORS,
                event_id="descriptors-short",
            )
        networks, self._refused_networks = self._refused_networks, 0
        if networks:
            self._refused_logged += networks
            self._log.warn(
                "{listener}: {count} connections refused, because their address had {limit} "
                "(limits.connections_per_address), or because the last places are kept for "
                "addresses that have logged in before",
                listener=self.name,
                count=networks,
                limit=self.limits.connections_per_address,
                event_id="addresses-refused",
            )
        count = self.refused - self._refused_logged
        if count:
            self._refused_logged = self.refused
            self._log.warn(
                "{listener}: {count} connections refused, because {limit} were open; raise "
                "limits.connections if that is too few",
                listener=self.name,
                count=count,
                limit=self.limits.connections,
                event_id="connections-refused",
            )

    def close_all(self) -> None:
        """Handle no more requests, and close each connection when it is answered."""
        for connection in list(self.connections):
            connection.close_after_answers(drain=False)

    def when_empty(self) -> Deferred[None]:
        """Return a Deferred that fires when no connection is open."""
        empty: Deferred[None] = Deferred()
        if self.connections:
            self._empty.append(empty)
        else:
            empty.callback(None)
        return empty

    def abort_all(self) -> None:
        """Close every connection now and drop all queued answers."""
        for connection in list(self.connections):
            connection.abort()
