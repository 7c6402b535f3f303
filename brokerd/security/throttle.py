# Tests: tests/security/test_throttle.py
"""Limits failed logins: token buckets by address and by account name.

A failure takes a token of each bucket, and a success takes none. A login whose outcome is not known
holds a token while it is checked. If other logins hold all tokens that are left, it has to wait for
their outcome: `Throttle.begin` returns False. So logins at once get no more guesses than one after
the other, and right ones do not refuse each other. It makes no difference whether the account
exists. After a successful login with a name, its address takes no tokens of that name any more. So
other clients' attempts do not block it.

Memory is bounded: at most `BUCKETS_MAX` addresses, names and such pairs; the least recent failure
or success is dropped first. Logins without an outcome are as many as the caller admits.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

from brokerd.errors import LoginThrottled
from brokerd.security.audit import network_of

BUCKETS_MAX: Final = 10_000


class Rate(NamedTuple):
    """This many attempts may fail at once, and one more per interval in microseconds."""

    burst: int
    each_us: int


PER_PEER: Final = Rate(20, 1_000_000)
PER_NAME: Final = Rate(10, 3_000_000)


class Buckets:
    """The buckets of one kind of key, all with the same rate."""

    def __init__(self, rate: Rate, buckets_max: int = BUCKETS_MAX) -> None:
        self._rate = rate
        self._buckets_max = buckets_max
        self._full_at_us: OrderedDict[bytes, int] = OrderedDict()
        """When each bucket will be full again; oldest failure first."""
        self._held: dict[bytes, int] = {}
        """Tokens that logins hold while they are checked."""

    def wait_us(self, key: bytes, now_us: int, others: int = 0) -> int:
        """Return the time until ``others`` tokens and one more are available; 0 if they are."""
        missing_us = max(0, self._full_at_us.get(key, 0) - now_us)
        return max(0, missing_us - (self._rate.burst - 1 - others) * self._rate.each_us)

    def is_free(self, key: bytes, now_us: int) -> bool:
        """Return whether a token is available that no login holds."""
        return not self.wait_us(key, now_us, self._held.get(key, 0))

    def hold(self, key: bytes) -> None:
        """Hold a token until `release`."""
        self._held[key] = self._held.get(key, 0) + 1

    def release(self, key: bytes) -> None:
        """Undo one `hold`."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

    def take(self, key: bytes, now_us: int) -> None:
        """Take a token."""
        full_at_us = max(self._full_at_us.pop(key, 0), now_us)
        self._full_at_us[key] = full_at_us + self._rate.each_us
        if len(self._full_at_us) > self._buckets_max:
            self._full_at_us.popitem(last=False)


Keys = list[tuple[Buckets, bytes]]


class Attempt:
    """A login whose outcome is not known: it waits, or is checked."""

    def __init__(self, peer: bytes, name: bytes, pair: bytes | None) -> None:
        self.peer = peer
        self.name = name
        self.pair = pair
        """Address and name; None without a name."""
        self.keys: Keys = []
        """Where a failure counts; empty before `Throttle.begin`."""


class Throttle:
    """Decides whether a login is checked. IPv6 addresses count by their first 64 bits.

    Each attempt that `admit` returns must `end`, then `failed` or `succeeded` if it was checked.
    """

    def __init__(self, per_peer: Rate = PER_PEER, per_name: Rate = PER_NAME) -> None:
        self._peers = Buckets(per_peer)
        self._names = Buckets(per_name)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Pairs of address and name with a successful login, latest last."""
        self._open: dict[bytes, int] = {}
        """Attempts that have not ended, by address."""

    def admit(self, peer: str, name: str | None, now_us: int) -> Attempt:
        """Return a new attempt; ``name`` is None for a key.

        Raises `LoginThrottled` if its address or its name has no token left.
        """
        network = network_of(peer)
        pair = None if name is None else _short(f"{network} {name}")
        attempt = Attempt(_short(network), _short(name or ""), pair)
        _check(self._keys(attempt), now_us)
        self._open[attempt.peer] = self._open.get(attempt.peer, 0) + 1
        return attempt

    def begin(self, attempt: Attempt, now_us: int) -> bool:
        """Hold the tokens of an attempt, and return True: it may be checked.

        Return False if it has to wait, because attempts that are being checked hold the tokens that
        are left. Raises `LoginThrottled` if no token is left, even if all of them succeed.
        """
        keys = self._keys(attempt)
        _check(keys, now_us)
        if not all(buckets.is_free(key, now_us) for buckets, key in keys):
            return False
        for buckets, key in keys:
            buckets.hold(key)
        attempt.keys = keys
        return True

    def end(self, attempt: Attempt) -> None:
        """Release the tokens of an attempt: it was checked, or will not be."""
        for buckets, key in attempt.keys:
            buckets.release(key)
        self._open[attempt.peer] -= 1
        if not self._open[attempt.peer]:
            del self._open[attempt.peer]

    def failed(self, attempt: Attempt, now_us: int) -> None:
        """Count the failure of an attempt that has ended."""
        for buckets, key in attempt.keys:
            buckets.take(key, now_us)

    def succeeded(self, attempt: Attempt) -> None:
        """Record a success: failures of other clients do not block this one from now on."""
        if attempt.pair is not None:
            self._known[attempt.pair] = None
            self._known.move_to_end(attempt.pair)
            if len(self._known) > BUCKETS_MAX:
                self._known.popitem(last=False)

    def may_skip_check(self, peer: str, now_us: int) -> bool:
        """Return whether a right password may be accepted at once, without an attempt.

        That is so if the address would have a token left if all its open attempts failed. Raises
        `LoginThrottled` if it has none.
        """
        key = _short(network_of(peer))
        _check([(self._peers, key)], now_us)
        return not self._peers.wait_us(key, now_us, self._open.get(key, 0))

    def is_known(self, attempt: Attempt) -> bool:
        """Return whether its address has logged in with its name before."""
        return attempt.pair in self._known

    def _keys(self, attempt: Attempt) -> Keys:
        keys = [(self._peers, attempt.peer)]
        if attempt.pair is not None and attempt.pair not in self._known:
            keys.append((self._names, attempt.name))
        return keys


def _check(keys: Keys, now_us: int) -> None:
    wait_us = max(buckets.wait_us(key, now_us) for buckets, key in keys)
    if wait_us:
        raise LoginThrottled(f"too many failed logins; try again in {-(-wait_us // 1_000_000)} s")


def _short(text: str) -> bytes:
    """Return a short digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
