# Tests: tests/cli/test_output.py
"""Output of verbs: aligned tables, readable sizes and ages, or JSON.

``rich`` draws tables on a terminal. It is imported only there: programs read plain text or JSON.

Text from clients (names, reasons, payloads) is printed without control characters, so that no
record can control a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def show(context: click.Context, answer: Any, lines: Iterable[str], err: bool = False) -> None:
    """Print the answer as one JSON object, or the lines; on stderr with ``err``."""
    if context.obj["json"]:
        click.echo(json.dumps(answer), err=err)
    else:
        for line in lines:
            click.echo(line, err=err)


def on_screen() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def core_text(compiled: bool | None) -> str:
    """Return which modules a broker runs, as its console does; None: it did not tell."""
    return {True: "compiled", False: "pure Python", None: "unknown"}[compiled]


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], none: str = "none") -> list[str]:
    """Format rows as aligned columns; a column that contains numbers aligns right.

    On a terminal, long cells are folded to its width, and the header is marked. ``none`` is the
    text for an empty table.
    """
    body = list(rows)
    if not body:
        return [none]
    cells = [[_cell(value) for value in row] for row in body]
    right = [
        any(isinstance(value, int | float) for value in column)
        for column in zip(*body, strict=True)
    ]
    if on_screen():
        return _drawn_table(header, cells, right)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = []
    for row in [list(header), *cells]:
        padded = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _drawn_table(
    header: Sequence[str], cells: Sequence[Sequence[str]], right: Iterable[bool]
) -> list[str]:
    """Draw a table in the width, encoding and colours of the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    columns = zip(header, right, zip(*cells, strict=True), strict=True)
    for name, is_number, column in columns:
        drawn.add_column(
            Text(name),
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=max(map(len, column)) if is_number else None,
        )
    for row in cells:
        drawn.add_row(*map(Text, row))
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    text: str = captured.get()
    return [line.rstrip() for line in text.splitlines()]


def facts(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """Format one line for each name and value."""
    pairs = [(plain(name), value) for name, value in pairs]
    width = max(len(name) for name, _ in pairs)
    return [f"{name.ljust(width)}  {_cell(value)}".rstrip() for name, value in pairs]


def _cell(value: Any) -> str:
    return "-" if value is None else plain(str(value)) or '""'


def plain(text: str) -> str:
    """Escape control characters; keep the rest of the text."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def size(count: int) -> str:
    """Format bytes as in ``1.5 MiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(seconds: float | None) -> str | None:
    """Format seconds as in ``2d 3h``, ``4m 5s`` or ``1.5s``: the two largest units."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    whole = int(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "m")]
    parts.append((whole % 60, "s"))
    while not parts[0][0]:
        del parts[0]
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def time(text: str | None) -> str | None:
    """Format a time of the API in UTC, to the millisecond."""
    if text is None:
        return None
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
