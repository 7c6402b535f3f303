# Tests: tests/test_demo.py
"""The readers of the demo: one for each wire format that reads by offset or by subscription.

Each reads the whole log, the rows of all formats, and records every record with its offset. After
the crash a reader resumes from the position that the broker keeps for it: a committed offset or a
subscription. The consumers that lease are in `demo.consumers`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any, ClassVar

from brokerd.codecs import blipmq, flymq, mega, rustlog

from .connection import Connection, Feed
from .read_ledger import ReadRecord
from .workers import TOPIC, SharedState, Worker
from .writers import greet_blipmq, rustlog_answer, rustlog_request

FLYMQ_GROUP, RUSTLOG_GROUP = "departures by FlyMQ", "departures by RustLog"
"""One group each, because formats that commit offsets share the offsets of a group."""

_IDLE_SECONDS = 0.01
_FETCH_RECORDS = 500
_FETCH_BYTES = 1 << 18


class ReadingFailed(Exception):
    """The broker refused a request of a reader; the message is the broker's."""


class Reader(Worker):
    """Reads the log from the first record to the last, and resumes after a crash."""

    form: ClassVar[str]

    def __init__(self, state: SharedState) -> None:
        super().__init__(state, f"the reader of {self.form}")
        self.position = 0
        """Offset of the next record to read."""

    def work(self) -> None:
        self.converse(self.form, self.make_feed, self._talk)

    def _talk(self, connection: Connection) -> bool:
        self.greet(connection)
        while self.state.is_on() and not self.is_done():
            if not self.read(connection):
                time.sleep(_IDLE_SECONDS)
        return True

    def is_done(self) -> bool:
        """Return whether all records are read and all writers are done."""
        end = self.state.end_offset
        return end is not None and self.state.read_ledger.count(self.form) >= end

    def make_feed(self) -> Feed:
        """Return the decoder of a new connection."""
        raise NotImplementedError

    def greet(self, connection: Connection) -> None:
        """Send the first requests of a connection."""

    def read(self, connection: Connection) -> int:
        """Read and record some records; return how many."""
        raise NotImplementedError

    def record(self, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        """Add records to the read ledger, each with the row of its bytes."""
        number_of = self.state.number_of
        self.state.read_ledger.add(
            self.form,
            [
                ReadRecord(offset, number_of(value))
                for offset, value in zip(offsets, values, strict=True)
            ],
        )


class FlyMQReader(Reader):
    """FETCH, then COMMIT with the next FETCH; after a crash, resume at the offset of SUBSCRIBE."""

    form = "flymq"

    def make_feed(self) -> Feed:
        reader = flymq.FrameReader()
        self._asked: deque[Any] = deque()
        return lambda data: [
            flymq.decode_answer(self._asked.popleft(), opcode, payload)
            for opcode, _, payload in reader.feed(data)
        ]

    def greet(self, connection: Connection) -> None:
        (answer,) = self._exchange(connection, flymq.Subscribe(TOPIC, FLYMQ_GROUP, 0, "commit"))
        self.position = answer.offset
        self.state.read_ledger.resume(self.form, self.position)

    def read(self, connection: Connection) -> int:
        committed = self.position
        done, fetched = self._exchange(
            connection,
            flymq.Commit(TOPIC, FLYMQ_GROUP, 0, committed),
            flymq.Fetch(TOPIC, 0, committed, _FETCH_RECORDS, ""),
        )
        if not isinstance(done, flymq.Done) or not isinstance(fetched, flymq.Fetched):
            raise ReadingFailed(f"{done}, {fetched}")
        self.state.read_ledger.commit(self.form, committed)
        self.record(
            [record.offset for record in fetched.records],
            [record.value for record in fetched.records],
        )
        self.position = fetched.next_offset
        return len(fetched.records)

    def _exchange(self, connection: Connection, *requests: Any) -> list[Any]:
        self._asked += requests
        data = b"".join(map(flymq.encode_request, requests))
        return connection.exchange(data, lambda answers: len(answers) == len(requests))


class RustLogReader(Reader):
    """Fetch by group, then OffsetCommit, in the binary and in the JSON dialect by turns."""

    form = "rustlog"

    def __init__(self, state: SharedState) -> None:
        super().__init__(state)
        self._turns = count()

    def make_feed(self) -> Feed:
        reader = rustlog.FrameReader()
        return lambda data: [rustlog_answer(payload) for payload in reader.feed(data)]

    def greet(self, connection: Connection) -> None:
        answer = self._ask(connection, rustlog.OffsetFetch(TOPIC, 0, RUSTLOG_GROUP))
        self.position = answer.offset or 0
        self.state.read_ledger.resume(self.form, self.position)

    def read(self, connection: Connection) -> int:
        fetched = self._ask(
            connection, rustlog.Fetch(TOPIC, 0, self.position, _FETCH_BYTES, RUSTLOG_GROUP)
        )
        if not isinstance(fetched, rustlog.Fetched):
            raise ReadingFailed(str(fetched))
        self.record(fetched.offsets, fetched.records)
        self.position = fetched.next_offset
        if fetched.records:
            self._ask(connection, rustlog.OffsetCommit(TOPIC, 0, RUSTLOG_GROUP, self.position))
            self.state.read_ledger.commit(self.form, self.position)
        return len(fetched.records)

    def _ask(self, connection: Connection, request: Any) -> Any:
        return connection.ask(rustlog_request(request, next(self._turns)))


class MegaReader(Reader):
    """A window of CONSUME requests at once; the reader keeps its own offset."""

    form = "mega"
    _WINDOW = 128

    def make_feed(self) -> Feed:
        self._answers = mega.AnswerReader()
        return self._answers.feed

    def read(self, connection: Connection) -> int:
        requests = [
            mega.Consume(offset & 0x7FFFFFFF, TOPIC, 0, offset)
            for offset in range(self.position, self.position + self._WINDOW)
        ]
        for request in requests:
            self._answers.expect(request)
        answers = connection.exchange(
            b"".join(map(mega.encode_request, requests)),
            lambda answers: len(answers) == len(requests),
        )
        # A record may be appended between a refusal and the next answer: read both next time.
        read = list(takewhile(lambda answer: isinstance(answer, mega.Consumed), answers))
        for answer in answers[len(read) :]:
            at_end = isinstance(answer, mega.Refused) and answer.code == mega.Code.INVALID_OFFSET
            if not (at_end or isinstance(answer, mega.Consumed)):
                raise ReadingFailed(str(answer))
        self.record(
            [answer.next_offset - 1 for answer in read], [answer.payload for answer in read]
        )
        self.position += len(read)
        return len(read)


class BlipMQReader(Reader):
    """A window of POLL requests at once; ACKs go with the next window, durable with its PONG."""

    form = "blipmq"
    _WINDOW = 256

    def __init__(self, state: SharedState) -> None:
        super().__init__(state)
        self._to_acknowledge: list[int] = []

    def make_feed(self) -> Feed:
        reader = blipmq.frame_reader()
        return lambda data: [blipmq.decode(frame) for frame in reader.feed(data)]

    def greet(self, connection: Connection) -> None:
        greet_blipmq(connection)

    def read(self, connection: Connection) -> int:
        """Acknowledge the messages of the last window, and poll for the next one."""
        subscription, tags = self.state.subscription_id, self._to_acknowledge
        requests: list[blipmq.Message] = [
            *(blipmq.Ack(tag, subscription) for tag in tags),
            *(blipmq.Poll(0, subscription) for _ in range(self._WINDOW)),
            blipmq.Ping(0),
        ]
        answers = connection.exchange(
            b"".join([blipmq.encode(request) for request in requests]),
            lambda answers: any(isinstance(answer, blipmq.Pong) for answer in answers),
        )
        late = {answer.correlation_id for answer in answers if isinstance(answer, blipmq.Nack)}
        self.state.read_ledger.acknowledge(self.form, [tag - 1 for tag in tags if tag not in late])
        read = [answer for answer in answers if isinstance(answer, blipmq.Publish)]
        self.record([answer.correlation_id - 1 for answer in read], [one.message for one in read])
        self._to_acknowledge = [answer.correlation_id for answer in read]
        return len(read)

    def is_done(self) -> bool:
        return super().is_done() and not self._to_acknowledge


READERS: tuple[type[Reader], ...] = (FlyMQReader, BlipMQReader, RustLogReader, MegaReader)
