"""docs/operations.rst is complete: an operator finds every event, metric and exit code there."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.core import CounterMetricFamily

from brokerd.admin.metrics import DEFINITIONS, GROUP_DEFINITIONS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "operations.rst").read_text()


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


def test_every_metric_is_on_the_page_and_no_other() -> None:
    """So are metrics, under the names that a scrape shows."""
    used = {"brokerd_group_series_omitted", "brokerd_schedule_lateness_seconds"}
    for definition in (*DEFINITIONS, *GROUP_DEFINITIONS):
        suffix = "_total" if definition.kind is CounterMetricFamily else ""
        used.add(definition.name + suffix)
    assert used == rows("Metrics")


def test_every_page_that_the_readme_names_exists() -> None:
    """The map of the documentation has no dead ends."""
    readme = (ROOT / "README.rst").read_text()
    for name in re.findall(r"(?<![\w/])(?:docs|etc)/[\w./-]+\w", readme):
        assert (ROOT / name).exists(), name
