# Tests: tests/codecs/test_mamamia_requests.py
"""Decodes request bodies, on the server.

`Decoder` decodes a body by walking its map. Each connection has a decoder, because clients repeat
themselves: it remembers the layout of the last requests, and reads a body that differs only in the
payload or the message id without a walk. A comment at each shortcut proves that it returns the
result of the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgpack import unpackb

from brokerd.codecs.mamamia.batches import (
    plain_produce_batch,
    plain_settle_batch,
    plain_settles,
    plain_values,
)
from brokerd.codecs.mamamia.fields import (
    batch_message,
    batch_settle,
    cheap,
    integer,
    read_dead,
    read_delay,
    read_duration,
    read_id,
    read_ids,
    read_items,
    read_message,
    read_name,
    read_producer,
    read_reason,
    read_wait,
    required,
    stored,
)
from brokerd.codecs.mamamia.frames import Frame
from brokerd.codecs.mamamia.packing import (
    KINDS,
    SHALLOW_BYTES,
    UNDECODABLE,
    Fields,
    array_size,
    pack_str,
    walk,
)
from brokerd.codecs.mamamia.values import (
    MAX_BATCH,
    MAX_MESSAGE_ID,
    Acquire,
    AcquireBatch,
    Cancel,
    Command,
    Extend,
    GroupInfo,
    Produce,
    ProduceBatch,
    Release,
    Request,
    RequestError,
    Settle,
    SettleBatch,
)
from brokerd.codecs.mamamia.walk_steps import DecodeSteps, finish, walk_steps

_METADATA_KEY = b"\xa8metadata"
_KEY_KEY = b"\xa3key"
_MAP_OF_3, _MAP_OF_4 = 0x83, 0x84
_METADATA_NIL = _METADATA_KEY + b"\xc0"
_REMEMBERED_BYTES = 2_048
"""Longest remembered part of a body, so that an idle connection stays small."""
_NEVER: Final = ()
"""An argument of ``startswith`` that never matches."""
LARGE_BODY_BYTES: Final = 16_384
"""Longer bodies may take more than some milliseconds."""
_STEPS_BYTES: dict[int, int] = {Command.RELEASE: 2_048}
"""The same for commands whose items are very short."""
_ARRAY_HEADER_BYTES = {0xDC: 3, 0xDD: 5}
"""Bytes of the header of a long array."""
_LENGTH_BYTES = {0xC5: 2, 0xC6: 4, 0xDA: 2, 0xDB: 4}
"""Bytes of the length after the first byte of a long bin or str."""
_new = tuple.__new__  # half the cost of calling a NamedTuple


class Decoder:
    """Decodes the requests of one connection. Holds at most about 10 KiB."""

    __slots__ = (
        "_acquire",
        "_acquire_batch",
        "_acquire_batch_body",
        "_acquire_body",
        "_batch_log_id",
        "_batch_prefix",
        "_produce_log_id",
        "_produce_prefix",
        "_settle_prefix",
        "_settle_suffix_bytes",
        "_settles",
        "_settles_prefix",
        "_settles_who",
    )

    def __init__(self) -> None:
        self._produce_prefix: bytes | tuple[()] = _NEVER
        self._produce_log_id = ""
        self._batch_prefix: bytes | tuple[()] = _NEVER
        self._batch_log_id = ""
        self._acquire_body: bytes | None = None
        self._acquire = Acquire("", "", "")
        self._acquire_batch_body: bytes | None = None
        self._acquire_batch = AcquireBatch("", "", "", 1)
        self._settle_prefix: bytes | tuple[()] = _NEVER
        self._settle_suffix_bytes = 0
        self._settles: dict[bytes, Settle] = {}
        self._settles_prefix: bytes | tuple[()] = _NEVER
        self._settles_who = ("", "", "")

    def decode(self, command: int, body: bytes) -> Request:
        """Return the request of one frame.

        :raises BodyError: the body is not one sound MessagePack object: close the connection.
        :raises RequestError: values are missing or wrong, or the command is unknown: answer
            its text; the connection stays open.
        """
        if command == 1:
            return self._decode_produce(body)
        if command == 2:
            if body == self._acquire_body:
                return self._acquire
            return self._read_acquire(walk(body), body)
        if command == 3:
            return self._decode_settle(body)
        if command == Command.ACQUIRE_BATCH and body == self._acquire_batch_body:
            return self._acquire_batch
        if command in _READERS:
            array_key, read = _READERS[command]
            plain = _PLAIN.get(command)
            request = (plain and plain(body)) or finish(read(walk(body, array_key)))
            if type(request) is ProduceBatch:
                self._remember_batch(request.log_id, body)
            elif type(request) is SettleBatch:
                self._remember_settles(request, body)
            elif type(request) is AcquireBatch and len(body) <= _REMEMBERED_BYTES:
                self._acquire_batch_body, self._acquire_batch = body, request
            return request
        with suppress(RequestError):  # a body that cannot be decoded is worse (page, Bad input)
            walk(body)
        raise RequestError(f"Unknown command: {command}")

    def produce_run(self, frames: Iterable[Frame]) -> tuple[str, list[bytes]]:
        """Return the log_id and the payloads of the first of these frames that are PRODUCE requests
        for the log of the last one, with a bin of up to 255 bytes and without metadata and key.
        """
        payloads: list[bytes] = []
        prefix = self._produce_prefix
        if not prefix or prefix[0] != _MAP_OF_3:
            return "", payloads
        head = prefix + b"\xc4"
        size_at = len(head)
        around = size_at + 1 + len(_METADATA_NIL)
        for command, body in frames:
            if (
                command != 1
                or not body.startswith(head)
                or not body.endswith(_METADATA_NIL)
                or body[size_at] != len(body) - around
            ):
                break
            payloads.append(body[size_at + 1 : -len(_METADATA_NIL)])
        return self._produce_log_id, payloads

    def plain_batch(self, body: bytes) -> tuple[str, Sequence[bytes] | None]:
        """Return the log_id and the payloads of a PRODUCE_BATCH for the log of the last one.

        None in place of the payloads: `decode` the body. It may have other fields, or errors.
        """
        # The remembered prefix is "map of 2, log_id, its value, messages". After it comes an array,
        # whose items `plain_values` finds to the end of the body.
        prefix = self._batch_prefix
        if not body.startswith(prefix):
            return "", None
        start = len(prefix)
        width = _ARRAY_HEADER_BYTES.get(body[start], 1)
        values = plain_values(body, start + width, array_size(body, start))
        return self._batch_log_id, values

    def _remember_batch(self, log_id: str, body: bytes) -> None:
        prefix = b"\x82\xa6log_id" + pack_str(log_id.encode()) + b"\xa8messages"
        if body.startswith(prefix):
            self._batch_prefix, self._batch_log_id = prefix, log_id

    def plain_settles(
        self, body: bytes
    ) -> tuple[tuple[str, str, str], tuple[Sequence[int], Sequence[int]] | None]:
        """Return (log_id, group_id, client_id) of the last SETTLE_BATCH, and (message ids, tokens).

        The settles of the body report success under these tokens, and the body has those names.
        None in place of the ids: `decode` the body. It may have other fields, or errors.
        """
        # The remembered prefix is "map of 4", three names with their values, and "settles". After
        # it comes an array, whose items `plain_settles` finds to the end of the body. Of larger
        # bodies, `decode_steps` decodes a part at a time.
        prefix = self._settles_prefix
        start = len(prefix)
        if not body.startswith(prefix) or not start < len(body) <= LARGE_BODY_BYTES:
            return self._settles_who, None
        width = _ARRAY_HEADER_BYTES.get(body[start], 1)
        settles = plain_settles(body, start + width, array_size(body, start))
        return self._settles_who, settles

    def _remember_settles(self, request: SettleBatch, body: bytes) -> None:
        who = request[:3]
        keys = b"\x84\xa6log_id", b"\xa8group_id", b"\xa9client_id"
        prefix = b"".join(
            [key + pack_str(name.encode()) for key, name in zip(keys, who, strict=True)]
        )
        prefix += b"\xa7settles"
        if body.startswith(prefix):
            self._settles_prefix, self._settles_who = prefix, who

    def acquire_run(self, frames: Iterable[Frame]) -> tuple[Acquire, int]:
        """Return the last ACQUIRE_NEXT request, and how many of the first frames repeat it."""
        count, body = 0, self._acquire_body
        for frame in frames:
            if frame[0] != 2 or frame[1] != body:
                break
            count += 1
        return self._acquire, count

    def settle_run(self, frames: Sequence[Frame]) -> tuple[Settle | None, list[int]]:
        """Return a SETTLE request that the decoder remembers, and message ids.

        The first frames are that request, with these ids in place of its own. None: they are not.
        """
        # `_decode_settle` proves that such a body is the same request with another message_id.
        message_ids: list[int] = []
        prefix, suffix_bytes = self._settle_prefix, self._settle_suffix_bytes
        suffix = frames[0][1][-suffix_bytes:]
        settle = self._settles.get(suffix)
        if settle is None or not prefix:
            return None, message_ids
        start, around = len(prefix), len(prefix) + suffix_bytes
        for command, body in frames:
            if (
                command != 3
                or not around < len(body) <= around + 9
                or not body.startswith(prefix)
                or not body.endswith(suffix)
            ):
                break
            try:
                message_id = unpackb(body[start:-suffix_bytes])
            except UNDECODABLE:
                break
            if type(message_id) is not int or not 0 <= message_id <= MAX_MESSAGE_ID:
                break
            message_ids.append(message_id)
        return settle, message_ids

    def takes_steps(self, command: int, body: bytes) -> bool:
        """Return whether `decode` may take long, so that `decode_steps` is better."""
        size = len(body)
        if size <= _STEPS_BYTES.get(command, LARGE_BODY_BYTES):
            return False
        prefix = self._produce_prefix
        if command == 1 and body.startswith(prefix):
            start = len(prefix)
            width = _LENGTH_BYTES.get(body[start], 0)
            value_bytes = int.from_bytes(body[start + 1 : start + 1 + width], "big")
            return size - start - value_bytes > SHALLOW_BYTES
        return True

    def decode_steps(self, command: int, body: bytes) -> DecodeSteps[Request]:
        """Return in steps what `decode` returns, and raise its errors."""
        array_key, read = _READERS.get(command, ("", None))
        try:
            fields = yield from walk_steps(body, array_key, _ITEMS.get(command))
        except RequestError:
            if command in _READERS or command <= 3:
                raise
            fields = {}
        if command == 1:
            return self._read_produce(fields, body)
        if command == 2:
            return self._read_acquire(fields, body)
        if command == 3:
            return self._read_settle(fields, body)
        if read is None:
            raise RequestError(f"Unknown command: {command}")
        request = yield from read(fields)
        if type(request) is ProduceBatch:
            self._remember_batch(request.log_id, body)
        elif type(request) is SettleBatch:
            self._remember_settles(request, body)
        return request

    def _decode_produce(self, body: bytes) -> Produce:
        # The remembered prefix is "map of 3, log_id, its value, payload". After it come the
        # payload's object, one key and one object. If the remaining bytes are M, the key "metadata"
        # and X, with M and X one object each, then a decoder finds the same objects, because no
        # MessagePack object is the beginning of another. The same holds for a map of 4 whose
        # remaining bytes are M, "metadata", X, "key" and K.
        prefix = self._produce_prefix
        if body.startswith(prefix):
            start = len(prefix)
            # A bin of up to 255 bytes that reaches from here to a nil metadata at the end.
            if (
                body.endswith(_METADATA_NIL)
                and body[start] == 0xC4
                and body[0] == _MAP_OF_3
                and body[start + 1] == len(body) - start - 12
            ):
                payload = body[start + 2 : -10]
                return _new(
                    Produce,
                    (self._produce_log_id, payload, 0, None, None, None, None, None),
                )
            produce = self._split_produce(body, start)
            if produce is not None:
                return produce
        return self._read_produce(walk(body), body)

    def _split_produce(self, body: bytes, start: int) -> Produce | None:
        """Return the request of a body with the remembered prefix; None: walk it."""
        end = len(body)
        key = None
        try:
            if body[0] == _MAP_OF_4:
                end = body.rfind(_KEY_KEY, start)
                packed_key = body[end + len(_KEY_KEY) :]
                if end < 0 or KINDS[packed_key[0]] not in ("a bin", "a str"):
                    return None
                key = stored(packed_key, unpackb(packed_key))[0]
            split = body.rfind(_METADATA_KEY, start, end)
            if split < 0:
                return None
            payload = body[start:split]
            packed_metadata = body[split + len(_METADATA_KEY) : end]
            if not (cheap(payload) and len(packed_metadata) <= SHALLOW_BYTES):
                return None
            value, encoding = stored(payload, unpackb(payload))
            metadata = None
            if packed_metadata != b"\xc0":
                if type(unpackb(packed_metadata)) is not dict:
                    return None
                metadata = packed_metadata
        except (*UNDECODABLE, IndexError):  # not the usual shape: find out by walking
            return None
        return _new(
            Produce, (self._produce_log_id, value, encoding, metadata, key, None, None, None)
        )

    def _read_produce(self, fields: Fields, body: bytes) -> Produce:
        log_id = read_name(fields, "log_id")
        produce = Produce(log_id, *read_message(fields))
        prefix = body[:1] + b"\xa6log_id" + fields["log_id"].raw + b"\xa7payload"
        if body[0] in (_MAP_OF_3, _MAP_OF_4) and body.startswith(prefix):
            self._produce_prefix = prefix
            self._produce_log_id = log_id
        return produce

    def _read_acquire(self, fields: Fields, body: bytes) -> Acquire:
        acquire = Acquire(
            read_name(fields, "log_id"),
            read_name(fields, "group_id"),
            read_name(fields, "client_id"),
            read_duration(fields),
            read_wait(fields),
        )
        if len(body) <= _REMEMBERED_BYTES:
            self._acquire_body = body
            self._acquire = acquire
        return acquire

    def _decode_settle(self, body: bytes) -> Settle:
        # The remembered prefix P ends where the (last) value of message_id begins, and each
        # remembered suffix S once followed P + (one object) to the end of a body. So a body
        # P + M + S, with M one object, is the same map with another message_id.
        prefix = self._settle_prefix
        if body.startswith(prefix):
            cut = len(body) - self._settle_suffix_bytes
            settle = self._settles.get(body[cut:])
            if settle is not None and 0 < cut - len(prefix) <= 9:
                try:
                    message_id = unpackb(body[len(prefix) : cut])
                except UNDECODABLE:
                    message_id = None
                if type(message_id) is int and 0 <= message_id <= MAX_MESSAGE_ID:
                    log_id, group_id, _, client_id, success, delay, reason, dead = settle
                    return _new(
                        Settle,
                        (log_id, group_id, message_id, client_id, success, delay, reason, dead),
                    )
        return self._read_settle(walk(body), body)

    def _read_settle(self, fields: Fields, body: bytes) -> Settle:
        settle = Settle(
            read_name(fields, "log_id"),
            read_name(fields, "group_id"),
            read_id(fields, "message_id"),
            read_name(fields, "client_id"),
            bool(required(fields, "success").value),
            read_delay(fields),
            read_reason(fields),
            read_dead(fields),
        )
        field = fields["message_id"]
        prefix = body[: field.start]
        suffix = body[field.start + len(field.raw) :]
        if len(prefix) + len(suffix) <= _REMEMBERED_BYTES:
            self._remember_settle(prefix, suffix, settle)
        return settle

    def _remember_settle(self, prefix: bytes, suffix: bytes, settle: Settle) -> None:
        """Store the last prefix, and up to two suffixes of one length (success true and false)."""
        same = prefix == self._settle_prefix and len(suffix) == self._settle_suffix_bytes
        if not same or len(self._settles) >= 2:
            self._settles.clear()
        self._settle_prefix = prefix
        self._settle_suffix_bytes = len(suffix)
        self._settles[suffix] = settle


def _read_extend(fields: Fields) -> DecodeSteps[Extend]:
    yield from ()
    return Extend(
        read_name(fields, "log_id"),
        read_name(fields, "group_id"),
        read_name(fields, "client_id"),
        read_id(fields, "message_id"),
        read_duration(fields),
    )


def _read_produce_batch(fields: Fields) -> DecodeSteps[ProduceBatch]:
    log_id = read_name(fields, "log_id")
    messages = yield from read_items(fields, "messages", batch_message)
    return ProduceBatch(log_id, messages, *read_producer(fields))


def _read_acquire_batch(fields: Fields) -> DecodeSteps[AcquireBatch]:
    yield from ()
    log_id, group_id = read_name(fields, "log_id"), read_name(fields, "group_id")
    client_id = read_name(fields, "client_id")
    most = integer(required(fields, "max"), "max")
    if most < 1:
        raise RequestError("max must be at least 1")
    return AcquireBatch(
        log_id, group_id, client_id, min(most, MAX_BATCH), read_duration(fields), read_wait(fields)
    )


def _read_settle_batch(fields: Fields) -> DecodeSteps[SettleBatch]:
    log_id, group_id = read_name(fields, "log_id"), read_name(fields, "group_id")
    client_id = read_name(fields, "client_id")
    settles = yield from read_items(fields, "settles", batch_settle)
    return SettleBatch(log_id, group_id, client_id, settles)


def _read_group_info(fields: Fields) -> DecodeSteps[GroupInfo]:
    yield from ()
    return GroupInfo(read_name(fields, "log_id"), read_name(fields, "group_id"))


def _read_release(fields: Fields) -> DecodeSteps[Release]:
    log_id, group_id = read_name(fields, "log_id"), read_name(fields, "group_id")
    client_id = read_name(fields, "client_id")
    return Release(log_id, group_id, client_id, (yield from read_ids(fields, "message_ids")))


def _read_cancel(fields: Fields) -> DecodeSteps[Cancel]:
    yield from ()
    return Cancel(read_name(fields, "log_id"), read_id(fields, "schedule_id"))


_READERS: dict[int, tuple[str | None, Callable[[Fields], DecodeSteps[Request]]]] = {
    Command.EXTEND: (None, _read_extend),
    Command.PRODUCE_BATCH: ("messages", _read_produce_batch),
    Command.ACQUIRE_BATCH: (None, _read_acquire_batch),
    Command.SETTLE_BATCH: ("settles", _read_settle_batch),
    Command.GROUP_INFO: (None, _read_group_info),
    Command.RELEASE: ("message_ids", _read_release),
    Command.CANCEL: (None, _read_cancel),
}
"""Command -> the array whose items are walked too, and the function that reads the fields."""
_ITEMS: dict[int, Callable[[Fields], object]] = {
    Command.PRODUCE_BATCH: batch_message,
    Command.SETTLE_BATCH: batch_settle,
}
"""Command -> the function that reads an item of its array."""
_PLAIN: dict[int, Callable[[bytes], Request | None]] = {
    Command.PRODUCE_BATCH: plain_produce_batch,
    Command.SETTLE_BATCH: plain_settle_batch,
}
