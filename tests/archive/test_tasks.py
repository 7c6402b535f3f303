"""What tasks write is what the log holds; what is wrong with the log is told, not written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from brokerd.archive.contract.bounds import Bounds, DamagedPlace, PartitionBounds, TopicBounds
from brokerd.archive.ingest.plan import Lot, LotLimits, plan_lot
from brokerd.archive.ingest.tasks import Target, TaskProblem, write_events, write_records
from brokerd.archive.parquet import writer
from brokerd.archive.parquet.writer import FileInfo
from brokerd.walformat import ENTRY_HEADER_BYTES, EventKind
from tests.archive.making import LOG_ID, LogMaker, body_position, damage, events_entry

MIB = 1 << 20


def bounds(*topics: int, gaps: Any = (), **changes: Any) -> Bounds:
    said = [
        TopicBounds(number, f"topic-{number}", 0, False, [PartitionBounds(0, 0, 99, list(gaps))])
        for number in topics
    ]
    given = {"lsn": 1 << 40, "next_topic_id": 100, "topics": said, **changes}
    return Bounds(log_id=LOG_ID, time_us=0, time_settled=True, **given)


def plan(wal: Path, said: Bounds) -> Lot:
    return plan_lot(wal, said, 0, 0, LotLimits(1 << 40, MIB, 1 << 40))


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    (tmp_path / "wal").mkdir()
    return tmp_path / "wal"


def target(wal: Path) -> Target:
    return Target(wal.parent / "archive", LOG_ID)


def written(wal: Path, said: Bounds) -> list[FileInfo | TaskProblem | None]:
    return [write_records((target(wal), split)) for split in plan(wal, said).records]


def rows(wal: Path, info: object) -> list[dict[str, Any]]:
    assert isinstance(info, FileInfo)
    found: list[dict[str, Any]] = pq.read_table(
        Path(target(wal).root, "records", info.path), partitioning=None
    ).to_pylist()
    return found


@pytest.mark.parametrize("at_once", [7, 1_000])
def test_a_shared_file_has_all_records_in_order(
    wal: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several topics, partitions and segments, with all that belongs to them."""
    monkeypatch.setattr("brokerd.archive.ingest.tasks._SORTED_ROWS", at_once)
    maker = LogMaker(wal)
    for turn in range(3):
        for key in ((17, 0), (1, 1), (33, 2), (1, 0)):
            maker.append(*key, [b"%d %d %d" % (*key, turn), b""], keys=[b"k", None])
            maker.frame()
        maker.seal()
    (info,) = written(wal, bounds(1, 17, 33))
    assert info is not None and info.bucket == 1
    assert info.ranges == ((1, 0, 0, 6), (1, 1, 0, 6), (17, 0, 0, 6), (33, 2, 0, 6))
    found = rows(wal, info)
    assert [(row["topic_id"], row["partition"], row["offset"]) for row in found] == [
        (*key, at) for key in ((1, 0), (1, 1), (17, 0), (33, 2)) for at in range(6)
    ]
    values = [row["value"] for row in found if row["topic"] == "topic-17"]
    assert values == [b"17 0 0", b"", b"17 0 1", b"", b"17 0 2", b""]
    assert [row["key"] for row in found[:4]] == [b"k", None, b"k", None]


def test_a_partition_gets_a_file_of_its_own(wal: Path) -> None:
    """Whose name says which offsets it has; a long one gets several."""
    maker = LogMaker(wal)
    for turn in range(4):
        for _ in range(5):
            maker.append(1, 0, [bytes([turn]) * 100_000])
            maker.frame()
        maker.seal()
    infos = [info for info in written(wal, bounds(1)) if isinstance(info, FileInfo)]
    names = sorted(Path(info.path).name.split("-")[:5] for info in infos)
    assert names == [["p", "1", "0", "0", "10"], ["p", "1", "0", "10", "20"]]
    values = [
        row["value"]
        for info in sorted(infos, key=lambda one: one.ranges)
        for row in rows(wal, info)
    ]
    assert values == [bytes([turn]) * 100_000 for turn in range(4) for _ in range(5)]


def hurt_log(wal: Path) -> tuple[Path, int]:
    """A log of two segments whose second has a damaged batch; the segment, and where that is."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"first"] * 4)
    maker.seal()
    maker.append(1, 0, [b"before it", *[b"before"] * 3])
    maker.append(1, 0, [b"damaged here"])
    maker.append(2, 0, [b"other"])
    maker.append(1, 0, [b"after"] * 4)
    path = maker.seal()
    position = body_position(path, b"damaged here")
    damage(path, position)
    return path, position


def test_damage_that_nobody_knows_ends_it_at_its_segment(wal: Path) -> None:
    """With the file, the place and the offsets; no file is left."""
    path, _ = hurt_log(wal)
    (problem,) = [one for one in written(wal, bounds(1, 2)) if isinstance(one, TaskProblem)]
    assert (problem.kind, problem.lsn) == ("damaged", int(path.stem))
    assert str(path) in problem.text
    assert "topic id 1 partition 0 offsets 8 to 8" in problem.text
    assert list(Path(target(wal).root, "records", "bucket=1").glob("*")) == []


def test_known_damage_leaves_out_what_is_lost(wal: Path) -> None:
    """Sound batches of the same place are written; lost offsets are known if the gaps say so."""
    path, position = hurt_log(wal)
    place = DamagedPlace(path.name, 4096, position + 4096)
    infos = written(wal, bounds(1, 2, damage=[place], gaps=[(8, 9)]))
    found = {info.bucket: info for info in infos if isinstance(info, FileInfo)}
    assert found[1].ranges == ((1, 0, 0, 13),)
    assert [row["offset"] for row in rows(wal, found[1])] == [*range(8), *range(9, 13)]
    assert [row["value"] for row in rows(wal, found[2])] == [b"other"]
    infos = written(wal, bounds(1, 2, damage=[place]))
    ranges = sorted(info.ranges for info in infos if isinstance(info, FileInfo))
    assert ranges[0] == ((1, 0, 0, 8), (1, 0, 9, 13))


@pytest.mark.parametrize("value", [b"before it", b"other"])
def test_damage_beside_the_known_place_is_told(wal: Path, value: bytes) -> None:
    """What is known of one batch says nothing of another."""
    path, position = hurt_log(wal)
    place = DamagedPlace(path.name, position, position + 8)
    damage(path, body_position(path, value))
    problems = [one for one in written(wal, bounds(1, 2, damage=[place])) if one is not None]
    assert [one.kind for one in problems if isinstance(one, TaskProblem)] == ["damaged"]


def test_nothing_left_is_no_file(wal: Path) -> None:
    """A task all of whose batches are lost writes none, unless it is known that they are."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"damaged here"])
    path = maker.seal()
    position = body_position(path, b"damaged here")
    damage(path, position)
    place = DamagedPlace(path.name, position - ENTRY_HEADER_BYTES, position + 100)
    assert written(wal, bounds(1, damage=[place])) == [None]
    (info,) = written(wal, bounds(1, damage=[place], gaps=[(0, 1)]))
    assert rows(wal, info) == []
    assert info is not None and info.ranges == ((1, 0, 0, 1),)


def lease(maker: LogMaker, topic_id: int, owner: str) -> None:
    """A frame with an event of a group."""
    event = (EventKind.LEASED, 0, 1_000_000, 7, 1, owner, "")
    maker.add(events_entry(topic_id, 0, "workers", [event]))
    maker.frame()


def written_events(wal: Path, said: Bounds) -> FileInfo | TaskProblem | None:
    (split,) = plan(wal, said).events
    return write_events((target(wal), split))


def owners(wal: Path, info: object) -> list[str]:
    assert isinstance(info, FileInfo)
    found: list[str] = pq.read_table(Path(target(wal).root, "events", info.path))[
        "owner"
    ].to_pylist()
    return found


def test_a_file_of_events_covers_all_of_its_part_of_the_log(wal: Path) -> None:
    """Of several segments, and of what was deleted before; deleted topics are left out."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"v"])
    gone = maker.seal()
    for turn in range(2):
        lease(maker, 1, f"ann-{turn}")
        lease(maker, 3, "of a deleted topic")
        lease(maker, 2, f"bob-{turn}")
        maker.seal()
    (wal / f"{0:020}-{gone.stat().st_size:020}.deleted").touch()
    gone.unlink()
    info = written_events(wal, bounds(1, 2))
    assert owners(wal, info) == ["ann-0", "bob-0", "ann-1", "bob-1"]
    assert isinstance(info, FileInfo)
    assert info.ranges == ((0, 0, 0, maker.first_lsn),)


def test_no_events_are_no_file(wal: Path) -> None:
    """Nor are those that are lost to damage that is known; unknown damage ends it."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"v"])
    maker.seal()
    assert written_events(wal, bounds(1)) is None
    lease(maker, 1, "damaged here")
    path = maker.seal()
    position = body_position(path, b"damaged here")
    damage(path, position)
    problem = written_events(wal, bounds(1))
    assert isinstance(problem, TaskProblem)
    assert (problem.kind, problem.lsn) == ("damaged", int(path.stem))
    place = DamagedPlace(path.name, 4096, position + 100)
    assert written_events(wal, bounds(1, damage=[place])) is None
    lease(maker, 1, "sound")
    maker.seal()
    assert owners(wal, written_events(wal, bounds(1, damage=[place]))) == ["sound"]


@pytest.mark.parametrize("suffix", [".wal", ".idx"])
def test_a_segment_that_is_deleted_meanwhile_is_told(wal: Path, suffix: str) -> None:
    """So that the job plans again."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"v"])
    path = maker.seal()
    (split,) = plan(wal, bounds(1)).records
    path.with_suffix(suffix).unlink()
    problem = write_records((target(wal), split))
    assert isinstance(problem, TaskProblem)
    assert problem.kind == "gone"


def test_another_segment_of_the_same_name_is_not_read(wal: Path) -> None:
    """Its records are not those that were planned."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"v"])
    path = maker.seal()
    (split,) = plan(wal, bounds(1)).records
    replaced = split.segments[0]._replace(segment_id=b"x" * 16)
    problem = write_records((target(wal), split._replace(segments=(replaced,))))
    assert problem == TaskProblem("gone", f"{path} was replaced by another segment")


def test_a_full_disk_is_told_and_leaves_no_file(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the job tries with less."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"v"])
    maker.seal()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer.os, "fsync", full)
    (problem,) = written(wal, bounds(1))
    assert isinstance(problem, TaskProblem)
    assert problem.kind == "full"
    assert "No space left on device" in problem.text
    assert [path for path in Path(target(wal).root).rglob("*") if path.is_file()] == []


def test_what_does_not_come_back_from_the_disk_is_not_used(
    wal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read again before anybody may commit it."""
    maker = LogMaker(wal)
    maker.append(1, 0, [b"a value to be hurt"])
    maker.seal()
    rename = os.rename

    def rename_and_hurt(old: Path, new: Path) -> None:
        rename(old, new)
        damage(Path(new), 40)

    monkeypatch.setattr(writer.os, "rename", rename_and_hurt)
    with pytest.raises(Exception, match="records/bucket=1/p-1-0-0-1-"):
        written(wal, bounds(1))
