"""The README's example, run as it stands against a broker of its own."""

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

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60


def example() -> str:
    """The Python of the README."""
    text = (ROOT / "README.rst").read_text()
    match = re.search(r"code-block:: python\n\n(.*?)\n\n(?=\S)", text, re.DOTALL)
    assert match is not None
    return textwrap.dedent(match[1])


def test_the_example_of_the_readme_works(tmp_path: Path) -> None:
    """A newcomer who copies it has produced, leased and settled a record."""
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
        code = example().replace("127.0.0.1:9000", address) + "\nprint(message.payload)"
        result = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert (result.stdout, result.stderr) == ("{'n': 1}\n", "")
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=SECONDS) == 0
    finally:
        if broker.poll() is None:
            broker.kill()
            broker.wait()
