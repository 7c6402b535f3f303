"""What a reader of a format's page sees of its golden file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerd.server.sections import FORMATS
from tests.golden import DIRECTORY, golden

PAGES = Path(__file__).resolve().parents[2] / "docs" / "protocols"
every = pytest.mark.parametrize("form", sorted(FORMATS))


def shown(form: str) -> list[str]:
    """The lines of the worked examples, each a frame; a long one goes on below, further in."""
    _, examples = (PAGES / f"{form}.rst").read_text().split("\nWorked examples\n")
    _, block = examples.split(".. code-block:: text\n\n")
    (text,) = re.findall(r"\A((?:   .+\n)+)", block)
    return re.sub(r"\n {4,}", " ", text).strip().split("\n   ")


def test_every_format_has_its_golden_file() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.txt")) == sorted(FORMATS)


@every
def test_no_line_of_a_golden_file_hides_another(form: str) -> None:
    assert len((DIRECTORY / f"{form}.txt").read_text().splitlines()) == len(golden(form))


@every
def test_the_page_shows_a_conversation_out_of_the_golden_file(form: str) -> None:
    lines = shown(form)
    assert set(lines) <= set((DIRECTORY / f"{form}.txt").read_text().splitlines())
    assert len(lines) >= 6
    assert {line.split()[1] for line in lines} == {">", "<"}


@every
def test_the_page_says_where_all_of_the_golden_file_is(form: str) -> None:
    path = f"tests/golden/{form}.txt"
    assert f"All of them: `{path} <../../{path}>`_." in (PAGES / f"{form}.rst").read_text()
