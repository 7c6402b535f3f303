# Tests: tests/security/test_throttle.py
"""How often logins may fail: token buckets by the sender's address and by the account's name.

An attempt takes a token of each before anything is looked at, and gets them back if it succeeds.
Whether there is an account of a name makes no difference. An address from where a login with a name
succeeded takes no token of that name any more, so that nobody is kept out by what others try.
Memory is bounded: at most `BUCKETS_MAX` addresses, names and such pairs are remembered, and who
tried longest ago is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

from brokerd.errors import LoginThrottled
from brokerd.security.audit import network_of

BUCKETS_MAX: Final = 10_000


class Rate(NamedTuple):
    """So many attempts may fail at once, and another one each so many microseconds."""

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
        """How long until there is a token; 0 if there is one."""
        missing_us = self._full_at_us.get(key, 0) - now_us
        return max(0, missing_us - (self._rate.burst - 1) * self._rate.each_us)

    def take(self, key: bytes, now_us: int) -> None:
        """Take a token."""
        full_at_us = max(self._full_at_us.pop(key, 0), now_us)
        self._full_at_us[key] = full_at_us + self._rate.each_us
        if len(self._full_at_us) > self._buckets_max:
            self._full_at_us.popitem(last=False)

    def give_back(self, key: bytes, taken_us: int) -> None:
        """Undo one `take`; a bucket that was full then is forgotten, or else it pushed one out."""
        full_at_us = self._full_at_us.get(key)
        if full_at_us is None:
            return
        if full_at_us - self._rate.each_us <= taken_us:
            del self._full_at_us[key]
        else:
            self._full_at_us[key] = full_at_us - self._rate.each_us


class Attempt(NamedTuple):
    """A login that is being looked at."""

    taken: list[tuple[Buckets, bytes]]
    pair: bytes | None
    """Who tries to be whom; None where nobody is named."""
    began_us: int


class Throttle:
    """Whether a login is looked at. Who has an IPv6 address has all of the first 64 bits."""

    def __init__(self, per_peer: Rate = PER_PEER, per_name: Rate = PER_NAME) -> None:
        self._peers = Buckets(per_peer)
        self._names = Buckets(per_name)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Pairs of which a login succeeded, latest last."""

    def begin(self, peer: str, name: str | None, now_us: int) -> Attempt:
        """Count an attempt; ``name`` is None for a key, which names nobody.

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
        """See whether this address has to wait; counts nothing, raises as `begin`."""
        _check([(self._peers, _short(network_of(peer)))], now_us)

    def give_back(self, attempt: Attempt) -> None:
        """The attempt was not looked at after all."""
        for buckets, key in attempt.taken:
            buckets.give_back(key, attempt.began_us)

    def succeeded(self, attempt: Attempt) -> None:
        """The attempt was no failure: others' failures do not keep this one out from now on."""
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
    """A text of any length in few bytes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
