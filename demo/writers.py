# Tests: tests/test_demo.py
"""The writers of the demo: one for each wire format, each with an equal share of the rows.

A `FormatWriter` encodes rows as requests and extracts offsets from answers. A `Writer` sends a
window of rows at a time and resends the rows that were not answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from struct import Struct
from typing import Any

import msgpack

from benchmarks.wire import Interrupted
from brokerd.codecs import blipmq, flymq, mamamia, mega, rustlog

from .connection import Connection, Feed
from .rows import Row
from .workers import TOPIC, SharedState, Worker

_PACE_SECONDS = 0.01

_HEADER = Struct(">IBB")
_PRODUCE_HEAD = b"\x84" + msgpack.packb("log_id") + msgpack.packb(TOPIC) + msgpack.packb("payload")


class Refused(Exception):
    """The broker refused a write; the message is the broker's."""


class FormatWriter:
    """Encodes the writes of a wire format and decodes their answers, for one connection."""

    has_offsets = True
    """Whether the format's answers have offsets."""

    def greet(self, connection: Connection) -> None:
        """Send the first requests of a connection."""

    def feed(self, data: bytes) -> Sequence[Any]:
        """Return the answers that ``data`` completes."""
        raise NotImplementedError

    def encode(self, rows: Sequence[Row]) -> bytes:
        """Return the requests that write ``rows``."""
        raise NotImplementedError

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        """Return one offset for each acknowledged row; zeros if the format's answers have none.

        :raises Refused: when the broker refused a write.
        """
        raise NotImplementedError

    def is_answered(self, rows: Sequence[Row], answers: Sequence[Any]) -> bool:
        """Return whether the answers acknowledge all rows."""
        return len(answers) == len(rows)


class MamamiaFormatWriter(FormatWriter):
    """Each row is a MessagePack map, with its carrier as the key."""

    def __init__(self) -> None:
        self._reader = mamamia.FrameReader()

    def feed(self, data: bytes) -> Sequence[Any]:
        return [mamamia.decode_response(*frame) for frame in self._reader.feed(data)]

    def encode(self, rows: Sequence[Row]) -> bytes:
        return b"".join(map(produce_request, rows))

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if not isinstance(answer, mamamia.Produced):
                raise Refused(str(answer))
        return [answer.message_id for answer in answers]


def produce_request(row: Row) -> bytes:
    """Encode Mamamia's PRODUCE of a row, with its carrier as key and its number as metadata."""
    tail = msgpack.packb("metadata") + msgpack.packb({"row": row.number})
    key = msgpack.packb("key") + msgpack.packb(row.carrier)
    body = _PRODUCE_HEAD + row.packed + tail + key
    frame: bytes = _HEADER.pack(len(body) + 2, 1, mamamia.Command.PRODUCE) + body
    return frame


class FlyMQFormatWriter(FormatWriter):
    """Each row is a value, with its carrier as the key."""

    def __init__(self) -> None:
        self._reader = flymq.FrameReader()
        self._asked: deque[flymq.Request] = deque()

    def feed(self, data: bytes) -> Sequence[Any]:
        return [
            flymq.decode_answer(self._asked.popleft(), opcode, payload)
            for opcode, _, payload in self._reader.feed(data)
        ]

    def encode(self, rows: Sequence[Row]) -> bytes:
        requests = [
            flymq.Produce(TOPIC, row.carrier.encode() or None, row.packed, -1) for row in rows
        ]
        self._asked += requests
        return b"".join(map(flymq.encode_request, requests))

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if not isinstance(answer, flymq.Produced):
                raise Refused(str(answer))
        return [answer.offset for answer in answers]


class BlipMQFormatWriter(FormatWriter):
    """QoS 1: a success has no answer; the PONG to a PING confirms all messages before it."""

    has_offsets = False

    def __init__(self) -> None:
        self._reader = blipmq.frame_reader()

    def greet(self, connection: Connection) -> None:
        greet_blipmq(connection)

    def feed(self, data: bytes) -> Sequence[Any]:
        return [blipmq.decode(frame) for frame in self._reader.feed(data)]

    def encode(self, rows: Sequence[Row]) -> bytes:
        published = [blipmq.encode(blipmq.Publish(0, 1, TOPIC, row.packed)) for row in rows]
        return b"".join([*published, blipmq.encode(blipmq.Ping(0))])

    def is_answered(self, rows: Sequence[Row], answers: Sequence[Any]) -> bool:
        return any(isinstance(answer, blipmq.Pong) for answer in answers)

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if isinstance(answer, blipmq.Nack):
                raise Refused(answer.text)
        return [0] * len(rows) if answers else []


def greet_blipmq(connection: Connection) -> None:
    """Send HELLO and AUTH together and await both answers."""
    hello = blipmq.encode(blipmq.Hello(1)) + blipmq.encode(blipmq.Auth(2, "demo"))
    connection.exchange(hello, lambda answers: len(answers) == 2)


class RustLogFormatWriter(FormatWriter):
    """A window of rows is one request; the binary and the JSON dialect alternate."""

    def __init__(self) -> None:
        self._reader = rustlog.FrameReader()
        self._turns = count()

    def feed(self, data: bytes) -> Sequence[Any]:
        return [rustlog_answer(payload) for payload in self._reader.feed(data)]

    def encode(self, rows: Sequence[Row]) -> bytes:
        request = rustlog.Produce(TOPIC, 0, [row.packed for row in rows])
        return rustlog_request(request, next(self._turns))

    def is_answered(self, rows: Sequence[Row], answers: Sequence[Any]) -> bool:
        return bool(answers)

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if not isinstance(answer, rustlog.Produced):
                raise Refused(str(answer))
            return list(range(answer.base_offset, answer.base_offset + len(rows)))
        return []


def rustlog_request(request: rustlog.Request, turn: int) -> bytes:
    """Encode a request: as JSON if ``turn`` is odd, else as binary."""
    dialect = rustlog.Dialect.JSON if turn % 2 else rustlog.Dialect.BINARY
    return rustlog.CODECS[dialect].encode_request(request)


def rustlog_answer(payload: bytes) -> rustlog.Answer:
    """Decode an answer of either dialect."""
    return rustlog.CODECS[rustlog.dialect_of(payload)].decode_answer(payload)


class MegaFormatWriter(FormatWriter):
    """Each row is a payload, with its number as the producer's timestamp."""

    def __init__(self) -> None:
        self._reader = mega.AnswerReader()

    def feed(self, data: bytes) -> Sequence[Any]:
        return self._reader.feed(data)

    def encode(self, rows: Sequence[Row]) -> bytes:
        requests = [mega.Produce(row.number, TOPIC, row.number, row.packed) for row in rows]
        for request in requests:
            self._reader.expect(request)
        return b"".join(map(mega.encode_request, requests))

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if not isinstance(answer, mega.Produced):
                raise Refused(str(answer))
        return [answer.offset for answer in answers]


FORMAT_WRITERS: dict[str, type[FormatWriter]] = {
    "mamamia": MamamiaFormatWriter,
    "flymq": FlyMQFormatWriter,
    "blipmq": BlipMQFormatWriter,
    "rustlog": RustLogFormatWriter,
    "mega": MegaFormatWriter,
}


class Writer(Worker):
    """Sends its share of the rows through one format, a window at a time."""

    def __init__(self, state: SharedState, form: str, rows: Sequence[Row]) -> None:
        super().__init__(state, f"the writer of {form}")
        self._form = form
        self._waiting = deque(rows)
        self._format_writer: FormatWriter

    def work(self) -> None:
        self.converse(self._form, self._make_format_writer, self._talk)

    def _make_format_writer(self) -> Feed:
        self._format_writer = FORMAT_WRITERS[self._form]()
        return self._format_writer.feed

    def _talk(self, connection: Connection) -> bool:
        state = self.state
        self._format_writer.greet(connection)
        while self._waiting and state.is_on():
            size = state.produce_window
            if state.ledger.acknowledged() >= state.kill_at and not state.killed.is_set():
                if all(state.read_by().values()):
                    state.near_kill.set()
                else:
                    size = 1  # slow down until every format has read something
                state.killed.wait(_PACE_SECONDS)
            size = min(size, len(self._waiting))
            self._send(connection, [self._waiting.popleft() for _ in range(size)])
        return True

    def _send(self, connection: Connection, window: Sequence[Row]) -> None:
        """Write a window of rows and record the answers, complete or not."""
        writer = self._format_writer
        try:
            answers = connection.exchange(
                writer.encode(window), lambda answers: writer.is_answered(window, answers)
            )
        except Interrupted as broken:
            self._book(window, broken.answers)
            raise
        self._book(window, answers)

    def _book(self, window: Sequence[Row], answers: Sequence[Any]) -> None:
        """Record the acknowledged rows, and keep the rest of the window for a resend."""
        offsets = self._format_writer.offsets(window, answers)
        numbers = [row.number for row in window[: len(offsets)]]
        if self._format_writer.has_offsets:
            self.state.ledger.acknowledge(dict(zip(offsets, numbers, strict=True)))
        else:
            self.state.ledger.acknowledge_without_offset(numbers)
        unanswered = window[len(offsets) :]
        self._waiting.extendleft(reversed(unanswered))
        self.state.ledger.resend_rows(len(unanswered))
