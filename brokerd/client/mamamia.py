# Tests: tests/client/test_mamamia.py
"""A blocking Mamamia client on a plain or TLS socket. Page: docs/protocols/mamamia.rst.

::

    with MamamiaClient("127.0.0.1:9000") as client:
        client.produce("orders", {"n": 1}, key="k")
        message = client.acquire("orders", "billing", "worker-1", wait=5.0)

One client belongs to one thread. It connects when first used, and again after a lost connection.
It sends an unanswered request once more if it is idempotent:
settles, extensions, releases, cancels, group information, and batches with a ``producer_id``.
With ``resend=True`` produces and acquires are sent again too, also after a timeout, as the
reference client does: a message may then be stored twice, or a lease be left to lapse.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from typing import Self, TypeVar

from brokerd.client import calls
from brokerd.client.addresses import open_socket
from brokerd.client.calls import Call, Metadata, answer_reader, batch_message, result_of
from brokerd.client.errors import AddressError, ConnectionLost, MamamiaError, OutOfStep
from brokerd.client.exchange import Exchange
from brokerd.client.stream import TIMEOUT, Connect, Stream
from brokerd.codecs.mamamia import (
    Answer,
    BatchMessage,
    BatchSettle,
    Cancel,
    Extend,
    GroupInfo,
    GroupState,
    LeasedMessage,
    Message,
    ProduceBatch,
    Release,
    Request,
    Settle,
    SettleBatch,
    encode_request,
    split_message_id,
)

__all__ = [
    "AddressError",
    "BatchMessage",
    "BatchSettle",
    "ConnectionLost",
    "GroupState",
    "LeasedMessage",
    "MamamiaClient",
    "MamamiaError",
    "Message",
    "OutOfStep",
    "batch_message",
    "split_message_id",
]

_HARMLESS_TWICE = (Settle, SettleBatch, Extend, GroupInfo, Release, Cancel)

Result = TypeVar("Result")


class MamamiaClient:
    """One connection to a broker.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param timeout: seconds to connect, and seconds without a byte before giving up. A ``wait``
        adds to it.
    :param ssl_context: speak TLS, checked against `server_hostname` (the host if None).
    :param resend: send any request again after a lost connection.
    :param connect: opens the socket; for tests and unusual networks.
    :raises AddressError: the address cannot be read.

    Methods raise MamamiaError (the broker refused), ConnectionLost and other OSErrors (among them
    TimeoutError). After any but the first the next call connects anew. A wrong argument is a
    TypeError, ValueError or RecordTooLarge, before anything is sent.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        resend: bool = False,
        connect: Connect = open_socket,
    ) -> None:
        stream = Stream(
            address,
            timeout=timeout,
            ssl_context=ssl_context,
            server_hostname=server_hostname,
            connect=connect,
        )
        self.address = stream.address
        self._exchange: Exchange[Request, Answer] = Exchange(
            stream, answer_reader, encode_request, _is_harmless_twice, resend=resend
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one. Leases stay; they are the client_id's."""
        self._exchange.close()

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
    ) -> int:
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
    ) -> Message | None:
        """Lease the next message, waiting for one up to `wait` seconds.

        For `duration` seconds; None: as the group is set.
        """
        return self._call(calls.acquire(log_id, group_id, client_id, duration, wait), wait)

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
    ) -> None:
        """End a lease; a failed message may be leased again after `delay` seconds.

        A failure may have a `reason`, which a dead letter keeps; `dead` makes it one at once.
        """
        fate = (success, delay, reason, dead)
        self._call(calls.settle(log_id, group_id, message_id, client_id, *fate))

    def extend(
        self,
        log_id: str,
        group_id: str,
        client_id: str,
        message_id: int,
        duration: float | None = None,
    ) -> float:
        """Give a lease `duration` seconds from now, None as the group is set; the seconds left."""
        return self._call(calls.extend(log_id, group_id, client_id, message_id, duration))

    def produce_batch(
        self,
        log_id: str,
        messages: Iterable[BatchMessage],
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> tuple[int, ...]:
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
    ) -> tuple[LeasedMessage, ...]:
        """Lease up to `max_messages`, waiting for the first up to `wait` seconds."""
        return self._call(
            calls.acquire_batch(log_id, group_id, client_id, max_messages, duration, wait), wait
        )

    def settle_batch(
        self, log_id: str, group_id: str, client_id: str, settles: Iterable[BatchSettle]
    ) -> tuple[str, ...]:
        """End 1 to 10,000 leases; for each ``settled`` or the broker's error text."""
        return self._call(calls.settle_batch(log_id, group_id, client_id, settles))

    def release(
        self, log_id: str, group_id: str, client_id: str, message_ids: Iterable[int] | None = None
    ) -> int:
        """Give leased messages back, without a failure; how many leases ended.

        Those of `message_ids`, or all of this client's in the group.
        """
        return self._call(calls.release(log_id, group_id, client_id, message_ids))

    def cancel(self, log_id: str, schedule_id: int) -> bool:
        """Cancel a delayed message; return False if it has appeared or is unknown."""
        return self._call(calls.cancel(log_id, schedule_id))

    def group_info(self, log_id: str, group_id: str) -> GroupState:
        """Return the state of a group."""
        return self._call(calls.group_info(log_id, group_id))

    def _call(self, call: Call[Result], wait: float = 0.0) -> Result:
        (answer,) = self.send_many([call.request], wait)
        return result_of(answer, call)

    def send_many(self, requests: Sequence[Request], wait: float = 0.0) -> list[Answer]:
        """Send requests without waiting for each answer; return the answers in order.

        The answer to a refused request is a `Failed`; the others are carried out.

        :param wait: the longest ``wait`` of the requests, in seconds; adds to the timeout.
        :raises ConnectionLost: with the answers received so far.
        """
        return self._exchange.send_many(requests, wait)


def _is_harmless_twice(request: Request) -> bool:
    """Return whether a request is idempotent."""
    if isinstance(request, ProduceBatch):
        return request.producer_id is not None
    return isinstance(request, _HARMLESS_TWICE)
