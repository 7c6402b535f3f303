# Tests: tests/protocols/test_flymq_members.py
"""Which FlyMQ connections are members of a group: those that subscribed and are still open.

Nothing is assigned to members, and they are not durable (flymq-payloads, 6.2).
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
        """With more of them, those that were deleted are forgotten."""

    def join(self, group: ConsumerGroup, address: str) -> None:
        """Be a member of a group, called by this address, until `leave`, or until it is deleted."""
        if group not in self._joined:
            if len(self._joined) >= self._joined_max:
                self._joined = {one: None for one in self._joined if not one.deleted}
                self._joined_max = max(JOINED_MIN, 2 * len(self._joined))
            self._joined[group] = None
            members = group.members or {}
            members[self] = address
            group.members = members

    def leave(self) -> None:
        """Be a member of none."""
        for group in self._joined:
            assert group.members is not None, "this one has joined it"
            del group.members[self]
            group.members = group.members or None
        self._joined.clear()


def address_text(address: object) -> str:
    """One end of a connection: ``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    return f"unix:{os.fsdecode(getattr(address, 'name', None) or b'')}"
