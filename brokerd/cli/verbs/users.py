# Tests: tests/cli/test_security_verbs.py
"""``brokerctl user`` and ``whoami``: accounts (docs/cli.rst, docs/security.rst)."""

from __future__ import annotations

import shlex
from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.credentials import from_environment, prompt, read_secret
from brokerd.cli.options import confirm, yes_option
from brokerd.cli.server import Answer, server_of

ROLES = ("admin", "producer", "consumer", "monitor", "guest")
"""Roles with a fixed meaning."""
_LACKING = "no such account, or it is disabled: an admin can help"
NEW_PASSWORD = "BROKERCTL_NEW_PASSWORD"
"""Environment variable with the password to set."""

_NAME = click.argument("name")
_ROLES = click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE",
    help=f"{', '.join(ROLES)}, or a role that access lists name; repeatable.",
)
_PASSWORD_FILE = click.option(
    "--new-password-file",
    metavar="FILE",
    help=f"The password to set: the first line, - is stdin. Or {NEW_PASSWORD}; or it is asked for.",
)


@click.group("user")
def user_group() -> None:
    """Accounts: list, create, describe, roles, enable, disable, password, delete."""


@user_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all accounts."""
    users = list(server_of(context).all("users", key="users"))
    rows = [
        (one["name"], ", ".join(one["roles"]) or "-", _state(one), _yes(one["has_password"]))
        for one in users
    ]
    header = ("USER", "ROLES", "STATE", "PASSWORD")
    output.show(context, {"users": users}, output.table(header, rows, "no accounts"))


@user_group.command("describe")
@_NAME
@click.pass_context
def describe_command(context: click.Context, name: str) -> None:
    """Show one account."""
    _show(context, server_of(context).get("users", name))


@user_group.command("create")
@_NAME
@_ROLES
@_PASSWORD_FILE
@click.option("--no-password", is_flag=True, help="Log in by key, certificate or listener only.")
@click.option(
    "--disabled", is_flag=True, help="Create it disabled; it cannot log in until it is enabled."
)
@click.pass_context
def create_command(
    context: click.Context,
    name: str,
    roles: tuple[str, ...],
    new_password_file: str | None,
    no_password: bool,
    disabled: bool,
) -> None:
    """Create an account."""
    password = "" if no_password else _new_password(name, new_password_file, ", or --no-password")
    _note_roles(roles)
    if password and ":" in name:
        click.echo(
            f"note: {name!r} has a colon, so that HTTP Basic cannot say it (RFC 7617): at the "
            "admin site it needs an API key",
            err=True,
        )
    body: dict[str, Any] = {"name": name, "roles": roles, "enabled": not disabled}
    if password:
        body["password"] = password
    _show(context, server_of(context).post("users", **body))


@user_group.command("roles")
@_NAME
@_ROLES
@click.option("--none", "no_roles", is_flag=True, help="Leave it no role.")
@click.pass_context
def roles_command(
    context: click.Context, name: str, roles: tuple[str, ...], no_roles: bool
) -> None:
    """Set the roles of an account."""
    if bool(roles) == no_roles:
        raise click.UsageError("name the roles with --role, or say --none")
    _note_roles(roles)
    _show(context, server_of(context).patch("users", name, roles=roles))


@user_group.command("enable")
@_NAME
@click.pass_context
def enable_command(context: click.Context, name: str) -> None:
    """Enable an account."""
    _show(context, server_of(context).patch("users", name, enabled=True))


@user_group.command("disable")
@_NAME
@click.pass_context
def disable_command(context: click.Context, name: str) -> None:
    """Disable an account: no login, and its open connections lose their permissions."""
    _show(context, server_of(context).patch("users", name, enabled=False))


@user_group.command("password")
@_NAME
@_PASSWORD_FILE
@click.pass_context
def password_command(context: click.Context, name: str, new_password_file: str | None) -> None:
    """Set your own password, or as admin that of any account."""
    server = server_of(context)
    login = context.obj["credentials"]
    body = {"password": _new_password(name, new_password_file)}
    if login.user == name:
        body["current"] = login.password
    _show(context, server.post("users", name, "password", **body))


@user_group.command("delete")
@_NAME
@yes_option
@click.pass_context
def delete_command(context: click.Context, name: str, yes: bool) -> None:
    """Delete an account and its keys."""
    confirm(f"delete the account {name!r} and its keys", yes)
    answer = server_of(context).delete("users", name)
    output.show(context, answer, [f"deleted the account {name}"])
    if answer.get("quota_stays"):  # earlier brokers do not say it
        click.echo(
            f"note: the quota of {name!r} stays, and applies to a later account of that name: "
            f"brokerctl quota delete account {shlex.quote(name)}",
            err=True,
        )


@click.command("whoami")
@click.pass_context
def whoami_command(context: click.Context) -> None:
    """Show your account and its permissions; for topics, see acl explain."""
    answer = server_of(context).get("whoami")
    name = answer["name"] or "anonymous"
    facts = [
        ("user", name if answer["auth"] else f"{name} (security is off)"),
        ("roles", ", ".join(answer["roles"]) or "-"),
        ("may, on everything", ", ".join(answer["permissions"]) or "nothing"),
    ]
    if answer["name"] and not answer["known"]:
        facts.append(("account", _LACKING))
    output.show(context, answer, output.facts(facts))


def _new_password(name: str, path: str | None, otherwise: str = "") -> str:
    if path:
        return read_secret(path)
    return from_environment(NEW_PASSWORD) or prompt(
        f"New password of {name}",
        f"--new-password-file FILE or {NEW_PASSWORD}{otherwise}",
        twice=True,
    )


def _note_roles(roles: tuple[str, ...]) -> None:
    """Note which roles have no fixed meaning: one may be misspelt."""
    for role in roles:
        if role not in ROLES:
            click.echo(
                f"note: the role {role!r} has no permissions of its own, unlike "
                f"{', '.join(ROLES)}; "
                f"access lists may grant to it: brokerctl acl grant TOPIC --role {role}",
                err=True,
            )


def _show(context: click.Context, user: Answer) -> None:
    facts = [
        ("user", user["name"]),
        ("roles", ", ".join(user["roles"]) or "-"),
        ("may, on everything", ", ".join(user["permissions"]) or "nothing"),
        ("state", _state(user)),
        ("password", _yes(user["has_password"])),
        ("created", user["created"]),
        ("updated", user["updated"]),
    ]
    output.show(context, user, output.facts(facts))


def _state(user: Answer) -> str:
    return "enabled" if user["enabled"] else "disabled"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
