# Tests: tests/test_torture.py
"""Judge a broker by the answers that its clients read.

Contract: clients report each request, its time and its answer. The oracle keeps one line for each
broken promise and raises nothing. All times are monotonic seconds of one machine. The oracle knows
only the clients' side. Where clients cannot know the order of two events at the broker, it stays
silent, so every finding is a broken promise. The promises:

- an acknowledged record is there, with its bytes, at its offset, and its offset is never reused;
- a message whose successful settle was acknowledged is not delivered again;
- while a lease lives, no other client gets the message, and the holder can settle it; a restart
  gives the lease its full duration again;
- attempts never go down, and a message is dead after exactly three failures.

A lease is granted after its request was sent and before its answer was read. So it lives at least
until ``asked_at + duration``. An answer that lay unread for a whole lease proves nothing about the
present; the oracle checks only its content.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_FAILURES = 3
_FINDINGS_MAX = 50
_PAYLOAD_BYTES_MAX = 600


class Origin(NamedTuple):
    """The identity of a record. Each record is sent at most once."""

    producer: int
    number: int
    """The producer's own count."""


def make_payload(seed: int, origin: Origin, bytes_max: int = _PAYLOAD_BYTES_MAX) -> bytes:
    """Return the bytes of a record: its name, then bytes that follow from the name and the seed.

    The number of bytes follows from them, too.
    """
    name = b"%d:%d:" % origin
    stream = hashlib.shake_128(b"%d:%s" % (seed, name)).digest(2 + bytes_max)
    size = int.from_bytes(stream[:2], "big") % (bytes_max + 1)
    return name + stream[2 : 2 + size]


def read_payload(seed: int, payload: object, bytes_max: int = _PAYLOAD_BYTES_MAX) -> Origin | None:
    """Return the record with exactly these bytes, or None."""
    if not isinstance(payload, bytes):
        return None
    parts = payload.split(b":", 2)
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    origin = Origin(int(parts[0]), int(parts[1]))
    return origin if payload == make_payload(seed, origin, bytes_max) else None


@dataclass
class Hold:
    """A lease as its client knows it."""

    offset: int
    client: str
    until: float
    """The lease lives at least until then, unless it is settled."""
    is_settling: bool = False
    """A settle was sent: the lease may end at any moment."""


@dataclass
class Oracle:
    """The acknowledgements and leases of a run. Several threads may use it."""

    seed: int
    lease_seconds: float
    origin_of: dict[int, Origin] = field(default_factory=dict)
    """Offset -> record, from acknowledgements and deliveries."""
    offset_of: dict[Origin, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    settled_at: dict[int, float] = field(default_factory=dict)
    """Offset -> when the acknowledgement of a successful settle was read."""
    failures: Counter[int] = field(default_factory=Counter)
    """Offset -> number of failed settles acknowledged while the lease certainly lived."""
    maybe_failures: Counter[int] = field(default_factory=Counter)
    """Offset -> number of failed settles that may have counted."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Offset -> least number of grants so far."""
    deliveries: int = 0
    lapsed: int = 0
    """Number of messages delivered again after a lease lapsed."""
    findings: list[str] = field(default_factory=list)
    _holds: dict[int, Hold] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, offset: int, origin: Origin) -> None:
        """Book the acknowledgement of a PRODUCE."""
        with self._lock:
            if offset in self.acknowledged:
                self._find(f"offset {offset} was acknowledged twice")
            self.acknowledged.add(offset)
            self._identify(offset, origin)

    def deliver(
        self,
        client: str,
        offset: int,
        payload: object,
        grants: int | None,
        asked_at: float,
        received_at: float,
    ) -> Hold:
        """Book and judge a received message.

        :param grants: the count in the answer, None if the answer has none.
        :return: the lease.
        """
        with self._lock:
            self.deliveries += 1
            self._look_at(offset, payload)
            self.delivered.add(offset)
            hold = Hold(offset, client, asked_at + self.lease_seconds)
            if received_at < hold.until:
                self._judge_delivery(hold, grants, asked_at, received_at)
                self._holds[offset] = hold
            return hold

    def _judge_delivery(
        self, hold: Hold, grants: int | None, asked_at: float, received_at: float
    ) -> None:
        offset = hold.offset
        earlier = self._holds.get(offset)
        if earlier is not None and not earlier.is_settling:
            if received_at < earlier.until:
                left = earlier.until - received_at
                self._find(
                    f"offset {offset} went to {hold.client} while {earlier.client} held it for "
                    f"another {left:.3f} s"
                )
            self.lapsed += 1
        if offset in self.settled_at:
            after = received_at - self.settled_at[offset]
            self._find(
                f"offset {offset} came again {after:.3f} s after its settle was acknowledged"
            )
        if self.failures[offset] >= MAX_FAILURES:
            self._find(f"offset {offset} was delivered after {MAX_FAILURES} failures")
        least = self.attempts[offset] + 1
        if grants is not None and grants < least:
            self._find(f"offset {offset} came with {grants} grants, it must have had {least}")
        self.attempts[offset] = max(least, grants or 0)

    def settling(self, holds: list[Hold]) -> None:
        """Note that settles of these leases are about to be sent."""
        with self._lock:
            for hold in holds:
                hold.is_settling = True

    def settle(
        self, hold: Hold, success: bool, error: str | None, is_resent: bool, when: float
    ) -> None:
        """Book and judge the answer to a settle.

        :param error: the error text, None for ``settled``.
        """
        with self._lock:
            certain = when < hold.until
            if error is not None:
                if certain and (success or not is_resent):
                    self._find(f"the live holder of offset {hold.offset} was refused: {error}")
                if is_resent and not success:
                    # The first settle may have counted, and the message may have gone to another
                    # client.
                    self.maybe_failures[hold.offset] += 1
            elif success:
                self.settled_at[hold.offset] = when
            elif certain and not is_resent:
                self.failures[hold.offset] += 1
                if self.failures[hold.offset] > MAX_FAILURES:
                    self._find(f"offset {hold.offset} failed more than {MAX_FAILURES} times")
            else:
                self.maybe_failures[hold.offset] += 1

    def unanswered_settle(self, hold: Hold, success: bool) -> None:
        """Book a settle whose outcome stays unknown."""
        with self._lock:
            if not success:
                self.maybe_failures[hold.offset] += 1

    def restarted(self, gone_at: float, launched_at: float) -> None:
        """Book a restart: the broker was gone at one moment and launched again at another.

        Leases that certainly lived when it was gone live a full duration from its readiness, which
        is after its launch.
        """
        with self._lock:
            for hold in self._holds.values():
                if hold.until > gone_at:
                    hold.until = max(hold.until, launched_at + self.lease_seconds)

    def report(self, what: str) -> None:
        """Add a broken promise that a client noticed."""
        with self._lock:
            self._find(what)

    def audit(
        self, next_offset: int, records: Mapping[int, object], dead: Mapping[int, int]
    ) -> None:
        """Compare with the whole log and the dead letters at the end.

        :param next_offset: the next offset according to the broker.
        :param records: offset -> payload, of every record in the log.
        :param dead: offset -> failures, of every dead letter.
        """
        with self._lock:
            for offset, payload in records.items():
                self._look_at(offset, payload)
            wanted = set(range(next_offset))
            self._none_of("acknowledged records are gone", self.acknowledged - records.keys())
            self._none_of("offsets hold nothing", wanted - records.keys())
            self._none_of("records lie beyond the end", records.keys() - wanted)
            self._none_of("records were never delivered", wanted - self.delivered)
            certain = {o for o, n in self.failures.items() if n >= MAX_FAILURES}
            self._none_of("failed messages are no dead letters", certain - dead.keys())
            for offset, failures in dead.items():
                seen = self.failures[offset] + self.maybe_failures[offset]
                if failures != MAX_FAILURES or seen < MAX_FAILURES:
                    self._find(f"offset {offset}: dead, {failures} failures, {seen} were sent")
            self._none_of("settled messages are dead letters", dead.keys() & self.settled_at.keys())

    def _look_at(self, offset: int, payload: object) -> None:
        origin = read_payload(self.seed, payload)
        if origin is None:
            self._find(f"offset {offset} holds bytes that nobody sent")
        else:
            self._identify(offset, origin)

    def _identify(self, offset: int, origin: Origin) -> None:
        known = self.origin_of.setdefault(offset, origin)
        if known != origin:
            self._find(f"offset {offset} is {known} and {origin}: it was used twice")
        place = self.offset_of.setdefault(origin, offset)
        if place != offset:
            self._find(f"{origin} was sent once and stands at {place} and {offset}")

    def _none_of(self, what: str, offsets: set[int]) -> None:
        if offsets:
            first = ", ".join(map(str, sorted(offsets)[:5]))
            self._find(f"{len(offsets)} {what}: {first}")

    def _find(self, what: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(what)
