# Tests: tests/test_demo.py
"""The writers of the demo: one for each wire format, each with a fifth of the rows.

Contract: a `Pen` turns rows into the requests of a format, and answers into the offsets they tell.
A `Writer` sends a window of rows at a time and sends again what was not answered.
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

from .course import TOPIC, Course, Worker
from .line import Feed, Line
from .rows import Row

_PACE_SECONDS = 0.01

_HEADER = Struct(">IBB")
_PRODUCE_HEAD = b"\x84" + msgpack.packb("log_id") + msgpack.packb(TOPIC) + msgpack.packb("payload")


class Refused(Exception):
    """The broker refused a write; the message is its own."""


class Pen:
    """How a wire format writes rows. One belongs to one connection."""

    tells_offsets = True

    def greet(self, line: Line) -> None:
        """Say what the format wants said first."""

    def feed(self, data: bytes) -> Sequence[Any]:
        """The answers that bytes complete."""
        raise NotImplementedError

    def write(self, rows: Sequence[Row]) -> bytes:
        """The requests that write rows."""
        raise NotImplementedError

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        """The offsets of the first rows, as far as the answers tell of them; any number where the
        format tells none.

        :raises Refused: when one was refused.
        """
        raise NotImplementedError

    def is_answered(self, rows: Sequence[Row], answers: Sequence[Any]) -> bool:
        """Whether the answers tell of all rows."""
        return len(answers) == len(rows)


class MamamiaPen(Pen):
    """Each row a map, as people write them, with its carrier as the key."""

    def __init__(self) -> None:
        self._reader = mamamia.FrameReader()

    def feed(self, data: bytes) -> Sequence[Any]:
        return [mamamia.decode_response(*frame) for frame in self._reader.feed(data)]

    def write(self, rows: Sequence[Row]) -> bytes:
        return b"".join(map(produce_request, rows))

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if not isinstance(answer, mamamia.Produced):
                raise Refused(str(answer))
        return [answer.message_id for answer in answers]


def produce_request(row: Row) -> bytes:
    """Mamamia's PRODUCE of a row: the carrier as its key, its number as metadata."""
    tail = msgpack.packb("metadata") + msgpack.packb({"row": row.number})
    key = msgpack.packb("key") + msgpack.packb(row.carrier)
    body = _PRODUCE_HEAD + row.packed + tail + key
    frame: bytes = _HEADER.pack(len(body) + 2, 1, mamamia.Command.PRODUCE) + body
    return frame


class FlyMQPen(Pen):
    """Each row a value, with its carrier as the key."""

    def __init__(self) -> None:
        self._reader = flymq.FrameReader()
        self._asked: deque[flymq.Request] = deque()

    def feed(self, data: bytes) -> Sequence[Any]:
        return [
            flymq.decode_answer(self._asked.popleft(), opcode, payload)
            for opcode, _, payload in self._reader.feed(data)
        ]

    def write(self, rows: Sequence[Row]) -> bytes:
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


class BlipMQPen(Pen):
    """QoS 1: success is silent, and the PONG to a PING says that all before it is durable."""

    tells_offsets = False

    def __init__(self) -> None:
        self._reader = blipmq.frame_reader()

    def greet(self, line: Line) -> None:
        greet_blipmq(line)

    def feed(self, data: bytes) -> Sequence[Any]:
        return [blipmq.decode(frame) for frame in self._reader.feed(data)]

    def write(self, rows: Sequence[Row]) -> bytes:
        published = [blipmq.encode(blipmq.Publish(0, 1, TOPIC, row.packed)) for row in rows]
        return b"".join([*published, blipmq.encode(blipmq.Ping(0))])

    def is_answered(self, rows: Sequence[Row], answers: Sequence[Any]) -> bool:
        return any(isinstance(answer, blipmq.Pong) for answer in answers)

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if isinstance(answer, blipmq.Nack):
                raise Refused(answer.text)
        return [0] * len(rows) if answers else []


def greet_blipmq(line: Line) -> None:
    """HELLO and AUTH, in one go."""
    hello = blipmq.encode(blipmq.Hello(1)) + blipmq.encode(blipmq.Auth(2, "demo"))
    line.exchange(hello, lambda answers: len(answers) == 2)


class RustLogPen(Pen):
    """A window of rows is one request, in the binary and in the JSON dialect by turns."""

    def __init__(self) -> None:
        self._reader = rustlog.FrameReader()
        self._turns = count()

    def feed(self, data: bytes) -> Sequence[Any]:
        return [rustlog_answer(payload) for payload in self._reader.feed(data)]

    def write(self, rows: Sequence[Row]) -> bytes:
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
    """A request in the dialect whose turn it is."""
    dialect = rustlog.Dialect.JSON if turn % 2 else rustlog.Dialect.BINARY
    return rustlog.CODECS[dialect].encode_request(request)


def rustlog_answer(payload: bytes) -> rustlog.Answer:
    """An answer, in whichever dialect it came."""
    return rustlog.CODECS[rustlog.dialect_of(payload)].decode_answer(payload)


class MegaPen(Pen):
    """Each row a payload, its number as the producer's timestamp."""

    def __init__(self) -> None:
        self._reader = mega.AnswerReader()

    def feed(self, data: bytes) -> Sequence[Any]:
        return self._reader.feed(data)

    def write(self, rows: Sequence[Row]) -> bytes:
        requests = [mega.Produce(row.number, TOPIC, row.number, row.packed) for row in rows]
        for request in requests:
            self._reader.expect(request)
        return b"".join(map(mega.encode_request, requests))

    def offsets(self, rows: Sequence[Row], answers: Sequence[Any]) -> list[int]:
        for answer in answers:
            if not isinstance(answer, mega.Produced):
                raise Refused(str(answer))
        return [answer.offset for answer in answers]


PENS: dict[str, type[Pen]] = {
    "mamamia": MamamiaPen,
    "flymq": FlyMQPen,
    "blipmq": BlipMQPen,
    "rustlog": RustLogPen,
    "mega": MegaPen,
}


class Writer(Worker):
    """Sends its share of the rows through one format, a window at a time."""

    def __init__(self, course: Course, form: str, rows: Sequence[Row]) -> None:
        super().__init__(course, f"the writer of {form}")
        self._form = form
        self._waiting = deque(rows)
        self._pen: Pen

    def work(self) -> None:
        self.converse(self._form, self._take_pen, self._talk)

    def _take_pen(self) -> Feed:
        self._pen = PENS[self._form]()
        return self._pen.feed

    def _talk(self, line: Line) -> bool:
        course = self.course
        self._pen.greet(line)
        while self._waiting and course.is_on():
            size = course.produce_window
            if course.ledger.acknowledged() >= course.kill_at and not course.killed.is_set():
                if all(course.read_by().values()):
                    course.near_kill.set()
                else:
                    size = 1  # Slowly, until every format is in the middle of its work.
                course.killed.wait(_PACE_SECONDS)
            size = min(size, len(self._waiting))
            self._send(line, [self._waiting.popleft() for _ in range(size)])
        return True

    def _send(self, line: Line, window: Sequence[Row]) -> None:
        """Write a window of rows, and book what was answered, all of it or not."""
        pen = self._pen
        try:
            answers = line.exchange(
                pen.write(window), lambda answers: pen.is_answered(window, answers)
            )
        except Interrupted as broken:
            self._book(window, broken.answers)
            raise
        self._book(window, answers)

    def _book(self, window: Sequence[Row], answers: Sequence[Any]) -> None:
        """Book what was acknowledged, and keep the rest of the window to be sent again."""
        offsets = self._pen.offsets(window, answers)
        numbers = [row.number for row in window[: len(offsets)]]
        if self._pen.tells_offsets:
            self.course.ledger.acknowledge(dict(zip(offsets, numbers, strict=True)))
        else:
            self.course.ledger.acknowledge_unplaced(numbers)
        unanswered = window[len(offsets) :]
        self._waiting.extendleft(reversed(unanswered))
        self.course.ledger.resend_rows(len(unanswered))
