"""What docs/spark.rst has people type, typed as it stands there, on the log of a broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.client.flymq import FlymqClient
from tests.archive.test_with_broker import ROOT, broker, client_of, rollup

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "spark.rst"
PLACE = "/var/lib/brokerd"
"""Where the page has the data directory."""
SALES = (("fr", 10.0), ("de", 2.5), ("fr", 1.25), ("it", 4.0))
DEAD = 1
"""Offset of the record that becomes a dead letter."""
SECONDS = 300


def blocks(section: str) -> list[str]:
    """The Python of a section of the page."""
    parts = re.split(r"\n(?=[^\n]+\n(?:-{3,}|~{3,})\n)", PAGE.read_text())
    (text,) = [part for part in parts if part.startswith(f"{section}\n")]
    found = re.findall(r"code-block:: python\n\n(.*?)\n\n(?=\S|$)", text + "\n\nend", re.DOTALL)
    return [textwrap.dedent(block) for block in found]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sales, of which a group did some before a rollup; one more afterwards, by another format."""
    data_dir = tmp_path_factory.mktemp("log") / "data"
    with broker(data_dir, "--listen=flymq=tcp:0"):
        with client_of(data_dir) as client:
            for country, amount in SALES:
                value = {"country": country, "amount": amount}
                client.produce("orders", value, key=country, partition=0)
            client.produce("orders", b"\xff no sale", partition=0)
            for at in range(3):
                message = client.acquire("orders", "billing", "me", 60.0)
                assert message is not None
                is_good = at != DEAD
                client.settle(
                    "orders",
                    "billing",
                    message.id,
                    "me",
                    is_good,
                    reason="no vat",
                    dead=not is_good,
                )
        assert rollup(data_dir, "--seal")["problems"] == []
        listeners = json.loads((data_dir / "run" / "listeners.json").read_text())
        with FlymqClient(listeners["flymq"]) as flymq:
            flymq.produce("orders", b'{"country": "it", "amount": 1}', key=b"it", partition=0)
        yield data_dir  # a broker runs, as on the page


def run(code: str, data_dir: Path) -> str:
    """Run it in a Spark of its own, as somebody's script; what it prints."""
    assert PLACE in code
    quiet = {"PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    bins = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PYTHONPATH": path, "PATH": bins, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", code.replace(PLACE, str(data_dir))],
        env={**os.environ, **environment, **quiet},
        cwd=data_dir.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables(printed: str) -> list[list[list[str]]]:
    """The rows of what ``show`` printed, without their heads."""
    found: list[list[list[str]]] = []
    for line in printed.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif line.startswith("+") and (not found or len(found[-1]) > 1):
            found.append([])
    return [rows[1:] for rows in found if rows]


def test_the_five_queries_of_the_quick_start(data_dir: Path) -> None:
    """Each tells what is in the log at this moment, and in the archive since the rollup."""
    there, sales, latest, dead, waiting = tables(run("\n".join(blocks("Quick start")), data_dir))
    assert [row[:2] for row in there] == [["orders", "6"]]
    assert sales == [["fr", "2", "11.25"], ["it", "2", "5.0"], ["de", "1", "2.5"]]
    assert [(row[0], row[2]) for row in latest] == [("de", "1"), ("fr", "2"), ("it", "2")]
    assert latest[2][1] == '{"country": "it", "amount": 1}'
    ((group, reason, failures, _, partition, offset, value),) = dead
    assert (group, reason, failures, partition) == ("billing", "no vat", "1", "0")
    assert (offset, value) == (str(DEAD), '{"country": "de", "amount": 2.5}')
    assert [row[:2] for row in waiting] == [["0", "3"]]
