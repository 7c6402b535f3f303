"""Alert rules and dashboard: promtool accepts them, and a broker has every series that they use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.streams import StreamReport
from brokerd.codecs.mamamia import Acquire, Produce, Settle
from brokerd.security.access import OPEN
from brokerd.server.sections import Config, Telemetry
from tests.broker.fakearchive import FakeArchive
from tests.test_conditions import ALL
from tests.watched import Watched

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "etc" / "prometheus" / "brokerd.rules.yml"
DASHBOARD = ROOT / "etc" / "grafana" / "dashboards" / "brokerd.json"
TESTS = ROOT / "tests" / "prometheus_rules.test.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="there is no promtool here (Debian: apt-get install prometheus)"
)
FROM_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus or a histogram adds."""

Series = dict[str, set[str]]
"""Name of a series -> its labels."""


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def rule_expressions() -> list[str]:
    return re.findall(r"^        expr: (.+)$", RULES.read_text(), re.M)


def panel_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each series of an expression and the labels that select it."""
    for name, matchers in re.findall(
        r"\b((?:brokerd|process)_\w+|up)\b(?:\{([^}]*)\})?", expression
    ):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - FROM_PROMETHEUS


def grouped(expression: str) -> set[str]:
    """Return the labels by which an expression adds up."""
    found = re.findall(r"by \(([^)]*)\)", expression)
    return {label.strip() for one in found for label in one.split(",")} - FROM_PROMETHEUS


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """The series of a broker that has done some of everything."""
    archive = FakeArchive()
    config = Config(telemetry=Telemetry(endpoint="http://127.0.0.1:9/v1/traces"))
    watched = Watched(tmp_path_factory.mktemp("broker"), config, open_archive=archive.open)
    client = watched.connect()
    client.send(Produce("t", b"x"), Produce("t", b"y"), Acquire("t", "g", "c"))
    client.send(Settle("t", "g", 0, "c", True), Produce("t\n", b"refused"))
    watched.run()
    watched.wal.seal()
    watched.run()
    archive.roll_up(watched)  # type: ignore[arg-type]  # it has the log and the disk
    report = StreamReport("loader", log_id=archive.log_id, lsn=0, topics=None, offsets={})
    watched.broker.streams.report(OPEN, report)
    watched.pass_time(10)
    found: Series = {"up": {"job", "instance"}}
    for line in watched.get("/metrics")[1].splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()  # type: ignore[union-attr]
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


@pytest.mark.parametrize("expression", [*rule_expressions(), *panel_expressions()])
def test_a_broker_has_every_series_and_label(expression: str, series: Series) -> None:
    """A renamed metric would silence an alert, and empty a panel."""
    names = [name for name, _ in used(expression)]
    assert names, expression
    for name, labels in used(expression):
        assert name in series, f"{name} is no series of a broker"
        assert labels <= series[name], f"{name} has no label {labels - series[name]}"
    assert grouped(expression) <= set.union(*(series[name] for name in names))


def test_every_condition_in_a_rule_exists() -> None:
    named = re.findall(r'condition[=!~]+"([^"]+)"', RULES.read_text())
    assert named
    assert {name for one in named for name in one.split("|")} <= set(ALL)


def test_every_condition_has_an_alert() -> None:
    """Those without an alert of their own share one."""
    text = RULES.read_text()
    own = set(re.findall(r'condition="([^"]+)"', text))
    (others,) = re.findall(r'condition!~"([^"]+)"', text)
    assert own == set(others.split("|"))


def test_every_rule_is_tested() -> None:
    """Each alert fires in a test of promtool."""
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    text = TESTS.read_text()
    fired = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", text))
    assert alerts == fired


@needs_promtool
def test_promtool_runs_the_tests_of_the_rules(tmp_path: Path) -> None:
    for path in (RULES, TESTS):
        shutil.copy(path, tmp_path)
    done = promtool("test", "rules", str(tmp_path / TESTS.name))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules_and_every_panel(tmp_path: Path) -> None:
    """A panel's expression is checked as a recording rule, with Grafana's variables filled in."""
    lines = ["groups:", "  - name: panels", "    rules:"]
    for number, expression in enumerate(panel_expressions()):
        text = expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
        lines += [f"      - record: panel:{number}", f"        expr: {json.dumps(text)}"]
    panels_file = tmp_path / "panels.yml"
    panels_file.write_text("\n".join(lines) + "\n")
    done = promtool("check", "rules", str(RULES), str(panels_file))
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60)


def test_panels_do_not_overlap_and_have_one_source() -> None:
    """Each has an id of its own; the source of data is the variable that Grafana offers."""
    places: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all("$instance" in target["expr"] for target in panel["targets"])
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)


def test_grafana_finds_the_dashboard() -> None:
    """The provider names the directory that the page says."""
    provider = (ROOT / "etc/grafana/provisioning/dashboards/brokerd.yaml").read_text()
    (path,) = re.findall(r"path: (\S+)", provider)
    page = (ROOT / "docs" / "monitoring.rst").read_text()
    assert f"etc/grafana/dashboards/brokerd.json {path}/" in page
