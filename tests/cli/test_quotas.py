"""``brokerctl quota``, as an operator types it."""

from __future__ import annotations

from brokerd.cli.verbs import quotas as verbs
from brokerd.security import quotas
from tests.cli.shell import Shell


def test_the_kinds_are_those_of_the_broker() -> None:
    assert (verbs.KINDS, verbs.DEFAULT_NAME) == (quotas.KINDS, quotas.DEFAULT_NAME)


def test_a_quota_lives_from_set_to_delete(shell: Shell) -> None:
    assert shell.lines("quota", "list") == ["no quotas"]
    set_lines = shell.lines("quota", "set", "account", "ann", "--requests", "50", "--bytes-in=2M")
    assert set_lines == ["account ann: requests 50, bytes_in 2097152"]
    assert shell.lines("quota", "list")[1].split() == [
        *("account", "ann", "50", "2097152", "-", "-", "0", "0", "no", "account")
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


def test_wrong_quotas_are_refused(shell: Shell) -> None:
    assert "name the account" in shell.misused("quota", "set", "account", "--requests=1")
    for wrong in ("x", "9" * 19, "9" * 5_000):
        assert "not a number" in shell.misused("quota", "set", "default", f"--requests={wrong}")
    assert "control character" in shell.refused("quota", "set", "account", "a\nb", "--requests=1")
    assert "zone" in shell.refused("quota", "set", "address", "fe80::1%eth0", "--requests=1")
    assert "needs a limit" in shell.refused("quota", "set", "account", "ann")
