# Tests: tests/protocols/test_places.py
"""The places of `Limits.connections`: how many connections each network may have.

A network is an IPv4 address, or the first 64 bits of an IPv6 address. Loopback addresses and UNIX
sockets have no limit of their own: a proxy on this machine has the connections of all its clients.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from brokerd.security.audit import network_of

KEPT_PART: Final = 8
"""With security on, one place of so many is kept for networks that have logged in before."""


def counted_network(host: str | None) -> str:
    """Return the network of a peer's address; "" if its connections are not counted."""
    if host is None:
        return ""
    network = network_of(host)
    try:
        address = ip_address(network.partition("/")[0])
    except ValueError:
        return ""
    is_local = address.is_loopback or ip_address(host.partition("%")[0]).is_loopback
    return "" if is_local else network


class Places:
    """Counts the open connections of each network, over all listeners that share the places."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, network: str) -> int:
        """Return the number of connections of a network."""
        return self._counts.get(network, 0)

    def add(self, network: str) -> None:
        """Count a connection of a network."""
        if network:
            self._counts[network] = self._counts.get(network, 0) + 1

    def remove(self, network: str) -> None:
        """Undo one `add`."""
        if network:
            left = self._counts[network] - 1
            if left:
                self._counts[network] = left
            else:
                del self._counts[network]
