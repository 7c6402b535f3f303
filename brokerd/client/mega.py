# Tests: tests/client/test_mega.py
"""A blocking MEGA client on a plain or TLS socket. Page: docs/protocols/mega.rst.

::

    with MegaClient("127.0.0.1:8080") as client:
        client.create_topic("orders")
        offset = client.produce("orders", b"two teas")
        for message in client.read("orders"):
            print(message.payload)

It speaks the reference's dialect, which the reference server needs, or the document's. One client
belongs to one thread. It connects when first used, and again after a lost connection; only CONSUME
is then sent a second time, because nothing else can be carried out twice without harm.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Self, TypeVar

from brokerd.client.addresses import open_socket
from brokerd.client.checks import check_number, check_text
from brokerd.client.errors import AddressError, ConnectionLost, OutOfStep
from brokerd.client.exchange import Exchange
from brokerd.client.stream import TIMEOUT, Connect, Stream
from brokerd.codecs.mega import (
    MAX_OFFSET,
    MAX_PAYLOAD_BYTES,
    Answer,
    AnswerReader,
    Code,
    Consume,
    Consumed,
    Created,
    CreateTopic,
    Dialect,
    Produce,
    Produced,
    Refused,
    Request,
    encode_request,
)
from brokerd.errors import BrokerdError, RecordTooLarge

__all__ = [
    "AddressError",
    "Code",
    "ConnectionLost",
    "Consumed",
    "Dialect",
    "MegaClient",
    "MegaError",
    "OutOfStep",
]

_MAX_ID = (1 << 31) - 1

Wanted = TypeVar("Wanted", Created, Produced, Consumed)


class MegaError(BrokerdError):
    """The broker refused a request with ``code``. The connection stays open, except after 8.

    ``offset`` is that of a CONSUME; None for other requests.
    """

    def __init__(self, code: int, request: Request) -> None:
        self.code = Code(code)
        self.offset = request.offset if isinstance(request, Consume) else None
        where = "" if self.offset is None else f" from offset {self.offset} on"
        text = f"{self.code.name} ({code}): {type(request).__name__} of {request.topic!r}{where}"
        if self.code is Code.INVALID_REQUEST:
            text += "; or it is not permitted, which the format cannot tell"
        super().__init__(text)


class MegaClient:
    """One connection to a broker.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param dialect: the dialect of requests; brokerd accepts both.
    :param timeout: seconds to connect, and seconds without a byte before giving up.
    :param ssl_context: speak TLS, checked against `server_hostname` (the host if None).
    :param connect: opens the socket; for tests and unusual networks.
    :param clock: returns the seconds since the Unix epoch.
    :raises AddressError: the address cannot be read.

    Methods raise MegaError (the broker refused), ConnectionLost and other OSErrors (among them
    TimeoutError). After any but the first the next call connects anew. A wrong argument is a
    TypeError, ValueError or RecordTooLarge, before anything is sent.
    """

    def __init__(
        self,
        address: str,
        *,
        dialect: Dialect = Dialect.REFERENCE,
        timeout: float = TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect: Connect = open_socket,
        clock: Callable[[], float] = time.time,
    ) -> None:
        stream = Stream(
            address,
            timeout=timeout,
            ssl_context=ssl_context,
            server_hostname=server_hostname,
            connect=connect,
        )
        self._exchange: Exchange[Request, Answer] = Exchange(
            stream, AnswerReader, partial(encode_request, dialect=dialect), _is_harmless_twice
        )
        self._clock = clock
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._exchange.close()

    def create_topic(self, topic: str) -> None:
        """Create a topic; its name is 1 to 255 of ``A-Z a-z 0-9 . _ -``."""
        check_text(topic=topic)
        self._ask(CreateTopic(self._next_id(), topic, self._now_ms()), Created)

    def produce(self, topic: str, payload: bytes, timestamp: int | None = None) -> int:
        """Append a message of up to 1 MiB; return its offset when it is durable.

        :param timestamp: stored with it; milliseconds since the Unix epoch, now if None.
        :raises RecordTooLarge: it is longer; nothing was sent.
        """
        return self._ask(self._produce(topic, payload, timestamp), Produced).offset

    def produce_many(self, topic: str, payloads: Iterable[bytes]) -> list[int]:
        """Append messages with many requests in flight; return their offsets.

        :raises MegaError: one was refused; others may have been stored.
        """
        requests = [self._produce(topic, payload, None) for payload in payloads]
        answers = self.send_many(requests)
        return [
            _wanted(request, answer, Produced).offset
            for request, answer in zip(requests, answers, strict=True)
        ]

    def consume(self, topic: str, offset: int) -> Consumed:
        """Return the message at an offset, or the next one if that was removed.

        The message's own offset is ``next_offset - 1``. At the end of the topic it raises MegaError
        with the code INVALID_OFFSET.
        """
        check_text(topic=topic)
        check_number("offset", offset, -(1 << 31), (1 << 31) - 1)
        request = Consume(self._next_id(), topic, self._now_ms(), offset)
        return self._ask(request, Consumed)

    def read(self, topic: str, offset: int = 0) -> Iterator[Consumed]:
        """Yield the messages from an offset to the end of the topic.

        :raises MegaError: a record is damaged (INTERNAL_ERROR), or came through another format and
            is larger than 1 MiB (MESSAGE_TOO_LARGE). Read on from the error's ``offset`` + 1.
        """
        while 0 <= offset <= MAX_OFFSET:
            try:
                message = self.consume(topic, offset)
            except MegaError as error:
                if error.code is Code.INVALID_OFFSET:
                    return
                raise
            yield message
            offset = message.next_offset

    def send_many(self, requests: Sequence[Request]) -> list[Answer]:
        """Send requests, many at a time, and return their answers in order.

        An answer may be `Refused`. Correlation ids are the caller's.

        :raises ConnectionLost: with the answers received so far in ``answers``.
        """
        return self._exchange.send_many(requests)

    def _ask(self, request: Request, kind: type[Wanted]) -> Wanted:
        (answer,) = self.send_many([request])
        return _wanted(request, answer, kind)

    def _produce(self, topic: str, payload: bytes, timestamp: int | None) -> Produce:
        check_text(topic=topic)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"a payload of {len(payload)} bytes is too large: the limit of the format is "
                f"{MAX_PAYLOAD_BYTES}"
            )
        timestamp = self._now_ms() if timestamp is None else timestamp
        check_number("timestamp", timestamp, -(1 << 63), (1 << 63) - 1)
        return Produce(self._next_id(), topic, timestamp, payload)

    def _next_id(self) -> int:
        self._last_id = self._last_id % _MAX_ID + 1
        return self._last_id

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _is_harmless_twice(request: Request) -> bool:
    """Return whether a request is idempotent."""
    return isinstance(request, Consume)


def _wanted(request: Request, answer: Answer, kind: type[Wanted]) -> Wanted:
    if isinstance(answer, Refused):
        raise MegaError(answer.code, request)
    assert isinstance(answer, kind)
    return answer
