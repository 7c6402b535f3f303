# Tests: tests/protocols/test_flymq_members.py
"""Group members: the open FlyMQ connections that subscribed to a group.

Members have no assigned partitions and are not durable (docs/protocols/flymq.rst, SUBSCRIBE).
"""

from __future__ import annotations

import os

from twisted.internet.address import IPv4Address, IPv6Address

from brokerd.broker import ConsumerGroup

JOINED_MIN = 64


class Memberships:
    """The groups that one connection has joined."""

    def __init__(self) -> None:
        self._joined: dict[ConsumerGroup, None] = {}
        self._joined_max = JOINED_MIN
        """At this number of groups the deleted ones are dropped."""

    def join(self, group: ConsumerGroup, address: str) -> None:
        """Add a member of this address to a group, until `leave` or the group's deletion."""
        if group not in self._joined:
            if len(self._joined) >= self._joined_max:
                self._joined = {one: None for one in self._joined if not one.deleted}
                self._joined_max = max(JOINED_MIN, 2 * len(self._joined))
            self._joined[group] = None
            members = group.members or {}
            members[self] = address
            group.members = members

    def leave(self) -> None:
        """Leave all groups."""
        for group in self._joined:
            assert group.members is not None, "this connection is a member"
            del group.members[self]
            group.members = group.members or None
        self._joined.clear()


def address_text(address: object) -> str:
    """Return the text of an address: ``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    return f"unix:{os.fsdecode(getattr(address, 'name', None) or b'')}"
