"""Backups of a broker under load, as processes: SIGKILL of broker and brokerctl, and restores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.errors import ConnectionLost
from brokerd.client.mamamia import MamamiaClient
from brokerd.codecs.mamamia import BatchSettle

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 120
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
TWISTD = "from twisted.scripts.twistd import run; run()"
BROKERCTL = "from brokerd.cli.main import main; main()"
PADDING = "." * 3000


class Broker:
    """A broker process with small segments and many snapshots."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        settings = ("wal.segment_bytes=1MiB", "wal.snapshot_interval_bytes=1MiB")
        arguments = ["--data-dir", str(data_dir), "--listen", "mamamia=tcp:0", "--admin", "none"]
        for setting in settings:
            arguments += ["--set", setting]
        self.process = subprocess.Popen(
            [sys.executable, "-c", TWISTD, "-n", "--pidfile=", "brokerd", *arguments],
            cwd=data_dir.parent,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if " ready: " in line:
                break
        else:
            pytest.fail("".join(lines))
        self._reader = threading.Thread(target=self.process.stdout.read)
        self._reader.start()

    def connect(self) -> MamamiaClient:
        listeners = json.loads((self.data_dir / "run" / "listeners.json").read_text())
        return MamamiaClient(listeners["mamamia"], timeout=SECONDS)

    def end(self, signal_number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        self.process.wait(SECONDS)
        self._reader.join()


@contextmanager
def broker_at(data_dir: Path) -> Iterator[Broker]:
    broker = Broker(data_dir)
    try:
        yield broker
    finally:
        broker.end(signal.SIGKILL)


class Load:
    """Producers and a worker, and what the broker has acknowledged to them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._records: dict[int, str] = {}
        self._settled: set[int] = set()
        self.sent = 0
        self._is_over = False
        self._failures: list[BaseException] = []
        works: list[Callable[[MamamiaClient], None]] = [self._produce, self._produce, self._work]
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[MamamiaClient], None]) -> None:
        """Work until the end of the load or of the broker."""
        try:
            with self._broker.connect() as client:
                while not self._is_over:
                    work(client)
        except ConnectionLost:
            # The kernel closes the connections of a killed process before the process has ended.
            try:
                self._broker.process.wait(SECONDS)
            except subprocess.TimeoutExpired as error:
                self._failures.append(error)
        except BaseException as error:
            self._failures.append(error)

    def _produce(self, client: MamamiaClient) -> None:
        with self._lock:
            self.sent += 1
            value = f"{self.sent}{PADDING}"
        offset = client.produce("orders", value)
        with self._lock:
            self._records[offset] = value

    def _work(self, client: MamamiaClient) -> None:
        messages = client.acquire_batch("orders", "billing", "worker", 5, 60.0, 0.1)
        if messages:
            settles = [BatchSettle(one.id, True, one.token) for one in messages]
            results = client.settle_batch("orders", "billing", "worker", settles)
            with self._lock:
                self._settled |= {
                    one.id for one, said in zip(messages, results, strict=True) if said == "settled"
                }

    def acknowledged(self) -> tuple[dict[int, str], set[int]]:
        """Return the records and the settles that are acknowledged by now."""
        with self._lock:
            return dict(self._records), set(self._settled)

    def wait_for(self, count: int) -> None:
        """Wait for so many records. Fail when no record comes for two minutes."""
        found, heard = -1, 0.0
        while found < count:
            assert not self._failures
            if len(self._records) > found:
                found, heard = len(self._records), time.monotonic()
            assert time.monotonic() < heard + SECONDS, found
            time.sleep(0.02)

    def end(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(2 * SECONDS)
        assert not self._failures


def brokerctl(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BROKERCTL, "--json", *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> Any:
    stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stderr) == (0, "")
    return json.loads(stdout)


def read_all(client: MamamiaClient, group: str) -> dict[int, str]:
    """Lease every message that a group may lease."""
    found: dict[int, str] = {}
    while messages := client.acquire_batch("orders", group, "reader", 500, 600.0):
        found.update((one.id, one.payload) for one in messages)
    return found


def check(data_dir: Path, before: tuple[dict[int, str], set[int]], sent: int) -> dict[int, str]:
    """Check that a broker with a restored directory has what was acknowledged before a backup.

    :param sent: the last value that was sent before the backup ended.
    """
    records, settled = before
    with broker_at(data_dir) as broker, broker.connect() as client:
        found = read_all(client, "a new group")
        assert sorted(found) == list(range(len(found)))
        assert {offset: found.get(offset) for offset in records} == records
        assert max(int(value.rstrip(".")) for value in found.values()) <= sent
        assert not settled & read_all(client, "billing").keys()
        assert client.produce("orders", "more") == len(found)
    return found


@pytest.mark.slow
def test_a_backup_under_load_has_everything_acknowledged_before_it(tmp_path: Path) -> None:
    """The broker is killed during the third run, and a brokerctl during the second."""
    data_dir, to = tmp_path / "data", tmp_path / "backups"
    create = ("--data-dir", data_dir, "backup", "create", to)
    with broker_at(data_dir) as broker:
        load = Load(broker)
        try:
            load.wait_for(1_000)
            first = load.acknowledged()
            one = answer(brokerctl(*create))
            first_sent = load.sent
            load.wait_for(2 * len(first[0]) + 1_000)
            killed = brokerctl(*create)
            while not list((to / "wal").glob("unfinished-*")) and killed.poll() is None:
                time.sleep(0.001)
            killed.kill()
            killed.communicate()
            load.wait_for(len(load.acknowledged()[0]) + 500)
            second = load.acknowledged()
            run = brokerctl(*create)
            while not list((to / "wal").glob("unfinished-*")) and run.poll() is None:
                time.sleep(0.001)
            broker.end(signal.SIGKILL)
        finally:
            load.end()
    last = answer(run)
    assert last["number"] in (2, 3)
    assert answer(brokerctl("backup", "verify", to))["problems"] == []
    restored = answer(brokerctl("restore", to, tmp_path / "first", "--backup", one["number"]))
    assert (restored["lsn"], restored["damage"]) == (one["lsn"], [])
    found = check(tmp_path / "first", first, first_sent)
    assert answer(brokerctl("restore", to, tmp_path / "last"))["lsn"] == last["lsn"]
    more = check(tmp_path / "last", second, load.sent)
    assert {offset: more[offset] for offset in found} == found
    middle = (one["lsn"] + last["lsn"]) // 2
    point = answer(brokerctl("restore", to, tmp_path / "middle", "--to-lsn", middle))
    assert one["lsn"] < point["lsn"] <= middle
    between = check(tmp_path / "middle", first, load.sent)
    assert len(found) < len(between) < len(more)
