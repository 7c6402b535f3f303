# Tests: tests/cli/test_main.py
"""``brokerctl``: asks and changes a running broker, looks at its data, checks its configuration.

Global options come before the verb: ``brokerctl --json --data-dir DIR wal verify``; ``--json`` may
stand anywhere. Verbs find them in ``context.obj``: ``data_dir`` (text), ``server`` (text or None)
and ``json`` (bool).
``BROKERD_DATA_DIR`` names the directory when ``--data-dir`` does not, as it does for the broker.

Exit codes: 0 done, 1 refused or something is wrong (one line on stderr), 2 wrong usage.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from brokerd import __version__
from brokerd.errors import BrokerdError

VERBS = {
    "archive": "brokerd.cli.archive:archive_group",
    "bench": "brokerd.cli.bench:bench_command",
    "config": "brokerd.cli.config:config_group",
    "dlq": "brokerd.cli.dead_letters:dlq_group",
    "group": "brokerd.cli.groups:group_group",
    "lease": "brokerd.cli.leases:lease_group",
    "produce": "brokerd.cli.produce:produce_command",
    "schedule": "brokerd.cli.schedules:schedule_group",
    "tail": "brokerd.cli.tail:tail_command",
    "topic": "brokerd.cli.topics:topic_group",
    "wal": "brokerd.cli.wal:wal_group",
}
"""Where each verb is, imported when it is used, so that none waits for the others' imports."""


class Verbs(click.Group):
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


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.version_option(__version__, prog_name="brokerctl")
@click.pass_context
def cli(context: click.Context, as_json: bool, server: str | None, data_dir: str) -> None:
    """Look at a broker and its data, and check its configuration."""
    context.obj = {"json": as_json, "server": server, "data_dir": data_dir}


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
