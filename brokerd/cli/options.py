# Tests: tests/cli/test_options.py
"""Options and types that verbs share: durations, sizes, times, ``--yes``, confirmation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from brokerd.errors import InvalidRequest
from brokerd.server.config import parse_size

_SECONDS = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT = "default"
"""Value that resets a setting to the broker's configuration."""
NONE = "none"
"""Value for no limit."""


def duration(text: str) -> float:
    """Parse a duration into seconds: ``90``, ``1.5s``, ``10m``, ``12h``, ``7d``, ``2w``."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w|)", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration like 90, 1.5s, 10m, 12h, 7d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


def size(text: str) -> int:
    """Parse a size into bytes: ``4096``, ``64MiB``, ``10GiB``."""
    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size like 4096, 64MiB or 10GiB") from None


def now() -> datetime:
    """Return the current time in UTC; ages count back from it."""
    return datetime.now(UTC)


def time(text: str) -> str:
    """Parse an ISO 8601 time (default UTC) or an age into the API's text."""
    if (ago := re.fullmatch(r"-?(\d[\d.]*(?:ms|s|m|h|d|w))", text, re.ASCII)) is not None:
        try:
            return (now() - timedelta(seconds=duration(ago[1]))).isoformat()
        except OverflowError:
            raise click.BadParameter(f"{text!r} is before the year 1") from None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time like 2026-11-21T11:38:31Z, nor an age like 10m or -10m"
        ) from None
    return (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).isoformat()


def integer(text: str) -> int:
    """Parse a number from 0 up."""
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise click.BadParameter(f"{text!r} is not a number like 0 or 17")
    return int(text)


def integer_from(first: int, last: int) -> Callable[[str], int]:
    """Make a type for numbers from ``first`` to ``last``."""

    def convert(text: str) -> int:
        value = integer(text)
        if not first <= value <= last:
            raise click.BadParameter(f"{text!r} is not from {first} to {last}")
        return value

    convert.__name__ = integer.__name__
    return convert


def boolean(text: str) -> bool:
    """Parse ``yes`` or ``no``."""
    if text not in ("yes", "no"):
        raise click.BadParameter(f"{text!r} is neither yes nor no")
    return text == "yes"


def setting(inner: Callable[[str], Any], none: Any = None) -> Callable[[str], list[Any]]:
    """Make a type that also accepts ``default``, which is null in the API.

    ``none`` is the value of the word ``none``, if that word is allowed. The result is a list of one
    value, which differs from an absent option.
    """

    def convert(text: str) -> list[Any]:
        if text == DEFAULT:
            return [None]
        if text == NONE and none is not None:
            return [none]
        return [inner(text)]

    convert.__name__ = inner.__name__
    return convert


def changes(**given: list[Any] | None) -> dict[str, Any]:
    """Return the settings from the command line."""
    return {name: value[0] for name, value in given.items() if value is not None}


def yes_option(command: Command) -> Command:
    """Add ``--yes`` to a verb that calls `confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def some(count: int, what: str) -> str:
    """Format a count with its noun: ``1 lease``, ``2,000 leases``."""
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"


def on_terminal() -> bool:
    """Return whether stdin and stdout are a terminal."""
    return sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation; raise `InvalidRequest` without a terminal, abort on no."""
    if yes:
        return
    if not on_terminal():
        raise InvalidRequest(f"this would {question}, and there is no terminal to ask: say --yes")
    click.confirm(f"This will {question}. Go on?", abort=True, err=True)
