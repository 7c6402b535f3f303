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
        *("account", "ann", "50", "2097152", "-", "-", "0", "0")
    ]
    assert shell.json("quota", "list")["quotas"][0]["limits"]["bytes_in"] == 2 << 20
    assert shell.lines("quota", "delete", "account", "ann") == ["account ann has no quota"]
    assert shell.lines("quota", "list") == ["no quotas"]


def test_the_default_needs_no_name_and_a_network_has_one(shell: Shell) -> None:
    assert shell.json("quota", "set", "default", "--connections=9")["name"] == "*"
    assert shell.json("quota", "set", "address", "10.0.0.0/8", "--requests=9")["name"] == (
        "10.0.0.0/8"
    )
    shell.json("quota", "delete", "address", "10.0.0.0/8")
    assert [one["kind"] for one in shell.json("quota", "list")["quotas"]] == ["default"]


def test_wrong_quotas_are_refused(shell: Shell) -> None:
    assert "name the account" in shell.misused("quota", "set", "account", "--requests=1")
    for wrong in ("x", "9" * 19, "9" * 5_000):
        assert "not a number" in shell.misused("quota", "set", "default", f"--requests={wrong}")
    assert "needs a limit" in shell.refused("quota", "set", "account", "ann")
