# Tests: tests/cli/test_security_verbs.py
"""``brokerctl user`` and ``whoami``: accounts, and who one is (docs/cli.rst, docs/security.rst)."""

from __future__ import annotations

from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.credentials import from_environment, prompt, read_secret
from brokerd.cli.options import confirm, yes_option
from brokerd.cli.server import Answer, server_of

ROLES = ("admin", "producer", "consumer", "monitor", "guest")
"""Those that the broker knows by itself."""
_LACKING = "there is none of this name, or it is disabled: an admin can help"
NEW_PASSWORD = "BROKERCTL_NEW_PASSWORD"
"""The variable of the environment with the password to be set."""

_NAME = click.argument("name")
_ROLES = click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE",
    help=f"{', '.join(ROLES)}, or one that access lists name; repeatable.",
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
@click.option(
    "--no-password", is_flag=True, help="Only keys, certificates and listeners lead to it."
)
@click.option("--disabled", is_flag=True, help="It is not let in until it is enabled.")
@click.pass_context
def create_command(
    context: click.Context,
    name: str,
    roles: tuple[str, ...],
    new_password_file: str | None,
    no_password: bool,
    disabled: bool,
) -> None:
    """Make an account."""
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
    """Give an account these roles, and no others."""
    if bool(roles) == no_roles:
        raise click.UsageError("name the roles with --role, or say --none")
    _note_roles(roles)
    _show(context, server_of(context).patch("users", name, roles=roles))


@user_group.command("enable")
@_NAME
@click.pass_context
def enable_command(context: click.Context, name: str) -> None:
    """Let an account in."""
    _show(context, server_of(context).patch("users", name, enabled=True))


@user_group.command("disable")
@_NAME
@click.pass_context
def disable_command(context: click.Context, name: str) -> None:
    """Do not let an account in, and take from its open connections what it may do."""
    _show(context, server_of(context).patch("users", name, enabled=False))


@user_group.command("password")
@_NAME
@_PASSWORD_FILE
@click.pass_context
def password_command(context: click.Context, name: str, new_password_file: str | None) -> None:
    """Set an account's password: one's own, or as admin anybody's."""
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


@click.command("whoami")
@click.pass_context
def whoami_command(context: click.Context) -> None:
    """Show who the broker takes us for; for topics, see acl explain."""
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
    """Say which roles the broker does not know by itself: one may be misspelt."""
    for role in roles:
        if role not in ROLES:
            click.echo(
                f"note: the role {role!r} gives nothing by itself, as {', '.join(ROLES)} do; "
                f"access lists may name it: brokerctl acl grant TOPIC --role {role}",
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
