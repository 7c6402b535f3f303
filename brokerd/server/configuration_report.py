# Tests: tests/test_configuration_report.py
"""Reports each option of the running broker: its value in use, and where the value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from brokerd.admin.shapes.configuration import OptionShape, Origin
from brokerd.server.config import LISTEN, SECRETS, SECTIONS, Config, LoadedConfig, with_secrets
from brokerd.server.reload import RELOADABLE


class ConfigurationReport:
    """The configuration of one broker, with its sources, through reloads.

    :param loaded: the configuration of the start.
    :param config: the same with the secrets from their files.
    """

    def __init__(self, loaded: LoadedConfig, config: Config) -> None:
        self._in_use = self._read = config
        self._sources = self._read_sources = loaded.sources

    def reading(self, loaded: LoadedConfig) -> Config:
        """Take a configuration that was read again; return it with the secrets from their files.

        Raises `ConfigError`.
        """
        config = with_secrets(loaded.config)
        self._read, self._read_sources = config, loaded.sources
        return config

    def apply(self, config: Config) -> None:
        """Report this configuration from now on: the options of the last one that can change."""
        self._in_use = config
        in_use, read = _values(config), _values(self._read)
        before, after = self._sources, self._read_sources
        self._sources = {
            name: source
            for name, value in in_use.items()
            if (source := (after if value == read.get(name) else before).get(name))
        }

    def options(self) -> list[OptionShape]:
        """Return all options, by section."""
        return [*self._options()]

    def _options(self) -> Iterator[OptionShape]:
        defaults, read = _values(Config()), _values(self._read)
        for name, value in _values(self._in_use).items():
            source = self._sources.get(name) or self._sources.get(SECRETS.get(name, ""), "")
            default = defaults.get(name)
            yield OptionShape(
                name=name,
                value=_masked(value) if name in SECRETS else value,
                origin=_origin(source),
                source=source,
                default=_masked(default or []) if name in SECRETS else default,
                reloadable=name in RELOADABLE,
                restart_needed=read.get(name) != value,
            )


def _values(config: Config) -> dict[str, Any]:
    """Return all values by dotted name, in JSON values. Listeners are options of ``listen``."""
    found: dict[str, Any] = {"data_dir": config.data_dir}
    found |= {f"{LISTEN}.{formats}": endpoint for formats, endpoint in config.listen.items()}
    for section in SECTIONS:
        for key, value in msgspec.to_builtins(getattr(config, section)).items():
            found[f"{section}.{key}"] = value
    return found


def _origin(source: str) -> Origin:
    if not source:
        return "default"
    if source.startswith("environment variable "):
        return "environment"
    return "option" if source.startswith("--") else "file"


def _masked(secrets: list[str]) -> list[str]:
    """Replace each secret by stars."""
    return ["***"] * len(secrets)
