# Tests: tests/codecs/test_flymq_group_requests.py
"""Requests and answers about groups, and seeks by time, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x62, 0x63, 0x65 and 0x66.
"""

from __future__ import annotations

from typing import NamedTuple


class ListGroups(NamedTuple):
    pass


class DescribeGroup(NamedTuple):
    """Empty topic: the first topic with such a group."""

    group: str
    topic: str | None = ""
    """None: field missing, as in the Java SDK, whose layout the answer has."""


class DeleteGroup(NamedTuple):
    """Empty topic: all topics with such a group."""

    group: str
    topic: str | None = ""
    """None: field missing, as in the Java SDK."""


class SeekToTimestamp(NamedTuple):
    topic: str
    partition: int
    time_ms: int
    """Since the Unix epoch."""
    group: str | None = None
    """None: field missing. A non-empty group commits the offset."""


GroupRequest = ListGroups | DescribeGroup | DeleteGroup | SeekToTimestamp


class GroupOffset(NamedTuple):
    """The committed offset of a group in a partition."""

    partition: int
    offset: int


class Group(NamedTuple):
    """A group in the layout of pyflymq and the Go client."""

    topic: str
    group: str
    members: int
    """Open connections that subscribed."""
    offsets: tuple[GroupOffset, ...] = ()


class Groups(NamedTuple):
    """The answer to LIST_GROUPS."""

    groups: tuple[Group, ...]


class JavaGroup(NamedTuple):
    """A group in the layout of the Java SDK."""

    group: str
    state: str
    members: tuple[str, ...]
    topics: tuple[str, ...]
    coordinator: str = ""


GroupAnswer = Group | Groups | JavaGroup
