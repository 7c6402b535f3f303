"""The simulated disk with directories: a loss of power drops entries that were never synced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.archive.storage.disk import Disk, RealDisk
from brokerd.archive.storage.local import LocalStore
from simulator.machine.crash import CrashModel
from simulator.machine.tree_disk import TreeDisk

ROOT = Path("/sim")


@pytest.fixture
def disk() -> TreeDisk:
    return TreeDisk(str(ROOT))


@pytest.fixture(params=["simulated", "real"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStore]:
    """A store on either disk: the rules are the same."""
    found: tuple[Path, Disk] = (tmp_path, RealDisk())
    if request.param == "simulated":
        found = (ROOT, TreeDisk(str(ROOT)))
    yield LocalStore(*found)


def test_store_on_either_disk(store: LocalStore) -> None:
    store.make_directory("a/b")
    store.put("a/b/1", b"one")
    store.put("a/b/1", b"other")
    assert store.put_if_absent("a/b/2", b"two")
    assert not store.put_if_absent("a/b/2", b"three")
    output = store.create("a/c/d")
    output.write(b"fo")
    output.write(b"ur")
    output.publish("a/c/d/4")
    assert store.names("a") == {"b", "c"}
    assert store.names("nowhere") == set()
    assert [entry.path for entry in store.list()] == ["a/b/1", "a/b/2", "a/c/d/4"]
    assert store.read("a/b/1", 10) == b"other"
    assert store.open("a/c/d/4").read_tail(2) == b"ur"
    assert store.is_file("a/b/1") and not store.is_file("a/b")
    before = store.fingerprint("a/b")
    assert before is not None and store.is_unchanged("a/b", before, "2", "", "3")
    store.delete(["a/b/2", "a/b/9"])
    assert store.fingerprint("a/b") != before
    with pytest.raises(FileNotFoundError):
        store.read("a/b/2", 10)


def test_entry_of_a_directory_survives_only_if_it_was_synced(disk: TreeDisk) -> None:
    disk.mkdir("/sim/a")
    disk.create("/sim/a/file").sync()
    disk.sync_directory("/sim/a")
    lost = disk.fork()
    lost.crash(CrashModel.DROP)
    assert (lost.directories(), lost.files()) == ([], {})
    disk.sync_directory("/sim")
    disk.crash(CrashModel.DROP)
    assert (disk.directories(), list(disk.files())) == (["/sim/a"], ["/sim/a/file"])


def test_link_survives_only_if_it_was_synced(disk: TreeDisk) -> None:
    file = disk.create("/sim/old")
    file.pwrite(b"data", 0)
    file.sync()
    disk.sync_directory("/sim")
    disk.link("/sim/old", "/sim/new")
    disk.unlink("/sim/old")
    with pytest.raises(FileExistsError):
        disk.link("/sim/new", "/sim/new")
    before = disk.fork()
    before.crash(CrashModel.DROP)
    assert before.files() == {"/sim/old": b"data"}
    disk.sync_directory("/sim")
    disk.crash(CrashModel.DROP)
    assert disk.files() == {"/sim/new": b"data"}


def test_a_directory_must_exist_before_its_files(disk: TreeDisk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.create("/sim/a/file")
    with pytest.raises(FileNotFoundError):
        disk.mkdir("/sim/a/b")
