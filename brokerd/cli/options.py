# Tests: tests/cli/test_options.py
"""Options that verbs share: durations, sizes, times, ``--yes``; and the question before harm."""

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
"""The word for a setting that goes back to the broker's configuration."""
NONE = "none"
"""The word for no limit."""


def duration(text: str) -> float:
    """Seconds: ``90``, ``1.5s``, ``10m``, ``12h``, ``7d``, ``2w``."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w|)", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r} is no duration such as 90, 1.5s, 10m, 12h, 7d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


def size(text: str) -> int:
    """Bytes: ``4096``, ``64MiB``, ``10GiB``."""
    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no size such as 4096, 64MiB or 10GiB") from None


def now() -> datetime:
    """The time, UTC, that a time ago is counted from."""
    return datetime.now(UTC)


def time(text: str) -> str:
    """An ISO 8601 time, UTC unless it says otherwise, or one so long ago: as the API takes it."""
    if (ago := re.fullmatch(r"-?(\d[\d.]*(?:ms|s|m|h|d|w))", text, re.ASCII)) is not None:
        try:
            return (now() - timedelta(seconds=duration(ago[1]))).isoformat()
        except OverflowError:
            raise click.BadParameter(f"{text!r} is before all times") from None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time such as 2026-11-21T11:38:31Z, nor one ago such as 10m or -10m"
        ) from None
    return (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).isoformat()


def integer(text: str) -> int:
    """A number, not negative."""
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise click.BadParameter(f"{text!r} is no number such as 0 or 17")
    return int(text)


def integer_from(first: int, last: int) -> Callable[[str], int]:
    """A number from ``first`` to ``last``."""

    def convert(text: str) -> int:
        value = integer(text)
        if not first <= value <= last:
            raise click.BadParameter(f"{text!r} is not from {first} to {last}")
        return value

    convert.__name__ = integer.__name__
    return convert


def boolean(text: str) -> bool:
    """``yes`` or ``no``."""
    if text not in ("yes", "no"):
        raise click.BadParameter(f"{text!r} is neither yes nor no")
    return text == "yes"


def setting(inner: Callable[[str], Any], none: Any = None) -> Callable[[str], list[Any]]:
    """A type of values that may also be ``default``, which the API knows as null.

    ``none`` is what the word ``none`` means, if it may be said. The value is in a list, so that
    null is told from an option that was not given.
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
    """The settings that were named on the command line."""
    return {name: value[0] for name, value in given.items() if value is not None}


def yes_option(command: Command) -> Command:
    """``--yes``, for a verb that calls `confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def some(count: int, what: str) -> str:
    """``1 lease``, ``2 leases``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def on_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask before harm is done; raises `InvalidRequest` if nobody can be asked, else may abort."""
    if yes:
        return
    if not on_terminal():
        raise InvalidRequest(f"this would {question}, and there is no terminal to ask: say --yes")
    click.confirm(f"This will {question}. Go on?", abort=True, err=True)
