# Tests: tests/client/test_mamamia_async.py
"""A Mamamia client for Twisted programs: Deferreds, answered in the order of the calls.

::

    client = await connect("127.0.0.1:9000", reactor)
    message_id = await client.produce("orders", {"n": 1})

Calls may be made without waiting for earlier answers; they are pipelined on one connection. A lost
connection fails every call in flight, in order; no request is sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint, connectProtocol
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from brokerd.client import calls
from brokerd.client.addresses import parse_address
from brokerd.client.calls import Call, Metadata
from brokerd.client.errors import AddressError, ConnectionLost, MamamiaError, OutOfStep
from brokerd.client.pipeline import IN_FLIGHT_MAX, WAITING_MAX, Pipeline
from brokerd.codecs.mamamia import (
    BatchMessage,
    BatchSettle,
    GroupState,
    LeasedMessage,
    Message,
)
from brokerd.errors import LimitExceeded

__all__ = [
    "AddressError",
    "ConnectionLost",
    "LimitExceeded",
    "MamamiaError",
    "MamamiaProtocol",
    "OutOfStep",
    "connect",
]

Result = TypeVar("Result")


def connect(where: IStreamClientEndpoint | str, reactor: Any = None) -> Deferred[MamamiaProtocol]:
    """A connected client; fails as the endpoint does.

    :param where: ``host:port``, ``[v6]:port`` or ``unix:PATH``, then with the ``reactor``; or an
        endpoint, such as one that speaks TLS.
    :raises AddressError: the address cannot be read.
    """
    endpoint = _endpoint(where, reactor) if isinstance(where, str) else where
    connected: Deferred[MamamiaProtocol] = connectProtocol(endpoint, MamamiaProtocol())
    return connected


def _endpoint(address_text: str, reactor: Any) -> IStreamClientEndpoint:
    if reactor is None:
        raise TypeError("an address needs the reactor: connect(address, reactor)")
    host, port, path = parse_address(address_text)
    endpoint: IStreamClientEndpoint = (
        HostnameEndpoint(reactor, host, port) if path is None else UNIXClientEndpoint(reactor, path)
    )
    return endpoint


class MamamiaProtocol(Protocol):
    """One connection to a broker; build it with `connect`.

    Every method's Deferred fails with MamamiaError when the broker refuses, ConnectionLost when
    the connection ends first, LimitExceeded when too many calls wait. Cancelling one gives up its
    result, not the request. A wrong argument is raised at once, as by the blocking client.
    """

    def __init__(self, in_flight_max: int = IN_FLIGHT_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._pipeline: Pipeline[Deferred[Any]] = Pipeline(
            Deferred.callback, Deferred.errback, in_flight_max, waiting_max
        )

    def produce(
        self,
        log_id: str,
        payload: object,
        metadata: Metadata | None = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
    ) -> Deferred[int]:
        """Append a message, which expires after `ttl` seconds; return its id.

        With `delay` seconds the message appears later, and the result is its id for `cancel`.
        """
        call = calls.produce(log_id, payload, metadata, key, partition, ttl, delay)
        return self._call(call)

    def acquire(
        self,
        log_id: str,
        group_id: str,
        client_id: str,
        duration: float | None = None,
        wait: float = 0.0,
    ) -> Deferred[Message | None]:
        """Lease the next message, waiting for one up to `wait` seconds.

        For `duration` seconds; None: as the group is set.
        """
        return self._call(calls.acquire(log_id, group_id, client_id, duration, wait))

    def settle(
        self,
        log_id: str,
        group_id: str,
        message_id: int,
        client_id: str,
        success: bool = True,
        delay: float | None = None,
        *,
        reason: str | None = None,
        dead: bool = False,
    ) -> Deferred[None]:
        """End a lease; a failed message may be leased again after `delay` seconds.

        A failure may have a `reason`, which a dead letter keeps; `dead` makes it one at once.
        """
        fate = (success, delay, reason, dead)
        return self._call(calls.settle(log_id, group_id, message_id, client_id, *fate))

    def extend(
        self,
        log_id: str,
        group_id: str,
        client_id: str,
        message_id: int,
        duration: float | None = None,
    ) -> Deferred[float]:
        """Give a lease `duration` seconds from now, None as the group is set; the seconds left."""
        return self._call(calls.extend(log_id, group_id, client_id, message_id, duration))

    def produce_batch(
        self,
        log_id: str,
        messages: Iterable[BatchMessage],
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> Deferred[tuple[int, ...]]:
        """Append 1 to 10,000 messages (see `batch_message`), all or none; their ids.

        With a `producer_id` and growing `sequence` numbers a batch may be sent again without harm.
        """
        return self._call(calls.produce_batch(log_id, messages, producer_id, sequence))

    def acquire_batch(
        self,
        log_id: str,
        group_id: str,
        client_id: str,
        max_messages: int,
        duration: float | None = None,
        wait: float = 0.0,
    ) -> Deferred[tuple[LeasedMessage, ...]]:
        """Lease up to `max_messages`, waiting for the first up to `wait` seconds."""
        return self._call(
            calls.acquire_batch(log_id, group_id, client_id, max_messages, duration, wait)
        )

    def settle_batch(
        self, log_id: str, group_id: str, client_id: str, settles: Iterable[BatchSettle]
    ) -> Deferred[tuple[str, ...]]:
        """End 1 to 10,000 leases; for each ``settled`` or the broker's error text."""
        return self._call(calls.settle_batch(log_id, group_id, client_id, settles))

    def release(
        self, log_id: str, group_id: str, client_id: str, message_ids: Iterable[int] | None = None
    ) -> Deferred[int]:
        """Give leased messages back, without a failure; how many leases ended.

        Those of `message_ids`, or all of this client's in the group.
        """
        return self._call(calls.release(log_id, group_id, client_id, message_ids))

    def cancel(self, log_id: str, schedule_id: int) -> Deferred[bool]:
        """Cancel a delayed message; return False if it has appeared or is unknown."""
        return self._call(calls.cancel(log_id, schedule_id))

    def group_info(self, log_id: str, group_id: str) -> Deferred[GroupState]:
        """Return the state of a group."""
        return self._call(calls.group_info(log_id, group_id))

    def close(self) -> None:
        """Close the connection when all requests are sent; calls in flight fail."""
        if self.transport is not None:
            self.transport.loseConnection()

    def _call(self, call: Call[Result]) -> Deferred[Result]:
        answered: Deferred[Result] = Deferred()
        try:
            self._pipeline.add(call, answered)
        except (ConnectionLost, LimitExceeded) as error:
            return fail(error)
        self._send_waiting()
        return answered

    def connectionMade(self) -> None:
        """Send the requests made before the connection."""
        self._send_waiting()

    def _send_waiting(self) -> None:
        if self.transport is None:
            return
        outgoing = self._pipeline.outgoing()
        if outgoing:
            self.transport.write(outgoing)

    def dataReceived(self, data: bytes) -> None:
        """Answer the calls in flight, oldest first; close a connection with a wrong answer."""
        if self._pipeline.feed(data):
            self._send_waiting()
        else:
            self.close()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail the calls in flight."""
        self._pipeline.lose(ConnectionLost(f"the connection ended: {reason.getErrorMessage()}"))
