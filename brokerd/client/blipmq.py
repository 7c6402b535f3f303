# Tests: tests/client/test_blipmq.py
"""A blocking BlipMQ client on a plain or TLS socket. Page: docs/protocols/blipmq.rst.

::

    with BlipmqClient("127.0.0.1:5555", api_key="secret") as client:
        orders = client.subscribe("orders")
        client.publish("orders", b"two teas")
        client.flush()                              # durable from here on
        delivery = client.receive(orders, timeout=5)
        client.ack(delivery)

One client belongs to one thread. It connects when first used, and again after a lost connection.

The client follows the format's rules (page, section Codes): it logs every NACK with code and text,
it sends a message with a NACK 500 again after a pause, and no other message, and it pauses
after a POLL without an answer, longer each time.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import inf
from typing import NamedTuple, Self

from brokerd.client.addresses import open_socket
from brokerd.client.checks import check_bytes, check_number, check_text
from brokerd.client.errors import AddressError, ConnectionLost, OutOfStep
from brokerd.client.stream import TIMEOUT, Connect, Stream
from brokerd.codecs.blipmq import (
    DELIVERY_BYTES,
    MAX_LENGTH,
    Ack,
    Auth,
    Code,
    Hello,
    InvalidFrame,
    Message,
    Nack,
    Ping,
    Poll,
    Pong,
    Publish,
    Subscribe,
    UnknownFrameType,
    decode,
    encode,
    frame_reader,
)
from brokerd.errors import BrokerdError, RecordTooLarge

__all__ = [
    "AddressError",
    "BlipmqClient",
    "BlipmqError",
    "Code",
    "ConnectionLost",
    "Delivery",
    "OutOfStep",
]

UNCONFIRMED_MAX = 256
"""Messages of QoS 1 under way: a broker keeps their NACKs for a client that does not read yet."""
UNCONFIRMED_BYTES_MAX = 4 << 20

RETRIES = 5
"""How often a message is sent again after a NACK 500."""
RETRY_SECONDS = 0.1
"""The pause before that; it doubles."""

POLL_SECONDS = 0.005
POLL_SECONDS_MAX = 0.5
"""The pause after a POLL without an answer: it doubles, up to this."""

_LASTING = "limits.max_topics"
"""The setting that a NACK 500 names if a retry cannot help: an operator must change it."""

FIRST_ID = 1 << 63
"""Correlation ids of requests begin here: delivery tags, which are those of ACKs, are below."""

_log = logging.getLogger(__name__)


class BlipmqError(BrokerdError):
    """The broker refused a request for good, or with each retry. The connection stays open.

    ``retryable`` is True if a later retry may help: after a NACK 500, unless the broker reached its
    limit of topics. ``count`` is the number of refused messages; code and text are the first one's.
    """

    def __init__(self, code: int, text: str, count: int = 1) -> None:
        others = f" (and {count - 1} more were refused)" if count > 1 else ""
        super().__init__(f"{code}: {text}{others}")
        self.code = code
        self.text = text
        self.count = count
        self.retryable = code == Code.FAILED and _LASTING not in text


class Delivery(NamedTuple):
    """A delivered message. With QoS 1 it is delivered again unless it is acknowledged.

    ``tag`` identifies it in the acknowledgement. With QoS 0 it is None.
    """

    subscription_id: int
    tag: int | None
    qos: int
    topic: str
    message: bytes


class BlipmqClient:
    """One connection to a broker.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param api_key: the key for AUTH.
    :param timeout: seconds to connect, and seconds without a byte before giving up.
    :param ssl_context: speak TLS, checked against `server_hostname` (the host if None).
    :param connect: opens the socket; for tests and unusual networks.
    :param sleep: pauses for so many seconds.
    :param clock: monotonic time in seconds.
    :raises AddressError: the address cannot be read.

    Methods raise BlipmqError (the broker refused), ConnectionLost and other OSErrors (among them
    TimeoutError). After any but the first the next call connects anew. A wrong argument is a
    TypeError, ValueError or RecordTooLarge, before anything is sent.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        timeout: float = TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect: Connect = open_socket,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_text(api_key=api_key)
        self._api_key = api_key
        self._stream = Stream(
            address,
            timeout=timeout,
            ssl_context=ssl_context,
            server_hostname=server_hostname,
            connect=connect,
        )
        self._sleep = sleep
        self._clock = clock
        self._reader = frame_reader()
        self._arrived: list[Message] = []
        self._last_id = FIRST_ID
        self._unconfirmed: dict[int, Publish] = {}
        """Messages of QoS 1 that no `flush` has confirmed, by correlation id."""
        self._unconfirmed_bytes = 0
        self._refused: dict[int, Nack] = {}
        """The refusals of unconfirmed messages, by correlation id."""
        self._given_up: list[BlipmqError] = []
        """Refusals of dropped messages that no `flush` has raised."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Flush, unless the block raised, and close."""
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, if any. Unconfirmed messages may be lost."""
        self._stream.close()

    # -- publishing ---------------------------------------------------------------------------

    def publish(self, topic: str, message: bytes, qos: int = 1) -> None:
        """Send a message, which creates the topic. `flush` confirms messages of QoS 1.

        This method flushes by itself at `UNCONFIRMED_MAX` messages. If it raises, publish the
        message again; it may then be stored twice. Unconfirmed messages of QoS 1 are sent again
        after a lost connection.

        :raises RecordTooLarge: topic and message are longer than a frame; nothing was sent.
        """
        _check(topic, qos)
        check_bytes(message=message)
        size = DELIVERY_BYTES + len(topic.encode()) + len(message)
        if size > MAX_LENGTH:
            raise RecordTooLarge(
                f"a message of {len(message)} bytes is too large: with its topic it has to fit a "
                f"frame of {MAX_LENGTH} bytes"
            )
        if (
            len(self._unconfirmed) >= UNCONFIRMED_MAX
            or self._unconfirmed_bytes >= UNCONFIRMED_BYTES_MAX
        ):
            self.flush()
        with self._closed_if_cut_short():
            self._open()
            request = Publish(self._next_id(), qos, topic, message)
            self._send(request)
        if qos:
            self._unconfirmed[request.correlation_id] = request
            self._unconfirmed_bytes += size

    def flush(self) -> None:
        """Wait until every published message is durable.

        A message with a NACK 500 is sent again, after later ones. After a lost connection every
        unconfirmed message is sent again and may be stored twice.

        :raises BlipmqError: messages were refused for good, or `RETRIES` times. They are dropped,
            and all others are durable. If another error ends this method first, the next `flush`
            raises it.
        """
        pauses = islice(doubling(RETRY_SECONDS), RETRIES)
        while self._unconfirmed:
            self.ping()
            pause = next(pauses, None)
            refused, self._refused = self._refused, {}
            again = {}
            for number, nack in refused.items():
                refusal = BlipmqError(nack.code, nack.text)
                if refusal.retryable and pause is not None:
                    again[number] = self._unconfirmed[number]
                else:
                    self._given_up.append(refusal)
            self._unconfirmed, self._unconfirmed_bytes = again, 0
            if again and pause is not None:
                self._sleep(pause)
                self._send_again()
        if self._given_up:
            first, count = self._given_up[0], len(self._given_up)
            self._given_up = []
            raise BlipmqError(first.code, first.text, count)

    def _send_again(self) -> None:
        with self._closed_if_cut_short():
            if self._stream.connected:
                self._send(*self._unconfirmed.values())
            else:
                self._open()

    # -- subscribing --------------------------------------------------------------------------

    def subscribe(self, topic: str, qos: int = 1) -> int:
        """Subscribe to later messages; return the subscription id for `poll`."""
        _check(topic, qos)
        for pause in islice(doubling(RETRY_SECONDS), RETRIES):
            try:
                return self._subscribe(topic, qos)
            except BlipmqError as refusal:
                if not refusal.retryable:
                    raise
            self._sleep(pause)
        return self._subscribe(topic, qos)

    def _subscribe(self, topic: str, qos: int) -> int:
        with self._closed_if_cut_short():
            self._open()
            request = Subscribe(self._next_id(), topic, qos)
            self._send(request)
            return self._accepted(request.correlation_id)

    def poll(self, subscription_id: int) -> Delivery | None:
        """Return the next message, or None.

        The result is None for an unknown subscription too: the format has no error for it.
        """
        check_number("subscription_id", subscription_id, 1, (1 << 64) - 1)
        delivery = None
        with self._closed_if_cut_short():
            self._open()
            number = self._next_id()
            self._send(Poll(self._next_id(), subscription_id), Ping(number))
            for answer in self._until_pong(number):
                if isinstance(answer, Publish):
                    tag, qos, name, message = answer
                    delivery = Delivery(subscription_id, tag if qos else None, qos, name, message)
        return delivery

    def receive(self, subscription_id: int, timeout: float | None = None) -> Delivery | None:
        """Poll with growing pauses until there is a message; return None after ``timeout`` seconds.

        Without a ``timeout`` it may poll for ever. A removed subscription, not polled for
        ``blipmq.subscription_grace_seconds``, looks like one without messages.
        """
        deadline = None if timeout is None else self._clock() + timeout
        pauses = doubling(POLL_SECONDS, POLL_SECONDS_MAX)
        while (delivery := self.poll(subscription_id)) is None:
            left = inf if deadline is None else deadline - self._clock()
            if left <= 0:
                break
            self._sleep(min(next(pauses), left))
        return delivery

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery of QoS 1; does nothing for QoS 0.

        It waits for no answer. The next call logs the NACK of a late acknowledgement.
        """
        if delivery.tag is not None:
            acknowledgement = Ack(delivery.tag, delivery.subscription_id)
            with self._closed_if_cut_short():
                self._open()
                self._send(acknowledgement)

    def ping(self) -> None:
        """Wait until every request sent before is carried out and durable."""
        with self._closed_if_cut_short():
            self._open()
            number = self._next_id()
            self._send(Ping(number))
            for _ in self._until_pong(number):
                pass

    # -- the connection -----------------------------------------------------------------------

    @contextmanager
    def _closed_if_cut_short(self) -> Iterator[None]:
        """Close the connection if anything but a refusal ends the block, such as KeyboardInterrupt.

        The next call would take the answers that are still to come for its own.
        """
        try:
            yield
        except BlipmqError:
            raise
        except BaseException:
            self.close()
            raise

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _open(self) -> None:
        """Connect and authenticate, if not done; send unconfirmed messages again."""
        if self._stream.connected:
            return
        self._reader = frame_reader()
        self._arrived = []
        self._refused = {}
        hello, auth = self._next_id(), self._next_id()
        self._send(Hello(hello), Auth(auth, self._api_key))
        try:
            self._accepted(hello)
            self._accepted(auth)
        except BlipmqError:
            self.close()
            raise
        if self._unconfirmed:
            self._send(*self._unconfirmed.values())

    def _send(self, *messages: Message) -> None:
        self._stream.send(b"".join(map(encode, messages)))

    def _accepted(self, number: int) -> int:
        """Return the subscription id in the ACK to a request. Raises `BlipmqError` for a NACK."""
        for answer in self._incoming():
            if answer[0] == number and isinstance(answer, Nack):
                raise BlipmqError(answer.code, answer.text)
            if answer[0] == number and isinstance(answer, Ack):
                return answer.subscription_id
        raise AssertionError("the stream of answers has no end")

    def _until_pong(self, number: int) -> Iterator[Message]:
        """Yield the messages before the PONG to this PING."""
        for answer in self._incoming():
            if isinstance(answer, Pong) and answer.correlation_id == number:
                return
            if isinstance(answer, Nack) and answer.correlation_id == number:
                # The broker does not know the correlation ids of some messages.
                self._refused.update(dict.fromkeys(self._unconfirmed, answer))
            yield answer

    def _incoming(self) -> Iterator[Message]:
        """Yield the broker's messages without end; log NACKs, and keep those of messages."""
        while True:
            while self._arrived:
                answer = self._arrived.pop(0)
                if isinstance(answer, Nack):
                    if answer.correlation_id in self._unconfirmed:
                        self._refused[answer.correlation_id] = answer
                    _log.warning("%s: NACK %d: %s", self._stream.address, answer.code, answer.text)
                yield answer
            self._receive()

    def _receive(self) -> None:
        data = self._stream.receive()
        try:
            self._arrived += map(decode, self._reader.feed(data))
        except (InvalidFrame, UnknownFrameType) as error:
            self.close()
            raise OutOfStep(f"{self._stream.address}: {error}") from error
        if self._reader.error is not None and not self._arrived:
            self.close()
            raise OutOfStep(f"{self._stream.address}: {self._reader.error}")


def doubling(first: float, most: float = inf) -> Iterator[float]:
    """Yield pauses in seconds, each twice as long as the one before, up to ``most``."""
    pause = first
    while True:
        yield min(pause, most)
        pause *= 2


def _check(topic: str, qos: int) -> None:
    check_text(topic=topic)
    if not topic:
        raise ValueError("topic must not be empty")
    check_number("qos", qos, 0, 1)
