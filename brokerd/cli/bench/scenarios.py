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
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, Protocol

import msgpack

from brokerd.codecs.mamamia import Command, acquired_nothing, frame, settled, settled_batch

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

_MESSAGES = b"\x81\xa8messages"
_MESSAGE = b"\x87\xa2id"
"""The begin of a leased message with all fields; the id follows."""
_TOKEN = b"\xa5token"
_SETTLE = b"\x83" + msgpack.packb("message_id")
_SETTLE_END = msgpack.packb("success") + b"\xc3"


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
        who: dict[str, object] = {"log_id": topic, "group_id": group, "client_id": client}
        acquire = {**who, "duration": lease_seconds, "max": batch, "wait": 0}
        super().__init__(request(ACQUIRE_BATCH, acquire), window)
        packed = (part for field in who.items() for part in map(msgpack.packb, field))
        self._before = b"\x84" + b"".join(packed) + msgpack.packb("settles")
        self._batch = batch
        self._all_settled = settled_batch(["settled"] * batch)[_HEAD:]

    def _next(self, data: bytes, at: int, stop: int) -> bytes | None:
        if data[at + _HEAD : stop] == self._all_settled:
            self.tally.settled += self._batch
            return self._acquire
        body = data[at + _BODY : stop]
        settles = encode_settles(body)
        if settles:
            return frame(SETTLE_BATCH, self._before + settles)
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
        return frame(
            SETTLE_BATCH,
            self._before
            + msgpack.packb(
                [
                    {"message_id": message["id"], "token": message["token"], "success": True}
                    for message in messages
                ]
            ),
        )


def encode_settles(body: bytes) -> bytes:
    """Return the settles for an answer to ACQUIRE_BATCH whose messages have one layout.

    It takes a tenth of the time of a decoder. Returns no bytes for all other answers.
    """
    if not body.startswith(_MESSAGES):
        return b""
    at = len(_MESSAGES)
    if body[at] == 0xDC:
        count, first = int.from_bytes(body[at + 1 : at + 3], "big"), at + 3
    else:
        count, first = body[at] & 0x0F, at + 1
    size, rest = divmod(len(body) - first, count or 1)
    token_at = body.rfind(_TOKEN, first, first + size) + len(_TOKEN)
    id_at = first + len(_MESSAGE)
    if not count or rest or token_at <= id_at:
        return b""
    id_size, token_size = _INT_SIZE.get(body[id_at], 1), _INT_SIZE.get(body[token_at], 1)
    layout = _messages_layout(count, size, id_size, token_at - len(_TOKEN) - first, token_size)
    if layout.size != len(body) - first:
        return b""
    fields = layout.unpack_from(body, first)
    if (
        fields[::4].count(_MESSAGE) < count
        or fields[2::4].count(_TOKEN) < count
        or not _are_alike(body[id_at::size], id_size)
        or not _are_alike(body[token_at::size], token_size)
    ):
        return b""
    parts = [_SETTLE_END + _SETTLE] * (4 * count + 1)
    parts[0] = body[at:first] + _SETTLE
    parts[1::4] = fields[1::4]
    parts[2::4] = [_TOKEN] * count
    parts[3::4] = fields[3::4]
    parts[-1] = _SETTLE_END
    return b"".join(parts)


def _are_alike(first_bytes: bytes, size: int) -> bool:
    """Return whether whole numbers have the size of the first, by the first byte of each."""
    if size > 1:
        return first_bytes.count(first_bytes[:1]) == len(first_bytes)
    return max(first_bytes) < 0x80


@lru_cache(maxsize=64)
def _messages_layout(count: int, size: int, id_size: int, token_at: int, token_size: int) -> Struct:
    """Return the layout of messages: their begin, id, the name of the token, and token."""
    name, token = len(_MESSAGE), len(_TOKEN)
    before = token_at - name - id_size
    after = size - token_at - token - token_size
    if before < 0 or after < 0:
        return Struct("")
    return Struct(f"{name}s{id_size}s{before}x{token}s{token_size}s{after}x" * count)
