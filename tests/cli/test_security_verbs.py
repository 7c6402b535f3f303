"""``brokerctl user``, ``acl``, ``key`` and ``whoami``, as an operator types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.broker import BrokerSettings
from brokerd.cli.verbs.users import ROLES
from brokerd.security.accounts import ROLES as BUILT_IN
from tests.admin.caller import Caller
from tests.cli.shell import Shell
from tests.house import House


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    return str(path)


def test_an_account_lives_from_create_to_delete(shell: Shell, password_file: str) -> None:
    made = shell.json(
        "user", "create", "ann", "--role", "consumer", "--new-password-file", password_file
    )
    assert made["has_password"] and made["roles"] == ["consumer"]
    assert shell.lines("user", "list")[1].split() == ["ann", "consumer", "enabled", "yes"]
    assert shell.json("user", "disable", "ann")["enabled"] is False
    assert shell.json("user", "enable", "ann")["enabled"] is True
    assert shell.json("user", "roles", "ann", "--none")["roles"] == []
    assert shell.json("user", "roles", "ann", "--role", "a", "--role", "b")["roles"] == ["a", "b"]
    assert "state" in "\n".join(shell.lines("user", "describe", "ann"))
    assert (
        shell.json("user", "password", "ann", "--new-password-file", password_file)["name"] == "ann"
    )
    assert shell.lines("user", "delete", "ann", "--yes") == ["deleted the account ann"]
    assert shell.lines("user", "list") == ["no accounts"]


def test_a_deleted_account_leaves_its_quota_with_a_note(shell: Shell) -> None:
    shell.json("user", "create", "a b", "--no-password")
    shell.json("quota", "set", "account", "a b", "--requests=1")
    assert shell.lines("quota", "list")[1].endswith("-")
    result = shell.run("user", "delete", "a b", "--yes")
    assert result.stdout == "deleted the account a b\n"
    assert "quota of 'a b' stays" in result.stderr
    assert "brokerctl quota delete account 'a b'\n" in result.stderr
    assert shell.lines("quota", "list")[1].endswith("no account")
    shell.json("quota", "delete", "account", "a b")
    shell.json("user", "create", "a b", "--no-password")
    assert "quota" not in shell.run("user", "delete", "a b", "--yes").stderr


def test_a_new_password_may_come_from_stdin_or_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = shell.json("user", "create", "a", "--new-password-file", "-", input="from stdin\n")
    assert given["has_password"]
    monkeypatch.setenv("BROKERCTL_NEW_PASSWORD", "from the environment")
    assert shell.json("user", "create", "b")["has_password"]


def test_without_a_terminal_a_new_password_has_to_be_given(shell: Shell) -> None:
    text = shell.refused("user", "create", "ann")
    assert "no terminal" in text and "--no-password" in text
    assert "BROKERCTL_NEW_PASSWORD" in text and "BROKERCTL_KEY" not in text
    assert "--no-password" not in shell.refused("user", "password", "ann")
    assert shell.json("user", "create", "ann", "--no-password")["has_password"] is False


def test_no_verb_takes_a_secret_on_the_command_line(shell: Shell) -> None:
    for arguments in (
        ("user", "create", "ann", "--password", "x"),
        ("--password", "x", "user", "list"),
        ("--key", "x", "user", "list"),
    ):
        shell.misused(*arguments)


def test_roles_are_named_or_none(shell: Shell) -> None:
    shell.run("user", "create", "ann", "--no-password")
    assert "--none" in shell.misused("user", "roles", "ann")


def test_access_lists_are_granted_shown_revoked(shell: Shell) -> None:
    shell.json("acl", "grant", "orders", "--user", "ann")
    shell.json("acl", "grant", "inv.", "--prefix", "--role", "staff", "--permission", "admin")
    lines = shell.lines("acl", "list")
    assert lines[1].split() == ["inv.*", "no", "role", "staff:", "admin"]
    assert lines[2].split() == ["orders", "no", "user", "ann:", "read+write"]
    assert "user ann" in "\n".join(shell.lines("acl", "describe", "orders"))
    left = shell.json("acl", "revoke", "orders", "--user", "ann", "--permission", "write")
    assert left["users"] == {"ann": ["read"]}
    assert shell.json("acl", "public", "orders")["public"] is True
    assert shell.json("acl", "public", "orders", "--no")["public"] is False
    shell.json("acl", "revoke", "orders", "--user", "ann")
    assert shell.json("acl", "describe", "orders")["users"] == {}
    assert shell.lines("acl", "delete", "orders", "--yes")
    assert "no access list" in shell.refused("acl", "describe", "orders")
    assert shell.lines("acl", "delete", "inv.", "--prefix", "--yes")
    assert shell.lines("acl", "list") == ["no access lists"]


def test_explain_shows_the_lists_that_fit_and_what_an_account_may(shell: Shell) -> None:
    shell.run("user", "create", "ann", "--no-password")
    shell.run("acl", "grant", "ord", "--prefix", "--user", "ann", "--permission", "read")
    lines = shell.lines("acl", "explain", "orders", "--user", "ann")
    assert any(line.split()[:3] == ["list", "of", "ord*"] for line in lines)
    assert lines[-1].split() == ["ann", "may", "read"]
    assert shell.lines("acl", "explain", "bills", "--user", "ann")[-1].split()[-1] == "nothing"
    assert shell.lines("acl", "explain", "bills")[-1].split()[-1] == "nothing"
    shell.run("user", "disable", "ann")
    assert "(disabled)" in "\n".join(shell.lines("acl", "explain", "orders", "--user", "ann"))
    assert "no account" in shell.refused("acl", "explain", "orders", "--user", "eve")


def test_a_role_that_the_broker_does_not_know_is_noted(shell: Shell) -> None:
    """It may be misspelt; or access lists name it."""
    made = shell.run("user", "create", "ann", "--no-password", "--role", "consumr")
    assert made.exit_code == 0 and "'consumr' has no permissions of its own" in made.stderr
    assert "has no permissions" in shell.run("user", "roles", "ann", "--role", "staff").stderr
    assert shell.run("user", "roles", "ann", "--role", "consumer").stderr == ""
    assert set(ROLES) == set(BUILT_IN)


def test_a_name_with_a_colon_is_noted_where_it_gets_a_password(
    shell: Shell, password_file: str
) -> None:
    made = shell.run("user", "create", "a:b", "--new-password-file", password_file)
    assert made.exit_code == 0 and "needs an API key" in made.stderr
    assert shell.run("user", "create", "c:d", "--no-password").stderr == ""


def test_a_password_without_a_name_is_refused(
    shell: Shell, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody means to be anonymous who gives a password."""
    assert "--user" in shell.refused("--password-file", password_file, "whoami")
    monkeypatch.setenv("BROKERCTL_PASSWORD", "s3cret")
    text = shell.refused("whoami")
    assert "BROKERCTL_USER" in text and "s3cret" not in text


def test_a_grant_to_nobody_is_wrong_usage(shell: Shell) -> None:
    assert "--user" in shell.misused("acl", "grant", "orders")


def test_a_key_stands_alone_on_stdout_and_is_shown_once(shell: Shell) -> None:
    shell.run("user", "create", "workers", "--no-password")
    (key,) = shell.lines("key", "create", "workers", "--label", "nightly")
    assert len(key) > 40
    listed = shell.lines("key", "list")
    assert key not in "\n".join(listed) and "nightly" in listed[1]
    key_id = listed[1].split()[0]
    assert shell.lines("key", "revoke", key_id, "--yes") == [f"revoked the key {key_id}"]
    assert shell.lines("key", "list") == ["no keys"]


def test_destroying_asks_first(shell: Shell) -> None:
    for arguments in (
        ("user", "delete", "ann"),
        ("acl", "delete", "orders"),
        ("key", "revoke", "0123"),
    ):
        assert "--yes" in shell.refused(*arguments)


def test_whoami_says_that_security_is_off(shell: Shell) -> None:
    assert "anonymous (security is off)" in shell.lines("whoami")[0]


def test_the_audit_trail_is_shown_newest_first(shell: Shell) -> None:
    shell.caller = Caller(House(settings=BrokerSettings(audit_keep_us=86_400_000_000)))
    shell.run("topic", "create", "orders")
    shell.run("user", "create", "ann", "--no-password")
    lines = shell.lines("audit")
    assert "user.create" in lines[1] and "topic.create" in lines[2]
    assert (
        shell.json("audit", "--type", "user.create", "--limit", "1")["events"][0]["resource"]
        == "ann"
    )
    assert shell.lines("audit", "--user", "nobody") == ["no events"]
    assert shell.lines("audit", "--from", "192.0.2.9") == ["no events"]
    assert shell.lines("audit", "--format", "flymq") == ["no events"]
