# Tests: tests/simulator/test_clients.py
"""The client's interface to the network: connections of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Link(Protocol):
    """The client's end of a connection. It may be used before it is established.

    ``on_data(data)`` gets arriving bytes. ``on_lost(why)`` is called once when the connection is
    refused or lost, and never after `close`.
    """

    on_data: Callable[[bytes], None]
    on_lost: Callable[[str], None]

    @property
    def boot(self) -> int:
        """The boot of the machine it leads to; NEVER while it is not established."""

    @property
    def is_open(self) -> bool:
        """Whether what is sent may still arrive."""

    @property
    def lost_us(self) -> int:
        """When the broker's Protocol was told that the connection is lost, or NEVER."""

    def send(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Hang up. What is under way still arrives."""

    def pause(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None: ...

    def arrived_us(self, position: int) -> int:
        """When the broker's Protocol was given the first ``position`` bytes sent, or NEVER."""

    def written_us(self, position: int) -> int:
        """When the broker's Protocol wrote the first ``position`` bytes received."""


Connect = Callable[[], Link]
