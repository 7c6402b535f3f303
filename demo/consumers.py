# Tests: tests/test_demo.py
"""The Mamamia consumers of the demo: workers that share the leases of one group.

They lease every message of the log, compare it with its row, and settle it: as failed if
`demo.ledger.is_to_fail` says so, otherwise as done. A payload is a map if Mamamia wrote it, and
bytes if another format did.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgpack

from benchmarks.wire import ACQUIRE, SETTLE, Answer, Interrupted, Wire, dial, request

from .ledger import Delivery, is_to_fail, reason_of
from .read_ledger import NO_ROW
from .workers import TOPIC, SharedState, Worker, writer_of

GROUP = "arrivals"

_NOT_OWNER = "Client does not own the lease for this message"
_IDLE_SECONDS = 0.01


class Consumer(Worker):
    """Leases messages a window at a time, checks each against its row, and settles it."""

    def __init__(self, state: SharedState, number: int) -> None:
        super().__init__(state, f"consumer {number}")
        who: dict[str, object] = {"log_id": TOPIC, "group_id": GROUP, "client_id": self.name}
        self._who = who
        self._acquire = request(ACQUIRE, {**who, "duration": state.ledger.lease_seconds})
        self._to_settle: list[tuple[int, str | None]] = []
        """Offsets with the reason of their failure; None means success."""

    def work(self) -> None:
        """Lease and settle until the demo ends; reconnect when the connection breaks."""
        state = self.state
        while (wire := dial(state.addresses["mamamia"], state.is_on)) is not None:
            with wire:
                try:
                    if self._talk(wire):
                        return
                except Interrupted:
                    continue  # _exchange recorded the answers and keeps the rest for a resend

    def _talk(self, wire: Wire) -> bool:
        if self._to_settle:
            # Resend first: a resent failure must still belong to the lease that it was for.
            self._exchange(wire, acquires=0)
        while self.state.is_on():
            if not self._exchange(wire, self.state.acquire_window):
                time.sleep(_IDLE_SECONDS)
        return True

    def _exchange(self, wire: Wire, acquires: int) -> bool:
        """Settle the leased messages and lease more; return whether every lease was granted."""
        settles, asked_at = self._to_settle, time.monotonic()
        frames = [self._settle_request(*settle) for settle in settles]
        try:
            answers = wire.exchange(frames + [self._acquire] * acquires)
        except Interrupted as broken:
            self._book(settles, broken.answers, asked_at)
            unanswered = settles[len(broken.answers) :]
            self.state.ledger.resend_settles(len(unanswered))
            self._to_settle = unanswered + self._to_settle
            raise
        return self._book(settles, answers, asked_at) == acquires

    def _settle_request(self, offset: int, reason: str | None) -> bytes:
        fate = {"success": reason is None, "reason": reason}
        return request(SETTLE, {**self._who, "message_id": offset, **fate})

    def _book(
        self, settles: Sequence[tuple[int, str | None]], answers: Sequence[Answer], asked_at: float
    ) -> int:
        """Record answers and set the next settles; return the number of received messages."""
        now = time.monotonic()
        ledger = self.state.ledger
        for (offset, reason), answer in zip(settles, answers, strict=False):
            if answer.get("status") == "settled":
                ledger.settle(offset, reason is None, now)
            elif answer.get("error") == _NOT_OWNER:
                ledger.count_refused_settle()
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
        row = self.state.number_of(msgpack.packb(payload) if is_map else payload)
        is_as_sent = row is not None and is_map is (writer_of(row) == "mamamia")
        return Delivery(
            message["id"], NO_ROW if row is None else row, is_as_sent, asked_at, received_at
        )
