"""Pages for operators: every event and metric is there, and every error text is the code's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily

from brokerd.admin.metrics import (
    DEFINITIONS,
    GROUP_DEFINITIONS,
    HISTOGRAMS,
    QUOTA_DEFINITIONS,
    STREAM_DEFINITIONS,
    TOPIC_METRICS,
)
from tests.test_conditions import ALL

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "monitoring.rst").read_text()


def rows(section: str) -> set[str]:
    """The first column of the table in a section."""
    text = re.split(rf"^{section}\n-+\n", PAGE, flags=re.MULTILINE)[1]
    text = re.split(r"^-{3,}\n", text, flags=re.MULTILINE)[0]
    return set(re.findall(r"^``([\w-]+)`` ", text, re.MULTILINE))


def test_every_event_is_on_the_page_and_no_other() -> None:
    """Event ids are an interface: adding or renaming one changes the page."""
    used: set[str] = set()
    for path in (ROOT / "brokerd").rglob("*.py"):
        used |= set(re.findall(r'event_id="([^"]+)"', path.read_text()))
    assert used == rows("Logs")


def test_every_condition_is_on_the_page_and_provoked_twice() -> None:
    """In memory, and for real by the test that docs/testing.rst names."""
    used: set[str] = set()
    for path in (ROOT / "brokerd").rglob("*.py"):
        used |= set(re.findall(r'Condition\("([^"]+)"', path.read_text()))
    assert used == rows("Conditions") == set(ALL)
    tests = (ROOT / "tests" / "admin" / "test_console_conditions.py").read_text()
    provoking = {
        (name, test)
        for test, body in re.findall(r"^def (test_\w+)(.*?)(?=^\S|\Z)", tests, re.M | re.S)
        for name in re.findall(r'seen\.shows\("([\w-]+)"', body)
    }
    testing = (ROOT / "docs" / "testing.rst").read_text()
    table = re.findall(r"^``([\w-]+)`` +``(test_\w+)`` ", testing, re.MULTILINE)
    assert set(table) == provoking
    assert {name for name, _ in table} == used


def test_every_metric_is_on_the_page_and_no_other() -> None:
    """So are metrics, under the names that a scrape shows."""
    used = {
        "brokerd_build_info",
        "brokerd_condition",
        "brokerd_refusals_total",
        "brokerd_request_seconds",
        *(one.name for one in HISTOGRAMS),
        *(f"{name}_total" for name, _ in TOPIC_METRICS),
        "brokerd_group_series_omitted",
        "brokerd_schedule_lateness_seconds",
    }
    for definition in (*DEFINITIONS, *GROUP_DEFINITIONS, *STREAM_DEFINITIONS, *QUOTA_DEFINITIONS):
        suffix = "_total" if definition.kind is CounterMetricFamily else ""
        used.add(definition.name + suffix)
    assert used == rows("Metrics")


def test_every_page_that_the_readme_names_exists() -> None:
    """The map of the documentation has no dead ends."""
    readme = (ROOT / "README.rst").read_text()
    for name in re.findall(r"(?<![\w/])(?:docs|etc)/[\w./-]+\w", readme):
        assert (ROOT / name).exists(), name


def texts(path: Path) -> Iterator[str]:
    """Every text of a module; a value in an f-string is a NUL."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_error_of_the_rollup_is_quoted_as_it_is() -> None:
    """An operator who looks up a line of stderr finds it."""
    page = (ROOT / "docs" / "archive.rst").read_text()
    causes = page.split("\nThe causes:\n")[1].split("\nWhile the archive is away\n")[0]
    code = "\0".join(text for path in (ROOT / "brokerd").rglob("*.py") for text in texts(path))
    quoted = re.findall(r"``(.+?)``", "\n".join(re.findall(r"^``.*$", causes, re.MULTILINE)))
    assert len(quoted) > 20
    for part in (part for text in quoted for part in text.removeprefix("s3://").split("...")):
        assert part.strip(";:, ") in code, part
