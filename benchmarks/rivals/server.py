# Tests: tests/test_compare.py
"""Run the server of a rival on loopback, in a data directory of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.process import BrokerFailed, die_with_parent
from benchmarks.rivals.base import Rival

_POLL_SECONDS = 0.02
_STOP_SECONDS = 30.0
_PORTS_TRIED = 20
_PORTS = 3
"""Successive ports that one server may use."""


class RivalServer:
    """A server that runs inside the ``with`` block. Only its own processes are signalled."""

    def __init__(self, rival: Rival, directory: Path) -> None:
        self._rival = rival
        self._directory = directory
        self._stack = ExitStack()
        self.address = ""

    def __enter__(self) -> RivalServer:
        with ExitStack() as stack:
            port = free_ports(_PORTS)
            if self._rival.helper is not None:
                stack.callback(_end, self._launch(self._rival.helper(port)))
            program = self._rival.find()
            assert program is not None, "the caller has asked"
            environment = self._rival.environment(self._directory, port)
            self._process = self._launch(
                self._rival.command(program, self._directory, port), environment
            )
            stack.callback(_end, self._process)
            self.address = f"127.0.0.1:{port}"
            self._await(port)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cpu_seconds(self) -> float:
        """Return the processor time of the server and its children."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # its session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _launch(
        self, command: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self._directory / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self._directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _await(self, port: int) -> None:
        """Wait until the server accepts connections. Raises `BrokerFailed`."""
        deadline = time.monotonic() + self._rival.start_seconds
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                output = (self._directory / "output").read_text(errors="replace")[-2000:]
                why = "ended" if ended else "does not listen"
                raise BrokerFailed(f"{self._rival.name} {why}:\n{output}")
            time.sleep(_POLL_SECONDS)


def free_ports(count: int) -> int:
    """Return the first of ``count`` successive free ports of loopback."""
    for _ in range(_PORTS_TRIED):
        with ExitStack() as stack, suppress(OSError):
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            for number in range(port + 1, port + count):
                stack.enter_context(socket.create_server(("127.0.0.1", number)))
            return port
    raise BrokerFailed(f"no {count} successive ports are free")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, which are in its own group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
