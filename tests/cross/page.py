"""Read the tables of docs/cross-format.rst, for comparison with brokers' answers."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path("docs/cross-format.rst")

Table = dict[str, dict[str, str]]
"""Row -> column -> cell."""


def table(heading: str) -> Table:
    """Return the first list-table under a heading."""
    return table_of(PAGE, heading)


def table_of(page: Path | str, heading: str) -> Table:
    """Return the first list-table under a heading of any page."""
    text = Path(page).read_text().split(f"\n{heading}\n", 1)[1].split(".. list-table::", 1)[1]
    rows: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("   * - ") or line == "   * -":
            rows.append([line[7:]])
        elif line.startswith("     - "):
            rows[-1].append(line[7:])
        elif line.startswith("       ") and rows:
            rows[-1][-1] += " " + line.strip()
        elif rows and line and not line.startswith(" "):
            break
    columns = rows[0][1:]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows[1:]}


def literals(cell: str) -> list[str]:
    """Return the texts in double backquotes in a cell, in order."""
    return re.findall(r"``(.+?)``", cell)


def matches(literal: str, told: str) -> bool:
    """Return whether an answer fits a literal: ``text`` is any words, ``P`` any number."""
    pattern = re.escape(literal)
    pattern = re.sub(r"\btext\b", "(.+)", pattern)
    pattern = re.sub(r"\bP\b", "[0-9]+", pattern)
    return re.fullmatch(pattern, told, re.DOTALL) is not None


def examples(page: Path | str, heading: str) -> dict[str, bytes]:
    """Return the broker's answers in the first ``code-block`` under a heading, by name."""
    text = Path(page).read_text().split(f"\n{heading}\n", 1)[1].partition("\n=====")[0]
    block = text.partition(".. code-block:: text\n\n")[2]
    found = re.findall(r"^   (\S+) <((?:\s+[0-9a-f]{2}\b)+)", block, re.MULTILINE)
    return {name: bytes.fromhex(data) for name, data in found}
