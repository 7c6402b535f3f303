# Tests: tests/cli/test_main.py
"""``brokerctl``: query and change a running broker, read its data, check its configuration.

Global options come before the verb: ``brokerctl --json --data-dir DIR wal verify``; ``--json`` may
come anywhere. Verbs find them in ``context.obj``: ``data_dir`` (text), ``server`` (text or None),
``json`` (bool) and ``login``, the arguments of `brokerd.cli.credentials.credentials`.
``BROKERD_DATA_DIR`` is the default of ``--data-dir``, as for the broker, and ``BROKERCTL_SERVER``
that of ``--server``.

Exit codes: 0 done, 1 refused or failed (one line on stderr), 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

import click

from brokerd import __version__
from brokerd.errors import BrokerdError, os_error_text

VERBS = {
    "acl": "brokerd.cli.verbs.access_lists:acl_group",
    "archive": "brokerd.cli.verbs.archive:archive_group",
    "audit": "brokerd.cli.verbs.audit:audit_command",
    "backup": "brokerd.cli.verbs.backup:backup_group",
    "bench": "brokerd.cli.bench.command:bench_command",
    "clock": "brokerd.cli.verbs.clock:clock_group",
    "completion": "brokerd.cli.verbs.completion:completion_command",
    "config": "brokerd.cli.verbs.config:config_group",
    "connections": "brokerd.cli.verbs.connections:connections_group",
    "dlq": "brokerd.cli.verbs.dead_letters:dlq_group",
    "explain": "brokerd.cli.verbs.explain:explain_command",
    "group": "brokerd.cli.verbs.groups:group_group",
    "key": "brokerd.cli.verbs.keys:key_group",
    "lease": "brokerd.cli.verbs.leases:lease_group",
    "produce": "brokerd.cli.verbs.produce:produce_command",
    "quota": "brokerd.cli.verbs.quotas:quota_group",
    "restore": "brokerd.cli.verbs.backup:restore_command",
    "schedule": "brokerd.cli.verbs.schedules:schedule_group",
    "schema": "brokerd.cli.verbs.schemas:schema_group",
    "status": "brokerd.cli.verbs.status:status_command",
    "streams": "brokerd.cli.verbs.streams:streams_group",
    "tail": "brokerd.cli.verbs.tail:tail_command",
    "top": "brokerd.cli.verbs.top:top_command",
    "topic": "brokerd.cli.verbs.topics:topic_group",
    "user": "brokerd.cli.verbs.users:user_group",
    "wal": "brokerd.cli.wal.commands:wal_group",
    "whoami": "brokerd.cli.verbs.users:whoami_command",
}
"""The module and function of each verb. A verb is imported when it runs."""


class CommandGroup(click.Group):
    """The group of all verbs. ``--json`` may come anywhere."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept ``--json`` after the verb, but not after ``--``."""
        end = args.index("--") if "--" in args else len(args)
        rest = [one for one in args[:end] if one != "--json"]
        if len(rest) < end:
            args = ["--json", *rest, *args[end:]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an error names the right place of a global option."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name in ("--server", "--data-dir"):
                raise click.UsageError(
                    f"{error.option_name} stands before the verb: brokerctl {error.option_name} "
                    f"... {ctx.invoked_subcommand} ...",
                    error.ctx,
                ) from None
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb, or return None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


def _login(name: str, **options: Any) -> Callable[[Any], Any]:
    """Make an option for credentials or trust; the value is never a secret itself."""
    variable = f"BROKERCTL_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(name, default="", envvar=variable, show_envvar=True, **options)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option(
    "--server",
    metavar="URL",
    envvar="BROKERCTL_SERVER",
    show_envvar=True,
    help="The admin site of a running broker.",
)
@click.option(
    "--data-dir",
    envvar="BROKERD_DATA_DIR",
    default="./brokerd-data",
    show_default=True,
    show_envvar=True,
    help="The broker's data directory.",
)
@_login("--user", metavar="NAME", help="Log in as this account; prompts for the password.")
@_login(
    "--password-file", metavar="FILE", help="Read the password from the first line; - is stdin."
)
@_login("--key-file", metavar="FILE", help="Read an API key from the first line; - is stdin.")
@_login("--ca-file", metavar="FILE", help="CA certificates that sign the broker's (PEM).")
@_login("--certificate-file", metavar="FILE", help="Client certificate (PEM).")
@_login(
    "--certificate-key-file",
    metavar="FILE",
    help="Key of the client certificate, if in another file.",
)
@click.version_option(__version__, prog_name="brokerctl")
@click.pass_context
def cli(
    context: click.Context, /, as_json: bool, server: str | None, data_dir: str, **login: str
) -> None:
    """Query and change a broker, read its data, check its configuration."""
    context.obj = {
        "json": as_json,
        "server": server,
        "data_dir": data_dir,
        "login": {**login, "environment": os.environ},
    }


def main() -> None:
    """Run ``brokerctl``; print an error as one line on stderr and exit with 1."""
    try:
        cli(prog_name="brokerctl")
    except BrokerdError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(os_error_text(error))


def _refuse(line: str) -> NoReturn:
    print(f"brokerctl: {line}", file=sys.stderr)
    sys.exit(1)
