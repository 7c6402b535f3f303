# Tests: tests/admin/test_site_places.py
"""The places of the admin site: which connection ends when a further one comes.

A connection waits while its request is not complete, or while the password of its request waits for
a check. Only a connection that waits is closed in favour of another. So a health check gets an
answer from a full site: it waits for its bytes alone.

Networks, known addresses and the kept part are those of `brokerd.security.places`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from brokerd.security import Guard
from brokerd.security.audit import network_of
from brokerd.security.places import KEPT_PART, Places, counted_network

if TYPE_CHECKING:
    from brokerd.admin.http.request import TimedChannel

MAX_CONNECTIONS: Final = 100
PER_ADDRESS_MAX: Final = MAX_CONNECTIONS // 2
"""Most connections of one address that is not of this machine."""
KEPT_PLACES: Final = MAX_CONNECTIONS // KEPT_PART
"""Places that strangers leave to known addresses and to this machine."""


class Rank(IntEnum):
    """Whose connections end last."""

    STRANGER = 0
    LOCAL = 1
    """This machine, by loopback or a UNIX socket; it has not logged in."""
    KNOWN = 2
    """It has logged in, or security is off."""


class Source(NamedTuple):
    """Where a connection comes from, and when."""

    network: str
    """As of `brokerd.security.audit.network_of`."""
    is_local: bool
    number: int = 0
    """Grows with each connection."""


class SitePlaces:
    """The open connections, at most `MAX_CONNECTIONS`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sources: dict[TimedChannel, Source] = {}
        self._counts = Places()
        self._accepted = 0
        self.waiting: dict[TimedChannel, None] = {}
        """Connections that may be closed in favour of others, the longest waiting first."""

    def make_room(self, host: str | None, is_short: bool) -> bool:
        """Return whether a new connection of this address has a place; close another if needed.

        ``is_short`` tells that a connection has to end for the new one, however many there are.
        """
        source = _source_of(host)
        rank = self._rank(source)
        if not source.is_local and self._counts.count(source.network) >= PER_ADDRESS_MAX:
            candidates = [
                one for one in self.waiting if self._sources[one].network == source.network
            ]
        elif rank is Rank.STRANGER and self._has_strangers_max():
            candidates = [one for one in self.waiting if self._rank_of(one) is Rank.STRANGER]
        elif is_short or len(self._sources) >= MAX_CONNECTIONS:
            candidates = [
                one for one in self.waiting if not one.has_login or self._rank_of(one) <= rank
            ]
        else:
            return True
        if not candidates:
            return False
        closed = min(candidates, key=self._order)
        self.remove(closed)
        closed.abort()
        return True

    def add(self, channel: TimedChannel, host: str | None) -> None:
        """Count a new connection."""
        self._accepted += 1
        source = self._sources[channel] = _source_of(host)._replace(number=self._accepted)
        self._counts.add(source.network)

    def remove(self, channel: TimedChannel) -> None:
        """Forget a connection that ended; do nothing if it is forgotten."""
        self.waiting.pop(channel, None)
        source = self._sources.pop(channel, None)
        if source is not None:
            self._counts.remove(source.network)

    def begin_wait(self, channel: TimedChannel) -> None:
        """A connection waits from now on, if it does not wait already."""
        if channel in self._sources:
            self.waiting.setdefault(channel)

    def end_wait(self, channel: TimedChannel) -> None:
        """A connection does not wait any more."""
        self.waiting.pop(channel, None)

    def _rank(self, source: Source) -> Rank:
        if self._guard.knows(source.network):
            return Rank.KNOWN
        return Rank.LOCAL if source.is_local else Rank.STRANGER

    def _rank_of(self, channel: TimedChannel) -> Rank:
        return self._rank(self._sources[channel])

    def _has_strangers_max(self) -> bool:
        ranks = map(self._rank, self._sources.values())
        return sum(rank is Rank.STRANGER for rank in ranks) >= MAX_CONNECTIONS - KEPT_PLACES

    def _order(self, channel: TimedChannel) -> tuple[Rank, int, int]:
        """Return which connection ends first: of the lowest rank, and of the largest number.

        Of these the oldest one, or, if it is of a known address, the one that waits longest.
        Strangers could begin a new wait with each of many requests.
        """
        source = self._sources[channel]
        rank = self._rank(source)
        age = 0 if rank is Rank.KNOWN else source.number
        return rank, -self._counts.count(source.network), age


def _source_of(host: str | None) -> Source:
    return Source(network_of(host or "unix"), not counted_network(host))
