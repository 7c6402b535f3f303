# Tests: tests/cli/test_main.py
"""``brokerctl``: asks and changes a running broker, looks at its data, checks its configuration.

Global options come before the verb: ``brokerctl --json --data-dir DIR wal verify``; ``--json`` may
stand anywhere. Verbs find them in ``context.obj``: ``data_dir`` (text), ``server`` (text or None),
``json`` (bool) and ``login``, what `brokerd.cli.credentials` makes a login of.
``BROKERD_DATA_DIR`` names the directory when ``--data-dir`` does not, as it does for the broker.

Exit codes: 0 done, 1 refused or something is wrong (one line on stderr), 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

import click

from brokerd import __version__
from brokerd.errors import BrokerdError

VERBS = {
    "acl": "brokerd.cli.access_lists:acl_group",
    "archive": "brokerd.cli.archive:archive_group",
    "audit": "brokerd.cli.audit:audit_command",
    "bench": "brokerd.cli.bench:bench_command",
    "config": "brokerd.cli.config:config_group",
    "dlq": "brokerd.cli.dead_letters:dlq_group",
    "group": "brokerd.cli.groups:group_group",
    "key": "brokerd.cli.keys:key_group",
    "lease": "brokerd.cli.leases:lease_group",
    "produce": "brokerd.cli.produce:produce_command",
    "schedule": "brokerd.cli.schedules:schedule_group",
    "schema": "brokerd.cli.schemas:schema_group",
    "tail": "brokerd.cli.tail:tail_command",
    "topic": "brokerd.cli.topics:topic_group",
    "user": "brokerd.cli.users:user_group",
    "wal": "brokerd.cli.wal:wal_group",
    "whoami": "brokerd.cli.users:whoami_command",
}
"""Where each verb is, imported when it is used, so that none waits for the others' imports."""


class CommandGroup(click.Group):
    """The verbs, found by name. ``--json`` may stand anywhere."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``--json`` from behind the verb, unless a ``--`` comes before it."""
        end = args.index("--") if "--" in args else len(args)
        rest = [one for one in args[:end] if one != "--json"]
        if len(rest) < end:
            args = ["--json", *rest, *args[end:]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; global options behind it are told where they belong."""
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
        """Name every verb."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb, or return None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


def _login(name: str, **options: Any) -> Callable[[Any], Any]:
    """An option about who one is, or how the broker is trusted; never a secret itself."""
    variable = f"BROKERCTL_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(name, default="", envvar=variable, show_envvar=True, **options)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--server", metavar="URL", help="The admin site of a running broker.")
@click.option(
    "--data-dir",
    envvar="BROKERD_DATA_DIR",
    default="./brokerd-data",
    show_default=True,
    show_envvar=True,
    help="The data directory to look at.",
)
@_login("--user", metavar="NAME", help="The account to log in as; its password is asked for.")
@_login("--password-file", metavar="FILE", help="Its password: the first line; - is stdin.")
@_login("--key-file", metavar="FILE", help="An API key instead: the first line; - is stdin.")
@_login("--ca-file", metavar="FILE", help="Who signs the broker's certificate (PEM).")
@_login("--certificate-file", metavar="FILE", help="A certificate to show to the broker (PEM).")
@_login("--certificate-key-file", metavar="FILE", help="Its key, if not in the same file.")
@click.version_option(__version__, prog_name="brokerctl")
@click.pass_context
def cli(
    context: click.Context, /, as_json: bool, server: str | None, data_dir: str, **login: str
) -> None:
    """Look at a broker and its data, and check its configuration."""
    context.obj = {
        "json": as_json,
        "server": server,
        "data_dir": data_dir,
        "login": {**login, "environment": os.environ},
    }


def main() -> None:
    """Run ``brokerctl``; what is refused becomes one line on stderr and exit code 1."""
    try:
        cli(prog_name="brokerctl")
    except BrokerdError as error:
        _refuse(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _refuse(f"{place}{error.strerror or error}")


def _refuse(line: str) -> NoReturn:
    print(f"brokerctl: {line}", file=sys.stderr)
    sys.exit(1)
