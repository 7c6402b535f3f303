# Tests: tests/test_torture.py
"""Run a broker in a process of its own, as a user starts it: ``twistd -n --pidfile= brokerd ...``.

Contract: :meth:`BrokerProcess.start` returns once ``listeners.json`` says that everything listens.
:meth:`kill` is SIGKILL, :meth:`stop` is SIGTERM. The first start takes free ports. Later starts
    take the same ports again, so that clients find their broker after a crash. The process ends
    with the block that opened it; the kernel ends it if the parent is killed. The object signals
    only its own process, by its id.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import brokerd
from brokerd.server.sections import DEFAULT_LISTENERS

_POLL_SECONDS = 0.005
_PR_SET_PDEATHSIG = 1
_LOG_TAIL_LINES = 15


class BrokerFailed(Exception):
    """The broker did not start or did not stop; the message has the end of its log."""


class BrokerProcess:
    """One broker on one data directory, started as often as needed.

    :param data_dir: its data directory.
    :param log: the file that its output is appended to.
    :param settings: ``section.key=value`` for ``--set``.
    :param profile: if given, run under cProfile and write the statistics there at a clean stop.
    :param formats: wire formats that listen, each on a port of its own; ``a+b`` share one. By
        default all of them, as in a broker's configuration.
    """

    def __init__(
        self,
        data_dir: Path,
        log: Path,
        settings: Sequence[str] = (),
        profile: Path | None = None,
        formats: Sequence[str] = tuple(DEFAULT_LISTENERS),
    ) -> None:
        self.data_dir = data_dir
        self._log = log
        self._settings = list(settings)
        self._profile = profile
        self._formats = tuple(formats)
        self._process: subprocess.Popen[bytes] | None = None
        self._listeners: dict[str, str] = {}

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self._process is None:
            raise BrokerFailed("the broker has not been started")
        return self._process.pid

    @property
    def address(self) -> str:
        """Mamamia's address, ``host:port``."""
        return self._listeners["mamamia"]

    def address_of(self, wire_format: str) -> str:
        """Return the address of a wire format, ``host:port``."""
        return self._listeners[wire_format]

    @property
    def admin(self) -> str:
        """Address of the admin HTTP, ``host:port``."""
        return self._listeners["admin"]

    def start(self, seconds_max: float = 120.0) -> float:
        """Start the broker and wait until it serves.

        :return: seconds from the start of the process to its readiness.
        :raises BrokerFailed: it exits or is not ready in time.
        """
        begin = time.monotonic()
        self.launch()
        self.wait_ready(seconds_max)
        return time.monotonic() - begin

    def launch(self) -> None:
        """Start the process and return at once."""
        # A killed broker leaves its file behind; it must not be mistaken for the new broker's file.
        self._listeners_path.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
                preexec_fn=die_with_parent,
            )

    def wait_ready(self, seconds_max: float = 120.0) -> None:
        """Wait until a launched broker serves.

        :raises BrokerFailed: it exits or is not ready in time.
        """
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                self._listeners = json.loads(self._listeners_path.read_text())
                return
            except FileNotFoundError:
                pass  # The broker has not renamed its file into place yet.
            if self._process is None or self._process.poll() is not None:
                raise BrokerFailed(f"the broker exited with {self.exit_code()}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"not ready after {seconds_max:.0f} s:\n{self.log_tail()}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL the broker and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds_max: float = 120.0) -> int:
        """SIGTERM the broker and return its exit code.

        :raises BrokerFailed: it does not stop in time.
        """
        if self._process is None:
            raise BrokerFailed("the broker has not been started")
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise BrokerFailed(
                f"not stopped after {seconds_max:.0f} s:\n{self.log_tail()}"
            ) from None

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        twistd = [str(Path(sys.executable).with_name("twistd")), "-n", "--pidfile="]
        if self._profile is not None:
            twistd += ["--profiler=cprofile", "--savestats", f"--profile={self._profile}"]
        options = [f"--data-dir={self.data_dir}"]
        for wire_format in self._formats:
            wire = _endpoint(self._listeners.get(wire_format.partition("+")[0]))
            options.append(f"--listen={wire_format}={wire}")
        options.append(f"--admin={_endpoint(self._listeners.get('admin'))}")
        return [*twistd, "brokerd", *options, *(f"--set={setting}" for setting in self._settings)]

    def memory_bytes(self, field: str = "VmRSS") -> int:
        """Return memory of the running process in bytes: ``VmRSS`` now, ``VmHWM`` at its peak."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise BrokerFailed(f"/proc/{self.pid}/status has no {field}")

    def cpu_seconds(self) -> float:
        """Return the processor time of the running process: all threads, user and system."""
        # The name of the program may hold spaces; only this field is in brackets.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def reactor_seconds(self) -> float:
        """Return the processor time of the main thread, in which the reactor runs."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        return int(path.read_text().split()[0]) / 1e9

    def log_tail(self) -> str:
        """Return the last lines of the broker's output."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    @property
    def _listeners_path(self) -> Path:
        return self.data_dir / "run" / "listeners.json"

    def exit_code(self) -> int | None:
        """Return the exit code of the last process, or None while it runs."""
        return None if self._process is None else self._process.returncode


def interrupt_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, so that it cleans up.

    Signals that the caller ignores (``nohup``) stay ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _environment() -> dict[str, str]:
    """Return the environment of a broker: it imports the brokerd of this process.

    By itself twistd imports the installed one. That may be compiled, while ``python -m`` took the
    working copy.
    """
    environment = dict(os.environ)
    root = str(Path(brokerd.__file__).parents[1])
    if root not in site.getsitepackages():
        paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _endpoint(address: str | None) -> str:
    """Return the endpoint for an address of an earlier start, or for any free port."""
    port = "0" if address is None else address.rpartition(":")[2]
    return f"tcp:{port}:interface=127.0.0.1"


try:
    _LIBC: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
except OSError:
    _LIBC = None


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies."""
    if _LIBC is not None and hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
