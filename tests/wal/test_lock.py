"""The directory lock: one broker at a time, told by process id; no network file systems."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.errors import DirectoryLocked, UnsafeFileSystem
from brokerd.wal import DirectoryLock

HOLDER = """
import sys
from brokerd.wal.lock import DirectoryLock
lock = DirectoryLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_broker_is_told_who_has_the_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid};"):
            DirectoryLock(str(tmp_path)).acquire()
        holder.kill()
        holder.wait()
        DirectoryLock(str(tmp_path)).acquire()


def test_the_lock_can_be_given_back_and_taken_again(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    lock.acquire("ext4")
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()
    lock.release()
    DirectoryLock(str(tmp_path)).acquire()


def test_a_network_file_system_is_refused_unless_allowed(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(UnsafeFileSystem, match=r"nfs4.*allow_network_fs"):
        lock.acquire("nfs4")
    assert not (tmp_path / "lock").exists()
    lock.acquire("nfs4", allow_network=True)


def test_a_full_disk_does_not_keep_a_broker_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process id is for operators, and the next broker finds none."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = DirectoryLock(str(tmp_path))
    first.acquire()
    first.release()
    monkeypatch.setattr(os, "pwrite", full)
    first.acquire()
    assert (tmp_path / "lock").read_bytes() == b""
