"""BlipMQ's frames (docs/protocols/blipmq.rst)."""

from __future__ import annotations

from struct import pack

from tests.cross.format_clients import blipmq_frame, text_field
from tests.cross.operations.form import VALUE, Form, Operation

HELLO = blipmq_frame(1, pack(">H", 1))


def greeting(secret: str) -> bytes:
    return HELLO + blipmq_frame(2, text_field(secret))


def nack(code: int, words: str, correlation_id: bytes = b"\0\0\0\0\0\0\0\7") -> bytes:
    payload = pack(">H", code) + text_field(words)
    return pack(">IB", 9 + len(payload), 6) + correlation_id + payload


def refused(request: bytes, words: str) -> bytes:
    return nack(401, words, request[5:13])


ACK = pack(">IBQQ", 17, 5, 1, 1)


def publish(topic: str) -> bytes:
    return blipmq_frame(3, b"\1" + text_field(topic) + VALUE)


def subscribe(topic: str) -> bytes:
    return blipmq_frame(4, text_field(topic) + b"\1")


def poll(topic: str) -> bytes:
    return blipmq_frame(9, pack(">Q", 1))


def ack(topic: str) -> bytes:
    return ACK


def ping(topic: str) -> bytes:
    return blipmq_frame(7)


NO_SUCH = nack(404, "unknown subscription or delivery tag", ACK[5:13])

MAY_NOT_MAKE = nack(
    500,
    "subscribe failed: the topic does not exist, and you may not create it; try again later",
)

FORM = Form(
    "BlipMQ",
    "blipmq",
    "blipmq.rst",
    [
        Operation("PUBLISH", "WRITE", publish),
        Operation("SUBSCRIBE", "READ", subscribe, (publish,), may_not_make=MAY_NOT_MAKE),
        Operation("POLL", "READ", poll, (subscribe, publish), refused=b""),
        Operation("ACK", "READ", ack, (subscribe, publish, poll), refused=NO_SUCH),
        Operation("PING", "none", ping),
    ],
    refused,
    greeting,
    refused_greeting=blipmq_frame(5, bytes(8)) + nack(401, "invalid API key"),
    anonymous="unauthenticated",
    has_login=True,
)
