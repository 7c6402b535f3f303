# Tests: tests/test_demo.py
"""The consumers of the demo: Mamamia's leases, shared by a group of workers.

Contract: each message of the log, whoever wrote it, is leased, checked against its row, and
settled: as done, or as failed if its row is one of those to fail. What another format wrote comes
as bytes, what Mamamia wrote as the map it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgpack

from benchmarks.wire import ACQUIRE, SETTLE, Answer, Interrupted, Wire, dial, request

from .course import TOPIC, Course, Worker, writer_of
from .ledger import Delivery, is_to_fail, reason_of
from .views import NO_ROW

GROUP = "arrivals"

_NOT_OWNER = "Client does not own the lease for this message"
_IDLE_SECONDS = 0.01


class Consumer(Worker):
    """Leases messages a window at a time, checks each against its row, and settles it."""

    def __init__(self, course: Course, number: int) -> None:
        super().__init__(course, f"consumer {number}")
        who: dict[str, object] = {"log_id": TOPIC, "group_id": GROUP, "client_id": self.name}
        self._who = who
        self._acquire = request(ACQUIRE, {**who, "duration": course.ledger.lease_seconds})
        self._to_settle: list[tuple[int, str | None]] = []
        """Offsets, and why they failed; None: they did not."""

    def work(self) -> None:
        """Lease and settle until the demo ends, over as many connections as it takes."""
        course = self.course
        while (wire := dial(course.addresses["mamamia"], course.is_on)) is not None:
            with wire:
                try:
                    if self._talk(wire):
                        return
                except Interrupted:
                    continue  # _exchange has booked what was answered; the rest is sent again.

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

    def _settle_request(self, offset: int, reason: str | None) -> bytes:
        fate = {"success": reason is None, "reason": reason}
        return request(SETTLE, {**self._who, "message_id": offset, **fate})

    def _book(
        self, settles: Sequence[tuple[int, str | None]], answers: Sequence[Answer], asked_at: float
    ) -> int:
        """Book answers and keep what is to be settled next; return how many messages came."""
        now = time.monotonic()
        ledger = self.course.ledger
        for (offset, reason), answer in zip(settles, answers, strict=False):
            if answer.get("status") == "settled":
                ledger.settle(offset, reason is None, now)
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
        self._to_settle = [
            (d.offset, reason_of(d.row) if is_to_fail(d.row) else None) for d in deliveries
        ]
        return len(messages)

    def _delivery(self, message: Answer, asked_at: float, received_at: float) -> Delivery:
        payload = message["payload"]
        is_map = isinstance(payload, dict)
        row = self.course.number_of(msgpack.packb(payload) if is_map else payload)
        is_as_sent = row is not None and is_map is (writer_of(row) == "mamamia")
        return Delivery(
            message["id"], NO_ROW if row is None else row, is_as_sent, asked_at, received_at
        )
