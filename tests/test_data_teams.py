"""docs/data-teams.rst and its notebook, run as they stand beside a broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.archive.test_with_broker import ROOT, broker

NOTEBOOK = ROOT / "docs" / "data-teams.ipynb"
PAGE = ROOT / "docs" / "data-teams.rst"
SECONDS = 300


def cells() -> list[str]:
    """Return the code of the notebook."""
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]


def question() -> str:
    """Return the question at the top of the page."""
    (found,) = re.findall(r"code-block:: python\n\n(.*?)\n\n(?=\S)", PAGE.read_text(), re.DOTALL)
    return textwrap.dedent(found)


def test_the_notebook_has_no_outputs() -> None:
    """They would grow old, and make every change of it large."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.slow
def test_it_runs_from_the_first_record_to_the_last_table(tmp_path: Path) -> None:
    data_dir = tmp_path / "brokerd-data"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quiet = "--master local[2] --conf spark.ui.enabled=false pyspark-shell"
    settings = {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": quiet}
    code = "\n".join([*cells(), question()]).replace("/var/lib/brokerd", str(data_dir))
    with broker(data_dir):
        address = json.loads((data_dir / "run" / "listeners.json").read_text())["mamamia"]
        done = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:9000", address)],
            env={**os.environ, **settings},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr[:3000]
    printed = re.sub(r" +", " ", done.stdout)
    totals = re.findall(r"\| ?(DE|FR|JP)\| ?([\d.]+)\|\n", printed)
    assert totals[:3] == [("JP", "30.0"), ("DE", "20.0"), ("FR", "8.0")]
    assert re.search(r"billing\| ?worker-1\| ?card declined\| ?DE\| ?12.5\|", printed)
    assert "4 archived orders" in printed
    assert len(totals) == 5 and totals[-1] == ("JP", "30.0"), "the question of the page"
