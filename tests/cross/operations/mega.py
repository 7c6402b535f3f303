"""MEGA's requests (docs/protocols/mega.rst)."""

from __future__ import annotations

from struct import pack

from tests.cross.operations.form import TOPIC, VALUE, Form, Operation
from tests.cross.tongues import mega_head

INVALID_REQUEST = b"\1"


def refused(request: bytes, words: str) -> bytes:
    return request[:4] + b"\0" + INVALID_REQUEST


CREATE = mega_head(3, TOPIC) + bytes(4)
PRODUCE = mega_head(1, TOPIC) + pack(">i", len(VALUE)) + VALUE

FORM = Form(
    "MEGA",
    "mega",
    "mega.rst",
    [
        Operation("CREATE_TOPIC", "ADMIN", CREATE),
        Operation("PRODUCE", "WRITE", PRODUCE, (CREATE,)),
        Operation("CONSUME", "READ", mega_head(2, TOPIC) + bytes(8), (CREATE, PRODUCE)),
    ],
    refused,
)
