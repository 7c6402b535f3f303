# Tests: tests/codecs/test_flymq_group_requests.py
"""Lists and descriptions of groups, their deletion, and seeks by time: values, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x62, 0x63, 0x65 and 0x66.
"""

from __future__ import annotations

from typing import NamedTuple


class ListGroups(NamedTuple):
    pass


class DescribeGroup(NamedTuple):
    """Empty topic: the first one that has such a group."""

    group: str
    topic: str | None = ""
    """None: not said at all, as the Java SDK asks; the answer is in its layout."""


class DeleteGroup(NamedTuple):
    """Empty topic: all that have such a group."""

    group: str
    topic: str | None = ""
    """None: not said at all, as the Java SDK asks."""


class SeekToTimestamp(NamedTuple):
    topic: str
    partition: int
    time_ms: int
    """Since the Unix epoch."""
    group: str | None = None
    """None: not said at all. One that is not empty commits the offset."""


GroupRequest = ListGroups | DescribeGroup | DeleteGroup | SeekToTimestamp


class GroupOffset(NamedTuple):
    """What a group has committed for a partition."""

    partition: int
    offset: int


class Group(NamedTuple):
    """A group as pyflymq and the Go client read it."""

    topic: str
    group: str
    members: int
    """Open connections that subscribed."""
    offsets: tuple[GroupOffset, ...] = ()


class Groups(NamedTuple):
    """The answer to LIST_GROUPS."""

    groups: tuple[Group, ...]


class JavaGroup(NamedTuple):
    """A group as the Java SDK reads it."""

    group: str
    state: str
    members: tuple[str, ...]
    topics: tuple[str, ...]
    coordinator: str = ""


GroupAnswer = Group | Groups | JavaGroup
