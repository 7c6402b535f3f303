"""``brokerctl`` and a broker as they are installed: two processes, a real port, real files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
TWISTD = "from twisted.scripts.twistd import run; run()"
BROKERCTL = "from brokerd.cli.main import main; main()"


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """The directory of a broker that serves."""
    listen = ["--listen", "mamamia=tcp:0", "--admin", "tcp:0"]
    broker = subprocess.Popen(
        [sys.executable, "-c", TWISTD, "-n", "--pidfile=", "brokerd", *listen],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert broker.stdout is not None
    try:
        wait_until_ready(broker.stdout)
        yield tmp_path / "brokerd-data"
        broker.send_signal(signal.SIGTERM)
        log, _ = broker.communicate(timeout=SECONDS)
        assert broker.returncode == 0
        assert "Traceback" not in log
    finally:
        if broker.poll() is None:
            broker.kill()
            broker.communicate()


def wait_until_ready(log: IO[str]) -> None:
    lines = []
    for line in log:
        lines.append(line)
        if " ready: " in line:
            return
    pytest.fail("".join(lines))


def brokerctl(data_dir: Path, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BROKERCTL, "--data-dir", str(data_dir), *arguments]
    return subprocess.run(
        command, env=ENVIRONMENT, input=input, capture_output=True, text=True, timeout=SECONDS
    )


def test_an_afternoon_at_the_shell(data_dir: Path) -> None:
    """Found by its data directory, changed, looked at, refused: as docs/cli.rst says."""
    assert brokerctl(data_dir, "topic", "create", "orders").returncode == 0
    produced = brokerctl(data_dir, "produce", "orders", "--lines", input="a\nb\nc\n")
    assert (produced.stdout, produced.stderr) == ("3 records\n", "")
    tailed = brokerctl(data_dir, "--json", "tail", "orders", "--from", "1")
    assert [json.loads(line)["value"] for line in tailed.stdout.splitlines()] == ["b", "c"]
    seek = ("group", "seek", "orders", "g", "--to-end", "--create", "--json")
    sought = brokerctl(data_dir, *seek)
    assert json.loads(sought.stdout)["lag"] == 0
    refused = brokerctl(data_dir, "topic", "delete", "orders")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("brokerctl: this would delete topic 'orders'")
    assert brokerctl(data_dir, "topic", "delete", "orders", "--yes").returncode == 0
    assert brokerctl(data_dir, "topic", "list").stdout == "no topics\n"


def test_a_broker_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """No traceback: where it was looked for, and what to do."""
    result = brokerctl(tmp_path, "topic", "list")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"brokerctl: no broker serves .*--data-dir\n", result.stderr)
