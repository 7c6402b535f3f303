"""The staging directory: complete files or none, the first manifest wins, old files go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.errors import DamagedData
from brokerd.spark.sink.staging import (
    KEPT_SEQUENCES,
    BadStaging,
    Manifest,
    Progress,
    Sequences,
    add_sequence,
)
from tests.spark.sink_desk import NAME, block, stage, staging_of


def rows(path: Path) -> list[str]:
    return sorted(one.name for one in (path / "staging" / NAME / "rows").iterdir())


def test_rows_are_staged_and_read_in_the_manifests_order(tmp_path: Path) -> None:
    one, other, none = stage(
        tmp_path, 4, [block("a", "1"), block("b", "2", "3")], [block("a", "4")], []
    )
    assert none is None
    assert one is not None and other is not None
    assert (one.blocks, one.rows, other.blocks, other.rows) == (2, 3, 1, 1)
    staging = staging_of(tmp_path)
    manifest = Manifest(4, 3, (other, one))
    expected = [block("a", "4"), block("a", "1"), block("b", "2", "3")]
    for skipped in range(4):
        assert list(staging.read(manifest, skipped)) == expected[skipped:]
    manifest = Manifest(4, 3, (one, other))
    assert list(staging.read(manifest, 1)) == [expected[2], expected[0]]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def blocks() -> object:
        yield block("a", "1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        staging_of(tmp_path).stage(0, blocks())  # type: ignore[arg-type]
    assert rows(tmp_path) == []


def test_the_first_manifest_wins(tmp_path: Path) -> None:
    one, other = stage(tmp_path, 0, [block("a", "1")], [block("a", "2")])
    assert one is not None and other is not None
    first, second = staging_of(tmp_path), staging_of(tmp_path)
    assert first.identity() == second.identity()
    assert first.publish_manifest(Manifest(0, 8, (one,))) == (Manifest(0, 8, (one,)), True)
    assert second.publish_manifest(Manifest(0, 5, (other,))) == (Manifest(0, 8, (one,)), False)
    assert second.manifest(0) == Manifest(0, 8, (one,))
    assert second.manifest(1) is None


def test_directories_have_ids_of_their_own(tmp_path: Path) -> None:
    ids = {staging_of(tmp_path / name).identity() for name in "ab"}
    assert len(ids) == 2


def test_progress_is_replaced_and_the_highest_done_counts(tmp_path: Path) -> None:
    staging = staging_of(tmp_path)
    staging.identity()
    assert staging.progress(7) is None
    assert staging.last_done() is None
    for blocks in (1, 2):
        staging.put_progress(Progress(7, blocks, Sequences({("a", 0): blocks})))
    assert staging.progress(7) == Progress(7, 2, Sequences({("a", 0): 2}))
    for epoch in (9, 10, 8):
        staging.put_done(Progress(epoch, epoch, Sequences()))
    assert staging.last_done() == Progress(10, 10, Sequences())


@pytest.mark.parametrize("size", [0, 20])
def test_progress_that_a_stop_of_the_machine_cut_is_unknown(tmp_path: Path, size: int) -> None:
    """It is not synced, so its name may last longer than its content."""
    staging = staging_of(tmp_path)
    staging.identity()
    staging.put_progress(Progress(7, 1, Sequences()))
    path = tmp_path / "staging" / NAME / "progress" / "0000000007.json"
    path.write_bytes(path.read_bytes()[:size])
    assert staging.progress(7) is None
    staging.put_progress(Progress(7, 2, Sequences()))
    assert staging.progress(7) == Progress(7, 2, Sequences())
    path.write_bytes(bytes(path.stat().st_size))
    assert staging.progress(7) is None


def test_old_files_go_and_those_of_the_last_micro_batch_stay(tmp_path: Path) -> None:
    """A killed process may still need them."""
    staging = staging_of(tmp_path)
    staging.identity()
    for epoch in range(64, 67):
        (file,) = stage(tmp_path, epoch, [block("a", "1")])
        assert file is not None
        staging.publish_manifest(Manifest(epoch, 1, (file,)))
        staging.put_progress(Progress(epoch, 1, Sequences()))
        staging.put_done(Progress(epoch, 1, Sequences()))
    staging.clean(65)
    root = tmp_path / "staging" / NAME
    for directory in ("manifests", "progress", "done"):
        names = sorted(one.name for one in (root / directory).iterdir())
        assert names == ["0000000065.json", "0000000066.json"]
    assert [name[:10] for name in rows(tmp_path)] == ["0000000065", "0000000066"]


def test_files_of_killed_tasks_go_when_they_are_old(tmp_path: Path) -> None:
    """By the clock of the disk, at every 64th micro-batch."""
    staging = staging_of(tmp_path)
    staging.identity()
    stage(tmp_path, 64, [block("a", "1")])
    root = tmp_path / "staging" / NAME
    old, young = root / "rows" / "unfinished-1.parquet", root / "done" / ".commit-2.tmp"
    for path in (old, young):
        path.write_bytes(b"")
    staging.put_done(Progress(64, 1, Sequences()))
    now = (root / "done" / "0000000064.json").stat().st_mtime
    os.utime(old, (now - 3700, now - 3700))
    staging.clean(63)
    assert old.exists()
    staging.clean(64)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    staging = staging_of(tmp_path)
    staging.identity()
    path = tmp_path / "staging" / NAME / "sink.json"
    for content in ('{"version": 2, "id": "x"}', "[]", "not json"):
        path.write_text(content)
        with pytest.raises(BadStaging, match=r"sink.json has version (2|None), and this brokerd"):
            staging.identity()


def test_a_file_that_lost_a_block_is_refused(tmp_path: Path) -> None:
    """Whole blocks are missing, so no checksum tells it."""
    (file,) = stage(tmp_path, 0, [block("a", "1"), block("a", "2")])
    assert file is not None
    path = tmp_path / "staging" / NAME / "rows" / file.name
    content = path.read_bytes()
    path.write_bytes(content[: (len(content) + 22) // 2])
    with pytest.raises(DamagedData, match="has 1 blocks, and the task wrote 2"):
        list(staging_of(tmp_path).read(Manifest(0, 1, (file,))))


def test_sequences_are_the_latest_ones(tmp_path: Path) -> None:
    sequences = Sequences()
    add_sequence(sequences, "first", 0, 1)
    for number in range(KEPT_SEQUENCES):
        add_sequence(sequences, "first", 0, number)
        add_sequence(sequences, f"t{number}", 0, number)
    assert len(sequences) == KEPT_SEQUENCES
    assert sequences["first", 0] == KEPT_SEQUENCES - 1
    assert ("t0", 0) not in sequences
