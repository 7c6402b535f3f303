# Tests: tests/client/test_checks.py
"""Checks of a client's arguments, before any request is sent.

The clients of all formats use them. They raise the built-in `TypeError` and `ValueError`, which
name the argument, for values that do not fit a frame. The broker checks the meaning of names and
numbers.
"""

from __future__ import annotations

from math import isfinite

NUMBER_MAX = (1 << 63) - 1


def check_text(**given: str) -> None:
    """Check that each is a str that UTF-8 can encode."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {kind_of(value)}")
        utf8(name, value)


def check_bytes(**given: bytes) -> None:
    """Check that each is bytes."""
    for name, value in given.items():
        if not isinstance(value, bytes):
            raise TypeError(f"{name} must be bytes, not {kind_of(value)}")


def check_number(name: str, value: int, least: int, most: int) -> None:
    """Check that a value is an int, not a bool, from ``least`` to ``most``."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {kind_of(value)}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {_said(least)} to {_said(most)}, not {value}")


def check_numbers(**given: int) -> None:
    """Check that each is an int from 0 to 2^63 - 1."""
    for name, value in given.items():
        check_number(name, value, 0, NUMBER_MAX)


def check_optional(
    text: dict[str, str | None] | None = None, numbers: dict[str, int | None] | None = None
) -> None:
    """Like `check_text` and `check_numbers`; None is allowed."""
    check_text(**{name: one for name, one in (text or {}).items() if one is not None})
    check_numbers(**{name: one for name, one in (numbers or {}).items() if one is not None})


def check_seconds(**given: float | None) -> None:
    """Check that each is a finite number or None."""
    for name, value in given.items():
        if value is None:
            continue
        if type(value) is not float and type(value) is not int:
            raise TypeError(f"{name} must be a number of seconds, not {kind_of(value)}")
        if not isfinite(value) or abs(value) > NUMBER_MAX:
            raise ValueError(f"{name} must be a number of seconds, not {value}")


def utf8(name: str, value: str) -> bytes:
    """Return the UTF-8 bytes of a str."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be said in UTF-8: {error}") from None


def bytes_of(name: str, value: bytes | str) -> bytes:
    """Return bytes as they are, or the UTF-8 bytes of a str."""
    if isinstance(value, str):
        return utf8(name, value)
    if not isinstance(value, bytes):
        raise TypeError(f"{name} must be bytes or str, not {kind_of(value)}")
    return value


def kind_of(value: object) -> str:
    """Return the name of a value's type, for an error text."""
    return f"a {type(value).__name__}" if value is not None else "None"


def _said(limit: int) -> str:
    """Return the text of a limit; a large one as a power of two."""
    bits = (abs(limit) - (limit < 0)).bit_length()
    if bits > 16 and limit in (-(1 << bits), (1 << bits) - 1):
        return f"-2^{bits}" if limit < 0 else f"2^{bits} - 1"
    return str(limit)
