"""RustLog's requests in both dialects (docs/protocols/rustlog.rst)."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

from tests.cross.format_clients import framed, json_frame, text_field
from tests.cross.operations.form import VALUE, Form, Operation, Request

CODES = {"authentication required": 401, "unauthorized": 403}


def operations(
    produce: Request,
    fetch: Request,
    commit: Request,
    committed: Request,
    create: Request,
    list_topics: Request,
    describe_topic: Request,
    describe_partition: Request,
    metrics: Request,
    ping: Request,
) -> list[Operation]:
    """Return the operations of a dialect."""
    return [
        Operation("Produce", "WRITE", produce, (create,)),
        Operation("Fetch", "READ", fetch, (create, produce)),
        Operation("OffsetCommit", "READ", commit, (create,)),
        Operation("OffsetFetch", "READ", committed, (create, commit)),
        Operation("CreateTopic", "ADMIN", create),
        Operation("ListTopics", "none; shows topics with any", list_topics, (create,)),
        Operation("DescribeTopic", "any", describe_topic, (create,)),
        Operation("DescribePartition", "any", describe_partition, (create,)),
        Operation("MetricsFetch", "MONITOR", metrics, (create, commit)),
        Operation("Ping", "none", ping),
    ]


# -- binary ---------------------------------------------------------------------------------------


def binary(kind: int, fields: Callable[[bytes], bytes] = lambda topic: b"") -> Request:
    """Return a request whose fields follow from the topic's field."""
    return lambda topic: framed(bytes([kind]) + fields(text_field(topic)))


def binary_refused(request: bytes, words: str) -> bytes:
    return framed(b"\xfe" + pack(">H", CODES[words]) + text_field(words))


GROUP = text_field("g")
FIRST = bytes(4)
"""Partition 0."""

BINARY = Form(
    "RustLog binary",
    "rustlog",
    "rustlog.rst",
    operations(
        binary(0x01, lambda topic: topic + FIRST + pack(">II", 1, len(VALUE)) + VALUE),
        binary(0x02, lambda topic: GROUP + topic + FIRST + pack(">QI", 0, 99)),
        binary(0x03, lambda topic: GROUP + topic + FIRST + pack(">Q", 1)),
        binary(0x04, lambda topic: GROUP + topic + FIRST),
        binary(0x05, lambda topic: topic + pack(">I", 1)),
        binary(0x06),
        binary(0x07, lambda topic: topic),
        binary(0x08, lambda topic: topic + FIRST),
        binary(0x09),
        binary(0xFF),
    ),
    binary_refused,
)

# -- JSON -----------------------------------------------------------------------------------------


def json(name: str, members: dict[str, object]) -> Request:
    return lambda topic: json_frame({name: {"topic": topic, **members}})


def json_alone(name: str) -> Request:
    return lambda topic: json_frame(name)


def json_refused(request: bytes, words: str) -> bytes:
    return json_frame({"Error": {"message": words}})


IN_GROUP = {"partition": 0, "group_id": "g"}

JSON = Form(
    "RustLog JSON",
    "rustlog",
    "rustlog.rst",
    operations(
        json("Produce", {"partition": 0, "records": [list(VALUE)]}),
        json("Fetch", {**IN_GROUP, "offset": 0, "max_bytes": 99}),
        json("OffsetCommit", {**IN_GROUP, "offset": 1}),
        json("OffsetFetch", {**IN_GROUP}),
        json("CreateTopic", {"partition_count": 1}),
        json_alone("ListTopics"),
        json("DescribeTopic", {}),
        json("DescribePartition", {"partition": 0}),
        json_alone("MetricsFetch"),
        json_alone("Ping"),
    ),
    json_refused,
)
