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


def example(page: str, part: str) -> str:
    """The Python of a page that has this part."""
    blocks = re.findall(
        r"code-block:: python\n\n(.*?)\n\n(?=\S)", (ROOT / page).read_text(), re.DOTALL
    )
    (found,) = [block for block in blocks if part in block]
    return textwrap.dedent(found)


CLIENT = 'MamamiaClient("127.0.0.1:9000")'
PRODUCE_ONE = f"""\
from brokerd.client.mamamia import MamamiaClient
with {CLIENT} as client:
    client.produce("orders", "x")
"""
SEND_TWICE = f"""
with {CLIENT} as client:
    print(*(send(client, "p", 1, ["a", "b"]) for _ in range(2)))
"""
CLIENTS = "docs/clients.rst"


def test_every_link_of_the_readme_has_its_file() -> None:
    """Relative links, which repository hosts resolve. A page of docs is named by a link only."""
    text = (ROOT / "README.rst").read_text()
    links = re.findall(r"`[^`<]+ <(?!https?:)([^>]+)>`__", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert re.findall(r"(?<!<)docs/[\w/-]+\.rst", text) == []


@pytest.mark.parametrize(
    ("page", "part", "before", "after", "printed"),
    [
        ("README.rst", CLIENT, "", "", "{'n': 1}\n"),
        (CLIENTS, "unix:/run", "", "", "0\n"),
        (CLIENTS, "or an endpoint, as for TLS", "", "", "0\n"),
        (CLIENTS, "settles = [", "", "print(len(results), *set(results))", "100 settled\n"),
        (CLIENTS, "def work_on", PRODUCE_ONE, "", "x\n"),
        (CLIENTS, "def send(", "", SEND_TWICE, "(0, 1) (0, 1)\n"),
    ],
)
def test_the_example_of_a_page_works(
    tmp_path: Path, page: str, part: str, before: str, after: str, printed: str
) -> None:
    """A newcomer who copies it has produced, leased and settled records."""
    code = f"{before}{example(page, part)}\n{after}"
    code = code.replace("print(payload)", "print(payload); stop.set()")  # one message is enough
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
        result = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:9000", address)],
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
