# Tests: tests/cli/test_config.py
"""``brokerctl config check [FILE]`` and ``brokerctl config show [FILE]``.

Both read the file, if one is named, and the ``BROKERD_*`` environment, as ``twistd brokerd`` does.
``check`` validates them: exit code 0 valid, 1 refused with the reason. It prints the warnings of a
start. ``show`` prints the resulting configuration with the source of each value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from brokerd.errors import ConfigError
from brokerd.server.config import (
    LISTEN,
    SECRETS,
    SECTIONS,
    Limits,
    LoadedConfig,
    load,
    lowered_transactions,
    secret_warnings,
    with_secrets,
)
from brokerd.server.listeners import endpoints_of, insecure_listeners, listener_warnings

DEFAULT_SOURCE = "default"
"""The source of a value that nothing sets."""
_FILE = click.argument("file", required=False, type=click.Path(path_type=Path))


@click.group("config")
def config_group() -> None:
    """Check or show the configuration."""


@config_group.command("check")
@_FILE
@click.pass_context
def check(context: click.Context, file: Path | None) -> None:
    """Check the configuration from FILE and the environment."""
    try:
        loaded, doubtful = _load(file)
    except ConfigError as error:
        if not context.obj["json"]:
            raise
        click.echo(json.dumps({"ok": False, "error": str(error)}))
        context.exit(1)
    for warning in (
        *loaded.warnings,
        *secret_warnings(loaded.config),
        *doubtful,
    ):
        click.echo(f"brokerctl: WARNING: {warning}", err=True)
    click.echo(json.dumps({"ok": True}) if context.obj["json"] else "the configuration is sound")


@config_group.command("show")
@_FILE
@click.pass_context
def show(context: click.Context, file: Path | None) -> None:
    """Print the configuration from FILE and the environment, with the source of each value."""
    loaded, _ = _load(file)
    if context.obj["json"]:
        values = msgspec.to_builtins(loaded.config)
        for name in SECRETS:
            section, _, key = name.partition(".")
            values[section][key] = _masked(values[section][key])
        click.echo(json.dumps({"config": values, "sources": loaded.sources}))
    else:
        click.echo(format_toml(loaded), nl=False)


def _load(file: Path | None) -> tuple[LoadedConfig, list[str]]:
    """Load the configuration; return it with its listeners' security gaps and its warnings."""
    loaded = load(file, os.environ)
    config = with_secrets(loaded.config)
    endpoints = endpoints_of(None, config)
    insecure = insecure_listeners(config, endpoints)
    return loaded, [
        *(f"{name} is open to other machines {lacks}" for name, lacks in insecure.items()),
        *listener_warnings(config, endpoints),
    ]


def format_toml(loaded: LoadedConfig) -> str:
    """Write a configuration as TOML, with the source of each value as a comment."""
    config, sources = loaded.config, loaded.sources
    lines = [_line("data_dir", config.data_dir, sources.get("data_dir")), "", f"[{LISTEN}]"]
    for wire_format, endpoint in config.listen.items():
        lines.append(_line(wire_format, endpoint, sources.get(f"{LISTEN}.{wire_format}")))
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for key, value in msgspec.structs.asdict(getattr(config, section)).items():
            name = f"{section}.{key}"
            source = sources.get(name) or DEFAULT_SOURCE
            if name == "limits.transaction_bytes":
                source += _transactions_in_use(config.limits)
            lines.append(_line(key, _masked(value) if name in SECRETS else value, source))
    return "\n".join(lines) + "\n"


def _transactions_in_use(limits: Limits) -> str:
    """Return a remark if open transactions may take less than the option says."""
    if not limits.memory:
        return "; at most a quarter of the broker's limits.memory: see brokerctl status"
    used = lowered_transactions(limits)
    return f"; {used}" if used else ""


def _masked(secrets: Sequence[str]) -> list[str]:
    """Replace each secret by a star."""
    return ["***"] * len(secrets)


def _line(key: str, value: Any, source: str | None) -> str:
    name = f'"{key}"' if "+" in key else key
    return f"{name} = {json.dumps(value)}  # {source or DEFAULT_SOURCE}"
