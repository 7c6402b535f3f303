# Tests: tests/test_bench.py
"""The machine of a benchmark: cores, file system, sync rate of the disk, and which brokerd runs."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from brokerd.cli.bench.formats.base import BenchFailed
from brokerd.cli.output import core_text
from brokerd.server.compiled import is_compiled
from brokerd.wal.disk import RealDisk

_SYNC_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Machine:
    """The machine on which a benchmark ran."""

    cpu: str
    cores: int
    """Cores this process may use."""
    python: str
    system: str
    file_system: str
    """Type of the file system of the directory."""
    compiled: bool
    """Whether the brokerd of this process is compiled (docs/architecture.rst, Compiled modules)."""

    def text(self) -> str:
        """Return all of it in one line."""
        return (
            f"{self.cpu}, {self.cores} cores, {self.system}, Python {self.python}, "
            f"{self.file_system}, brokerd: {core_text(self.compiled)}"
        )


def describe(directory: Path) -> Machine:
    """Describe this machine and the file system under ``directory``."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        file_system=RealDisk().file_system(str(directory)) or "unknown",
        compiled=is_compiled(),
    )


def check_directory(directory: Path) -> None:
    """Check that `sync_rate` can make its file there, before a long measurement.

    :raises BenchFailed: it cannot.
    """
    try:
        tempfile.TemporaryFile(dir=directory, prefix="sync-rate-").close()
    except OSError as error:
        raise BenchFailed(
            f"{directory}: no file can be made there to measure the disk's sync rate "
            f"({error.strerror}); name another directory with --disk"
        ) from error


def sync_rate(directory: Path, block_bytes: int, seconds: float) -> float:
    """Measure how often per second one writer can write a block and ``fdatasync`` it.

    At least one block is written, however long that takes. The blocks go one after the other into
    a file filled with zeros, as in the broker's journal. So no sync allocates space.

    :param directory: place of a temporary file.
    :param block_bytes: size of one write.
    :return: syncs per second.
    :raises OSError: when the directory is not writable.
    """
    block = os.urandom(block_bytes)
    size = max(_SYNC_FILE_BYTES, block_bytes)
    with tempfile.TemporaryFile(dir=directory, prefix="sync-rate-") as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(size), 0)
        os.fsync(descriptor)
        done = at = 0
        begin = time.monotonic()
        while not done or (spent := time.monotonic() - begin) < seconds:
            os.pwrite(descriptor, block, at)
            os.fdatasync(descriptor)
            done += 1
            at = at + block_bytes if at + 2 * block_bytes <= size else 0
    return done / spent


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # other systems than Linux
    return platform.processor() or platform.machine()
