"""MEGA's requests (docs/protocols/mega.rst)."""

from __future__ import annotations

from struct import pack

from tests.cross.format_clients import mega_head
from tests.cross.operations.form import VALUE, Form, Operation

INVALID_REQUEST = b"\1"


def refused(request: bytes, words: str) -> bytes:
    return request[:4] + b"\0" + INVALID_REQUEST


def create(topic: str) -> bytes:
    return mega_head(3, topic) + bytes(4)


def produce(topic: str) -> bytes:
    return mega_head(1, topic) + pack(">i", len(VALUE)) + VALUE


def consume(topic: str) -> bytes:
    return mega_head(2, topic) + bytes(8)


FORM = Form(
    "MEGA",
    "mega",
    "mega.rst",
    [
        Operation("CREATE_TOPIC", "ADMIN", create),
        Operation("PRODUCE", "WRITE", produce, (create,)),
        Operation("CONSUME", "READ", consume, (create, produce)),
    ],
    refused,
)
