"""How real processes end: one line on stderr, an exit code, a daemon that is waited for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.server.process_exit import FAIL_SECONDS, STOP_SECONDS, ProcessExit

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ["--pidfile=", "brokerd", "--admin", "tcp:0", "--listen", "mamamia=tcp:0"]
SECONDS = 120


class Twistd:
    """Starts ``twistd`` with a stand-in core in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, trouble: str = "", program: Path = ROOT / "tests" / "fakecore.py"
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            cwd=self.directory,
            env={**os.environ, "FAKE_CORE": trouble, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, trouble: str = "") -> tuple[int, list[str]]:
        """Run to the end; return the exit code and the lines of stderr."""
        process = self.start(*arguments, trouble=trouble)
        _, said = process.communicate(timeout=SECONDS)
        return process.returncode, said.splitlines()

    def wait_for_log(self, process: subprocess.Popen[str], event_id: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if f"[{event_id}]" in line:
                return
        pytest.fail(f"{event_id} did not come")


@pytest.fixture
def twistd(tmp_path: Path) -> Iterator[Twistd]:
    runner = Twistd(tmp_path)
    yield runner
    for process in runner.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate(timeout=SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_stop(twistd: Twistd, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end the broker with exit code 0, not by the signal."""
    process = twistd.start("-n", *OPTIONS)
    twistd.wait_for_log(process, "ready")
    listeners = twistd.directory / "brokerd-data" / "run" / "listeners.json"
    assert set(json.loads(listeners.read_text())) == {"mamamia", "admin"}
    process.send_signal(number)
    out, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (0, "")
    assert "[stopped] stopped" in out
    assert not listeners.exists()


def test_a_replay_without_end_can_be_stopped(twistd: Twistd) -> None:
    """SIGTERM in the middle of the replay is a clean stop too."""
    process = twistd.start("-n", *OPTIONS, trouble="open:never")
    twistd.wait_for_log(process, "listening")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (0, "")


FAILURES = [
    ("lock:DirectoryLocked", 75, "brokerd: DirectoryLocked as asked for"),
    ("open:StorageFailed", 74, "brokerd: StorageFailed as asked for"),
    ("open:NewerFormat", 1, "brokerd: NewerFormat as asked for"),
    ("open:Bug", 1, "brokerd: unexpected RuntimeError; see the log"),
]


@pytest.mark.parametrize(("trouble", "code", "line"), FAILURES)
@pytest.mark.parametrize("mode", ["foreground", "daemon"])
def test_a_failed_start_is_one_line_and_a_code(
    twistd: Twistd, mode: str, trouble: str, code: int, line: str
) -> None:
    """The command that was typed prints one line and exits with the code, daemon or not."""
    flags = ["-n"] if mode == "foreground" else []
    assert twistd.run(*flags, *OPTIONS, trouble=trouble) == (code, [line])


def test_a_failure_that_nobody_listens_to_ends_the_process_all_the_same(twistd: Twistd) -> None:
    """A supervisor that died, or ``| head``, must not keep a broken broker from exiting."""
    read_tail, write_end = os.pipe()
    os.close(read_tail)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "fakecore.py"), "-n", *OPTIONS],
        cwd=twistd.directory,
        env={**os.environ, "FAKE_CORE": "open:StorageFailed", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=write_end,
        stderr=write_end,
        text=True,
    )
    os.close(write_end)
    twistd.started.append(process)
    assert process.wait(SECONDS) == 74


def test_a_failed_write_while_serving_is_74(twistd: Twistd) -> None:
    """The broker leaves by itself when the disk fails."""
    code, said = twistd.run("-n", *OPTIONS, trouble="serve:StorageFailed")
    assert (code, said) == (74, ["brokerd: StorageFailed as asked for"])


HANGING_DISK = """
import os, threading
from brokerd.server import assembly
from twisted.scripts.twistd import run

assembly.CLOSE_SECONDS = assembly.JOIN_SECONDS = 0.2
os.fdatasync = lambda descriptor: os.path.exists("hang") and threading.Event().wait()
run()
"""


def test_a_disk_that_hangs_does_not_keep_a_stop_from_ending_with_74(twistd: Twistd) -> None:
    program = twistd.directory / "hanging.py"
    program.write_text(HANGING_DISK)
    process = twistd.start("-n", *OPTIONS, program=program)
    twistd.wait_for_log(process, "ready")
    (twistd.directory / "hang").touch()
    process.terminate()
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 74
    said_first = r"brokerd: closing failed: thread (wal-\S+, )*snapshots-0 did not end; does the "
    assert re.match(said_first, said)
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nope"], "brokerd: option --nope not recognized; see twistd brokerd --help"),
        (["extra"], "brokerd: unexpected argument 'extra'; see twistd brokerd --help"),
        (["--set", "wal=1"], "brokerd: unknown key 'wal' (--set wal)"),
        (["--config", "gone"], "brokerd: cannot read gone: No such file or directory"),
    ],
)
def test_a_usage_mistake_is_one_line_and_1(twistd: Twistd, arguments: list[str], said: str) -> None:
    """No help text, no traceback, nothing made on disk."""
    assert twistd.run("-n", "--pidfile=", "brokerd", *arguments) == (1, [said])
    assert list(twistd.directory.iterdir()) == []


def test_less_durability_is_announced_on_stderr(twistd: Twistd) -> None:
    """An operator cannot overlook that acknowledged work may be lost."""
    process = twistd.start("-n", *OPTIONS, "--set", "wal.durability=interval:50")
    twistd.wait_for_log(process, "ready")
    process.terminate()
    _, said = process.communicate(timeout=SECONDS)
    assert said.startswith('brokerd: WARNING: wal.durability is "interval:50": ')


def test_a_file_of_keys_that_others_may_read_is_said_loudly(twistd: Twistd) -> None:
    keys = twistd.directory / "keys"
    keys.write_text("hunter2\n")
    keys.chmod(0o644)
    process = twistd.start("-n", *OPTIONS, "--set", f"blipmq.api_keys_file={keys}")
    twistd.wait_for_log(process, "ready")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS)
    assert said.startswith(f"brokerd: WARNING: blipmq.api_keys_file: {keys} has the mode 644")


def test_the_daemon_is_ready_when_the_command_returns(twistd: Twistd) -> None:
    """After ``twistd brokerd`` the addresses can be read at once, and the log is in its file."""
    (twistd.directory / "logs").mkdir()
    log = twistd.directory / "logs" / "brokerd.log"
    pid_file = twistd.directory / "pid"
    arguments = [f"--pidfile={pid_file}", "--logfile", str(log), *OPTIONS[1:]]
    assert twistd.run(*arguments) == (0, [])
    pid = int(pid_file.read_text())
    listeners = twistd.directory / "brokerd-data" / "run" / "listeners.json"
    assert listeners.exists()
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS
    while pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "[stopped] stopped" in log.read_text()
    assert not listeners.exists()


class TestWithoutMemory:
    """Signal handlers, called without a signal."""

    @pytest.fixture
    def timers(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
        """Seconds of the timers that are set."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
        before = {number: signal.getsignal(number) for number in numbers}
        found: list[float] = []
        monkeypatch.setattr(signal, "setitimer", lambda which, seconds: found.append(seconds))
        yield found
        for number, handler in before.items():
            signal.signal(number, handler)

    def test_a_handler_tries_again(self, timers: list[float]) -> None:
        """Then the stop is bounded."""
        calls: list[Any] = [run_out, lambda stop: None]
        reactor = SimpleNamespace(callFromThread=lambda stop: calls.pop(0)(stop))
        ProcessExit(lambda leave: None).stop_on_signals(reactor)
        call_handler(signal.SIGTERM)
        assert timers == [0.1] and len(calls) == 1
        call_handler(signal.SIGALRM)
        assert timers == [0.1, STOP_SECONDS] and calls == []

    def test_a_stop_without_end_ends_with_74(
        self, timers: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        codes: list[int] = []
        monkeypatch.setattr(os, "_exit", codes.append)
        process_exit = ProcessExit(lambda leave: None)
        process_exit.stop_on_signals(SimpleNamespace(callFromThread=lambda stop: None))
        process_exit.fail(74, "a test")
        call_handler(signal.SIGTERM)
        assert timers == [FAIL_SECONDS]
        call_handler(signal.SIGALRM)
        assert codes == [74]

    @pytest.mark.parametrize(("stops", "code"), [(True, 0), (False, 74)])
    def test_a_reactor_that_ends_before_the_broker_is_a_failure(
        self, stops: bool, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "_exit", lambda code: None)
        at_exit: list[Any] = []
        process_exit = ProcessExit(at_exit.append)
        process_exit.ready()
        if stops:
            process_exit.stopped()
        at_exit[0]()
        assert process_exit.code == code


def run_out(*_: object) -> None:
    raise MemoryError


def call_handler(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    assert callable(handler)
    handler(number, None)
