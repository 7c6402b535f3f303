"""The pages name verbs and options that exist, and every verb and option is on docs/cli.rst."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from brokerd.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent.parent
ASKING = (
    *("topic", "group", "lease", "dlq", "schedule", "produce", "tail", "archive", "clock"),
    *("user", "acl", "key", "audit", "whoami", "schema", "quota"),
    *("completion", "connections", "explain", "status", "streams", "top"),
    *("backup", "restore"),
)
"""The verbs that docs/cli.rst is about."""
PAGES = (
    "README.rst",
    *(f"docs/{name}.rst" for name in ("tutorial", "recipes", "operations", "monitoring")),
    *(f"docs/{name}.rst" for name in ("archive", "backup", "damage", "security", "cli")),
)
"""Pages with lines that a reader may copy."""


def command_of(words: list[str]) -> click.Command:
    """The command that words begin with."""
    context = click.Context(cli)
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(context, word)
        assert found is not None, f"there is no verb {word!r} in {words}"
        command = found
    return command


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
        if name.startswith("--")
    }


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """All commands below one, by their words."""
    if isinstance(command, click.Group):
        for verb, inner in command.commands.items():
            yield from commands(inner, f"{name} {verb}")
    else:
        yield name, command


def examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in re.findall(
            r"^ +brokerctl ([a-z-].*)$", (ROOT / page).read_text(), re.MULTILINE
        ):
            yield page, line.partition("#")[0].strip()


@pytest.mark.parametrize(("page", "line"), list(examples()))
def test_an_example_names_what_there_is(page: str, line: str) -> None:
    """Verb and options of each line that a reader may copy."""
    given = line.partition(" | ")[0].partition(" > ")[0]
    words = re.sub(r"^(?:(?:--[a-z-]*(?:dir|server|user|file) \S+|--json) )+", "", given).split()
    words = [word for word in words if word != "--json"]
    command = command_of(words)
    for option in re.findall(r"(?<!\S)--[\w-]+", " ".join(words)):
        assert option in options_of(command), f"{page}: {line}"


def described() -> dict[str, set[str]]:
    """What docs/cli.rst says: the words of a verb -> its options."""
    page = (ROOT / "docs" / "cli.rst").read_text()
    shared = set(re.findall(r"--[\w-]+", page.partition("FILTER is")[2].partition("With")[0]))
    settings = set(re.findall(r"--[\w-]+", page.partition("SETTINGS are")[2].partition(";")[0]))
    found: dict[str, set[str]] = {}
    for heads, body in re.findall(r"^(``[a-z].*)\n((?:    .*\n|\n(?=    ))+)", page, re.MULTILINE):
        for head in re.findall(r"``([^`]*)``", heads):
            options = set(re.findall(r"--[\w-]+", head))
            if "OPTIONS" in head:
                options |= set(re.findall(r"--[\w-]+", body))
            options |= shared if "FILTER" in head else set()
            options |= settings if "SETTINGS" in head else set()
            found[re.match(r"[a-z](?:[a-z ]|-(?=[a-z]))*[a-z]", head)[0]] = options  # type: ignore[index]
    return found


def test_the_page_has_every_verb_and_option_and_no_other() -> None:
    """An operator finds there what the tool can do."""
    there = {
        name: options_of(command)
        for verb in ASKING
        for name, command in commands(command_of([verb]), verb)
    }
    assert described() == there
