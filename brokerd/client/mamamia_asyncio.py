# Tests: tests/client/test_mamamia_asyncio.py
"""A Mamamia client for asyncio, with the methods of the blocking client.

::

    async with await connect("127.0.0.1:9000") as client:
        message_id = await client.produce("orders", {"n": 1}, key="k")
        message = await client.acquire("orders", "billing", "worker-1", wait=5.0)

A method sends its request at once and returns a Future, so calls may be made without waiting for
earlier answers. They are pipelined on one connection and answered in order. A lost connection fails
every call in flight; no request is sent again. It needs the packages brokerd and msgpack alone.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from brokerd.client import calls
from brokerd.client.addresses import parse_address
from brokerd.client.calls import Call, batch_message
from brokerd.client.errors import AddressError, ConnectionLost, MamamiaError, OutOfStep
from brokerd.client.pipeline import IN_FLIGHT_MAX, WAITING_MAX, Pipeline
from brokerd.client.stream import TIMEOUT
from brokerd.codecs.mamamia import BatchMessage, BatchSettle, GroupState, LeasedMessage, Message
from brokerd.errors import LimitExceeded

__all__ = [
    "AddressError",
    "BatchMessage",
    "BatchSettle",
    "ConnectionLost",
    "GroupState",
    "LeasedMessage",
    "LimitExceeded",
    "MamamiaClient",
    "MamamiaError",
    "Message",
    "OutOfStep",
    "batch_message",
    "connect",
]

CLOSE_SECONDS = 5.0

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


async def connect(
    address: str,
    *,
    timeout: float = TIMEOUT,
    ssl_context: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> MamamiaClient:
    """Return a connected client.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param timeout: seconds to connect.
    :param ssl_context: speak TLS, checked against `server_hostname` (the host if None).
    :raises AddressError: the address cannot be read.
    :raises TimeoutError: the connection, or TLS, took too long.
    :raises OSError: the connection was refused, or TLS failed.
    """
    place, loop = parse_address(address), asyncio.get_running_loop()
    options: dict[str, Any] = {"ssl": ssl_context}
    if ssl_context is not None:
        options["server_hostname"] = server_hostname or place.host
    async with asyncio.timeout(timeout):
        if place.path is None:
            _, client = await loop.create_connection(
                MamamiaClient, place.host, place.port, **options
            )
        else:
            _, client = await loop.create_unix_connection(MamamiaClient, place.path, **options)
    return client


def _method(
    make: Callable[Arguments, Call[Result]],
) -> Callable[Concatenate[MamamiaClient, Arguments], asyncio.Future[Result]]:
    """Return the method that sends the call which ``make`` builds from the same arguments."""

    def method(
        self: MamamiaClient, /, *arguments: Arguments.args, **keywords: Arguments.kwargs
    ) -> asyncio.Future[Result]:
        return self._call(make(*arguments, **keywords))

    method.__name__, method.__doc__ = make.__name__, make.__doc__
    return method


class MamamiaClient(asyncio.Protocol):
    """One connection to a broker; build it with `connect`.

    The Future of a call fails with `MamamiaError` when the broker refuses, `ConnectionLost` when
    the connection ends first, and `LimitExceeded` when too many calls wait. Cancelling one gives
    up its result, not the request. A wrong argument is raised at once, as by the blocking client.
    """

    def __init__(self, in_flight_max: int = IN_FLIGHT_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipeline: Pipeline[asyncio.Future[Any]] = Pipeline(
            _succeed, _fail, in_flight_max, waiting_max
        )
        self._transport: asyncio.WriteTransport | None = None
        self._is_full = False
        """Whether the transport holds so many bytes that no more should be written."""
        self._is_closing = False
        self._closed = self._loop.create_future()

    produce = _method(calls.produce)
    acquire = _method(calls.acquire)
    settle = _method(calls.settle)
    extend = _method(calls.extend)
    produce_batch = _method(calls.produce_batch)
    acquire_batch = _method(calls.acquire_batch)
    settle_batch = _method(calls.settle_batch)
    release = _method(calls.release)
    cancel = _method(calls.cancel)
    group_info = _method(calls.group_info)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Close the connection when the requests in flight are sent, or after `timeout` seconds.

        Calls without an answer fail.
        """
        if self._transport is None:
            return
        if not self._is_closing:
            self._is_full = False
            self._send_waiting()  # the transport takes no requests afterwards
            self._is_closing = True
            self._transport.close()
        try:
            await asyncio.wait([self._closed], timeout=timeout)
        finally:
            if not self._closed.done():  # a peer that does not read would keep it open
                self._transport.abort()
        await asyncio.wait([self._closed])

    def _call(self, call: Call[Result]) -> asyncio.Future[Result]:
        answered: asyncio.Future[Result] = self._loop.create_future()
        try:
            self._pipeline.add(call, answered)
        except (ConnectionLost, LimitExceeded) as error:
            answered.set_exception(error)
        else:
            self._send_waiting()
        return answered

    def _send_waiting(self) -> None:
        if self._transport is None or self._is_full or self._is_closing:
            return
        outgoing = self._pipeline.outgoing()
        if outgoing:
            self._transport.write(outgoing)

    # -- for asyncio --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._send_waiting()

    def data_received(self, data: bytes) -> None:
        """Answer the calls in flight, oldest first; close a connection with a wrong answer."""
        if self._pipeline.feed(data):
            self._send_waiting()
        elif self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the calls in flight."""
        why = "closed cleanly" if error is None else str(error)
        self._pipeline.lose(ConnectionLost(f"the connection ended: {why}"))
        self._closed.set_result(None)


def _succeed(answered: asyncio.Future[Any], result: Any) -> None:
    if not answered.done():  # its caller may have cancelled it
        answered.set_result(result)


def _fail(answered: asyncio.Future[Any], error: Exception) -> None:
    if not answered.done():
        answered.set_exception(error)
