"""Mamamia's commands (docs/protocols/mamamia.rst)."""

from __future__ import annotations

from tests.cross.format_clients import mamamia_frame
from tests.cross.operations.form import VALUE, Form, Operation, Request

GROUP = {"group_id": "g"}
CLIENT = {**GROUP, "client_id": "c"}
MESSAGE = {"payload": VALUE, "metadata": None}


def refused(request: bytes, words: str) -> bytes:
    return mamamia_frame(request[5], {"error": words})


def command(number: int, body: dict[str, object]) -> Request:
    return lambda topic: mamamia_frame(number, {"log_id": topic, **body})


PRODUCE = command(0x01, {**MESSAGE})
LATER = command(0x01, {**MESSAGE, "delay": 86_400})
ACQUIRE = command(0x02, {**CLIENT, "duration": 30.0})
SETTLE = {"message_id": 0, "success": True}
LEASED = (PRODUCE, ACQUIRE)

FORM = Form(
    "Mamamia",
    "mamamia",
    "mamamia.rst",
    [
        Operation("PRODUCE", "WRITE", PRODUCE),
        Operation(
            "PRODUCE_BATCH",
            "WRITE",
            command(0x82, {"messages": [MESSAGE], "producer_id": "p", "sequence": 1}),
        ),
        Operation("CANCEL", "WRITE", command(0x87, {"schedule_id": 0}), (LATER,)),
        Operation("ACQUIRE_NEXT", "READ", ACQUIRE, (PRODUCE,)),
        Operation("ACQUIRE_BATCH", "READ", command(0x83, {**CLIENT, "max": 9}), (PRODUCE,)),
        Operation("SETTLE", "READ", command(0x03, {**CLIENT, **SETTLE}), LEASED),
        Operation("SETTLE_BATCH", "READ", command(0x84, {**CLIENT, "settles": [SETTLE]}), LEASED),
        Operation("EXTEND", "READ", command(0x81, {**CLIENT, "message_id": 0}), LEASED),
        Operation("RELEASE", "READ", command(0x86, {**CLIENT}), LEASED),
        Operation("GROUP_INFO", "READ", command(0x85, {**GROUP}), LEASED),
    ],
    refused,
)
