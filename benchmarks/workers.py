# Tests: tests/test_torture.py
"""Clients that load a broker across its crashes and report every answer to the oracle.

A worker books every answer before it sends a request that depends on it. After a broken connection
a producer never repeats an unanswered request, so that a record is stored at most once. A consumer
repeats half of them.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .oracle import Hold, Oracle, Origin, make_payload
from .wire import (
    ACQUIRE,
    ACQUIRE_BATCH,
    PRODUCE,
    SETTLE,
    SETTLE_BATCH,
    Answer,
    Interrupted,
    Wire,
    dial,
    request,
)

LOG, GROUP = "torture", "work"
LEASE_SECONDS = 1.5

_BACKLOG_MAX = 20_000
_WINDOW_MAX = 64
_IDLE_SECONDS = 0.01
_BATCH_WAIT_SECONDS = 0.05
_FAILED, _FAILED_LATER, _LAPSES = 0.08, 0.12, 0.15
"""Cumulative shares of messages: failed, failed with a delay, never settled."""
_DELAY_SECONDS = 0.2


@dataclass
class Scene:
    """The objects that workers share."""

    address: str
    oracle: Oracle
    producing: threading.Event
    over: threading.Event

    def is_on(self) -> bool:
        """Return whether workers go on."""
        return not self.over.is_set()


class Worker(threading.Thread):
    """A thread that continues across crashes of the broker and reports its own failure."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.scene = scene
        self.chance = random.Random(f"{scene.oracle.seed}:{name}")

    def run(self) -> None:
        try:
            while (wire := dial(self.scene.address, self.scene.is_on)) is not None:
                with wire:
                    try:
                        self.talk(wire)
                    except Interrupted:
                        continue  # ``talk`` has booked the answers.
                    return
        except Exception as error:  # Any error ends the run as a finding.
            self.scene.oracle.report(f"{self.name} failed: {type(error).__name__}: {error}")
            self.scene.over.set()

    def talk(self, wire: Wire) -> None:
        """Work over one connection until the end, or until it breaks."""
        raise NotImplementedError


class Producer(Worker):
    """Sends records in windows of random length and never repeats one."""

    def __init__(self, scene: Scene, number: int) -> None:
        super().__init__(scene, f"producer {number}")
        self._number = number
        self._count = 0

    def talk(self, wire: Wire) -> None:
        oracle = self.scene.oracle
        while self.scene.producing.is_set():
            if len(oracle.acknowledged) - len(oracle.settled_at) > _BACKLOG_MAX:
                time.sleep(_IDLE_SECONDS)
                continue
            origins = [self._next() for _ in range(self.chance.randint(1, _WINDOW_MAX))]
            try:
                self._book(origins, wire.exchange([self._request(o) for o in origins]))
            except Interrupted as broken:
                self._book(origins, broken.answers)
                raise

    def _next(self) -> Origin:
        self._count += 1
        return Origin(self._number, self._count)

    def _request(self, origin: Origin) -> bytes:
        payload = make_payload(self.scene.oracle.seed, origin)
        return request(PRODUCE, {"log_id": LOG, "payload": payload, "metadata": None})

    def _book(self, origins: Sequence[Origin], answers: Sequence[Answer]) -> None:
        for origin, answer in zip(origins, answers, strict=False):
            if "error" in answer:
                self.scene.oracle.report(f"{origin} was refused: {answer['error']}")
            else:
                self.scene.oracle.acknowledge(answer["message_id"], origin)


@dataclass
class Verdict:
    """A consumer's decision about a message that it holds."""

    hold: Hold
    success: bool
    delay: float
    token: int | None
    is_resent: bool = False


class Consumer(Worker):
    """Leases, decides, settles. Subclasses use plain or batch commands."""

    def __init__(self, scene: Scene, number: int) -> None:
        super().__init__(scene, f"consumer {number}")
        self.who: dict[str, object] = {"log_id": LOG, "group_id": GROUP, "client_id": self.name}
        self._unanswered: list[Verdict] = []

    def talk(self, wire: Wire) -> None:
        if self._unanswered:
            self._settle(wire, self._choose_resent())
        while self.scene.is_on():
            verdicts = self._acquire(wire)
            if verdicts:
                self._settle(wire, verdicts)
            else:
                time.sleep(_IDLE_SECONDS)

    def acquire_frames(self, count: int) -> list[bytes]:
        """Return requests for up to ``count`` messages."""
        raise NotImplementedError

    def messages(self, answer: Answer) -> list[Answer]:
        """Return the messages of an answer to such a request."""
        raise NotImplementedError

    def settle_frames(self, verdicts: Sequence[Verdict]) -> list[bytes]:
        """Return requests that settle as decided, in order."""
        raise NotImplementedError

    def errors(self, answers: Sequence[Answer]) -> list[str | None]:
        """Return an error text or None for each answered settle."""
        raise NotImplementedError

    def _acquire(self, wire: Wire) -> list[Verdict]:
        frames = self.acquire_frames(self.chance.randint(1, _WINDOW_MAX))
        asked_at = time.monotonic()
        try:
            answers = wire.exchange(frames)
        except Interrupted as broken:
            # Answers from before the crash hold leases; the worker settles them when the broker is
            # back.
            self._unanswered = self._book_messages(broken.answers, asked_at)
            raise
        return self._book_messages(answers, asked_at)

    def _book_messages(self, answers: Sequence[Answer], asked_at: float) -> list[Verdict]:
        now = time.monotonic()
        verdicts = []
        for answer in answers:
            if "error" in answer:
                self.scene.oracle.report(f"{self.name} was refused a lease: {answer['error']}")
                continue
            for message in self.messages(answer):
                hold = self.scene.oracle.deliver(
                    self.name,
                    message["id"],
                    message["payload"],
                    message.get("grants"),
                    asked_at,
                    now,
                )
                verdict = self._decide(hold, message.get("token"))
                if verdict is not None:
                    verdicts.append(verdict)
        return verdicts

    def _decide(self, hold: Hold, token: int | None) -> Verdict | None:
        lot = self.chance.random()
        if not self.scene.producing.is_set() or lot >= _LAPSES:
            return Verdict(hold, True, 0.0, token)
        if lot >= _FAILED_LATER:
            return None
        return Verdict(hold, False, 0.0 if lot < _FAILED else _DELAY_SECONDS, token)

    def _settle(self, wire: Wire, verdicts: Sequence[Verdict]) -> None:
        self._unanswered = []
        if not verdicts:
            return
        self.scene.oracle.settling([verdict.hold for verdict in verdicts])
        try:
            answers = wire.exchange(self.settle_frames(verdicts))
        except Interrupted as broken:
            answered = self._book_settles(verdicts, broken.answers)
            for verdict in verdicts[answered:]:
                verdict.is_resent = True
            self._unanswered = list(verdicts[answered:])
            raise
        self._book_settles(verdicts, answers)

    def _book_settles(self, verdicts: Sequence[Verdict], answers: Sequence[Answer]) -> int:
        now = time.monotonic()
        errors = self.errors(answers)
        for verdict, error in zip(verdicts, errors, strict=False):
            self.scene.oracle.settle(verdict.hold, verdict.success, error, verdict.is_resent, now)
        return len(errors)

    def _choose_resent(self) -> list[Verdict]:
        """Choose half of the unanswered settles for a second attempt; the others lapse."""
        chosen = []
        for verdict in self._unanswered:
            if self.chance.random() < 0.5:
                chosen.append(verdict)
            elif verdict.is_resent:
                self.scene.oracle.unanswered_settle(verdict.hold, verdict.success)
        return chosen


class PlainConsumer(Consumer):
    """ACQUIRE_NEXT and SETTLE, pipelined."""

    def acquire_frames(self, count: int) -> list[bytes]:
        return [request(ACQUIRE, {**self.who, "duration": LEASE_SECONDS})] * count

    def messages(self, answer: Answer) -> list[Answer]:
        return [] if answer["message"] is None else [answer["message"]]

    def settle_frames(self, verdicts: Sequence[Verdict]) -> list[bytes]:
        return [
            request(
                SETTLE,
                {
                    **self.who,
                    "message_id": verdict.hold.offset,
                    "success": verdict.success,
                    "delay": verdict.delay,
                },
            )
            for verdict in verdicts
        ]

    def errors(self, answers: Sequence[Answer]) -> list[str | None]:
        return [answer.get("error") for answer in answers]


class BatchConsumer(Consumer):
    """ACQUIRE_BATCH and SETTLE_BATCH, with tokens and grants."""

    def acquire_frames(self, count: int) -> list[bytes]:
        body = {**self.who, "duration": LEASE_SECONDS, "max": count, "wait": _BATCH_WAIT_SECONDS}
        return [request(ACQUIRE_BATCH, body)]

    def messages(self, answer: Answer) -> list[Answer]:
        return list(answer["messages"])

    def settle_frames(self, verdicts: Sequence[Verdict]) -> list[bytes]:
        settles = [
            {
                "message_id": verdict.hold.offset,
                "token": verdict.token,
                "success": verdict.success,
                "delay": verdict.delay,
            }
            for verdict in verdicts
        ]
        return [request(SETTLE_BATCH, {**self.who, "settles": settles})]

    def errors(self, answers: Sequence[Answer]) -> list[str | None]:
        found: list[str | None] = []
        for answer in answers:
            if "error" in answer:
                self.scene.oracle.report(f"a SETTLE_BATCH was refused: {answer['error']}")
            found += [None if text == "settled" else text for text in answer.get("results", [])]
        return found
