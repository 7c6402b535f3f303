"""Mamamia's commands (docs/protocols/mamamia.rst)."""

from __future__ import annotations

from tests.cross.operations.form import TOPIC, VALUE, Form, Operation
from tests.cross.tongues import mamamia_frame

GROUP = {"log_id": TOPIC, "group_id": "g"}
CLIENT = {**GROUP, "client_id": "c"}
MESSAGE = {"payload": VALUE, "metadata": None}


def refused(request: bytes, words: str) -> bytes:
    return mamamia_frame(request[5], {"error": words})


PRODUCE = mamamia_frame(0x01, {"log_id": TOPIC, **MESSAGE})
LATER = mamamia_frame(0x01, {"log_id": TOPIC, **MESSAGE, "delay": 60})
ACQUIRE = mamamia_frame(0x02, {**CLIENT, "duration": 30.0})
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
            mamamia_frame(
                0x82, {"log_id": TOPIC, "messages": [MESSAGE], "producer_id": "p", "sequence": 1}
            ),
        ),
        Operation(
            "CANCEL", "WRITE", mamamia_frame(0x87, {"log_id": TOPIC, "schedule_id": 0}), (LATER,)
        ),
        Operation("ACQUIRE_NEXT", "READ", ACQUIRE, (PRODUCE,)),
        Operation("ACQUIRE_BATCH", "READ", mamamia_frame(0x83, {**CLIENT, "max": 9}), (PRODUCE,)),
        Operation("SETTLE", "READ", mamamia_frame(0x03, {**CLIENT, **SETTLE}), LEASED),
        Operation(
            "SETTLE_BATCH", "READ", mamamia_frame(0x84, {**CLIENT, "settles": [SETTLE]}), LEASED
        ),
        Operation("EXTEND", "READ", mamamia_frame(0x81, {**CLIENT, "message_id": 0}), LEASED),
        Operation("RELEASE", "READ", mamamia_frame(0x86, CLIENT), LEASED),
        Operation("GROUP_INFO", "READ", mamamia_frame(0x85, GROUP), LEASED),
    ],
    refused,
)
