# Tests: tests/test_bench.py
"""What a load connection says: request blocks to send, and answers turned into the next requests.

Contract: a role never touches a socket or a clock. ``first()`` gives the bytes that fill the
window; ``answers(data)`` takes everything received and not yet consumed, and returns a
:class:`Step`: how many whole answers were there, how many bytes they took, and the bytes to send
in return. A role keeps as many requests in flight as its window says, until ``stop()``.

The load generator must cost far less than the broker it measures, so requests are encoded once and
sent as slices of one block, and answers are recognised by their constant bytes. Layouts:
docs/protocols/mamamia.rst.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Protocol

import msgpack

PRODUCE, ACQUIRE, SETTLE = 0x01, 0x02, 0x03
PRODUCE_BATCH, ACQUIRE_BATCH, SETTLE_BATCH = 0x82, 0x83, 0x84

_HEADER = Struct(">IBB")
_LENGTH = Struct(">I")
_BODY = _HEADER.size

_PRODUCED = b"\x81\xaamessage_id"
_SETTLED = b"\x81\xa6status\xa7settled"
_ERROR = b"\x81\xa5error"
_MESSAGE_AT = _BODY + len(b"\x81\xa7message")
_ID_AT = _MESSAGE_AT + len(b"\x84\xa2id")
_IS_MESSAGE, _IS_NIL = 0x84, 0xC0

_INT_SIZE = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
"""Bytes of a MessagePack unsigned integer by its first byte; any other first byte is the number."""


class Step(NamedTuple):
    """What one look at the received bytes came to."""

    answers: int
    consumed: int
    """Bytes of whole answers; the rest is to be offered again with more behind it."""
    reply: bytes | memoryview
    """What to send now: one request for each answer, or nothing after ``stop()``."""
    replies: int


class Tally:
    """Counts of one role; plain integers, because they are added to for every read."""

    __slots__ = ("empty", "errors", "example", "produced", "settled")

    def __init__(self) -> None:
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
    """What the load loop needs of a role."""

    tally: Tally

    def first(self) -> tuple[bytes | memoryview, int]: ...

    def answers(self, data: bytes) -> Step: ...

    def stop(self) -> None: ...


def request(command: int, body: dict[str, object]) -> bytes:
    """Encode one request frame."""
    data: bytes = msgpack.packb(body)
    return _HEADER.pack(len(data) + 2, 1, command) + data


class Repeater:
    """Sends one template over and over; for produce commands, whose answers are not needed.

    :param template: the whole request frame.
    :param window: requests in flight.
    :param messages: messages that one request carries.
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
        found = at = 0
        end = len(data)
        while end - at >= 4:
            size = 4 + _LENGTH.unpack_from(data, at)[0]
            if end - at < size:
                break
            if data.startswith(_ERROR, at + _BODY):
                self.tally.refused(data[at + _BODY : at + size])
            else:
                self.tally.produced += self._messages
            found += 1
            at += size
        return found, at


class Consumer:
    """Leases messages and settles each: an acquired message is answered by its SETTLE, an
    accepted SETTLE by the next ACQUIRE_NEXT.

    :param wait_seconds: how long the broker may hold an ACQUIRE back when there is nothing (0:
        the connection asks no more after the first empty answer: the backlog is done).
    """

    def __init__(
        self,
        log: str,
        group: str,
        client: str,
        window: int,
        lease_seconds: float,
        wait_seconds: float,
    ) -> None:
        self.tally = Tally()
        self._window = window
        self._polls = wait_seconds > 0
        self._stopped = False
        acquire: dict[str, object] = {
            "log_id": log,
            "group_id": group,
            "client_id": client,
            "duration": lease_seconds,
        }
        if self._polls:
            acquire["wait"] = wait_seconds
        self._acquire = request(ACQUIRE, acquire)
        before = b"\x85" + b"".join(
            map(msgpack.packb, ("log_id", log, "group_id", group, "message_id"))
        )
        self._after = b"".join(map(msgpack.packb, ("client_id", client, "success", True)))
        self._before = {
            size: _HEADER.pack(2 + len(before) + size + len(self._after), 1, SETTLE) + before
            for size in (1, 2, 3, 5, 9)
        }

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._acquire * self._window, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        found = at = 0
        end = len(data)
        reply: list[bytes] = []
        while end - at >= 4:
            size = 4 + _LENGTH.unpack_from(data, at)[0]
            if end - at < size:
                break
            following = self._next(data, at, size)
            if following is not None:
                reply.append(following)
            found += 1
            at += size
        if self._stopped:
            reply = []
        return Step(found, at, b"".join(reply), len(reply))

    def _next(self, data: bytes, at: int, size: int) -> bytes | None:
        command = data[at + 5]
        if command == SETTLE and data.startswith(_SETTLED, at + _BODY):
            self.tally.settled += 1
            return self._acquire
        if command == ACQUIRE and data.startswith(b"\x81\xa7message", at + _BODY):
            if data[at + _MESSAGE_AT] == _IS_MESSAGE:
                first = at + _ID_AT
                id_size = _INT_SIZE.get(data[first], 1)
                return self._before[id_size] + data[first : first + id_size] + self._after
            self.tally.empty += 1
            return self._acquire if self._polls else None
        self.tally.refused(data[at + _BODY : at + size])
        return self._acquire


class BatchConsumer:
    """The same with our batch commands: ACQUIRE_BATCH, then one SETTLE_BATCH with its tokens."""

    def __init__(
        self, log: str, group: str, client: str, window: int, lease_seconds: float, batch: int
    ) -> None:
        self.tally = Tally()
        self._window = window
        self._stopped = False
        self._who: dict[str, object] = {"log_id": log, "group_id": group, "client_id": client}
        self._acquire = request(
            ACQUIRE_BATCH, {**self._who, "duration": lease_seconds, "max": batch, "wait": 0}
        )

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._acquire * self._window, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        found = at = 0
        end = len(data)
        reply: list[bytes] = []
        while end - at >= 4:
            size = 4 + _LENGTH.unpack_from(data, at)[0]
            if end - at < size:
                break
            following = self._next(data[at + _BODY : at + size])
            if following is not None:
                reply.append(following)
            found += 1
            at += size
        if self._stopped:
            reply = []
        return Step(found, at, b"".join(reply), len(reply))

    def _next(self, body: bytes) -> bytes | None:
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
