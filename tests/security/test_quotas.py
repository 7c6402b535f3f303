"""Quotas as values, and the time that a meter lets requests wait."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from brokerd.errors import InvalidName, InvalidRequest
from brokerd.security.quotas import Meter, Quota, Use, address_quota, check_quota

FORMATS = ("mamamia", "flymq")


def rate(meter: Meter, use: int, size: int, seconds: float) -> int:
    """Requests that pass in some seconds, asked for as soon as each may go."""
    now, passed = 100.0, 0
    while True:
        now += max(0.0, meter.wait_seconds(use, now))
        if now >= 100.0 + seconds:
            return passed
        meter.take(use, size, now)
        passed += 1
        now += 0.0001


@pytest.mark.parametrize(
    ("quota", "use", "size", "passed"),
    [
        (Quota("account", "a", requests=50), Use.PRODUCE, 1, 50),
        (Quota("account", "a", requests=50), Use.READ, 1, 50),
        (Quota("account", "a", bytes_in=1_000), Use.PRODUCE, 100, 10),
        (Quota("account", "a", bytes_in=1_000, requests=5), Use.PRODUCE, 100, 5),
    ],
)
def test_requests_pass_at_the_promised_rate(quota: Quota, use: int, size: int, passed: int) -> None:
    found = rate(Meter(quota, "a"), use, size, 60.0)
    assert 60 * passed <= found <= 62 * passed


def test_a_request_larger_than_a_second_s_bytes_passes_and_is_paid_for() -> None:
    meter = Meter(Quota("account", "a", bytes_in=1_000), "a")
    assert meter.wait_seconds(Use.PRODUCE, 10.0) <= 0
    meter.take(Use.PRODUCE, 30_000, 10.0)
    assert meter.wait_seconds(Use.PRODUCE, 10.0) == pytest.approx(29.0)
    assert meter.wait_seconds(Use.READ, 10.0) <= 0, "reads have no limit"


def test_bytes_out_hold_back_reads_and_no_produces() -> None:
    meter = Meter(Quota("account", "a", bytes_out=1_000), "a")
    meter.take(Use.READ, 10, 10.0)
    meter.sent(5_000, 10.0)
    assert meter.wait_seconds(Use.READ, 10.0) == pytest.approx(4.0)
    assert meter.wait_seconds(Use.PRODUCE, 10.0) <= 0


def test_a_changed_quota_forgets_debts_and_keeps_counts() -> None:
    meter = Meter(Quota("account", "a", bytes_in=1), "a")
    meter.take(Use.PRODUCE, 1_000_000, 10.0)
    meter.change(Quota("account", "a", bytes_in=1_000))
    assert meter.wait_seconds(Use.PRODUCE, 10.0) <= 0
    assert meter.counts()["bytes_in"] == 1_000_000


@pytest.mark.parametrize(
    ("quota", "error"),
    [
        (Quota("default", "x", 1), InvalidName),
        (Quota("listener", "kafka", 1), InvalidName),
        (Quota("account", "", 1), InvalidName),
        (Quota("account", "x" * 256, 1), InvalidName),
        (Quota("account", "a\nb", 1), InvalidName),
        (Quota("account", "a\x9b", 1), InvalidName),
        (Quota("account", "a\udcff", 1), InvalidName),
        (Quota("address", "10.0.0.1/8", 1), InvalidName),
        (Quota("address", "host", 1), InvalidName),
        (Quota("address", "fe80::1%eth0", 1), InvalidName),
        (Quota("address", "fe80::%eth0/64", 1), InvalidName),
        (Quota("topic", "x", 1), InvalidName),
        (Quota("account", "a"), InvalidRequest),
        (Quota("account", "a", -1), InvalidRequest),
        (Quota("account", "a", 1 << 51), InvalidRequest),
    ],
)
def test_wrong_quotas_are_refused(quota: Quota, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_quota(quota, FORMATS)


def test_addresses_have_one_form() -> None:
    assert check_quota(Quota("address", "2001:DB8::1", 1), FORMATS).name == "2001:db8::1"
    assert check_quota(Quota("address", "10.1.2.3/32", 1), FORMATS).name == "10.1.2.3"
    assert check_quota(Quota("address", "10.0.0.0/8", 1), FORMATS).name == "10.0.0.0/8"
    assert check_quota(Quota("address", "unix", 1), FORMATS).name == "unix"


@pytest.mark.parametrize(
    ("given", "usual", "client"),
    [
        ("::ffff:a00:1", "10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8", "10.9.9.9"),
        ("::ffff:0:0/96", "0.0.0.0/0", "10.9.9.9"),
        ("fe80::/64", "fe80::/64", "fe80::1"),
        ("2001:DB8:0::1/128", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_an_address_has_the_form_in_which_the_broker_sees_its_client(
    given: str, usual: str, client: str
) -> None:
    quota = check_quota(Quota("address", given, 1), FORMATS)
    assert quota.name == usual
    assert address_quota([quota], client) is quota


def test_networks_of_quotas_are_parsed_once() -> None:
    """Each new connection looks its quotas up."""
    quotas = [Quota("address", f"10.9.{number}.0/24", requests=1) for number in range(200)]
    wanted = address_quota(quotas, "10.9.199.1")
    with patch("ipaddress.IPv4Network.__init__", side_effect=AssertionError("parsed again")):
        assert address_quota(quotas, "10.9.199.2") is wanted is quotas[-1]


def test_the_smallest_network_of_an_address_counts() -> None:
    wide, narrow, own = (Quota("address", name, 1) for name in ("10.0.0.0/8", "10.1.0.0/16", "::1"))
    quotas = [narrow, wide, own, Quota("address", "unix", 1)]
    assert address_quota(quotas, "10.1.2.3") is narrow
    assert address_quota(quotas, "10.2.2.3") is wide
    assert address_quota(quotas, "::1") is own
    assert address_quota(quotas, "192.168.0.1") is None
    assert address_quota(quotas, "unix") is quotas[3]
    assert address_quota(quotas, "::ffff:10.1.2.3") is narrow, "IPv4, seen by a listener of IPv6"
    assert address_quota(quotas, "fe80::1%lo") is None
