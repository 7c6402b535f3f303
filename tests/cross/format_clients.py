"""Clients of the wire formats, written byte by byte from their documents, without our codecs.

A client makes requests, and decodes answers to short words: ``done``, ``records``, ``nothing
there``, or the text of a refusal, as the tables of docs/cross-format.rst have them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from struct import pack, unpack_from
from typing import Any, ClassVar, NamedTuple

import msgpack

from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.protocols.mega.connection import MegaFactory
from brokerd.protocols.rustlog.connection import RustlogFactory, RustlogSettings
from tests.house import House

NOTHING = "nothing there"


class Reply(NamedTuple):
    """A decoded answer."""

    words: str
    """``done``, ``records``, ``nothing there``, or the text of a refusal."""
    values: tuple[bytes, ...] = ()
    """The values of its records."""
    next_offset: int | None = None
    """The next offset to read, if the answer has it."""


DONE = Reply("done")


def records(*values: bytes, next_offset: int | None = None) -> Reply:
    """Return an answer with records, or an empty one."""
    return Reply("records" if values else NOTHING, values, next_offset)


class FormatClient(ABC):
    """A client of one wire format (or dialect)."""

    name: ClassVar[str]
    greeting: ClassVar[bytes] = b""
    """The first bytes of a client."""
    greeted: ClassVar[int] = 0
    """Number of answers to the greeting."""
    largest_bytes: ClassVar[int]
    """Size of the largest allowed value, or a little more."""

    group = "g"
    """The group of readers that lease."""

    @abstractmethod
    def factory(self, house: House) -> ConnectionFactory: ...

    @abstractmethod
    def make(self, topic: str) -> bytes | None:
        """Return the request that creates a topic; None where the first record creates it."""

    @abstractmethod
    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes: ...

    @abstractmethod
    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        """Return a read from an offset, or of the next records of a group or subscription.

        ``most`` is for formats that read several records at once.
        """

    @abstractmethod
    def told(self, answers: bytes) -> Iterator[Reply]:
        """Yield the decoded answers."""


class Mamamia(FormatClient):
    name = "Mamamia"
    largest_bytes = (10 << 20) - 40

    def factory(self, house: House) -> ConnectionFactory:
        return MamamiaFactory(house.broker, house.clock, house.limits)

    def make(self, topic: str) -> None:
        return None

    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes:
        named = {"partition": partition} if partition else {}
        return mamamia_frame(1, {"log_id": topic, "payload": data, **named})

    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        return mamamia_frame(2, {"log_id": topic, "group_id": self.group, "client_id": "c"})

    def told(self, answers: bytes) -> Iterator[Reply]:
        for frame in _length_prefixed(answers):
            body: Any = msgpack.unpackb(frame[2:])
            if "error" in body:
                yield Reply(f"error {body['error']}")
            elif "message" in body:
                message = body["message"]
                yield records() if message is None else records(message["payload"])
            else:
                yield DONE


def mamamia_frame(command: int, body: dict[str, object]) -> bytes:
    packed: bytes = msgpack.packb(body)
    return pack(">IBB", len(packed) + 2, 1, command) + packed


class FlyMQ(FormatClient):
    name = "FlyMQ"
    largest_bytes = (32 << 20) - 28

    def factory(self, house: House) -> ConnectionFactory:
        return FlymqFactory(house.broker, house.clock, house.limits, FlymqSettings())

    def make(self, topic: str) -> bytes:
        return flymq_frame(3, text_field(topic) + pack(">i", 1))

    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes:
        fields = pack(">I", 0) + pack(">I", len(data)) + data + pack(">i", partition)
        return flymq_frame(1, text_field(topic) + fields)

    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        """Return a FETCH in the document's layout."""
        return flymq_frame(7, text_field(topic) + pack(">iQi", partition, offset, most))

    def told(self, answers: bytes) -> Iterator[Reply]:
        at = 0
        while at < len(answers):
            opcode, length = answers[at + 2], unpack_from(">I", answers, at + 4)[0]
            payload = answers[at + 8 : at + 8 + length]
            at += 8 + length
            if opcode == 0xFF:
                assert payload[:1] == b"\0" and payload[3:6] == b"   ", payload
                yield Reply(f"ERROR {payload[6:].decode()}")
            elif opcode == 7:
                yield self._fetched(payload)
            else:
                yield DONE

    def _fetched(self, payload: bytes) -> Reply:
        (count,) = unpack_from(">I", payload)
        at, values = 4, []
        for _ in range(count):
            at += 4 + unpack_from(">I", payload, at)[0]
            (length,) = unpack_from(">I", payload, at)
            values.append(payload[at + 4 : at + 4 + length])
            at += 4 + length + 8
        assert len(payload) == at + 8
        return records(*values, next_offset=unpack_from(">Q", payload, at)[0])


def flymq_frame(opcode: int, payload: bytes) -> bytes:
    return pack(">BBBBI", 0xAF, 1, opcode, 1, len(payload)) + payload


class BlipMQ(FormatClient):
    """QoS 1. A PING follows each PUBLISH and each POLL, because these may have no answer."""

    name = "BlipMQ"
    qos = b"\x01"
    largest_bytes = 16 << 20
    greeting = pack(">IBQH", 11, 1, 1, 1) + pack(">IBQH", 11, 2, 2, 0)
    greeted = 2

    def factory(self, house: House) -> ConnectionFactory:
        return BlipmqFactory(house.broker, house.clock, house.limits, BlipmqSettings())

    def make(self, topic: str) -> bytes:
        """Return a SUBSCRIBE; it makes later records readable."""
        return blipmq_frame(4, text_field(topic) + self.qos)

    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes:
        return blipmq_frame(3, self.qos + text_field(topic) + data) + blipmq_frame(7)

    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        return blipmq_frame(9, pack(">Q", 1)) + blipmq_frame(7)

    def told(self, answers: bytes) -> Iterator[Reply]:
        was_told = False
        for frame in _length_prefixed(answers):
            kind, payload = frame[0], frame[9:]
            if kind == 8:  # PONG: an unanswered PUBLISH before it was accepted
                if not was_told:
                    yield DONE
                was_told = False
                continue
            was_told = True
            if kind == 3:
                (topic_bytes,) = unpack_from(">H", payload, 1)
                yield records(payload[3 + topic_bytes :])
            elif kind == 6:
                yield Reply(f"NACK {unpack_from('>H', payload)[0]} {payload[4:].decode()}")
            else:
                yield DONE
                was_told = False


class QuietBlipMQ(BlipMQ):
    """QoS 0: published and delivered at most once."""

    qos = b"\0"


def blipmq_frame(kind: int, payload: bytes = b"") -> bytes:
    return pack(">IBQ", len(payload) + 9, kind, 7) + payload


class RustLog(FormatClient):
    largest_bytes = 10 << 20

    def factory(self, house: House) -> ConnectionFactory:
        return RustlogFactory(house.broker, house.clock, house.limits, RustlogSettings())


class RustLogJSON(RustLog):
    name = "RustLog JSON"

    def make(self, topic: str) -> bytes:
        return json_frame({"CreateTopic": {"topic": topic, "partition_count": 1}})

    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes:
        fields = {"topic": topic, "partition": partition, "records": [list(data)]}
        return json_frame({"Produce": fields})

    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        fields = {"topic": topic, "partition": partition, "offset": offset, "max_bytes": most}
        return json_frame({"Fetch": {**fields, "group_id": None}})

    def told(self, answers: bytes) -> Iterator[Reply]:
        for frame in _length_prefixed(answers):
            body = json.loads(frame)
            if "Error" in body:
                yield Reply(f"Error {body['Error']['message']}")
            elif "Fetch" in body:
                values = [bytes(record["payload"]) for record in body["Fetch"]["records"]]
                yield records(*values, next_offset=body["Fetch"]["next_offset"])
            else:
                yield DONE


def json_frame(request: object) -> bytes:
    return framed(json.dumps(request, separators=(",", ":")).encode())


class RustLogBinary(RustLog):
    name = "RustLog binary"

    def make(self, topic: str) -> bytes:
        return framed(b"\x05" + text_field(topic) + pack(">I", 1))

    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes:
        return framed(b"\x01" + text_field(topic) + pack(">III", partition, 1, len(data)) + data)

    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        return framed(
            b"\x02" + text_field("") + text_field(topic) + pack(">IQI", partition, offset, most)
        )

    def told(self, answers: bytes) -> Iterator[Reply]:
        for frame in _length_prefixed(answers):
            if frame[0] == 0xFE:
                yield Reply(f"error {unpack_from('>H', frame, 1)[0]} {frame[5:].decode()}")
            elif frame[0] == 2:
                yield self._fetched(frame)
            else:
                yield DONE

    def _fetched(self, frame: bytes) -> Reply:
        (count,) = unpack_from(">I", frame, 1)
        at, values = 5, []
        for _ in range(count):
            (length,) = unpack_from(">I", frame, at)
            values.append(frame[at + 4 : at + 4 + length])
            at += 4 + length
        assert len(frame) == at + 8
        return records(*values, next_offset=unpack_from(">Q", frame, at)[0])


class MEGA(FormatClient):
    name = "MEGA"
    largest_bytes = 1 << 20

    def factory(self, house: House) -> ConnectionFactory:
        return MegaFactory(house.broker, house.clock, house.limits)

    def make(self, topic: str) -> bytes:
        return mega_head(3, topic) + bytes(4)

    def write(self, topic: str, data: bytes, partition: int = 0) -> bytes:
        return mega_head(1, topic) + pack(">i", len(data)) + data

    def read(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1) -> bytes:
        return mega_head(2, topic) + pack(">ii", offset, 0)

    def told(self, answers: bytes) -> Iterator[Reply]:
        """Yield a single answer: nothing in it names its request."""
        if not answers:
            return
        if answers[4] == 0:
            assert len(answers) == 6, answers
            yield Reply(str(answers[5]))
        elif len(answers) >= 21 and unpack_from(">i", answers, 17)[0] == len(answers) - 21:
            yield records(answers[21:], next_offset=unpack_from(">i", answers, 13)[0])
        else:
            yield DONE


def mega_head(kind: int, topic: str) -> bytes:
    name = topic.encode()
    return pack(">iBi", 7, kind, len(name)) + name + pack(">q", 1_700_000_000_000)


FORMAT_CLIENTS: dict[str, Callable[[], FormatClient]] = {
    client.name: client for client in (Mamamia, FlyMQ, BlipMQ, RustLogJSON, RustLogBinary, MEGA)
}


def text_field(text: str) -> bytes:
    data = text.encode()
    return pack(">H", len(data)) + data


def framed(payload: bytes) -> bytes:
    return pack(">I", len(payload)) + payload


def _length_prefixed(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = unpack_from(">I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length
