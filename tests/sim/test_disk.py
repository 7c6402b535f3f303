"""What the disk in memory can do and a real one cannot: lose, fill up, and fail on demand."""

from __future__ import annotations

import errno

import pytest

from brokerd.sim.disk import SimDisk


class TestSimDisk:
    def test_a_crash_loses_what_was_not_synced(self) -> None:
        disk = SimDisk()
        file = disk.create("d/x")
        file.pwrite(b"synced", 0)
        file.sync()
        disk.sync_directory("d")
        file.pwrite(b"lost", 0)
        disk.create("d/new")
        disk.crash()
        assert disk.list("d") == ["x"]
        assert disk.open("d/x").pread(99, 0) == b"synced"

    def test_a_crash_may_keep_some_blocks(self) -> None:
        disk = SimDisk()
        file = disk.create("d/x")
        disk.sync_directory("d")
        file.pwrite(b"a" * 512 + b"b" * 512, 0)
        disk.crash(lambda path, position, block: position == 512)
        assert disk.open("d/x").pread(2000, 0) == bytes(512) + b"b" * 512

    def test_capacity_and_failures(self) -> None:
        disk = SimDisk(capacity=100)
        file = disk.create("d/x")
        file.pwrite(bytes(100), 0)
        with pytest.raises(OSError) as full:
            file.pwrite(b"1", 100)
        assert full.value.errno == errno.ENOSPC
        file.truncate(10)
        file.pwrite(bytes(90), 10)
        disk.fail("sync", 2)
        file.sync()
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        disk.unlink("d/x")
        assert disk.free_bytes("d") == 100
