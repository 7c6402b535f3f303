# Tests: tests/cli/test_completion.py
"""``brokerctl completion``: print the script that completes verbs and options (docs/cli.rst).

The script asks ``brokerctl`` itself for the words, by click's protocol.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "brokerctl"
VARIABLE = "_BROKERCTL_COMPLETE"
"""The environment variable that a shell sets to ask for words; click derives it from the name."""


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that completes brokerctl's words in a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())
