"""Both disks keep the same promises. What only SimDisk can do is in
tests/simulator/test_disk.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.wal import Disk, RealDisk
from brokerd.wal.disk import file_system_of, write_atomically, write_zeros
from simulator.machine.disk import SimDisk


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return RealDisk(), str(tmp_path / "a" / "b")
    return SimDisk(), "a/b"


class TestBothDisks:
    def test_files(self, place: tuple[Disk, str]) -> None:
        disk, directory = place
        assert disk.list(directory) == []
        disk.make_directory(directory)
        disk.make_directory(directory)
        file = disk.create(f"{directory}/x")
        file.pwrite(b"hello", 3)
        file.sync()
        assert file.size() == 8
        assert file.pread(99, 0) == b"\0\0\0hello"
        file.truncate(4)
        assert disk.open(f"{directory}/x").pread(9, 2) == b"\0h"
        file.close()
        disk.rename(f"{directory}/x", f"{directory}/y")
        disk.sync_directory(directory)
        assert disk.list(directory) == ["y"]
        disk.unlink(f"{directory}/y")
        assert disk.list(directory) == []
        assert disk.free_bytes(directory) > 0

    def test_a_name_is_created_once(self, place: tuple[Disk, str]) -> None:
        disk, directory = place
        disk.make_directory(directory)
        disk.create(f"{directory}/x")
        with pytest.raises(FileExistsError):
            disk.create(f"{directory}/x")
        with pytest.raises(FileNotFoundError):
            disk.open(f"{directory}/z")

    def test_a_file_opened_for_reading_is_not_written(self, place: tuple[Disk, str]) -> None:
        disk, directory = place
        disk.make_directory(directory)
        disk.create(f"{directory}/x")
        with pytest.raises(OSError):
            disk.open(f"{directory}/x").pwrite(b"a", 0)

    def test_zeros(self, place: tuple[Disk, str]) -> None:
        disk, directory = place
        disk.make_directory(directory)
        file = disk.create(f"{directory}/x")
        write_zeros(file, 2_500_000, lambda: False)
        assert file.size() == 2_500_000
        assert not any(file.pread(2_500_000, 0))

    def test_a_file_is_replaced_whole(self, place: tuple[Disk, str]) -> None:
        disk, directory = place
        disk.make_directory(directory)
        disk.create(f"{directory}/x.tmp").pwrite(b"left over", 0)
        write_atomically(disk, directory, "x", [b"a", b"bc"])
        write_atomically(disk, directory, "x", [b"d"])
        assert disk.open(f"{directory}/x").pread(9, 0) == b"d"
        assert disk.list(directory) == ["x"]


def test_the_file_system_is_that_of_the_deepest_mount() -> None:
    mounts = [
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw",
        "23 22 0:5 / /mnt/my\\040disk rw - nfs4 host:/x rw",
        "24 22 0:6 / /mnt rw - tmpfs tmpfs rw",
        "25 24 0:7 / /mnt/my\\040disk/in rw - xfs /dev/sdb rw",
    ]
    assert file_system_of("/home", mounts) == "ext4"
    assert file_system_of("/mnt/x", mounts) == "tmpfs"
    assert file_system_of("/mnt/my disk/y", mounts) == "nfs4"
    assert file_system_of("/mnt/my disk/in", mounts) == "xfs"
    assert file_system_of("/mntx", mounts) == "ext4"
    assert RealDisk().file_system("/proc") == "proc"
