# Tests: tests/test_bench.py
"""The roles of load connections: they encode requests and turn answers into the next requests.

A role does not use sockets or clocks. ``first()`` returns the bytes that fill the window.
``answers(data)`` takes all received bytes that are not yet consumed and returns a :class:`Step`. A
role keeps its window full until ``stop()``.

The load generator must cost far less than the broker. So a role encodes requests once, sends slices
of one block, and recognises answers by their constant bytes. Layouts: docs/protocols/mamamia.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, Protocol

import msgpack

from brokerd.codecs.mamamia import Command, acquired_nothing, frame, settled

PRODUCE, ACQUIRE, SETTLE = Command.PRODUCE, Command.ACQUIRE_NEXT, Command.SETTLE
PRODUCE_BATCH, ACQUIRE_BATCH = Command.PRODUCE_BATCH, Command.ACQUIRE_BATCH
SETTLE_BATCH = Command.SETTLE_BATCH

_LENGTH = Struct(">I")
_BODY = len(frame(PRODUCE, b""))

_PRODUCED = b"\x81\xaamessage_id"
_ERROR = b"\x81\xa5error"
_HEAD = _LENGTH.size
_SETTLED = settled()[_HEAD:]
_NOTHING = acquired_nothing()[_HEAD:]
_LEASED = frame(ACQUIRE, b"\x81\xa7message\x84\xa2id")[_HEAD:]
_ID_AT = _HEAD + len(_LEASED)
"""Answers behind their length, as far as they are always the same; the id follows the last."""

_INT_SIZE = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
"""Bytes of a MessagePack unsigned whole by its first byte; any other first byte is the number."""
_ID_SIZES = (1, *_INT_SIZE.values())


class Step(NamedTuple):
    """The result of parsing the received bytes."""

    answers: int
    consumed: int
    """Bytes of complete answers; the caller offers the rest again with more bytes."""
    reply: bytes | memoryview
    """Bytes to send: one request for each answer, or none after ``stop()``."""
    replies: int


class Tally:
    """Counts of one role; plain integers, because they are added to for every read."""

    __slots__ = ("consumed", "empty", "errors", "example", "produced", "settled")

    def __init__(self) -> None:
        self.consumed = 0
        self.produced = 0
        self.settled = 0
        self.empty = 0
        self.errors = 0
        self.example = ""

    def refused(self, body: bytes) -> None:
        """Count an error answer and keep the first one's text."""
        self.errors += 1
        if not self.example:
            self.example = repr(body[:200])


class Role(Protocol):
    """The interface between the load loop and a role."""

    tally: Tally

    def first(self) -> tuple[bytes | memoryview, int]: ...

    def answers(self, data: bytes) -> Step: ...

    def stop(self) -> None: ...


def request(command: int, body: dict[str, object]) -> bytes:
    """Encode one request frame."""
    return frame(command, msgpack.packb(body))


def frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Return begin and end of each complete frame."""
    at, last = 0, len(data) - 4
    length_at = _LENGTH.unpack_from
    while at <= last:
        stop: int = at + 4 + length_at(data, at)[0]
        if stop > last + 4:
            return
        yield at, stop
        at = stop


class Repeater:
    """Repeats one request frame; for produce commands, whose answers need no parsing.

    :param template: the encoded request frame.
    :param window: requests in flight.
    :param messages: messages in one request.
    """

    def __init__(self, template: bytes, window: int, messages: int = 1) -> None:
        self.tally = Tally()
        self._window = window
        self._messages = messages
        self._size = len(template)
        self._block = memoryview(template * window)
        self._stopped = False

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._block, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        found = self._count_alike(data)
        consumed = len(data)
        if not found:
            found, consumed = self._walk(data)
        else:
            self.tally.produced += found * self._messages
        replies = 0 if self._stopped else found
        return Step(found, consumed, self._block[: replies * self._size], replies)

    def _count_alike(self, data: bytes) -> int:
        """Count answers that all have the first one's length and command; 0 when they do not.

        The ids of one read nearly always have the same size, and a search at C speed replaces a
        step for each answer.
        """
        head = data[: _BODY + len(_PRODUCED)]
        if not head.endswith(_PRODUCED):
            return 0
        size = 4 + _LENGTH.unpack_from(data)[0]
        found = data.count(head)
        return found if found * size == len(data) else 0

    def _walk(self, data: bytes) -> tuple[int, int]:
        found = stop = 0
        for at, stop in frames(data):
            if data.startswith(_ERROR, at + _BODY):
                self.tally.refused(data[at + _BODY : stop])
            else:
                self.tally.produced += self._messages
            found += 1
        return found, stop


class _LeaseRole:
    """Base of both consumers: ``_next`` makes the next request from each answer."""

    def __init__(self, acquire: bytes, window: int) -> None:
        self.tally = Tally()
        self._acquire = acquire
        self._window = window
        self._stopped = False

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._acquire * self._window, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        found = stop = 0
        reply: list[bytes] = []
        following = self._next
        for at, stop in frames(data):
            request = following(data, at, stop)
            if request is not None:
                reply.append(request)
            found += 1
        if self._stopped:
            reply = []
        return Step(found, stop, b"".join(reply), len(reply))

    def _next(self, data: bytes, at: int, stop: int) -> bytes | None:
        """Return the request that follows the answer at this position, or None."""
        raise NotImplementedError


class Consumer(_LeaseRole):
    """Leases messages and settles each: an acquired message is answered by its SETTLE, an
    accepted SETTLE by the next ACQUIRE_NEXT.

    :param wait_seconds: how long the broker may hold an ACQUIRE back when there is nothing (0:
        the connection asks no more after the first empty answer: the backlog is done).
    """

    def __init__(
        self,
        topic: str,
        group: str,
        client: str,
        window: int,
        lease_seconds: float,
        wait_seconds: float,
    ) -> None:
        self._polls = wait_seconds > 0
        acquire: dict[str, object] = {
            "log_id": topic,
            "group_id": group,
            "client_id": client,
            "duration": lease_seconds,
        }
        if self._polls:
            acquire["wait"] = wait_seconds
        super().__init__(request(ACQUIRE, acquire), window)
        before = b"\x85" + b"".join(
            map(msgpack.packb, ("log_id", topic, "group_id", group, "message_id"))
        )
        self._after = b"".join(map(msgpack.packb, ("client_id", client, "success", True)))
        whole = {size: frame(SETTLE, before + bytes(size) + self._after) for size in _ID_SIZES}
        self._before = {size: whole[size][: _BODY + len(before)] for size in _ID_SIZES}

    def _next(self, data: bytes, at: int, stop: int) -> bytes | None:
        head = at + _HEAD
        if data.startswith(_SETTLED, head):
            self.tally.settled += 1
            return self._acquire
        if data.startswith(_LEASED, head):
            first = at + _ID_AT
            id_size = _INT_SIZE.get(data[first], 1)
            return self._before[id_size] + data[first : first + id_size] + self._after
        if data.startswith(_NOTHING, head):
            self.tally.empty += 1
            return self._acquire if self._polls else None
        self.tally.refused(data[at + _BODY : stop])
        return self._acquire


class BatchConsumer(_LeaseRole):
    """As `Consumer`, with batch commands: ACQUIRE_BATCH, then one SETTLE_BATCH with its tokens."""

    def __init__(
        self, topic: str, group: str, client: str, window: int, lease_seconds: float, batch: int
    ) -> None:
        self._who: dict[str, object] = {"log_id": topic, "group_id": group, "client_id": client}
        acquire = {**self._who, "duration": lease_seconds, "max": batch, "wait": 0}
        super().__init__(request(ACQUIRE_BATCH, acquire), window)

    def _next(self, data: bytes, at: int, stop: int) -> bytes | None:
        body = data[at + _BODY : stop]
        answer = msgpack.unpackb(body)
        results = answer.get("results")
        if results is not None:
            done = results.count("settled")
            self.tally.settled += done
            if done < len(results):
                self.tally.refused(body)
            return self._acquire
        messages = answer.get("messages")
        if messages is None:
            self.tally.refused(body)
            return self._acquire
        if not messages:
            self.tally.empty += 1
            return None
        settles = [
            {"message_id": message["id"], "token": message["token"], "success": True}
            for message in messages
        ]
        return request(SETTLE_BATCH, {**self._who, "settles": settles})
