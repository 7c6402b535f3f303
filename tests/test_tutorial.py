"""docs/tutorial.rst, typed line by line against a broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.process import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300
BLOCKS = re.findall(
    r"(code-block:: python\n|::\n)\n((?:    .*\n|\n)+)", (ROOT / "docs/tutorial.rst").read_text()
)
"""The blocks of the page, in order: what stands before each, and its text."""
KILL = "kill -9 $(cat brokerd-data/lock)"
SHOWN = {
    "flymq.fetch": [r"0 b'customer-7' b'coffee'", "leased: 0 coffee", "leased: 1 b'tea'"],
    "brokerctl lease list": ["worker-1"],
    "brokerctl tail": ["coffee", "tea", "cake"],
    "brokerctl dlq peek": ["no milk"],
    "brokerctl dlq replay": ["1"],
    "brokerd-rollup": ["3 records"],
    "brokerd.spark": ["customer-8", "coffee", "dead", "no milk"],
}
"""By a part of a command or script: what it prints, among other things."""


def commands(block: str) -> list[str]:
    """The lines of a block that need neither root nor make."""
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line.startswith(("brokerctl", "brokerd-rollup", "kill"))]


def test_every_line_does_what_the_page_says(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    printed: list[tuple[str, str]] = []

    def run(*command: str, shell: bool = False) -> str:
        done = subprocess.run(
            command[0] if shell else command,
            shell=shell,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    data_dir, formats = tmp_path / "brokerd-data", ("mamamia", "flymq")
    with BrokerProcess(data_dir, tmp_path / "log", formats=formats) as broker:
        broker.start()
        for kind, block in BLOCKS:
            if kind.startswith("code-block"):
                code = textwrap.dedent(block)
                code = code.replace("127.0.0.1:9000", broker.address)
                code = code.replace("127.0.0.1:9092", broker.address_of("flymq"))
                printed.append((code, run(sys.executable, "-c", code)))
                continue
            for command in commands(block):
                printed.append((command, run(command, shell=True)))
                if command == KILL:
                    broker.kill()  # waits for its end
                    broker.start()
        assert broker.stop() == 0
    for part, texts in SHOWN.items():
        (found,) = [text for typed, text in printed if part in typed]
        assert all(text in found for text in texts), (part, found)
    groups = [text for typed, text in printed if "group describe" in typed]
    before, after = (re.sub(r"\b[\d.]+[ms]\b| ", "", text) for text in groups)
    assert before == after  # but for ages
