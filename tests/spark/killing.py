"""A stream of Spark whose runs are processes, to be killed with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.process import BrokerProcess
from tests.archive.test_with_broker import ROOT

KILLS = 20
"""Kills of a soak test."""
SECONDS = 300.0
"""The longest that one run of Spark may take, or one step of it."""


class KilledStream:
    """A stream between files and a broker. It goes on from its checkpoint in each run.

    A subclass names the ``module`` of a run, and its ``arguments``.
    """

    module: str

    def __init__(self, path: Path, broker: BrokerProcess, work: Path) -> None:
        self.path = path
        self.work = work
        self.broker = broker
        self.checkpoint = path / "checkpoint"
        self.runs = 0

    def arguments(self) -> list[object]:
        """Return the arguments of the next run, without the last: a directory of its own."""
        raise NotImplementedError

    def start(self) -> subprocess.Popen[bytes]:
        self.runs += 1
        arguments = [*self.arguments(), self.work / str(self.runs)]
        with (self.path / "spark.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, *map(str, arguments)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, process: subprocess.Popen[bytes]) -> bool:
        """Kill Spark, Java and all; return False if it had ended before."""
        has_ended = process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.returncode in (0, -signal.SIGKILL), self.log()
        return not has_ended

    def finish(self) -> None:
        """Run until the stream has read everything."""
        process = self.start()
        try:
            process.wait(SECONDS)
        finally:
            self.kill(process)
        assert process.returncode == 0, self.log()

    def log(self) -> str:
        """Return the end of what Spark printed."""
        return (self.path / "spark.log").read_text()[-5_000:]

    def micro_batches(self, kind: str) -> int:
        """Return the number of micro-batches in a log of Spark: ``offsets`` or ``commits``."""
        directory = self.checkpoint / kind
        names = os.listdir(directory) if directory.exists() else []
        return 1 + max((int(name) for name in names if name.isdigit()), default=-1)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds or the process has ended."""
    end = time.monotonic() + SECONDS
    while not condition() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
