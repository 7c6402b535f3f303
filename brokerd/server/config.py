# Tests: tests/test_config.py
"""The configuration: values and sources of all options.

Four layers, later ones win: defaults, a TOML file, ``BROKERD_SECTION_KEY`` environment variables,
and command line options (``--set section.key=value`` and the named ones). Unknown keys and wrong
types raise :class:`brokerd.errors.ConfigError` with the key, the expected and the actual value, and
the source.

``etc/brokerd.toml`` explains each option; a test keeps it equal to :mod:`brokerd.server.sections`.
Only :func:`read_file`, :func:`with_secrets` and :func:`secret_warnings` read the disk. No function
reads the environment by itself.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from brokerd.archive.storage.address import address, check_uri
from brokerd.errors import ConfigError
from brokerd.security.certificates import ARROW
from brokerd.server.sections import (
    FIRST_BYTES,
    FIRST_LINES,
    FORMATS,
    GIB,
    KIB,
    MEMORY_BYTES_MIN,
    MIB,
    SECRETS,
    SECTIONS,
    TRANSACTION_SHARE,
    Broker,
    Config,
    Groups,
    Limits,
    Log,
    Retention,
    Wal,
)

__all__ = [
    "FORMATS",
    "LISTEN",
    "SECRETS",
    "SECTIONS",
    "Broker",
    "Config",
    "Groups",
    "Limits",
    "LoadedConfig",
    "Log",
    "Retention",
    "Setting",
    "Wal",
    "load",
    "lowered_transactions",
    "parse_durability",
    "parse_size",
    "secret_warnings",
    "telemetry_headers",
    "with_secrets",
]

LISTEN = "listen"
ENVIRONMENT_PREFIX = "BROKERD_"
ORCHESTRATOR_PREFIXES = ("BROKERD_SERVICE_", "BROKERD_PORT")
"""Variables that Kubernetes and Docker set for a service called brokerd; they are ignored."""
BUILD_VARIABLE = "BROKERD_COMPILE"
"""A variable for the build of brokerd (docs/architecture.rst); the broker ignores it."""


BACKOFF = ("groups.backoff_base_ms", "groups.backoff_max_ms")


class Setting(NamedTuple):
    """One value as given, before its type is checked."""

    name: str
    """Dotted, for example ``wal.segment_bytes``."""
    raw: Any
    source: str
    """Source for messages: a file and key, a variable, or an option."""
    is_text: bool
    """True if the source has only text, so that ``"3"`` may mean the number."""


class LoadedConfig(NamedTuple):
    """A valid configuration, and the source of each value that is not a default."""

    config: Config
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()
    """Warnings, one line each."""


def read_file(path: Path) -> list[Setting]:
    """Read a TOML file into settings.

    :raises ConfigError: if it cannot be read or is not TOML, with line and column.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: byte {error.start} is wrong") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return list(_settings_of_document(document, path))


def _settings_of_document(document: Mapping[str, Any], path: Path) -> Iterable[Setting]:
    for name, value in document.items():
        if name == "data_dir":
            yield Setting(name, value, f"{path}: {name}", False)
        elif name in SECTIONS or name == LISTEN:
            if not isinstance(value, dict):
                raise ConfigError(f"{name} is a section: write [{name}] ({path}: {name})")
            for key, inner in value.items():
                yield Setting(f"{name}.{key}", inner, f"{path}: [{name}] {key}", False)
        else:
            known = ["data_dir", LISTEN, *SECTIONS]
            raise ConfigError(f"unknown section or key {name!r}{_near(name, known)} ({path})")


def read_environment(environment: Mapping[str, str]) -> list[Setting]:
    """Read the ``BROKERD_*`` variables, except those of orchestrators and of the build.

    :raises ConfigError: if a variable names no option.
    """
    names = {_variable(name): name for name in _all_names()}
    settings = []
    for variable, raw in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == BUILD_VARIABLE:
            continue
        source = f"environment variable {variable}"
        if variable in names:
            settings.append(Setting(names[variable], raw, source, True))
        elif variable.startswith("BROKERD_LISTEN_"):
            wire_format = variable.removeprefix("BROKERD_LISTEN_").lower().replace("_", "+")
            settings.append(Setting(f"{LISTEN}.{wire_format}", raw, source, True))
        elif not variable.startswith(ORCHESTRATOR_PREFIXES):
            raise ConfigError(f"unknown {source}{_near(variable, list(names))}")
    return settings


def read_assignments(assignments: Iterable[str]) -> list[Setting]:
    """Read the values of ``--set``, for example ``wal.durability=os``.

    :raises ConfigError: if one has no ``=``.
    """
    settings = []
    for assignment in assignments:
        name, equals, raw = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: expected section.key=value")
        settings.append(Setting(name.strip(), raw, f"--set {name.strip()}", True))
    return settings


def read_listeners(listeners: Sequence[str]) -> list[Setting]:
    """Read the values of ``--listen``, for example ``mamamia=tcp:9000``.

    :raises ConfigError: if one has no ``=`` or two have the same format.
    """
    settings: dict[str, Setting] = {}
    for listener in listeners:
        wire_format, equals, endpoint = listener.partition("=")
        if not equals or not endpoint:
            raise ConfigError(f"--listen {listener}: expected FORMAT=ENDPOINT")
        if wire_format == "admin":
            raise ConfigError(
                f"--listen {listener}: use --admin {endpoint}; admin is not a wire format"
            )
        if wire_format in settings:
            raise ConfigError(f"--listen {listener}: {wire_format} has an endpoint already")
        settings[wire_format] = Setting(
            f"{LISTEN}.{wire_format}", endpoint, f"--listen {listener}", True
        )
    return list(settings.values())


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    listeners: Sequence[str] = (),
    options: Iterable[Setting] = (),
) -> LoadedConfig:
    """Merge the four layers.

    A ``[listen]`` table in the file replaces the default listeners, and any ``--listen`` replaces
    all others. Variables and ``--set`` add or change one listener at a time; ``none`` removes it.

    :raises ConfigError: for the first mistake.
    """
    layers = [
        read_file(file) if file is not None else [],
        read_environment(environment or {}),
        read_assignments(assignments),
        list(options),
    ]
    for layer in layers:
        _check_layer(layer)
    listen = Config().listen
    if any(setting.name.startswith(LISTEN + ".") for setting in layers[0]):
        listen = {}
    named = read_listeners(listeners)
    _check_layer(named)
    if named:
        listen = {}
        layers = [
            [setting for setting in layer if not setting.name.startswith(LISTEN + ".")]
            for layer in layers
        ]
    return _build(listen, [setting for layer in [*layers, named] for setting in layer])


def _build(listen: dict[str, str], settings: Iterable[Setting]) -> LoadedConfig:
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    sources: dict[str, str] = {}
    data_dir = Config().data_dir
    for setting in settings:
        section, _, key = setting.name.partition(".")
        if setting.name == "data_dir":
            data_dir = _convert(str, setting)
            if not data_dir or "\0" in data_dir:
                raise _invalid(setting, "expected the path of a directory")
        elif section == LISTEN and key:
            _set_listener(listen, key, setting)
        elif section in SECTIONS and key in SECTIONS[section].__struct_fields__:
            values[section][key] = _convert(_type_of(section, key), setting)
            _check(setting, values[section][key])
        else:
            near = _near(setting.name, list(_all_names()))
            raise ConfigError(f"unknown key {setting.name!r}{near} ({setting.source})")
        sources[setting.name] = setting.source
    built: dict[str, Any] = {name: SECTIONS[name](**given) for name, given in values.items()}
    config = Config(data_dir=data_dir, listen=listen, **built)
    address(config.archive.uri, Path(data_dir))
    _check_backoff(config.groups, sources)
    warnings = (*_visible_secrets(sources), *_lowered_limits(config.limits, sources))
    return LoadedConfig(config, sources, warnings)


def _lowered_limits(limits: Limits, sources: Mapping[str, str]) -> Iterable[str]:
    """Warn about memory of transactions that ``limits.memory`` does not leave them."""
    name = "limits.transaction_bytes"
    used = lowered_transactions(limits)
    if name in sources and used:
        yield f"{name} is {limits.transaction_bytes}: {used}"


def lowered_transactions(limits: Limits) -> str:
    """Return what open transactions get instead of ``limits.transaction_bytes``, else ""."""
    most = limits.memory // TRANSACTION_SHARE
    if not 0 < most < limits.transaction_bytes:
        return ""
    return f"a quarter of limits.memory, {most}, is used"


def _visible_secrets(sources: Mapping[str, str]) -> Iterable[str]:
    """Warn about each secret that every user of the machine can read."""
    for name, file in SECRETS.items():
        if sources.get(name, "").startswith("--set"):
            yield (
                f"--set {name} shows a secret to everybody who lists processes; put it in a file, "
                f"a line each, and say {file}=PATH"
            )


def with_secrets(config: Config) -> Config:
    """Return the configuration with the secrets from their files.

    :raises ConfigError: if a file is unreadable or empty, or has something else.
    """
    for name, file_name, path in _secret_files(config):
        section, _, key = name.partition(".")
        values = getattr(config, section)
        read = _read_first_line if name in FIRST_LINES else _read_lines
        lines = read(file_name, path)
        values = msgspec.structs.replace(values, **{key: (*getattr(values, key), *lines)})
        config = msgspec.structs.replace(config, **{section: values})
    telemetry_headers(config)
    return config


def secret_warnings(config: Config) -> tuple[str, ...]:
    """Return a warning for each secrets file that other users may read.

    :raises ConfigError: if a file is missing.
    """
    warnings = []
    files = [(file_name, path) for _, file_name, path in _secret_files(config)]
    if config.tls.key_file:
        files.append(("tls.key_file", Path(config.tls.key_file)))
    for file_name, path in files:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise ConfigError(
                f"{file_name}: cannot read {_placed(path)}: {error.strerror}"
            ) from error
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            warnings.append(
                f"{file_name}: {path} has the mode {stat.S_IMODE(mode):o}, so that others may read "
                "its secrets; chmod 600 it"
            )
    return tuple(warnings)


def _secret_files(config: Config) -> Iterable[tuple[str, str, Path]]:
    """Iterate over (option of a secret, option of its file, path of the file)."""
    for name, file_name in SECRETS.items():
        section, _, key = file_name.partition(".")
        path = getattr(getattr(config, section), key)
        if path:
            yield name, file_name, Path(path)


def _read_lines(name: str, path: Path) -> list[str]:
    """Read the lines of a secrets file, without blank lines and comments."""
    lines = [line.strip() for line in _read(name, path).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ConfigError(f"{name}: {path} has no secret; write one a line")
    return lines


def _read_first_line(name: str, path: Path) -> list[str]:
    """Read the first line of a file unchanged: a password may have any character."""
    line = _read(name, path).partition("\n")[0]
    if not line:
        raise ConfigError(f"{name}: the first line of {path} is empty; write the secret there")
    return [line]


def _read(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {_placed(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: {path} is not UTF-8: byte {error.start} is wrong") from error


def _placed(path: Path) -> str:
    """Return the path as it was given, and the directory that a relative one begins in."""
    return str(path) if path.is_absolute() else f"{path} in {os.getcwd()}"


def _set_listener(listen: dict[str, str], name: str, setting: Setting) -> None:
    """Add, change or (``none``) remove a listener; remove its formats from other listeners."""
    formats = name.split("+")
    for wire_format in formats:
        if wire_format not in FORMATS:
            near = _near(wire_format, list(FORMATS))
            raise ConfigError(f"unknown wire format {wire_format!r}{near} ({setting.source})")
    if len(formats) != len(set(formats)):
        raise ConfigError(f"{name} names a format twice ({setting.source})")
    endpoint = _convert(str, setting)
    if endpoint != "none":
        _check_formats(formats, setting)
    before = dict(listen)
    listen.clear()
    for other, other_endpoint in before.items():
        rest = "+".join(
            wire_format for wire_format in other.split("+") if wire_format not in formats
        )
        if rest:
            listen[rest] = other_endpoint
    if endpoint != "none":
        listen[name] = endpoint


def may_share(wire_format: str, other: str) -> bool:
    """Return whether the first byte of a client tells two formats apart."""
    first, others = FIRST_BYTES.get(wire_format), FIRST_BYTES.get(other)
    return first is not None and others is not None and not set(first) & set(others)


def _check_formats(formats: list[str], setting: Setting) -> None:
    """Refuse a listener whose formats are not distinguishable by the first byte."""
    for wire_format, other in combinations(formats, 2):
        if not may_share(wire_format, other):
            raise ConfigError(
                f"{wire_format} and {other} cannot share an endpoint: a client's first byte does "
                f"not tell them apart ({setting.source})"
            )


def _check_layer(layer: Iterable[Setting]) -> None:
    """Refuse two endpoints of one format in the same layer."""
    seen: dict[str, Setting] = {}
    for setting in layer:
        section, _, name = setting.name.partition(".")
        for wire_format in name.split("+") if section == LISTEN else ():
            if wire_format in seen and seen[wire_format].name != setting.name:
                raise ConfigError(
                    f"{wire_format} has an endpoint already: {seen[wire_format].source} "
                    f"({setting.source})"
                )
            seen[wire_format] = setting


def parse_durability(text: str) -> tuple[Literal["fsync", "interval", "os"], int]:
    """Read ``wal.durability``.

    :return: the mode (``fsync``, ``interval`` or ``os``) and the interval in milliseconds, else 0.
    :raises ConfigError: for anything else.
    """
    mode, _, number = text.partition(":")
    if text in ("fsync", "os"):
        return ("fsync", 0) if text == "fsync" else ("os", 0)
    if mode == "interval" and re.fullmatch("[0-9]{1,5}", number) and 1 <= int(number) <= 60_000:
        return "interval", int(number)
    raise ConfigError(f'expected "fsync", "os" or "interval:<ms>" with 1 to 60000 ms, got {text!r}')


def parse_size(text: str) -> int:
    """Read a size such as ``67108864`` or ``64MiB``, in bytes.

    :raises ValueError: for anything else.
    """
    units = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
    factor = 1
    for unit, size in units.items():
        if text.endswith(unit):
            text, factor = text.removesuffix(unit).rstrip(), size
            break
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text) * factor


def _type_of(section: str, key: str) -> Any:
    return get_type_hints(SECTIONS[section], include_extras=True)[key]


def _convert(kind: Any, setting: Setting) -> Any:
    raw = setting.raw
    meta = _meta_of(kind)
    if meta is not None and meta.extra and isinstance(raw, str):
        try:
            raw = parse_size(raw.strip())
        except ValueError:
            raise _invalid(setting, _expected(kind)) from None
    if get_origin(kind) is tuple and setting.is_text:
        raw = list(_split_list(raw, ARROW if setting.name == "tls.principals" else ""))
    try:
        return msgspec.convert(raw, kind, strict=not setting.is_text)
    except msgspec.ValidationError:
        raise _invalid(setting, _expected(kind)) from None


def _split_list(text: str, mark: str) -> Iterable[str]:
    """Split a list at its commas; a part with ``mark`` missing joins the next one."""
    part = ""
    for piece in text.split(","):
        part += f",{piece}" if part else piece.strip()
        if part.strip() and mark in part:
            yield part.strip()
            part = ""
    if part.strip():
        yield part.strip()


def _check(setting: Setting, value: Any) -> None:
    """Refuse values that have the right type and no valid meaning."""
    if setting.name == "wal.durability":
        try:
            parse_durability(value)
        except ConfigError as error:
            raise ConfigError(f"{setting.name}: {error} ({setting.source})") from None
    if setting.name == "limits.memory" and 0 < value < MEMORY_BYTES_MIN:
        raise ConfigError(
            f"{setting.name}: expected 0 or {MEMORY_BYTES_MIN} bytes and more, got {value} "
            f"({setting.source})"
        )
    if setting.name == "admin.hosts":
        for host in value:
            if not re.fullmatch(r"[\w.-]+", host):
                wanted = "expected names of hosts, without scheme, port and path"
                raise ConfigError(f"{setting.name}: {wanted}, got {host!r} ({setting.source})")
    if setting.name == "telemetry.endpoint" and value and not _is_collector(value):
        raise ConfigError(
            f"{setting.name}: expected the URL of a collector such as "
            '"http://127.0.0.1:4318/v1/traces", without user and password '
            f"({setting.source})"
        )
    if setting.name == "archive.uri":
        try:
            check_uri(value)
        except ConfigError as error:
            raise ConfigError(f"{error} ({setting.source})") from None


def _check_backoff(groups: Groups, sources: Mapping[str, str]) -> None:
    """Refuse a delay after the first failure above the longest delay."""
    base, longest = groups.backoff_base_ms, groups.backoff_max_ms
    if base > longest:
        given = [sources[name] for name in BACKOFF if name in sources]
        raise ConfigError(
            f"groups.backoff_base_ms: expected at most groups.backoff_max_ms, which is {longest}, "
            f"got {base} ({', '.join(given)})"
        )


def _is_collector(text: str) -> bool:
    """Return whether a text is a URL for spans. Its headers have the secrets, not the URL."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and " " not in text
    is_http = url.scheme in ("http", "https") and bool(url.hostname) and port != 0
    return is_plain and is_http and "@" not in url.netloc and not url.fragment


def telemetry_headers(config: Config) -> dict[str, str]:
    """Return the HTTP headers of ``telemetry.headers``, by name.

    :raises ConfigError: for a line that is no header. It does not show the line.
    """
    headers = {}
    for number, line in enumerate(config.telemetry.headers, 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        is_value = value.isascii() and value.isprintable()
        if not equals or not is_value or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ConfigError(
                f"telemetry.headers: header {number} is not of the form NAME=VALUE, in ASCII"
            )
        headers[name] = value
    return headers


def _meta_of(kind: Any) -> Meta | None:
    return next((part for part in get_args(kind) if isinstance(part, Meta)), None)


def _expected(kind: Any) -> str:
    if kind is bool:
        return "expected true or false"
    if kind is str:
        return "expected text"
    if get_origin(kind) is tuple:
        return "expected a list of texts"
    meta = _meta_of(kind)
    if meta is None:
        return "expected one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    what = 'a size such as 1048576 or "1MiB"' if meta.extra else "a whole number"
    return f"expected {what}, from {meta.ge} to {meta.le}"


def _invalid(setting: Setting, wanted: str) -> ConfigError:
    got = "something else" if setting.name in SECRETS else repr(setting.raw)
    return ConfigError(f"{setting.name}: {wanted}, got {got} ({setting.source})")


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _all_names() -> Iterable[str]:
    yield "data_dir"
    for wire_format in FORMATS:
        yield f"{LISTEN}.{wire_format}"
    for section, struct in SECTIONS.items():
        for key in struct.__struct_fields__:
            yield f"{section}.{key}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()
