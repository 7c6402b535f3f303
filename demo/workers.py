# Tests: tests/test_demo.py
"""The workers of the demo: producers and consumers, each a thread with a connection of its own.

Contract: a worker survives the loss of its broker: it connects again, sends again what was not
answered, and goes on. What it was told goes into the ledger, answer by answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct

import msgpack

from benchmarks.wire import ACQUIRE, PRODUCE, SETTLE, Answer, Interrupted, Wire, dial, request

from .ledger import Delivery, Ledger, is_to_fail
from .rows import Row

LOG, GROUP = "flights", "arrivals"

_HEADER = Struct(">IBB")
_PRODUCE_HEAD = b"\x84" + msgpack.packb("log_id") + msgpack.packb(LOG) + msgpack.packb("payload")
_NOT_OWNER = "Client does not own the lease for this message"
_IDLE_SECONDS = 0.01
_PACE_SECONDS = 0.01


@dataclass
class Course:
    """What all workers share: where the broker is, how far things have come, and when to end."""

    address: str
    rows: Sequence[Row]
    ledger: Ledger
    produce_window: int
    acquire_window: int
    kill_at: int
    """Acknowledged rows at which the broker is to be killed."""
    near_kill: threading.Event
    killed: threading.Event
    end: threading.Event

    def is_on(self) -> bool:
        """Whether workers should go on."""
        return not self.end.is_set()


class Worker(threading.Thread):
    """A thread that reports its own failure instead of losing it."""

    def __init__(self, course: Course, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.course = course

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # Whatever it is, it is a finding and ends the demo.
            self.course.ledger.report(f"{self.name} failed: {type(error).__name__}: {error}")
            self.course.end.set()

    def work(self) -> None:
        """Do the work; may raise."""
        raise NotImplementedError

    def converse(self, talk: Callable[[Wire], bool]) -> None:
        """Hand connections to ``talk`` until it says that it is done, or the demo ends."""
        while (wire := dial(self.course.address, self.course.is_on)) is not None:
            with wire:
                try:
                    if talk(wire):
                        return
                except Interrupted:
                    continue  # talk has booked what was answered; the rest is sent again.


class Producer(Worker):
    """Sends its share of the rows, a window at a time."""

    def __init__(self, course: Course, number: int, producers: int) -> None:
        super().__init__(course, f"producer {number}")
        self._waiting = deque(course.rows[number::producers])

    def work(self) -> None:
        self.converse(self._talk)

    def _talk(self, wire: Wire) -> bool:
        course = self.course
        while self._waiting and course.is_on():
            if len(course.ledger.row_of) >= course.kill_at and not course.killed.is_set():
                course.near_kill.set()
                course.killed.wait(_PACE_SECONDS)
            count = min(course.produce_window, len(self._waiting))
            window = [self._waiting.popleft() for _ in range(count)]
            try:
                answers = wire.exchange([produce_request(row) for row in window])
            except Interrupted as broken:
                self._book(window, broken.answers)
                unanswered = window[len(broken.answers) :]
                self._waiting.extendleft(reversed(unanswered))
                course.ledger.resend_rows(len(unanswered))
                raise
            self._book(window, answers)
        return True

    def _book(self, window: Sequence[Row], answers: Sequence[Answer]) -> None:
        acknowledged = {}
        for row, answer in zip(window, answers, strict=False):
            if "error" in answer:
                self.course.ledger.report(f"row {row.number} was refused: {answer['error']}")
                self.course.end.set()
            else:
                acknowledged[answer["message_id"]] = row.number
        self.course.ledger.acknowledge(acknowledged)


class Consumer(Worker):
    """Leases messages a window at a time, checks each against its row, and settles it."""

    def __init__(self, course: Course, number: int) -> None:
        super().__init__(course, f"consumer {number}")
        who: dict[str, object] = {"log_id": LOG, "group_id": GROUP, "client_id": self.name}
        self._who = who
        self._acquire = request(ACQUIRE, {**who, "duration": course.ledger.lease_seconds})
        self._to_settle: list[tuple[int, bool]] = []

    def work(self) -> None:
        self.converse(self._talk)

    def _talk(self, wire: Wire) -> bool:
        if self._to_settle:
            # Before anything new is leased: a resent failure then belongs to the grant it was for.
            self._exchange(wire, acquires=0)
        while self.course.is_on():
            if not self._exchange(wire, self.course.acquire_window):
                time.sleep(_IDLE_SECONDS)
        return True

    def _exchange(self, wire: Wire, acquires: int) -> bool:
        """Settle what is held and lease more, in one go; return whether every lease was granted."""
        settles, asked_at = self._to_settle, time.monotonic()
        frames = [self._settle_request(*settle) for settle in settles]
        try:
            answers = wire.exchange(frames + [self._acquire] * acquires)
        except Interrupted as broken:
            self._book(settles, broken.answers, asked_at)
            unanswered = settles[len(broken.answers) :]
            self.course.ledger.resend_settles(len(unanswered))
            self._to_settle = unanswered + self._to_settle
            raise
        return self._book(settles, answers, asked_at) == acquires

    def _settle_request(self, offset: int, success: bool) -> bytes:
        return request(SETTLE, {**self._who, "message_id": offset, "success": success})

    def _book(
        self, settles: Sequence[tuple[int, bool]], answers: Sequence[Answer], asked_at: float
    ) -> int:
        """Book answers and keep what is to be settled next; return how many messages came."""
        now = time.monotonic()
        ledger = self.course.ledger
        for (offset, success), answer in zip(settles, answers, strict=False):
            if answer.get("status") == "settled":
                ledger.settle(offset, success, now)
            elif answer.get("error") == _NOT_OWNER:
                ledger.refuse()
            else:
                ledger.report(f"the settle of offset {offset} was answered {answer}")
        acquired = [answer.get("message", answer) for answer in answers[len(settles) :]]
        for answer in acquired:
            if answer is not None and "error" in answer:
                ledger.report(f"{self.name} was refused a lease: {answer['error']}")
        messages = [m for m in acquired if m is not None and "id" in m]
        deliveries = [self._delivery(message, asked_at, now) for message in messages]
        ledger.deliver(deliveries)
        self._to_settle = [(d.offset, not is_to_fail(d.row)) for d in deliveries]
        return len(messages)

    def _delivery(self, message: Answer, asked_at: float, received_at: float) -> Delivery:
        row = message["metadata"]["row"]
        packed = self.course.rows[row].packed if row < len(self.course.rows) else None
        is_as_sent = msgpack.packb(message["payload"]) == packed
        return Delivery(message["id"], row, is_as_sent, asked_at, received_at)


def produce_request(row: Row) -> bytes:
    """The PRODUCE frame of a row: the carrier as its key, its number as metadata."""
    tail = msgpack.packb("metadata") + msgpack.packb({"row": row.number})
    key = msgpack.packb("key") + msgpack.packb(row.carrier)
    body = _PRODUCE_HEAD + row.packed + tail + key
    frame: bytes = _HEADER.pack(len(body) + 2, 1, PRODUCE) + body
    return frame
