# Tests: tests/security/test_quotas.py
"""Quotas: most requests, bytes and connections of an account, an address or a listener.

A `Quota` is a frozen value that the journal keeps. A `Meter` counts the use of one quota by the
connections that share it. It is a token bucket for each rate, which holds the tokens of a second: a
meter has time left while its bucket is not empty, and a request may take more than is left. Then
the next ones wait until the debt is paid. Times are monotonic, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, ip_address, ip_network
from typing import Final

from brokerd.errors import InvalidName, InvalidRequest
from brokerd.security.accounts import check_account_name

DEFAULT, LISTENER, ADDRESS, ACCOUNT = "default", "listener", "address", "account"
KINDS: Final = (DEFAULT, LISTENER, ADDRESS, ACCOUNT)
DEFAULT_NAME: Final = "*"
UNIX: Final = "unix"
"""The address of all clients of Unix sockets."""
MAPPED_BITS: Final = 96
"""Bits before an IPv4 address that is mapped into IPv6: ``::ffff:0:0/96``."""
RATE_MAX: Final = 1 << 50
"""Largest limit."""
BURST_SECONDS: Final = 1.0
"""A bucket holds the tokens of this time."""


class Use:
    """Kinds of requests. Plain integers."""

    FREE: Final = 0
    """Settles, acknowledgements, commits, deletions, logins: never counted and never held back."""
    READ: Final = 1
    """Counts as a request, and waits while too many bytes were sent."""
    PRODUCE: Final = 2
    """Counts as a request, and its bytes count as bytes in."""


@dataclass(frozen=True)
class Quota:
    """Limits of all connections together that it applies to; 0 is no limit."""

    kind: str
    name: str
    """The account; the address or network, or ``unix``; the wire format; ``*`` for the default."""
    requests: int = 0
    """Produces and reads a second."""
    bytes_in: int = 0
    """Bytes of produces a second."""
    bytes_out: int = 0
    """Bytes of answers a second."""
    connections: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Unique key of the quota."""
        return self.kind, self.name

    def limits(self) -> dict[str, int]:
        """Return the limits by name."""
        return {
            "requests": self.requests,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "connections": self.connections,
        }


def check_quota(quota: Quota, listeners: Iterable[str]) -> Quota:
    """Return the quota with its address in the usual form.

    Raises as `check_key`, and `InvalidRequest` for a limit.
    """
    kind, name = check_key(quota.kind, quota.name, listeners)
    limits = quota.limits()
    for what, limit in limits.items():
        if not 0 <= limit <= RATE_MAX:
            raise InvalidRequest(f"{what} must be from 0 to {RATE_MAX}, not {limit}")
    if not any(limits.values()):
        raise InvalidRequest("a quota needs a limit above 0; delete it if there should be none")
    return Quota(kind, name, **limits)


def check_key(kind: str, name: str, listeners: Iterable[str]) -> tuple[str, str]:
    """Return the key of a quota, with an address in the usual form. Raises `InvalidName`."""
    if kind not in KINDS:
        raise InvalidName(f"a quota is of one of {', '.join(KINDS)}, not {kind[:32]!r}")
    if kind == DEFAULT and name != DEFAULT_NAME:
        raise InvalidName(f"the default quota has the name {DEFAULT_NAME!r}, not {name[:32]!r}")
    if kind == LISTENER and name not in listeners:
        raise InvalidName(f"there is no wire format {name[:32]!r}: {', '.join(listeners)}")
    if kind == ACCOUNT:
        check_account_name(name)
    if kind == ADDRESS and name != UNIX:
        name = _usual_address(name)
    return kind, name


def _usual_address(text: str) -> str:
    """Return an address or a network in the form in which the broker sees its clients.

    That form has no zone, and a mapped address is one of IPv4. Raises `InvalidName`.
    """
    if "%" in text:
        raise InvalidName(f"leave out the zone, from % on, in {text[:80]!r}: the broker sees none")
    try:
        network = ip_network(text)
    except ValueError as error:
        raise InvalidName(f"not an address or a network: {error}") from None
    first = network.network_address
    if isinstance(first, IPv6Address) and first.ipv4_mapped and network.prefixlen >= MAPPED_BITS:
        network = IPv4Network((first.ipv4_mapped, network.prefixlen - MAPPED_BITS))
    return str(network.network_address) if network.num_addresses == 1 else str(network)


class Meter:
    """The use of a quota by its connections, and what it did."""

    __slots__ = (
        "__weakref__",
        "_full_in",
        "_full_out",
        "_full_requests",
        "bytes_in",
        "bytes_out",
        "connections",
        "name",
        "queues",
        "quota",
        "refused",
        "requests",
        "waiting",
        "waits",
    )

    def __init__(self, quota: Quota, name: str) -> None:
        self.quota = quota
        """The limits. A change of the quota replaces them, and the use stays."""
        self.name = name
        """The account or address for the default quota; else the name of the quota."""
        self._full_requests = self._full_in = self._full_out = 0.0
        """When each bucket will be full again."""
        self.requests = self.bytes_in = self.bytes_out = 0
        """Counts so far."""
        self.queues: dict[int, OrderedDict[Callable[[bool], object], None]] = {}
        """Requests that wait, by use, in their order: the calls that resume them. They belong to
        `brokerd.broker.security.quota_waits.QuotaWaits`."""
        self.waiting = 0
        """Number of these."""
        self.waits = 0
        """Requests that waited."""
        self.refused = 0
        """Connections refused."""
        self.connections = 0

    def change(self, quota: Quota) -> None:
        """Take new limits. Debts of the old ones are forgotten."""
        if quota != self.quota:
            self.quota = quota
            self._full_requests = self._full_in = self._full_out = 0.0

    def add(self, other: Meter) -> None:
        """Add the counts of another meter."""
        self.requests += other.requests
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.waiting += other.waiting
        self.waits += other.waits
        self.refused += other.refused
        self.connections += other.connections

    def counts(self) -> dict[str, int]:
        """Return the use so far and the open connections."""
        return {
            "requests": self.requests,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "waits": self.waits,
            "waiting": self.waiting,
            "connections": self.connections,
            "refused": self.refused,
        }

    @property
    def is_full(self) -> bool:
        """Whether no further connection may open."""
        return 0 < self.quota.connections <= self.connections

    def wait_seconds(self, use: int, now_seconds: float) -> float:
        """Return the time that a request has to wait; 0 or less: none."""
        quota = self.quota
        full_seconds = self._full_requests if quota.requests else 0.0
        if use == Use.PRODUCE:
            if quota.bytes_in:
                full_seconds = max(full_seconds, self._full_in)
        elif quota.bytes_out:
            full_seconds = max(full_seconds, self._full_out)
        return full_seconds - now_seconds - BURST_SECONDS

    def take(self, use: int, size: int, now_seconds: float) -> None:
        """Count a request of ``size`` bytes."""
        quota = self.quota
        self.requests += 1
        if quota.requests:
            self._full_requests = max(self._full_requests, now_seconds) + 1 / quota.requests
        if use == Use.PRODUCE:
            self.bytes_in += size
            if quota.bytes_in:
                self._full_in = max(self._full_in, now_seconds) + size / quota.bytes_in

    def sent(self, size: int, now_seconds: float) -> None:
        """Count bytes of answers."""
        self.bytes_out += size
        if self.quota.bytes_out:
            self._full_out = max(self._full_out, now_seconds) + size / self.quota.bytes_out


_network = lru_cache(maxsize=2_000)(ip_network)
"""To parse the networks of 1,000 quotas takes 5 ms, which each new connection would cost."""


def address_quota(quotas: Iterable[Quota], address: str) -> Quota | None:
    """Return the quota of the address itself, or of the smallest network with it; None: none.

    A listener of IPv6 sees clients of IPv4 at mapped addresses. Quotas of IPv4 apply to them.
    """
    try:
        at = ip_address(address)
    except ValueError:
        return next((one for one in quotas if one.name == address), None)
    if isinstance(at, IPv6Address) and at.ipv4_mapped is not None:
        at = at.ipv4_mapped
    found: tuple[int, Quota] | None = None
    for quota in quotas:
        if quota.name == UNIX:
            continue
        network = _network(quota.name)
        if at in network and (found is None or network.prefixlen > found[0]):
            found = network.prefixlen, quota
    return None if found is None else found[1]
