# Tests: tests/client/test_rustlog.py
"""A blocking RustLog client on a plain or TLS socket. Page: docs/protocols/rustlog.rst.

::

    with RustlogClient("127.0.0.1:9092") as client:
        client.create_topic("orders", 1)
        first = client.produce("orders", [b"two teas", b"one cake"])
        for offset, value in client.fetch("orders", first).pairs():
            print(offset, value)

It speaks the binary dialect, which every program of the reference does, or JSON. One client belongs
to one thread. It connects when first used, and again after a lost connection; requests without an
answer are then sent a second time if carrying them out twice does no harm: all but Produce and
CreateTopic.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self, TypeVar

from brokerd.client.addresses import open_socket
from brokerd.client.checks import check_number, check_text
from brokerd.client.errors import AddressError, ConnectionLost, OutOfStep
from brokerd.client.exchange import Exchange
from brokerd.client.stream import TIMEOUT, Connect, Stream
from brokerd.codecs.answers import AnswerReader, NotAnAnswer
from brokerd.codecs.rustlog import (
    CODECS,
    MAX_PAYLOAD,
    Answer,
    AnswerError,
    Codec,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Dialect,
    Failed,
    Fetch,
    Fetched,
    FrameReader,
    ListTopics,
    Metrics,
    MetricsFetch,
    OffsetCommit,
    OffsetCommitted,
    OffsetFetch,
    OffsetFetched,
    PartitionDescription,
    Ping,
    Pong,
    Produce,
    Produced,
    Request,
    TopicCreated,
    TopicDescription,
    TopicList,
)
from brokerd.errors import BrokerdError, RecordTooLarge

__all__ = [
    "AddressError",
    "ConnectionLost",
    "Dialect",
    "OutOfStep",
    "Records",
    "RustlogClient",
    "RustlogError",
]

FETCH_BYTES = 1 << 20
"""Largest answer that a fetch asks for, as in the reference's consumer."""
_LENGTH_BYTES = 4
_MAX_U32, _MAX_U64 = (1 << 32) - 1, (1 << 64) - 1
_NOT_TWICE = (Produce, CreateTopic)
_OUT_OF_RANGE = re.compile(r"^offset out of range: .*: the records begin at (\d+)$")
_ANSWERS: dict[type, type] = {
    Ping: Pong,
    CreateTopic: TopicCreated,
    Produce: Produced,
    Fetch: Fetched,
    OffsetCommit: OffsetCommitted,
    OffsetFetch: OffsetFetched,
    ListTopics: TopicList,
    DescribeTopic: TopicDescription,
    DescribePartition: PartitionDescription,
    MetricsFetch: Metrics,
}

Wanted = TypeVar("Wanted")


class RustlogError(BrokerdError):
    """The broker refused a request; the text is the broker's. Only code 1 closes the connection.

    ``code`` is that of the binary dialect; 0 in JSON, which has no codes.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Records(NamedTuple):
    """The result of a fetch: ``values`` at ``offsets``, and the offset of the next fetch."""

    offsets: Sequence[int]
    values: Sequence[bytes]
    next_offset: int

    def pairs(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, value) of each record."""
        return zip(self.offsets, self.values, strict=True)


class RustlogClient:
    """One connection to a broker.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param dialect: the dialect of requests; brokerd accepts both.
    :param timeout: seconds to connect, and seconds without a byte before giving up.
    :param ssl_context: speak TLS, checked against `server_hostname` (the host if None).
    :param connect: opens the socket; for tests and unusual networks.
    :raises AddressError: the address cannot be read.

    Methods raise RustlogError (the broker refused), ConnectionLost and other OSErrors (among them
    TimeoutError). After any but the first the next call connects anew. A wrong argument is a
    TypeError, ValueError or RecordTooLarge, before anything is sent.
    """

    def __init__(
        self,
        address: str,
        *,
        dialect: Dialect = Dialect.BINARY,
        timeout: float = TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect: Connect = open_socket,
    ) -> None:
        codec = CODECS[dialect]
        stream = Stream(
            address,
            timeout=timeout,
            ssl_context=ssl_context,
            server_hostname=server_hostname,
            connect=connect,
        )
        self._exchange: Exchange[Request, Answer] = Exchange(
            stream,
            lambda: AnswerReader(FrameReader(), partial(_answer, codec)),
            partial(_encoded, codec),
            _is_harmless_twice,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._exchange.close()

    def ping(self) -> None:
        """Send a Ping and wait for its Pong."""
        self._ask(Ping(), Pong)

    def create_topic(self, topic: str, partition_count: int = 1) -> None:
        """Create a topic. Raises RustlogError if it exists."""
        check_number("partition_count", partition_count, 0, _MAX_U32)
        self._ask(CreateTopic(_name(topic), partition_count), TopicCreated)

    def produce(self, topic: str, records: Sequence[bytes], partition: int = 0) -> int:
        """Append records, all or none, at consecutive offsets; return the first one.

        :raises RecordTooLarge: they do not fit a request; nothing was sent.
        """
        check_number("partition", partition, 0, _MAX_U32)
        for record in records:
            if not isinstance(record, bytes):
                raise TypeError(f"a record must be bytes, not {type(record).__name__}")
        return self._ask(Produce(_name(topic), partition, records), Produced).base_offset

    def fetch(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        max_bytes: int = FETCH_BYTES,
        group: str | None = None,
    ) -> Records:
        """Return records from an offset on; with a group, from its commit on if that is larger.

        More records may follow. No record and the same ``next_offset`` mean the end.
        """
        check_number("partition", partition, 0, _MAX_U32)
        check_number("offset", offset, 0, _MAX_U64)
        check_number("max_bytes", max_bytes, 0, _MAX_U32)
        group = None if group is None else _name(group)
        answer = self._ask(Fetch(_name(topic), partition, offset, max_bytes, group), Fetched)
        return Records(*answer)

    def read(self, topic: str, offset: int = 0, partition: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, value) of the records from an offset to the end of the partition.

        It skips gaps and records removed from the beginning.

        :raises RustlogError: a record is damaged or too large to be sent; the text says where to go
            on.
        """
        while True:
            try:
                found = self.fetch(topic, offset, partition)
            except RustlogError as error:
                told = _OUT_OF_RANGE.search(str(error))  # in JSON; the binary dialect goes on
                if told is None or int(told[1]) <= offset:
                    raise
                offset = int(told[1])
                continue
            yield from found.pairs()
            if found.next_offset <= offset:
                return
            offset = found.next_offset

    def commit(self, topic: str, group: str, offset: int, partition: int = 0) -> bool:
        """Commit an offset of a group; return False for an unknown topic or partition."""
        check_number("partition", partition, 0, _MAX_U32)
        check_number("offset", offset, 0, _MAX_U64)
        request = OffsetCommit(_name(topic), partition, _name(group), offset)
        return self._ask(request, OffsetCommitted).success

    def committed(self, topic: str, group: str, partition: int = 0) -> int | None:
        """Return the committed offset of a group, or None."""
        check_number("partition", partition, 0, _MAX_U32)
        return self._ask(OffsetFetch(_name(topic), partition, _name(group)), OffsetFetched).offset

    def topics(self) -> dict[str, int]:
        """All topics by name, with their number of partitions."""
        return dict(self._ask(ListTopics(), TopicList).topics)

    def next_offsets(self, topic: str) -> tuple[int, ...]:
        """Return the offset of the next record of each partition of a topic."""
        return self._ask(DescribeTopic(_name(topic)), TopicDescription).next_offsets

    def next_offset(self, topic: str, partition: int = 0) -> int:
        """Return the offset of the next record of a partition."""
        check_number("partition", partition, 0, _MAX_U32)
        request = DescribePartition(_name(topic), partition)
        return self._ask(request, PartitionDescription).next_offset

    def metrics(self) -> str:
        """The broker's numbers in the text format of Prometheus."""
        return self._ask(MetricsFetch(), Metrics).text

    def send_many(self, requests: Sequence[Request]) -> list[Answer]:
        """Send requests, many at a time, and return their answers in order.

        An answer may be `Failed`.

        :raises ConnectionLost: with the answers received so far in ``answers``.
        """
        return self._exchange.send_many(requests)

    def _ask(self, request: Request, kind: type[Wanted]) -> Wanted:
        (answer,) = self.send_many([request])
        if isinstance(answer, Failed):
            raise RustlogError(answer.code, answer.message)
        assert isinstance(answer, kind)
        return answer


def _is_harmless_twice(request: Request) -> bool:
    """Return whether a request is idempotent."""
    return not isinstance(request, _NOT_TWICE)


def _encoded(codec: Codec, request: Request) -> bytes:
    data = codec.encode_request(request)
    if len(data) - _LENGTH_BYTES > MAX_PAYLOAD:
        raise RecordTooLarge(
            f"the request takes {len(data) - _LENGTH_BYTES} bytes, and the limit of the format "
            f"is {MAX_PAYLOAD}; send fewer or smaller records"
        )
    return data


def _answer(codec: Codec, request: Request, payload: bytes) -> Answer:
    try:
        answer = codec.decode_answer(payload)
    except AnswerError as error:
        raise NotAnAnswer(str(error)) from error
    if not isinstance(answer, (Failed, _ANSWERS[type(request)])):
        raise NotAnAnswer(f"{type(answer).__name__} was answered to {type(request).__name__}")
    return answer


def _name(name: str) -> str:
    check_text(name=name)
    if len(name.encode()) > 0xFFFF:
        raise ValueError("a name has at most 65535 bytes")
    return name
