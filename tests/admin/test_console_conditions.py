"""Each condition, provoked in a real broker: health, metrics, a real browser and the log show it.

Nothing is simulated: disks are full or hang, processes are stopped, bytes are flipped. Each
condition has one event when it begins and one when it ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from benchmarks.powerloss import kernel
from benchmarks.powerloss.filesystem import RecordedDirectory
from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient
from brokerd.errors import BrokerdError
from tests.admin.browser import CHROMIUM, Console, browser_of
from tests.certificates import DAY, Authority

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
    ),
]

MIB = 1 << 20
WAIT_SECONDS = 180.0
SETTINGS = [
    "log.format=json",
    "wal.segment_bytes=1MiB",
    "wal.free_bytes=0",
    "broker.tail_cache_bytes=0",
    "broker.read_cache_bytes=0",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browser_of() as browser:
        yield browser


class Watched:
    """A broker, and a browser that looks at its overview all the time."""

    def __init__(self, broker: BrokerProcess, log: Path, browser: Any) -> None:
        self.broker = broker
        self._log = log
        self.console = Console(browser, broker.admin)
        self.console.visit("")

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Return the events of a condition in the log."""
        found = []
        for line in self._log.read_text().splitlines():
            with suppress(ValueError):
                one = json.loads(line)
                if one.get("event") == kind and one.get("condition") == name:
                    found.append(one)
        return found

    def health(self) -> tuple[int, list[str], str]:
        """Return the code of ``/health/ready``, the conditions and the reasons."""
        try:
            address = f"http://{self.broker.admin}/health/ready"
            with urlopen(address, timeout=WAIT_SECONDS) as answer:
                code, body = answer.status, json.load(answer)
        except HTTPError as error:
            code, body = error.code, json.load(error)
        return code, body.get("conditions", []), body.get("degraded", "")

    def metric(self, name: str) -> float:
        with urlopen(f"http://{self.broker.admin}/metrics", timeout=WAIT_SECONDS) as answer:
            text = answer.read().decode()
        (value,) = re.findall(rf'^brokerd_condition\{{condition="{name}"\}} (\S+)$', text, re.M)
        return float(value)

    def wait_for(self, name: str, stands: bool, again: Callable[[], None] | None = None) -> None:
        """Wait until health has the condition, or has it no more."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (name in self.health()[1]) != stands:
            assert time.monotonic() < deadline, f"{name}: {self.health()}"
            if again is not None:
                again()
            time.sleep(0.2)

    def shows(
        self, name: str, reason: str, ready: int = 200, again: Callable[[], None] | None = None
    ) -> None:
        """Wait for a condition; check that all places show it, with the reason."""
        self.wait_for(name, True, again)
        code, conditions, reasons = self.health()
        # The disk of a busy machine may stall meanwhile.
        assert code == (503 if "disk-stalled" in conditions else ready) and reason in reasons
        assert self.metric(name) == 1.0
        page = self.console.page
        page.locator("#conditions li").filter(
            has_text=re.compile(f"^{name}: .*{reason}")
        ).wait_for()
        phase = "ready, degraded" if ready == 200 else "not ready"
        page.locator("#phase").get_by_text(phase, exact=True).wait_for()
        (event,) = self.events("condition-began", name)
        assert reason in event["message"]
        assert event["level"] == ("warn" if ready == 200 else "error")
        assert self.events("condition-ended", name) == []

    def is_over(self, name: str, again: Callable[[], None] | None = None) -> None:
        """Wait for the end of a condition; check that all places show it."""
        self.wait_for(name, False, again)
        assert self.metric(name) == 0.0
        page = self.console.page
        page.locator("#conditions li").filter(has_text=f"{name}: ").wait_for(state="detached")
        if not self.health()[1]:
            page.locator("#phase").get_by_text("ready", exact=True).wait_for()
            assert page.locator("#damage").is_hidden()
        assert len(self.events("condition-began", name)) == 1
        assert len(self.events("condition-ended", name)) == 1


@contextmanager
def watched(
    browser: Any, directory: Path, data_dir: Path, settings: Sequence[str] = ()
) -> Iterator[Watched]:
    """Run a broker and look at it."""
    log = directory / "log"
    with BrokerProcess(data_dir, log, [*SETTINGS, *settings], formats=("mamamia",)) as broker:
        broker.start()
        seen = Watched(broker, log, browser)
        yield seen
        assert not seen.console.faults
        seen.console.context.close()


class EarlierBroker(BrokerProcess):
    """A broker on a machine whose wall clock is some hours behind."""

    def command(self) -> list[str]:
        program, *options = super().command()
        late = "import sys, time; now = time.time; time.time = lambda: now() - 9_000; "
        late += "sys.argv[0] = 'twistd'; from twisted.scripts.twistd import run; run()"
        return [str(Path(program).with_name("python")), "-c", late, *options]


def rollup(data_dir: Path, archive: Path) -> None:
    """Archive all closed journal files, as the timer does."""
    program = Path(sys.executable).with_name("brokerd-rollup")
    command = [program, "--data-dir", data_dir, "--archive", archive]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def wait_until_deleted(data_dir: Path) -> None:
    """Wait until the journal's first file is deleted."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (data_dir / "wal" / f"{0:020}.wal").exists():
        assert time.monotonic() < deadline, sorted((data_dir / "wal").iterdir())
        time.sleep(0.2)


def test_a_disk_that_fills(browser: Any, tmp_path: Path) -> None:
    """Another program takes space, then clients take the rest; each ends by itself."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(data_dir)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system of a fixed size needs the right to mount one")
    try:
        with watched(browser, tmp_path, data_dir) as seen:
            filler = data_dir / "filler"
            free = os.statvfs(data_dir)
            filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 3 * MIB))
            seen.shows("disk-nearly-full", "free some space")
            refused = []
            with MamamiaClient(seen.broker.address) as client:

                def produce() -> None:
                    try:
                        client.produce("t", "x" * 200_000)
                    except BrokerdError as error:
                        refused.append(str(error))

                seen.shows("disk-full", "the disk is full", again=produce)
                assert any("disk" in one for one in refused)
                seen.is_over("disk-nearly-full")
                filler.unlink()
                seen.is_over("disk-full")
                # The loop and the disk of a busy machine may stall meanwhile.
                assert {"disk-nearly-full", "disk-full"}.isdisjoint(seen.health()[1])
                client.produce("t", "x")
    finally:
        subprocess.run(["umount", "--lazy", str(data_dir)], check=True)


@pytest.mark.skipif(bool(kernel.missing()), reason=kernel.missing() or "all is there")
def test_a_disk_that_hangs(browser: Any, tmp_path: Path) -> None:
    """The server of the file system is stopped for a while. The broker is not ready meanwhile."""
    with (
        RecordedDirectory(tmp_path / "disk") as disk,
        watched(browser, tmp_path, disk.path / "data") as seen,
        MamamiaClient(seen.broker.address, timeout=WAIT_SECONDS) as client,
    ):
        client.produce("t", "before")
        os.kill(disk.pid, signal.SIGSTOP)
        waiting = threading.Thread(target=client.produce, args=("t", "meanwhile"))
        waiting.start()
        try:
            seen.shows("disk-stalled", "has waited for the disk", ready=503)
        finally:
            os.kill(disk.pid, signal.SIGCONT)
        seen.is_over("disk-stalled")
        waiting.join()


def test_a_loop_that_stalls(browser: Any, tmp_path: Path) -> None:
    """The process gets no processor for some seconds. It shows for a minute."""
    with watched(browser, tmp_path, tmp_path / "data") as seen:
        os.kill(seen.broker.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(seen.broker.pid, signal.SIGCONT)
        seen.shows("loop-stalled", "the event loop did nothing for")
        seen.is_over("loop-stalled")


def test_a_log_that_rots(browser: Any, tmp_path: Path) -> None:
    """A byte on the disk changes, and a client reads the record. Only a repair ends it."""
    with (
        watched(browser, tmp_path, tmp_path / "data") as seen,
        MamamiaClient(seen.broker.address) as client,
    ):
        client.produce("orders", "y" * 1000)
        (file,) = (tmp_path / "data" / "wal").glob("*.wal")
        with file.open("r+b") as segment:
            segment.seek(segment.read().index(b"y" * 1000))
            segment.write(b"z")
        with suppress(BrokerdError):
            client.acquire("orders", "workers", "w")
        seen.shows("log-damaged", "records known to be lost: 1")


@pytest.mark.soak  # three rollups, and a minute after the last failed read
def test_an_archive_that_falls_behind_and_goes_away(browser: Any, tmp_path: Path) -> None:
    """The rollup stops; the archive is foreign; its files are away while a client reads them."""
    data_dir, archive, away = (tmp_path / name for name in ("data", "archive", "away"))
    settings = [f"archive.uri={archive}", "archive.behind_seconds=6", "archive.poll_seconds=1"]
    settings += ["archive.keep_wal_bytes=0", "retention.check_seconds=1"]
    settings += ["wal.snapshot_interval_bytes=1MiB"]
    other_dir, other_log = tmp_path / "other", tmp_path / "other-log"
    with BrokerProcess(other_dir, other_log, SETTINGS, formats=("mamamia",)) as other:
        other.start()
        with MamamiaClient(other.address) as client:
            client.produce("t", "of another log")
        other.stop()
    rollup(other_dir, archive)
    with (
        watched(browser, tmp_path, data_dir, settings) as seen,
        MamamiaClient(seen.broker.address) as client,
    ):
        seen.shows("archive-unusable", "set archive.uri to the archive of this log")
        shutil.rmtree(archive)
        seen.is_over("archive-unusable")
        client.produce("orders", "first")
        seen.console.post("wal/seal", {})
        rollup(data_dir, archive)
        seen.console.post("archive/refresh", {})

        def produce() -> None:
            client.produce("orders", "x" * 300_000)
            time.sleep(0.3)

        seen.shows("archive-behind", "does brokerd-rollup run", again=produce)
        seen.console.post("wal/seal", {})
        rollup(data_dir, archive)
        seen.is_over("archive-behind")
        for _ in range(6):  # the log goes on, and archived files are deleted
            client.produce("orders", "x" * 600_000)
            time.sleep(0.5)
        wait_until_deleted(data_dir)
        archive.rename(away)

        def acquire() -> None:
            with suppress(BrokerdError):
                client.acquire("orders", "workers", "w")

        seen.shows("archive-unreadable", "the archive", again=acquire)
        away.rename(archive)
        seen.is_over("archive-unreadable", again=acquire)
        (first,) = seen.console.get("topics/orders/records?offset=0&limit=1")["records"]
        assert first["value"] == "first"


def test_a_clock_that_jumps(browser: Any, tmp_path: Path) -> None:
    """The wall clock is hours past the journal; an operator says that it is right."""
    with EarlierBroker(tmp_path / "data", tmp_path / "earlier", formats=("mamamia",)) as earlier:
        earlier.start()
        with MamamiaClient(earlier.address) as client:
            client.produce("t", "x")
        earlier.stop()
    with watched(browser, tmp_path, tmp_path / "data") as seen:
        seen.shows("clock-ahead", "clock")
        seen.console.post("clock/set", {})
        seen.is_over("clock-ahead")


def test_certificates_that_expire_and_break(browser: Any, tmp_path: Path) -> None:
    """A renewal that wrote half a file, then a whole one."""
    authority = Authority(tmp_path)
    issued = authority.issue("broker", valid=(-DAY, 5 * DAY))
    settings = [
        f"tls.certificate_file={issued.certificate}",
        f"tls.key_file={issued.key}",
        "tls.listeners=mamamia",
    ]
    with watched(browser, tmp_path, tmp_path / "data", settings) as seen:
        seen.shows("certificate-expires", "expires")
        content = issued.certificate.read_bytes()
        issued.certificate.write_bytes(content[:100])
        os.kill(seen.broker.pid, signal.SIGHUP)
        seen.shows("tls-files-unusable", "the old ones stay in use")
        renewed = authority.issue("broker", file="renewed")
        issued.certificate.write_bytes(renewed.certificate.read_bytes())
        issued.key.write_bytes(renewed.key.read_bytes())
        os.kill(seen.broker.pid, signal.SIGHUP)
        seen.is_over("tls-files-unusable")
        seen.is_over("certificate-expires")
