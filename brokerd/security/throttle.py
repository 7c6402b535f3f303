# Tests: tests/security/test_throttle.py
"""Limits failed logins: token buckets by address and by account name.

An attempt takes a token of each bucket before any check, and gets them back if it succeeds. It
makes no difference whether the account exists. After a successful login with a name, its address
takes no tokens of that name any more. So other clients' attempts do not block it.

Memory is bounded: at most `BUCKETS_MAX` addresses, names and such pairs; the least recent attempt
is dropped first.
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
        """When each bucket will be full again; oldest attempt first."""

    def wait_us(self, key: bytes, now_us: int) -> int:
        """Return the time until a token is available; 0 if one is."""
        missing_us = self._full_at_us.get(key, 0) - now_us
        return max(0, missing_us - (self._rate.burst - 1) * self._rate.each_us)

    def take(self, key: bytes, now_us: int) -> None:
        """Take a token."""
        full_at_us = max(self._full_at_us.pop(key, 0), now_us)
        self._full_at_us[key] = full_at_us + self._rate.each_us
        if len(self._full_at_us) > self._buckets_max:
            self._full_at_us.popitem(last=False)

    def give_back(self, key: bytes, taken_us: int) -> None:
        """Undo one `take`; remove a bucket that was full, because `take` has added it."""
        full_at_us = self._full_at_us.get(key)
        if full_at_us is None:
            return
        if full_at_us - self._rate.each_us <= taken_us:
            del self._full_at_us[key]
        else:
            self._full_at_us[key] = full_at_us - self._rate.each_us


class Attempt(NamedTuple):
    """A login attempt that is being checked."""

    taken: list[tuple[Buckets, bytes]]
    pair: bytes | None
    """Address and name; None without a name."""
    began_us: int


class Throttle:
    """Decides whether a login is checked. IPv6 addresses count by their first 64 bits."""

    def __init__(self, per_peer: Rate = PER_PEER, per_name: Rate = PER_NAME) -> None:
        self._peers = Buckets(per_peer)
        self._names = Buckets(per_name)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Pairs of address and name with a successful login, latest last."""

    def begin(self, peer: str, name: str | None, now_us: int) -> Attempt:
        """Count an attempt; ``name`` is None for a key.

        Raises `LoginThrottled`, and counts nothing then.
        """
        network = network_of(peer)
        keys = [(self._peers, _short(network))]
        pair = None
        if name is not None:
            pair = _short(f"{network} {name}")
            if pair not in self._known:
                keys.append((self._names, _short(name)))
        _check(keys, now_us)
        for buckets, key in keys:
            buckets.take(key, now_us)
        return Attempt(keys, pair, now_us)

    def check_peer(self, peer: str, now_us: int) -> None:
        """Raise as `begin` if this address has to wait; count nothing."""
        _check([(self._peers, _short(network_of(peer)))], now_us)

    def is_known(self, attempt: Attempt) -> bool:
        """Return whether its address has logged in with its name before."""
        return attempt.pair in self._known

    def give_back(self, attempt: Attempt) -> None:
        """Undo an attempt that was not checked."""
        for buckets, key in attempt.taken:
            buckets.give_back(key, attempt.began_us)

    def succeeded(self, attempt: Attempt) -> None:
        """Record a success: failures of other clients do not block this one from now on."""
        self.give_back(attempt)
        if attempt.pair is not None:
            self._known[attempt.pair] = None
            self._known.move_to_end(attempt.pair)
            if len(self._known) > BUCKETS_MAX:
                self._known.popitem(last=False)


def _check(keys: list[tuple[Buckets, bytes]], now_us: int) -> None:
    wait_us = max(buckets.wait_us(key, now_us) for buckets, key in keys)
    if wait_us:
        raise LoginThrottled(f"too many failed logins; try again in {-(-wait_us // 1_000_000)} s")


def _short(text: str) -> bytes:
    """Return a short digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
