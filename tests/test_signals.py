"""SIGHUP and SIGUSR1 in real processes, with each destination of the log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.test_process_exit import OPTIONS, SECONDS, Twistd, twistd

__all__ = ["twistd"]

pytestmark = pytest.mark.slow

PASS_ON = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "brokerd.socket"}
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, **given})
"""
"""Starts a program as systemd does with a socket unit."""


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def stop(process: subprocess.Popen[str]) -> None:
    """Stop cleanly: the process has survived its signals."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (0, "")


def options_in_use(twistd: Twistd) -> dict[str, Any]:
    """Return the options as the admin API reports them, by name."""
    listeners = twistd.directory / "brokerd-data" / "run" / "listeners.json"
    admin = json.loads(listeners.read_text())["admin"]
    with urlopen(f"http://{admin}/api/v1/configuration", timeout=SECONDS) as answer:
        return {one["name"]: one for one in json.load(answer)["options"]}


def test_both_are_harmless_with_a_log_on_stdout(twistd: Twistd) -> None:
    """SIGHUP reloads, and names what needs a restart."""
    file = twistd.directory / "brokerd.toml"
    file.write_text("")
    process = twistd.start("-n", *OPTIONS, "--config", "brokerd.toml")
    twistd.wait_for_log(process, "ready")
    process.send_signal(signal.SIGUSR1)
    file.write_text('[log]\nlevel = "debug"\n[wal]\ndurability = "os"\n')
    process.send_signal(signal.SIGHUP)
    twistd.wait_for_log(process, "reloaded")
    twistd.wait_for_log(process, "restart-needed")
    options = options_in_use(twistd)
    assert (options["log.level"]["value"], options["log.level"]["origin"]) == ("debug", "file")
    assert options["wal.durability"]["value"] == "fsync"
    assert options["wal.durability"]["restart_needed"]
    file.write_text("[log\n")
    process.send_signal(signal.SIGHUP)
    twistd.wait_for_log(process, "reload-failed")
    stop(process)


def test_a_log_file_is_rotated_and_opened_again(twistd: Twistd) -> None:
    """As logrotate does it, and by the broker itself."""
    log = twistd.directory / "brokerd.log"
    process = twistd.start("-n", "--logfile=brokerd.log", *OPTIONS)
    until(lambda: log.exists() and "[ready]" in log.read_text())
    moved = log.rename(twistd.directory / "brokerd.log-20261127")
    process.send_signal(signal.SIGHUP)
    until(lambda: log.exists() and "[reloaded]" in log.read_text())
    assert "[ready]" in moved.read_text()
    process.send_signal(signal.SIGUSR1)
    until((twistd.directory / "brokerd.log.1").exists)
    stop(process)
    assert "[stopped]" in log.read_text()


def test_both_are_harmless_with_syslog(twistd: Twistd) -> None:
    process = twistd.start("-n", "--syslog", *OPTIONS)
    listeners = twistd.directory / "brokerd-data" / "run" / "listeners.json"
    until(listeners.exists)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    assert process.poll() is None
    stop(process)


def test_a_socket_of_systemd_is_served_without_allow_insecure(twistd: Twistd) -> None:
    """systemd passes it as descriptor 3; a loopback address needs no TLS."""
    program = Path(__file__).parent / "fakecore.py"
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        port = opened.getsockname()[1]
        command = [sys.executable, str(program), "-n", "--pidfile=", "brokerd", "--admin=none"]
        command += ["--listen=mamamia=systemd:domain=INET:index=0"]
        process = subprocess.Popen(
            [sys.executable, "-c", PASS_ON, str(opened.fileno()), *command],
            cwd=twistd.directory,
            env={**os.environ, "FAKE_CORE": "", "PYTHONPATH": str(program.parent.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[opened.fileno()],
            text=True,
        )
        twistd.started.append(process)
        twistd.wait_for_log(process, "ready")
        with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
            client.sendall(b"echo")
            assert client.recv(4) == b"echo"
    stop(process)
