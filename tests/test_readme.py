"""The examples of README.rst and docs/clients.rst, run as they stand against a broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60


def example(page: str) -> str:
    """The Python of a page."""
    text = (ROOT / page).read_text()
    match = re.search(r"code-block:: python\n\n(.*?)\n\n(?=\S)", text, re.DOTALL)
    assert match is not None
    return textwrap.dedent(match[1])


@pytest.mark.parametrize(
    ("page", "shown", "printed"),
    [
        ("README.rst", "message.payload", "{'n': 1}\n"),
        ("docs/clients.rst", "len(results), set(results)", "100 {'settled'}\n"),
    ],
)
def test_the_example_of_a_page_works(tmp_path: Path, page: str, shown: str, printed: str) -> None:
    """A newcomer who copies it has produced, leased and settled records."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ["-n", "--pidfile=", "brokerd", "--listen", "mamamia=tcp:0", "--admin", "none"]
    with (tmp_path / "output").open("w") as output:
        broker = subprocess.Popen(
            [sys.executable, "-c", "from twisted.scripts.twistd import run; run()", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        listeners = tmp_path / "brokerd-data" / "run" / "listeners.json"
        deadline = time.monotonic() + SECONDS
        while not listeners.exists() and broker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert listeners.exists(), (tmp_path / "output").read_text()
        address = json.loads(listeners.read_text())["mamamia"]
        code = example(page).replace("127.0.0.1:9000", address) + f"\nprint({shown})"
        result = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert (result.stdout, result.stderr) == (printed, "")
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=SECONDS) == 0
    finally:
        if broker.poll() is None:
            broker.kill()
            broker.wait()
