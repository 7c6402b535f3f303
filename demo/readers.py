# Tests: tests/test_demo.py
"""The readers of the demo: one for each wire format that is read by offset or by subscription.

Contract: each reads the whole log, whoever wrote it, and books every record with its offset. What a
format keeps for its readers (a committed offset, a subscription) is used, and looked at again after
the crash. Mamamia's leases are in `demo.consumers`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any, ClassVar

from brokerd.codecs import blipmq, flymq, mega, rustlog

from .course import TOPIC, Course, Worker
from .line import Feed, Line
from .views import Seen
from .writers import greet_blipmq, rustlog_answer, rustlog_request

FLYMQ_GROUP, RUSTLOG_GROUP = "departures by FlyMQ", "departures by RustLog"
"""Two groups: formats that commit offsets share those of a group."""

_IDLE_SECONDS = 0.01
_FETCH_RECORDS = 500
_FETCH_BYTES = 1 << 18


class ReadingFailed(Exception):
    """The broker refused something that a reader needs; the message is its own."""


class Reader(Worker):
    """Reads the log from the first record to the last one, and goes on after a crash."""

    form: ClassVar[str]

    def __init__(self, course: Course) -> None:
        super().__init__(course, f"the reader of {self.form}")
        self.position = 0
        """Where to go on."""

    def work(self) -> None:
        self.converse(self.form, self.make_feed, self._talk)

    def _talk(self, line: Line) -> bool:
        self.greet(line)
        while self.course.is_on() and not self.is_done():
            if not self.read(line):
                time.sleep(_IDLE_SECONDS)
        return True

    def is_done(self) -> bool:
        """Whether all records are read, and there will be no more."""
        end = self.course.end_offset
        return end is not None and self.course.views.count(self.form) >= end

    def make_feed(self) -> Feed:
        """The feed of a new connection."""
        raise NotImplementedError

    def greet(self, line: Line) -> None:
        """Say what comes first on a connection."""

    def read(self, line: Line) -> int:
        """Read and book some records; how many."""
        raise NotImplementedError

    def see(self, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        """Book records."""
        number_of = self.course.number_of
        self.course.views.see(
            self.form,
            [Seen(offset, number_of(value)) for offset, value in zip(offsets, values, strict=True)],
        )


class FlyMQReader(Reader):
    """FETCH, then COMMIT with the next FETCH; after a crash it goes on where SUBSCRIBE says."""

    form = "flymq"

    def make_feed(self) -> Feed:
        reader = flymq.FrameReader()
        self._asked: deque[Any] = deque()
        return lambda data: [
            flymq.decode_answer(self._asked.popleft(), opcode, payload)
            for opcode, _, payload in reader.feed(data)
        ]

    def greet(self, line: Line) -> None:
        (answer,) = self._exchange(line, flymq.Subscribe(TOPIC, FLYMQ_GROUP, 0, "commit"))
        self.position = answer.offset
        self.course.views.go_on(self.form, self.position)

    def read(self, line: Line) -> int:
        committed = self.position
        done, fetched = self._exchange(
            line,
            flymq.Commit(TOPIC, FLYMQ_GROUP, 0, committed),
            flymq.Fetch(TOPIC, 0, committed, _FETCH_RECORDS, ""),
        )
        if not isinstance(done, flymq.Done) or not isinstance(fetched, flymq.Fetched):
            raise ReadingFailed(f"{done}, {fetched}")
        self.course.views.commit(self.form, committed)
        self.see(
            [record.offset for record in fetched.records],
            [record.value for record in fetched.records],
        )
        self.position = fetched.next_offset
        return len(fetched.records)

    def _exchange(self, line: Line, *requests: Any) -> list[Any]:
        self._asked += requests
        data = b"".join(map(flymq.encode_request, requests))
        return line.exchange(data, lambda answers: len(answers) == len(requests))


class RustLogReader(Reader):
    """Fetch by group, then OffsetCommit, in the binary and in the JSON dialect by turns."""

    form = "rustlog"

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self._turns = count()

    def make_feed(self) -> Feed:
        reader = rustlog.FrameReader()
        return lambda data: [rustlog_answer(payload) for payload in reader.feed(data)]

    def greet(self, line: Line) -> None:
        answer = self._ask(line, rustlog.OffsetFetch(TOPIC, 0, RUSTLOG_GROUP))
        self.position = answer.offset or 0
        self.course.views.go_on(self.form, self.position)

    def read(self, line: Line) -> int:
        fetched = self._ask(
            line, rustlog.Fetch(TOPIC, 0, self.position, _FETCH_BYTES, RUSTLOG_GROUP)
        )
        if not isinstance(fetched, rustlog.Fetched):
            raise ReadingFailed(str(fetched))
        self.see(fetched.offsets, fetched.records)
        self.position = fetched.next_offset
        if fetched.records:
            self._ask(line, rustlog.OffsetCommit(TOPIC, 0, RUSTLOG_GROUP, self.position))
            self.course.views.commit(self.form, self.position)
        return len(fetched.records)

    def _ask(self, line: Line, request: Any) -> Any:
        return line.ask(rustlog_request(request, next(self._turns)))


class MegaReader(Reader):
    """CONSUME after CONSUME, a window in one go; the place is the reader's own."""

    form = "mega"
    _WINDOW = 128

    def make_feed(self) -> Feed:
        self._answers = mega.AnswerReader()
        return self._answers.feed

    def read(self, line: Line) -> int:
        requests = [
            mega.Consume(offset & 0x7FFFFFFF, TOPIC, 0, offset)
            for offset in range(self.position, self.position + self._WINDOW)
        ]
        for request in requests:
            self._answers.expect(request)
        answers = line.exchange(
            b"".join(map(mega.encode_request, requests)),
            lambda answers: len(answers) == len(requests),
        )
        # A record may be appended between a refusal and the next answer: read both next time.
        read = list(takewhile(lambda answer: isinstance(answer, mega.Consumed), answers))
        for answer in answers[len(read) :]:
            at_end = isinstance(answer, mega.Refused) and answer.code == mega.Code.INVALID_OFFSET
            if not (at_end or isinstance(answer, mega.Consumed)):
                raise ReadingFailed(str(answer))
        self.see([answer.next_offset - 1 for answer in read], [answer.payload for answer in read])
        self.position += len(read)
        return len(read)


class BlipMQReader(Reader):
    """POLL after POLL, a window in one go; ACK with the next window, durable with its PONG."""

    form = "blipmq"
    _WINDOW = 256

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self._to_acknowledge: list[int] = []

    def make_feed(self) -> Feed:
        reader = blipmq.frame_reader()
        return lambda data: [blipmq.decode(frame) for frame in reader.feed(data)]

    def greet(self, line: Line) -> None:
        greet_blipmq(line)

    def read(self, line: Line) -> int:
        """One window: acknowledge what the last one brought, and poll for more."""
        subscription, tags = self.course.subscription_id, self._to_acknowledge
        requests: list[blipmq.Message] = [
            *(blipmq.Ack(tag, subscription) for tag in tags),
            *(blipmq.Poll(0, subscription) for _ in range(self._WINDOW)),
            blipmq.Ping(0),
        ]
        answers = line.exchange(
            b"".join([blipmq.encode(request) for request in requests]),
            lambda answers: any(isinstance(answer, blipmq.Pong) for answer in answers),
        )
        late = {answer.correlation_id for answer in answers if isinstance(answer, blipmq.Nack)}
        self.course.views.finish(self.form, [tag - 1 for tag in tags if tag not in late])
        read = [answer for answer in answers if isinstance(answer, blipmq.Publish)]
        self.see([answer.correlation_id - 1 for answer in read], [one.message for one in read])
        self._to_acknowledge = [answer.correlation_id for answer in read]
        return len(read)

    def is_done(self) -> bool:
        return super().is_done() and not self._to_acknowledge


READERS: tuple[type[Reader], ...] = (FlyMQReader, BlipMQReader, RustLogReader, MegaReader)
