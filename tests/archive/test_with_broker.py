"""``brokerd-rollup`` beside a broker, as both are installed: processes, ports, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from deltalake import DeltaTable

from brokerd.client.mamamia import MamamiaClient, batch_message
from tests.archive.test_rollup import TAKE_ONLY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SECONDS = 120
TWISTD = "from twisted.scripts.twistd import run; run()"
BROKERCTL = "from brokerd.cli.main import main; main()"


@contextmanager
def broker(data_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A broker that serves, and is ended cleanly unless it ended before."""
    arguments = ["--data-dir", data_dir, "--listen", "mamamia=tcp:0", "--admin", "tcp:0"]
    started = subprocess.Popen(
        [sys.executable, "-c", TWISTD, "-n", "--pidfile=", "brokerd", *arguments, *options],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    try:
        wait_until_ready(started.stdout)
        yield started
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            log, _ = started.communicate(timeout=SECONDS)
            assert started.returncode == 0
            assert "Traceback" not in log
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def wait_until_ready(log: IO[str]) -> None:
    lines = []
    for line in log:
        lines.append(line)
        if " ready: " in line:
            return
    pytest.fail("".join(lines))


def client_of(data_dir: Path) -> MamamiaClient:
    listeners = json.loads((data_dir / "run" / "listeners.json").read_text())
    return MamamiaClient(listeners["mamamia"])


def produce(data_dir: Path, count: int, prefix: str) -> list[bytes]:
    """Append records whose values are different; the values."""
    values = [f"{prefix} {at:06} ".encode() * 10 for at in range(count)]
    with client_of(data_dir) as client:
        for at in range(0, count, 500):
            client.produce_batch("orders", map(batch_message, values[at : at + 500]))
    return values


def settle(data_dir: Path, count: int) -> None:
    """Have a group lease and settle some records."""
    with client_of(data_dir) as client:
        for _ in range(count):
            message = client.acquire("orders", "workers", "me", 60.0)
            assert message is not None
            client.settle("orders", "workers", message.id, "me")


def rollup(data_dir: Path, *options: str) -> dict[str, Any]:
    """A run that is expected to end well; what it says."""
    arguments = ["--data-dir", data_dir, "--master", "local[2]", "--json", *options]
    done = subprocess.run(
        [sys.executable, "-m", "brokerd.rollup", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def brokerctl(data_dir: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", BROKERCTL, "--json", "--data-dir", str(data_dir), *arguments]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def archived(data_dir: Path) -> list[bytes]:
    """Values in the table of records, by offset."""
    table = DeltaTable(str(data_dir / "archive" / "records")).to_pyarrow_table()
    rows = sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert [offset for offset, _ in rows] == list(range(len(rows)))
    return [value for _, value in rows]


def test_a_rollup_beside_a_broker_and_without_one(tmp_path: Path) -> None:
    """All that was acknowledged and sealed is in the archive once; the broker uses it at once."""
    data_dir = tmp_path / "data"
    with broker(data_dir, "--set", "wal.segment_bytes=1MiB", "--set", "archive.poll_seconds=3600"):
        values = produce(data_dir, 8_000, "first")
        settle(data_dir, 20)
        facts = rollup(data_dir, "--seal")
        assert facts["problems"] == []
        assert not any("was not notified" in note for note in facts["notes"])
        assert (facts["records"], facts["events"]) == (8_000, 40)
        assert facts["steps"]["deliveries"] == {"outcomes": 20}
        assert archived(data_dir) == values
        status = brokerctl(data_dir, "archive", "status")
        assert status["usable"]
        assert status["records_lsn"] == facts["records_lsn"]
        values += produce(data_dir, 3_000, "second")
    rollup(data_dir, *TAKE_ONLY)
    assert archived(data_dir) == values[: len(archived(data_dir))]
    with broker(data_dir, "--set", "wal.segment_bytes=1MiB"):
        rollup(data_dir, "--seal", *TAKE_ONLY)
        assert archived(data_dir) == values
        assert rollup(data_dir, *TAKE_ONLY)["segments"] == 0


def test_a_rollup_while_records_come(tmp_path: Path) -> None:
    """Runs and a broker at work do not hinder each other; in the end everything is there."""
    data_dir = tmp_path / "data"
    values = []
    with broker(data_dir, "--set", "wal.segment_bytes=1MiB"):
        values += produce(data_dir, 4_000, "before")
        run = subprocess.Popen(
            [sys.executable, "-m", "brokerd.rollup", "--data-dir", data_dir, "--seal", *TAKE_ONLY],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        turn = 0
        while run.poll() is None:
            values += produce(data_dir, 2_000, f"turn {turn}")
            turn += 1
        assert run.returncode == 0, run.stdout and run.stdout.read()
        rollup(data_dir, "--seal", *TAKE_ONLY)
        assert archived(data_dir) == values


def test_a_broker_that_is_gone_is_only_told_of(tmp_path: Path) -> None:
    """Its address is still there when it was killed; the archive is made all the same."""
    data_dir = tmp_path / "data"
    with broker(data_dir) as process:
        values = produce(data_dir, 1_000, "only")
        brokerctl(data_dir, "archive", "seal")
        process.kill()
        process.wait()
    facts = rollup(data_dir, *TAKE_ONLY)
    assert archived(data_dir) == values
    assert "the broker was not notified, and will poll the archive" in facts["notes"][-1]
