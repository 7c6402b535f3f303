"""How many logins may fail, and when the next one is looked at."""

from __future__ import annotations

import re

import pytest

from brokerd.errors import LoginThrottled
from brokerd.security.throttle import BUCKETS_MAX, Attempt, Buckets, Rate, Throttle

SECOND_US = 1_000_000


def judged(throttle: Throttle, peer: str, name: str | None, now_us: int = 0) -> Attempt:
    """A login that was checked, and whose outcome does not count yet."""
    attempt = throttle.admit(peer, name, now_us)
    assert throttle.begin(attempt, now_us)
    throttle.end(attempt)
    return attempt


def fail(throttle: Throttle, peer: str, name: str | None, now_us: int = 0) -> None:
    throttle.failed(judged(throttle, peer, name, now_us), now_us)


def succeed(throttle: Throttle, peer: str, name: str | None) -> None:
    throttle.succeeded(judged(throttle, peer, name))


def attempts(throttle: Throttle, peer: str, name: str | None, now_us: int = 0) -> int:
    """How many logins fail before one is not looked at; at most 100."""
    for count in range(100):
        try:
            fail(throttle, peer, name, now_us)
        except LoginThrottled:
            return count
    return 100


def test_failures_of_one_name_are_throttled_from_wherever_they_come() -> None:
    throttle = Throttle(Rate(100, SECOND_US), Rate(3, SECOND_US))
    for number in range(3):
        fail(throttle, f"192.0.2.{number}", "ann")
    with pytest.raises(LoginThrottled):
        fail(throttle, "192.0.2.9", "ann")
    fail(throttle, "192.0.2.9", "bob")


def test_failures_of_one_address_are_throttled_whatever_the_name() -> None:
    throttle = Throttle(Rate(3, SECOND_US), Rate(100, SECOND_US))
    for number in range(3):
        fail(throttle, "192.0.2.1", f"name {number}")
    with pytest.raises(LoginThrottled):
        fail(throttle, "192.0.2.1", "ann")
    with pytest.raises(LoginThrottled):
        fail(throttle, "192.0.2.1", None)
    fail(throttle, "192.0.2.2", "ann")


def test_the_message_says_when_the_next_is_looked_at_and_that_is_true() -> None:
    throttle = Throttle(Rate(2, 10 * SECOND_US), Rate(100, SECOND_US))
    assert attempts(throttle, "192.0.2.1", "ann") == 2
    with pytest.raises(LoginThrottled, match="try again in 10 s") as caught:
        fail(throttle, "192.0.2.1", "ann")
    seconds = int(re.search(r"in (\d+) s", str(caught.value)).group(1))  # type: ignore[union-attr]
    with pytest.raises(LoginThrottled):
        fail(throttle, "192.0.2.1", "ann", seconds * SECOND_US - 1)
    assert attempts(throttle, "192.0.2.1", "ann", seconds * SECOND_US) == 1
    assert attempts(throttle, "192.0.2.1", "ann", 100 * seconds * SECOND_US) == 2


def test_who_succeeds_is_never_throttled() -> None:
    throttle = Throttle(Rate(1, SECOND_US), Rate(1, SECOND_US))
    for _ in range(100):
        succeed(throttle, "192.0.2.1", "ann")


def test_what_was_not_looked_at_counts_for_nothing_and_is_no_success() -> None:
    throttle = Throttle(Rate(100, SECOND_US), Rate(1, SECOND_US))
    for _ in range(50):
        judged(throttle, "192.0.2.1", "ann")
    fail(throttle, "192.0.2.2", "ann")
    with pytest.raises(LoginThrottled):
        fail(throttle, "192.0.2.1", "ann")


def test_nobody_is_kept_out_by_what_others_try_from_elsewhere() -> None:
    """Once a login with the name went well from an address, that address alone counts there."""
    throttle = Throttle(Rate(5, SECOND_US), Rate(3, SECOND_US))
    succeed(throttle, "192.0.2.1", "ann")
    assert attempts(throttle, "192.0.2.2", "ann") == 3
    succeed(throttle, "192.0.2.1", "ann")
    for peer, name in (("192.0.2.3", "ann"), ("192.0.2.2", "ann")):
        with pytest.raises(LoginThrottled):
            fail(throttle, peer, name)
    assert attempts(throttle, "192.0.2.1", "bob") == 3
    assert attempts(throttle, "192.0.2.1", "ann") == 2


def test_an_attempt_that_is_not_looked_at_counts_nothing() -> None:
    """Who goes on hammering waits no longer for it, and uses nobody else's tokens up."""
    throttle = Throttle(Rate(1, SECOND_US), Rate(2, SECOND_US))
    assert attempts(throttle, "192.0.2.1", "ann") == 1
    assert attempts(throttle, "192.0.2.1", "ann") == 0
    assert attempts(throttle, "192.0.2.2", "ann") == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("/run/brokerd.sock", "/run/brokerd.sock", True),
        ("", "192.0.2.2", False),
    ],
)
def test_addresses_that_one_machine_may_choose_from_are_one(
    one: str, other: str, same: bool
) -> None:
    throttle = Throttle(Rate(3, SECOND_US), Rate(100, SECOND_US))
    assert attempts(throttle, one, None) == 3
    assert attempts(throttle, other, None) == (0 if same else 3)


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    buckets = Buckets(Rate(1, SECOND_US), 3)
    for key in (b"a", b"b", b"c", b"d"):
        buckets.take(key, 0)
    assert buckets.wait_us(b"a", 0) == 0
    assert [buckets.wait_us(key, 0) for key in (b"b", b"c", b"d")] == [SECOND_US] * 3


def test_logins_that_are_not_looked_at_make_nobody_forgotten() -> None:
    """Or who floods a broker with names, while too many wait already, would empty the throttle."""
    throttle = Throttle(Rate(100, SECOND_US), Rate(3, SECOND_US))
    assert attempts(throttle, "192.0.2.1", "ann") == 3
    for number in range(BUCKETS_MAX):
        judged(throttle, "192.0.2.2", f"other {number}")
    with pytest.raises(LoginThrottled):
        fail(throttle, "192.0.2.3", "ann")


def test_a_login_holds_tokens_while_it_is_checked() -> None:
    """Of its address and its name; who finds none but held ones has to wait, and is not refused."""
    throttle = Throttle(Rate(2, SECOND_US), Rate(2, SECOND_US))
    names = ("ann", "bob", "eve", "ann")
    one, other, third, fourth = (throttle.admit("192.0.2.1", name, 0) for name in names)
    assert throttle.begin(one, 0) and throttle.begin(other, 0) and not throttle.begin(third, 0)
    elsewhere = throttle.admit("192.0.2.2", "ann", 0)
    assert throttle.begin(elsewhere, 0)
    assert not throttle.begin(throttle.admit("192.0.2.3", "ann", 0), 0)
    throttle.end(one)
    throttle.succeeded(one)
    assert throttle.begin(third, 0)
    for attempt in (other, third):
        throttle.end(attempt)
        throttle.failed(attempt, 0)
    with pytest.raises(LoginThrottled):
        throttle.begin(fourth, 0)
    assert throttle.begin(fourth, SECOND_US)


def test_nothing_is_left_of_logins_that_have_ended() -> None:
    throttle = Throttle(Rate(3, SECOND_US), Rate(3, SECOND_US))
    for number in range(100):
        attempt = throttle.admit("192.0.2.1", f"{number}", 0)
        if number % 2:
            assert throttle.begin(attempt, 0)
        throttle.end(attempt)
    assert throttle.may_skip_check("192.0.2.1", 0)
    assert attempts(throttle, "192.0.2.1", "1") == 3


def test_successes_that_are_remembered_are_bounded_too() -> None:
    """Who has not been in for longest is forgotten first."""
    throttle = Throttle(Rate(5, SECOND_US), Rate(1, SECOND_US))
    for number in (*range(BUCKETS_MAX), 0, BUCKETS_MAX):
        succeed(throttle, f"10.0.{number >> 8}.{number & 255}", "ann")
    fail(throttle, "192.0.2.1", "ann")
    fail(throttle, "10.0.0.0", "ann")
    with pytest.raises(LoginThrottled):
        fail(throttle, "10.0.0.1", "ann")
