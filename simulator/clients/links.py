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

    number: int
    """Number of the connection in the run."""
    sends_part_of_frame: bool
    """Whether the client sends a part of a frame and no more; for the judge of time-outs."""
    on_data: Callable[[bytes], None]
    on_lost: Callable[[str], None]

    @property
    def boot(self) -> int:
        """The boot number of the machine at the other end; NEVER until it is established."""

    @property
    def is_open(self) -> bool:
        """Whether sent bytes may still arrive."""

    @property
    def lost_us(self) -> int:
        """The time at which the broker's Protocol lost the connection, or NEVER."""

    def send(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close the connection. Bytes in flight still arrive."""

    def pause(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None: ...

    def arrived_us(self, position: int) -> int:
        """Return when the broker's Protocol got the first ``position`` sent bytes, or NEVER."""

    def written_us(self, position: int) -> int:
        """Return when the broker's Protocol wrote the first ``position`` received bytes."""


Connect = Callable[[], Link]
