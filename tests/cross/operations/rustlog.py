"""RustLog's requests in both dialects (docs/protocols/rustlog.rst)."""

from __future__ import annotations

from struct import pack

from tests.cross.operations.form import TOPIC, VALUE, Form, Operation
from tests.cross.tongues import framed, json_frame, text_field

CODES = {"authentication required": 401, "unauthorized": 403}


def binary_refused(request: bytes, words: str) -> bytes:
    return framed(b"\xfe" + pack(">H", CODES[words]) + text_field(words))


def json_refused(request: bytes, words: str) -> bytes:
    return json_frame({"Error": {"message": words}})


B_TOPIC, B_GROUP = text_field(TOPIC), text_field("g")
B_PLACE = B_TOPIC + pack(">I", 0)
B_CREATE = framed(b"\x05" + B_TOPIC + pack(">I", 1))
B_PRODUCE = framed(b"\x01" + B_PLACE + pack(">II", 1, len(VALUE)) + VALUE)
B_COMMIT = framed(b"\x03" + B_GROUP + B_PLACE + pack(">Q", 1))
B_FETCH = framed(b"\x02" + B_GROUP + B_PLACE + pack(">QI", 0, 99))

BINARY = Form(
    "RustLog binary",
    "rustlog",
    "rustlog.rst",
    [
        Operation("Produce", "WRITE", B_PRODUCE, (B_CREATE,)),
        Operation("Fetch", "READ", B_FETCH, (B_CREATE, B_PRODUCE)),
        Operation("OffsetCommit", "READ", B_COMMIT, (B_CREATE,)),
        Operation("OffsetFetch", "READ", framed(b"\x04" + B_GROUP + B_PLACE), (B_CREATE, B_COMMIT)),
        Operation("CreateTopic", "ADMIN", B_CREATE),
        Operation("ListTopics", "none; shows topics with any", framed(b"\x06"), (B_CREATE,)),
        Operation("DescribeTopic", "any", framed(b"\x07" + B_TOPIC), (B_CREATE,)),
        Operation("DescribePartition", "any", framed(b"\x08" + B_PLACE), (B_CREATE,)),
        Operation("MetricsFetch", "MONITOR", framed(b"\x09"), (B_CREATE, B_COMMIT)),
        Operation("Ping", "none", framed(b"\xff")),
    ],
    binary_refused,
)

J_PLACE = {"topic": TOPIC, "partition": 0}
J_GROUP = {**J_PLACE, "group_id": "g"}
J_CREATE = json_frame({"CreateTopic": {"topic": TOPIC, "partition_count": 1}})
J_PRODUCE = json_frame({"Produce": {**J_PLACE, "records": [list(VALUE)]}})
J_COMMIT = json_frame({"OffsetCommit": {**J_GROUP, "offset": 1}})

JSON = Form(
    "RustLog JSON",
    "rustlog",
    "rustlog.rst",
    [
        Operation("Produce", "WRITE", J_PRODUCE, (J_CREATE,)),
        Operation(
            "Fetch",
            "READ",
            json_frame({"Fetch": {**J_GROUP, "offset": 0, "max_bytes": 99}}),
            (J_CREATE, J_PRODUCE),
        ),
        Operation("OffsetCommit", "READ", J_COMMIT, (J_CREATE,)),
        Operation(
            "OffsetFetch", "READ", json_frame({"OffsetFetch": J_GROUP}), (J_CREATE, J_COMMIT)
        ),
        Operation("CreateTopic", "ADMIN", J_CREATE),
        Operation(
            "ListTopics", "none; shows topics with any", json_frame("ListTopics"), (J_CREATE,)
        ),
        Operation(
            "DescribeTopic", "any", json_frame({"DescribeTopic": {"topic": TOPIC}}), (J_CREATE,)
        ),
        Operation(
            "DescribePartition", "any", json_frame({"DescribePartition": J_PLACE}), (J_CREATE,)
        ),
        Operation("MetricsFetch", "MONITOR", json_frame("MetricsFetch"), (J_CREATE, J_COMMIT)),
        Operation("Ping", "none", json_frame("Ping")),
    ],
    json_refused,
)
