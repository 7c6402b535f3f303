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

from brokerd.client.mamamia import MamamiaClient

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


def test_what_an_operator_asks_a_broker_that_serves(data_dir: Path) -> None:
    """Status, connections and the life of a record, over a real port."""
    status = json.loads(brokerctl(data_dir, "status", "--json").stdout)
    assert status["phase"] == "ready"
    server = f"http://{status['listeners']['admin']}"
    assert brokerctl(data_dir, "produce", "orders", "a").returncode == 0
    client = MamamiaClient(status["listeners"]["mamamia"])
    try:
        assert client.acquire("orders", "billing", "worker") is not None
        client.settle("orders", "billing", 0, "worker", True)
        (connection,) = json.loads(brokerctl(data_dir, "connections", "list", "--json").stdout)[
            "connections"
        ]
        assert (connection["format"], connection["address"]) == ("mamamia", "127.0.0.1")
        assert connection["port"] > 0
        closed = brokerctl(data_dir, "connections", "close", str(connection["id"]))
        assert (closed.returncode, closed.stdout) == (0, "1 connection closed\n")
    finally:
        client.close()
    listed = brokerctl(data_dir, "connections", "list")
    assert listed.stdout == "no connections\n"
    explained = brokerctl(data_dir, "--server", server, "explain", "orders", "0")
    assert [line.split()[3] for line in explained.stdout.splitlines()[-2:]] == ["leased", "settled"]
    assert explained.stderr == ""
    top = brokerctl(data_dir, "top", "--count", "1", "--interval", "100ms")
    assert top.stdout.startswith("ready, up ")


def test_a_broker_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """No traceback: where it was looked for, and what to do."""
    result = brokerctl(tmp_path, "topic", "list")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"brokerctl: no broker serves .*--data-dir\n", result.stderr)
