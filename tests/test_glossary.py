"""docs/glossary.rst: the names that it explains are names of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_name_in_the_code_is_a_class() -> None:
    """A renamed class is renamed there, too."""
    table = (ROOT / "docs" / "glossary.rst").read_text().split("\nNames in the code\n")[1]
    names = set(re.findall(r"^``(\w+)``", table, re.MULTILINE))
    code = "\n".join(path.read_text() for path in (ROOT / "brokerd").rglob("*.py"))
    assert len(names) > 10
    assert names <= set(re.findall(r"^class (\w+)", code, re.MULTILINE))
