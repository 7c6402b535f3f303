# Tests: tests/cli/test_security_verbs.py
"""``brokerctl acl``: access lists of topics (docs/cli.rst, docs/security.rst)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from brokerd.cli import output
from brokerd.cli.options import confirm, yes_option
from brokerd.cli.server import Answer, server_of

Command = TypeVar("Command", bound=Callable[..., Any])

PERMISSIONS = ("read", "write", "admin")

_TOPIC = click.argument("topic")
_PREFIX = click.option("--prefix", is_flag=True, help="TOPIC is a prefix of topic names.")


def _grants_options(command: Command) -> Command:
    for name, what in (("--role", "A role"), ("--user", "An account")):
        meaning = f"{what}; repeatable."
        target = name.removeprefix("--") + "s"
        command = click.option(name, target, multiple=True, metavar="NAME", help=meaning)(command)
    names = click.Choice(PERMISSIONS)
    return click.option(
        "--permission",
        "permissions",
        type=names,
        multiple=True,
        help="Permission; repeatable. Default: read and write.",
    )(command)


@click.group("acl")
def acl_group() -> None:
    """Access lists: list, describe, explain, grant, revoke, public, delete."""


@acl_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all access lists."""
    lists = list(server_of(context).all("acls", key="access_lists"))
    rows = [(_name(one), _public(one), _grants(one)) for one in lists]
    header = ("TOPIC", "PUBLIC", "GRANTS")
    output.show(context, {"access_lists": lists}, output.table(header, rows, "no access lists"))


@acl_group.command("describe")
@_TOPIC
@_PREFIX
@click.pass_context
def describe_command(context: click.Context, topic: str, prefix: bool) -> None:
    """Show the access list of a topic; acl explain shows all lists that apply."""
    _show(context, server_of(context).get("acls", _kind(prefix), topic))


@acl_group.command("explain")
@_TOPIC
@click.option(
    "--user", "user", default="", metavar="NAME", help="Show the permissions of this account."
)
@click.pass_context
def explain_command(context: click.Context, topic: str, user: str) -> None:
    """Show the access lists that apply to a topic, and the permissions they grant."""
    found = server_of(context).get("acls", "effective", topic, user=user)
    lists = found["access_lists"]
    facts = [
        ("topic", topic),
        *((f"list of {_name(one)}", _grants(one)) for one in lists),
        *([] if lists else [("lists", "none")]),
        ("public", _public(found)),
        ("anonymous may", ", ".join(found["anonymous"]) or "nothing"),
    ]
    if (account := found["user"]) is not None:
        state = "" if account["enabled"] else " (disabled)"
        roles = ", ".join(account["roles"]) or "-"
        facts += [
            (f"roles of {user}", f"{roles}{state}"),
            (f"{user} may", ", ".join(found["permissions"]) or "nothing"),
        ]
    output.show(context, found, output.facts(facts))


@acl_group.command("grant")
@_TOPIC
@_PREFIX
@_grants_options
@click.pass_context
def grant_command(
    context: click.Context,
    topic: str,
    prefix: bool,
    permissions: tuple[str, ...],
    users: tuple[str, ...],
    roles: tuple[str, ...],
) -> None:
    """Add permissions on a topic."""
    _change(context, topic, prefix, "grant", permissions or PERMISSIONS[:2], users, roles)


@acl_group.command("revoke")
@_TOPIC
@_PREFIX
@_grants_options
@click.pass_context
def revoke_command(
    context: click.Context,
    topic: str,
    prefix: bool,
    permissions: tuple[str, ...],
    users: tuple[str, ...],
    roles: tuple[str, ...],
) -> None:
    """Revoke permissions; all of them unless some are named."""
    _change(context, topic, prefix, "revoke", permissions or PERMISSIONS, users, roles)


@acl_group.command("public")
@_TOPIC
@_PREFIX
@click.option("--no", is_flag=True, help="Not any more.")
@click.pass_context
def public_command(context: click.Context, topic: str, prefix: bool, no: bool) -> None:
    """Let every logged-in account read and write a topic."""
    _show(context, server_of(context).patch("acls", _kind(prefix), topic, public=not no))


@acl_group.command("delete")
@_TOPIC
@_PREFIX
@yes_option
@click.pass_context
def delete_command(context: click.Context, topic: str, prefix: bool, yes: bool) -> None:
    """Delete the access list of a topic; the topic stays."""
    confirm(f"delete the access list of {topic!r}", yes)
    answer = server_of(context).delete("acls", _kind(prefix), topic)
    output.show(context, answer, [f"deleted the access list of {topic}"])


def _change(
    context: click.Context,
    topic: str,
    prefix: bool,
    verb: str,
    permissions: tuple[str, ...],
    users: tuple[str, ...],
    roles: tuple[str, ...],
) -> None:
    if not users and not roles:
        raise click.UsageError("name an account or a role: --user NAME, --role NAME")
    body = {
        f"{verb}_users": dict.fromkeys(users, permissions),
        f"{verb}_roles": dict.fromkeys(roles, permissions),
    }
    _show(context, server_of(context).patch("acls", _kind(prefix), topic, **body))


def _kind(prefix: bool) -> str:
    return "prefixes" if prefix else "topics"


def _show(context: click.Context, one: Answer) -> None:
    facts = [
        ("prefix" if one["prefix"] else "topic", one["topic"]),
        ("public", _public(one)),
        *((f"user {name}", ", ".join(what)) for name, what in one["users"].items()),
        *((f"role {name}", ", ".join(what)) for name, what in one["roles"].items()),
    ]
    output.show(context, one, output.facts(facts))


def _name(one: Answer) -> str:
    return f"{one['topic']}*" if one["prefix"] else str(one["topic"])


def _public(one: Answer) -> str:
    return "yes" if one["public"] else "no"


def _grants(one: Answer) -> str:
    def of(kind: str, grants: Mapping[str, list[str]]) -> list[str]:
        return [f"{kind} {name}: {'+'.join(what)}" for name, what in grants.items()]

    return "; ".join([*of("user", one["users"]), *of("role", one["roles"])]) or "-"
