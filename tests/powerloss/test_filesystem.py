"""The recording file system behaves as the directory below it, and records all of it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from benchmarks.powerloss import kernel
from benchmarks.powerloss.filesystem import RecordedDirectory
from benchmarks.powerloss.recording import Kind, Position, read_recording
from benchmarks.powerloss.replay import Model, replay_to

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kernel.missing()), reason=kernel.missing() or "all is there"),
]


def test_operations_are_carried_out_and_recorded(tmp_path: Path) -> None:
    """Written, renamed, linked, cut and removed; synced files and directories apart."""
    with RecordedDirectory(tmp_path / "disk") as disk:
        position = Position(disk.recording)
        root = disk.path
        (root / "d").mkdir()
        (root / "d" / "a").write_bytes(b"x" * 5000)
        os.rename(root / "d" / "a", root / "b")
        os.link(root / "b", root / "c")
        os.unlink(root / "b")
        with open(root / "c", "r+b") as file:
            file.truncate(1000)
            os.fsync(file.fileno())
        assert (root / "c").read_bytes() == b"x" * 1000
        os.mkfifo(root / "pipe")
        (root / "d").rmdir()
        before = position()
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        assert position() == before + 1
        assert sorted(os.listdir(root)) == ["c", "pipe"]
        (root / "late").write_bytes(b"never synced")
    assert not os.path.ismount(root)
    steps = list(read_recording(disk.recording))
    assert [step.kind for step in steps[:9]] == [
        *(Kind.MKDIR, Kind.CREATE, Kind.WRITE, Kind.RENAME, Kind.LINK, Kind.UNLINK),
        *(Kind.RESIZE, Kind.SYNC, Kind.UNLINK),
    ]
    replay = replay_to(steps, len(steps))
    replay.write(replay.lose_power(Model.SYNCED, Random(0)), tmp_path / "synced")
    assert os.listdir(tmp_path / "synced") == ["c"]
    assert (tmp_path / "synced" / "c").read_bytes() == b"x" * 1000


def test_a_sync_is_recorded_when_it_ends(tmp_path: Path) -> None:
    """A power loss can fall between a write and the end of its sync."""
    with RecordedDirectory(tmp_path / "disk") as disk, open(disk.path / "a", "wb", 0) as file:
        file.write(b"x")
        os.fdatasync(file.fileno())
    kinds = [step.kind for step in read_recording(disk.recording)]
    assert kinds == [Kind.CREATE, Kind.WRITE, Kind.SYNC]


def test_an_open_file_without_a_name_can_be_used(tmp_path: Path) -> None:
    """It can be read and written until it is closed."""
    with RecordedDirectory(tmp_path / "disk") as disk:
        descriptor = os.open(disk.path / "a", os.O_RDWR | os.O_CREAT)
        os.unlink(disk.path / "a")
        os.pwrite(descriptor, b"still there", 0)
        assert os.pread(descriptor, 100, 0) == b"still there"
        os.close(descriptor)
        assert os.listdir(disk.path) == []
