# Tests: tests/codecs/test_flymq_timed.py
"""Encodes and decodes PRODUCE_DELAYED, CANCEL_DELAYED, PRODUCE_WITH_TTL (page, 0x30 to 0x35).

Their answers are the answer to PRODUCE, and OKMSG.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from brokerd.codecs.flymq.fields import Fields, pack_data, pack_text
from brokerd.codecs.flymq.timed_values import (
    CancelDelayed,
    ProduceDelayed,
    ProduceWithTtl,
    TimedRequest,
)
from brokerd.codecs.flymq.values import FieldError, Opcode

_NUMBER_BYTES = 8
_DIGITS = 6
"""Digits of a text that takes as many bytes as a number."""

_U64 = Struct(">Q")
_I64 = Struct(">q")


def _produce_delayed(fields: Fields) -> ProduceDelayed:
    return ProduceDelayed(fields.text("topic"), fields.data("value"), fields.i64("delay"))


def _produce_with_ttl(fields: Fields) -> ProduceWithTtl:
    return ProduceWithTtl(fields.text("topic"), fields.data("value"), fields.i64("TTL"))


def _cancel_delayed(fields: Fields) -> CancelDelayed:
    """Decode one of three layouts, which differ in length, or for eight bytes in their digits.

    See the page, CANCEL_DELAYED.
    """
    first = fields.text("topic or number")
    if not fields.left:
        return CancelDelayed(first)
    rest = fields.rest()
    text = rest[2:]
    is_text = int.from_bytes(rest[:2], "big") == len(text) and len(rest) > 1
    if len(rest) == _NUMBER_BYTES and not (is_text and text.isdigit()):
        return CancelDelayed(_U64.unpack(rest)[0], first)
    if is_text:
        return CancelDelayed(Fields(rest).text("number"), first)
    raise FieldError(
        "invalid binary format: a topic and a number of 8 bytes, or a text that says it, must be "
        f"all there is; {len(rest)} bytes follow the topic"
    )


DECODERS: dict[int, Callable[[Fields], TimedRequest]] = {
    Opcode.PRODUCE_DELAYED: _produce_delayed,
    Opcode.CANCEL_DELAYED: _cancel_delayed,
    Opcode.PRODUCE_WITH_TTL: _produce_with_ttl,
}


# -- the client's half ------------------------------------------------------------------------


def _timed_payload(topic: str, value: bytes, milliseconds: int) -> bytes:
    return pack_text(topic) + pack_data(value) + _I64.pack(milliseconds)


def _cancel_payload(request: CancelDelayed) -> bytes:
    topic = b"" if request.topic is None else pack_text(request.topic)
    if isinstance(request.message, str):
        return topic + pack_text(request.message)
    if request.topic is None:
        raise ValueError("a message's number goes with its topic; give it as text, or the topic")
    return topic + _U64.pack(request.message)


OPCODES: dict[type[Any], Opcode] = {
    ProduceDelayed: Opcode.PRODUCE_DELAYED,
    CancelDelayed: Opcode.CANCEL_DELAYED,
    ProduceWithTtl: Opcode.PRODUCE_WITH_TTL,
}

PAYLOADS: dict[type[Any], Callable[[Any], bytes]] = {
    ProduceDelayed: lambda one: _timed_payload(*one),
    CancelDelayed: _cancel_payload,
    ProduceWithTtl: lambda one: _timed_payload(*one),
}
