# Tests: tests/codecs/test_flymq_dead_letters.py
"""Encodes and decodes FETCH_DLQ, REPLAY_DLQ and PURGE_DLQ (page, 0x20 to 0x22).

The answer to PURGE_DLQ, and to REPLAY_DLQ with an id, is OKMSG. The answer to REPLAY_DLQ with an
offset has a longer length field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from brokerd.codecs.flymq.dead_letter_values import (
    DeadLetter,
    DeadLetterRequest,
    DeadLetters,
    FetchDlq,
    PurgeDlq,
    ReplayDlq,
)
from brokerd.codecs.flymq.fields import Fields, pack_data, pack_text
from brokerd.codecs.flymq.frames import frame, header
from brokerd.codecs.flymq.values import Done, FieldError, Opcode

DEAD_LETTER_BYTES = 12
"""Size of a dead letter in an answer without its id, payload and error."""
FETCHED_DLQ_BYTES = 4
"""Size of an answer to FETCH_DLQ without dead letters."""
DONE = "OK"
"""The reference server's text."""
_OFFSET_BYTES = 8
_ID_BYTES = 6
"""Size of an id that takes as many bytes as an offset."""

_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")


def fetched_dlq(found: Sequence[DeadLetter]) -> bytes:
    """The answer to FETCH_DLQ, in the order given. Payloads are copied once."""
    parts = [b"", _U32.pack(len(found))]
    for letter in found:
        parts += pack_text(letter.message_id), _U32.pack(len(letter.payload)), letter.payload
        parts += pack_text(letter.error), _I32.pack(letter.retries)
    parts[0] = header(Opcode.FETCH_DLQ, sum(map(len, parts)))
    return b"".join(parts)


def replayed(request: ReplayDlq) -> bytes:
    """The answer to REPLAY_DLQ, in the layout of the request."""
    if isinstance(request.message, str):
        return frame(Opcode.REPLAY_DLQ, b"\x01" + pack_text(DONE))
    return frame(Opcode.REPLAY_DLQ, b"\x01" + pack_data(DONE.encode()))


def _replay(fields: Fields) -> ReplayDlq:
    topic = fields.text("topic")
    if fields.left == _OFFSET_BYTES and fields.peek(2) != _ID_BYTES:
        return ReplayDlq(topic, fields.u64("offset"))
    return ReplayDlq(topic, fields.text("message id"))


DECODERS: dict[int, Callable[[Fields], DeadLetterRequest]] = {
    Opcode.FETCH_DLQ: lambda fields: FetchDlq(fields.text("topic"), fields.i32("max_messages")),
    Opcode.REPLAY_DLQ: _replay,
    Opcode.PURGE_DLQ: lambda fields: PurgeDlq(fields.text("topic")),
}


# -- the client's half ------------------------------------------------------------------------


def _replay_payload(request: ReplayDlq) -> bytes:
    message = request.message
    rest = pack_text(message) if isinstance(message, str) else _U64.pack(message)
    return pack_text(request.topic) + rest


OPCODES: dict[type[Any], Opcode] = {
    FetchDlq: Opcode.FETCH_DLQ,
    ReplayDlq: Opcode.REPLAY_DLQ,
    PurgeDlq: Opcode.PURGE_DLQ,
}

PAYLOADS: dict[type[Any], Callable[[Any], bytes]] = {
    FetchDlq: lambda one: pack_text(one.topic) + _I32.pack(one.max_messages),
    ReplayDlq: _replay_payload,
    PurgeDlq: lambda one: pack_text(one.topic),
}


def _dead_letters(fields: Fields) -> DeadLetters:
    count = fields.count("dead letters", DEAD_LETTER_BYTES)
    return DeadLetters(tuple([_letter(fields) for _ in range(count)]))


def _letter(fields: Fields) -> DeadLetter:
    return DeadLetter(
        fields.text("message id"),
        fields.data("payload"),
        fields.text("error"),
        fields.i32("retries"),
    )


def _replayed(request: ReplayDlq, fields: Fields) -> Done:
    success = fields.flag("success")
    is_id = isinstance(request.message, str)
    text = fields.text("message") if is_id else fields.data("message").decode("utf-8", "replace")
    if not success:
        raise FieldError(f"success is 0, with the message {text!r}, in place of an ERROR")
    return Done()


ANSWERS: dict[int, Callable[[Fields], DeadLetters]] = {Opcode.FETCH_DLQ: _dead_letters}

ANSWERS_TO: dict[type[Any], Callable[[Any, Fields], Done]] = {ReplayDlq: _replayed}
"""Decoders of answers whose layout depends on the request."""
