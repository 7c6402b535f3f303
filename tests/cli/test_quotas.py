"""``brokerctl quota``, as an operator types it."""

from __future__ import annotations

import pytest

from brokerd.cli.verbs import quotas as verbs
from brokerd.security import quotas
from tests.cli.shell import Shell


def test_the_kinds_are_those_of_the_broker() -> None:
    assert (verbs.KINDS, verbs.DEFAULT_NAME) == (quotas.KINDS, quotas.DEFAULT_NAME)
    assert verbs.LIMIT_MAX == quotas.RATE_MAX


def test_a_quota_lives_from_set_to_delete(shell: Shell) -> None:
    assert shell.lines("quota", "list") == ["no quotas"]
    set_lines = shell.lines("quota", "set", "account", "ann", "--requests", "50", "--bytes-in=2M")
    assert set_lines == ["account ann: requests 50, bytes_in 2.0 MiB"]
    assert shell.lines("quota", "list")[1].split() == [
        *("account", "ann", "50", "2.0", "MiB", "-", "-", "0", "0", "no", "account")
    ]
    assert shell.json("quota", "list")["quotas"][0]["limits"]["bytes_in"] == 2 << 20
    assert shell.lines("quota", "delete", "account", "ann") == ["deleted the quota of account ann"]
    assert shell.lines("quota", "list") == ["no quotas"]


def test_the_default_needs_no_name_and_a_network_has_one(shell: Shell) -> None:
    assert shell.json("quota", "set", "default", "--connections=9")["name"] == "*"
    assert shell.json("quota", "set", "address", "10.0.0.0/8", "--requests=9")["name"] == (
        "10.0.0.0/8"
    )
    shell.json("quota", "delete", "address", "10.0.0.0/8")
    assert [one["kind"] for one in shell.json("quota", "list")["quotas"]] == ["default"]


def test_an_address_may_have_any_form(shell: Shell) -> None:
    assert shell.lines("quota", "set", "address", "10.1.2.3/32", "--requests=9") == [
        "address 10.1.2.3: requests 9"
    ]
    assert shell.lines("quota", "delete", "address", "10.1.2.3/32") == [
        "deleted the quota of address 10.1.2.3"
    ]
    assert shell.lines("quota", "list") == ["no quotas"]


def test_a_deletion_of_no_quota_is_refused(shell: Shell) -> None:
    assert "no quota of account 'ann'" in shell.refused("quota", "delete", "account", "ann")
    assert "no wire format 'nope'" in shell.refused("quota", "delete", "listener", "nope")
    assert "not an address" in shell.refused("quota", "delete", "address", "nope")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("500", 500), ("0500", 500), ("5k", 5 << 10), ("1M", 1 << 20), ("1G", 1 << 30)],
        *[("1MiB", 1 << 20), ("1 GiB", 1 << 30), ("1125899906842624", 1 << 50)],
    ],
)
def test_a_limit_is_a_number_or_a_size(text: str, number: int) -> None:
    assert verbs.limit(text) == number


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *[
            (text, "is not a number like 500")
            for text in ("", "x", "1e99", "1.5M", "M", "1X", "٣", "9" * 23 + "x")
        ],
        *[("-1", "-1 is less than 0"), ("-" + "9" * 5_000, "is less than 0")],
        ("9" * 23, f"{'9' * 23} is more than 1125899906842624, the largest limit"),
        ("9999999G", "9999999G is more than 1125899906842624, the largest limit"),
        ("9" * 5_000, "is more than"),
        ("1125899906842625", "is more than"),
    ],
)
def test_a_wrong_limit_names_the_option_the_value_and_the_largest(
    shell: Shell, text: str, said: str
) -> None:
    for verb in ("set", "change"):
        output = shell.misused("quota", verb, "default", "--bytes-in", text)
        assert "'--bytes-in': " in output and said in output
        assert len(output) < 1_000


def test_a_set_prints_the_limits_that_it_removes(shell: Shell) -> None:
    limits = ("--requests=50", "--bytes-in=2M", "--connections=3")
    shell.json("quota", "set", "account", "ann", *limits)
    assert shell.lines("quota", "set", "account", "ann", "--requests=9", "--bytes-out=5") == [
        "account ann: requests 9, bytes_out 5 B",
        "removed: bytes_in 2.0 MiB, connections 3",
    ]
    assert "replace" in " ".join(shell.lines("quota", "set", "--help"))


def test_a_change_keeps_the_other_limits(shell: Shell) -> None:
    shell.json("quota", "set", "address", "10.0.0.1", "--requests=50", "--bytes-in=2M")
    assert shell.lines("quota", "change", "address", "10.0.0.1/32", "--bytes-out=1K") == [
        "address 10.0.0.1: requests 50, bytes_in 2.0 MiB, bytes_out 1.0 KiB"
    ]
    assert shell.lines("quota", "change", "address", "10.0.0.1", "--requests=0") == [
        "address 10.0.0.1: bytes_in 2.0 MiB, bytes_out 1.0 KiB",
        "removed: requests 50",
    ]
    assert "name a limit" in shell.misused("quota", "change", "address", "10.0.0.1")
    assert "no quota of account" in shell.refused("quota", "change", "account", "x", "--requests=1")


def test_wrong_quotas_are_refused(shell: Shell) -> None:
    assert "name the account" in shell.misused("quota", "set", "account", "--requests=1")
    assert "control character" in shell.refused("quota", "set", "account", "a\nb", "--requests=1")
    assert "zone" in shell.refused("quota", "set", "address", "fe80::1%eth0", "--requests=1")
    assert "needs a limit" in shell.refused("quota", "set", "account", "ann")
