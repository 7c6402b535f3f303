# Tests: tests/codecs/test_flymq_group_requests.py
"""LIST_GROUPS, DESCRIBE_GROUP, DELETE_GROUP and SEEK_TO_TIMESTAMP, both ways (page, 0x62 to 0x66).

The Java SDK names a group without its topic. The answer to it has another layout. The
answer to DELETE_GROUP is OKMSG; that to SEEK_TO_TIMESTAMP is like that to GET_OFFSET.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from brokerd.codecs.flymq.fields import Fields, pack_text, pack_texts
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.group_values import (
    DeleteGroup,
    DescribeGroup,
    Group,
    GroupOffset,
    GroupRequest,
    Groups,
    JavaGroup,
    ListGroups,
    SeekToTimestamp,
)
from brokerd.codecs.flymq.values import Opcode

_GROUP_BYTES = 12
_OFFSET_BYTES = 12
_SEEK_BYTES = 12
"""Size of a partition and a time."""

_U32 = Struct(">I")
_OFFSET = Struct(">iQ")
_SEEK = Struct(">iq")


def listed_groups(found: Sequence[Group]) -> bytes:
    """The answer to LIST_GROUPS, in the order given."""
    return frame(Opcode.LIST_GROUPS, _U32.pack(len(found)) + b"".join(map(_group_bytes, found)))


def described_group(one: Group | JavaGroup) -> bytes:
    """The answer to DESCRIBE_GROUP, in the layout of the request."""
    if isinstance(one, Group):
        return frame(Opcode.DESCRIBE_GROUP, _group_bytes(one))
    names = pack_text(one.group) + pack_text(one.state)
    lists = pack_texts(one.members) + pack_texts(one.topics)
    return frame(Opcode.DESCRIBE_GROUP, names + lists + pack_text(one.coordinator))


def _group_bytes(one: Group) -> bytes:
    names = pack_text(one.topic) + pack_text(one.group)
    counts = _U32.pack(one.members) + _U32.pack(len(one.offsets))
    return names + counts + b"".join([_OFFSET.pack(*offset) for offset in one.offsets])


def _names(fields: Fields) -> tuple[str, str | None]:
    """Return a group and its topic; None for a group without a topic."""
    first = fields.text("topic or group")
    return (fields.text("group"), first) if fields.left else (first, None)


def _seek(fields: Fields) -> SeekToTimestamp:
    topic = fields.text("topic")
    group = fields.text("group") if fields.left != _SEEK_BYTES else None
    return SeekToTimestamp(topic, fields.i32("partition"), fields.i64("timestamp"), group)


DECODERS: dict[int, Callable[[Fields], GroupRequest]] = {
    Opcode.LIST_GROUPS: lambda fields: ListGroups(),
    Opcode.DESCRIBE_GROUP: lambda fields: DescribeGroup(*_names(fields)),
    Opcode.DELETE_GROUP: lambda fields: DeleteGroup(*_names(fields)),
    Opcode.SEEK_TO_TIMESTAMP: _seek,
}


# -- the client's half ------------------------------------------------------------------------


def _names_payload(request: DescribeGroup | DeleteGroup) -> bytes:
    topic = b"" if request.topic is None else pack_text(request.topic)
    return topic + pack_text(request.group)


def _seek_payload(request: SeekToTimestamp) -> bytes:
    group = b"" if request.group is None else pack_text(request.group)
    return pack_text(request.topic) + group + _SEEK.pack(request.partition, request.time_ms)


OPCODES: dict[type[Any], Opcode] = {
    ListGroups: Opcode.LIST_GROUPS,
    DescribeGroup: Opcode.DESCRIBE_GROUP,
    DeleteGroup: Opcode.DELETE_GROUP,
    SeekToTimestamp: Opcode.SEEK_TO_TIMESTAMP,
}

PAYLOADS: dict[type[Any], Callable[[Any], bytes]] = {
    ListGroups: lambda one: b"",
    DescribeGroup: _names_payload,
    DeleteGroup: _names_payload,
    SeekToTimestamp: _seek_payload,
}


def _group(fields: Fields) -> Group:
    topic, name, members = fields.text("topic"), fields.text("group"), fields.u32("members")
    count = fields.count("offsets", _OFFSET_BYTES)
    offsets = [GroupOffset(fields.i32("partition"), fields.u64("offset")) for _ in range(count)]
    return Group(topic, name, members, tuple(offsets))


def _groups(fields: Fields) -> Groups:
    return Groups(tuple([_group(fields) for _ in range(fields.count("groups", _GROUP_BYTES))]))


def _described(request: DescribeGroup, fields: Fields) -> Group | JavaGroup:
    if request.topic is not None:
        return _group(fields)
    return JavaGroup(
        fields.text("group"),
        fields.text("state"),
        fields.texts("members"),
        fields.texts("topics"),
        fields.text("coordinator"),
    )


ANSWERS: dict[int, Callable[[Fields], Groups]] = {Opcode.LIST_GROUPS: _groups}

ANSWERS_TO: dict[type[Any], Callable[[Any, Fields], Group | JavaGroup]] = {
    DescribeGroup: _described,
}
"""Decoders of answers whose layout depends on the request."""
