"""Tasks that do not have the journal read copies of it, and write what they would have written."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest.ingest import IngestReport
from brokerd.archive.journal import copies
from brokerd.archive.run import Settings
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.bucket import BucketStore
from brokerd.archive.storage.store import Store, open_store
from tests.archive.data import MIB, NO_LIMIT, Data
from tests.archive.inline import InlineSpark, ingest_inline
from tests.archive.making import body_position, damage


class RemoteSpark(InlineSpark):
    """Tasks run on a machine without the journal."""

    def is_local(self) -> bool:
        return False


class Stopped(Exception):
    """The process ends here."""


@pytest.fixture
def data(tmp_path: Path, bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'scratch'},{tmp_path / 'other'}")
    made = Data(tmp_path / "data")
    made.root = bucket  # type: ignore[assignment]
    return made


def roll(
    data: Data, at: Callable[[str], None] = lambda point: None, **settings: int
) -> IngestReport:
    given = Settings(file_bytes=MIB)._replace(**settings)
    return ingest_inline(
        data.root, data.wal, data.bounds(), given, failpoint=at, spark=RemoteSpark()
    )


def without_journal(data: Data, then: Callable[[], None] = lambda: None) -> Callable[[str], None]:
    """The journal is not there while tasks are at work."""

    def at(point: str) -> None:
        if point == "journal sent":
            then()
            data.wal.rename(data.path / "hidden")
        elif point == "events written":
            (data.path / "hidden").rename(data.wal)

    return at


def copied(data: Data) -> list[str]:
    return sorted(entry.path for entry in store(data).list("wal"))


def store(data: Data) -> Store:
    return open_store(data.root)


def test_tasks_read_copies_of_the_journal(data: Data) -> None:
    """They come and go lot by lot; the tables are what they should be."""
    data.fill(4)
    seen: list[list[str]] = []
    at = without_journal(data, lambda: seen.append(copied(data)))
    done = roll(data, at, lot_bytes=data.log.first_lsn // 2 + 1)
    data.check()
    assert len(seen) == done.lots > 1
    assert [name[4:24] for names in seen for name in names] == [
        path.stem for path in sorted(data.wal.glob("*.wal")) for _ in range(2)
    ]
    assert copied(data) == []


@pytest.mark.parametrize(
    "point", ["journal sent", "records written", "before events commit", "after events commit"]
)
def test_what_a_stopped_run_sent_is_used_or_deleted_by_the_next(
    data: Data, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent twice, and nothing stays."""
    data.fill(2)

    def stop(at: str) -> None:
        if at == point:
            raise Stopped

    with pytest.raises(Stopped):
        roll(data, stop)
    assert len(copied(data)) == 4
    sent: list[str] = []
    monkeypatch.setattr(BucketStore, "upload", lambda self, path, source: sent.append(path))
    roll(data)
    assert sent == []
    data.check()
    assert copied(data) == []


def test_each_is_fetched_once_while_there_is_room(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room, those that nobody reads give way; the disk has no more than it may."""
    data.fill(4)
    fetch, fetched, kept = copies._fetch_files, [], []

    def count(store: Store, copy: copies.Copy, target: Path) -> None:
        fetch(store, copy, target)
        fetched.append(target.name)
        kept.append(len(list((tmp_path / "scratch" / "brokerd-journal").glob("*/*.wal"))))

    monkeypatch.setattr(copies, "_fetch_files", count)
    size = max(path.stat().st_size for path in data.wal.glob("*.wal"))
    copies_of = copies.send_copies(store(data), segments := segments_of(data))
    for cache_bytes in (8 * size, 5 * size // 2):
        fetched.clear()
        for _ in range(2):
            for segment in segments:
                copy = copies_of[segment.segment_id]
                with copies.fetch_copy(data.root, segment, copy, cache_bytes) as here:
                    assert Path(here.path).read_bytes() == Path(segment.path).read_bytes()
                    index = Path(segment.path).with_suffix(".idx").read_bytes()
                    assert Path(here.path).with_suffix(".idx").read_bytes() == index
        assert len(fetched) == (4 if cache_bytes > 4 * size else 8)
        shutil.rmtree(tmp_path / "scratch")
    assert max(kept[4:]) == 2


def segments_of(data: Data) -> list[copies.Segment]:
    from brokerd.archive.ingest.plan import LotLimits, plan_lot

    limits = LotLimits(NO_LIMIT, MIB, NO_LIMIT)
    return list(plan_lot(data.wal, data.bounds(), 0, 0, limits).segments)


def test_one_that_is_read_does_not_give_way(data: Data) -> None:
    """Whatever else is fetched meanwhile."""
    data.fill(2)
    one, other = segments_of(data)
    sent = copies.send_copies(store(data), [one, other])
    with copies.fetch_copy(data.root, one, sent[one.segment_id], 1) as here:
        with copies.fetch_copy(data.root, other, sent[other.segment_id], 1) as there:
            assert Path(here.path).exists() and Path(there.path).exists()
        with copies.fetch_copy(data.root, other, sent[other.segment_id], 1):
            assert Path(here.path).exists()


@pytest.mark.parametrize("suffix", [".wal", ".idx"])
def test_a_damaged_copy_is_sent_again(data: Data, suffix: str) -> None:
    """No bit of it is believed; the journal has what is right."""
    data.fill(2)
    times = []

    def flip(point: str) -> None:
        if point == "journal sent":
            times.append(point)
            if len(times) == 1:
                path = [path for path in copied(data) if path.endswith(suffix)][-1]
                found = bytearray(store(data).read(path, MIB))
                found[-20] ^= 1
                store(data).put(path, bytes(found))

    roll(data, flip)
    data.check()
    assert len(times) == 2
    assert copied(data) == []


def test_copies_that_others_delete_are_sent_again_but_not_for_ever(data: Data) -> None:
    """Whoever does that has to stop it."""
    data.fill(1)

    def delete(point: str) -> None:
        if point == "journal sent":
            store(data).delete(copied(data))

    with pytest.raises(JobFailed, match="gone"):
        roll(data, delete)


def test_damage_of_the_journal_is_told_of_the_journal(data: Data) -> None:
    """Where a task read it means nothing to anybody."""
    paths = data.fill(3)
    damage(paths[2], body_position(paths[2], b"value 24"))
    done = roll(data)
    assert done.segments == 2
    assert done.stop is not None
    assert str(paths[2]) in done.stop.reason
    assert "brokerd-journal" not in done.stop.reason


def test_a_segment_that_goes_before_it_is_sent_is_planned_again(data: Data) -> None:
    """The broker deleted it, and says so."""
    paths = data.fill(3)

    def delete(point: str) -> None:
        if point == "planned" and paths[0].exists():
            (data.wal / f"{0:020}-{int(paths[1].stem):020}.deleted").touch()
            for suffix in (".idx", ".wal"):
                paths[0].with_suffix(suffix).unlink()

    assert roll(data, delete).segments == 2
    assert min(record[2] for record in data.records()) > 0


def test_a_disk_that_is_full_keeps_nothing_of_a_copy(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and the room is free again."""
    data.fill(1)

    def full(self: object, position: int, size: int) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device", "scratch")

    monkeypatch.setattr("brokerd.archive.storage.bucket.BucketInputFile.read", full)
    with pytest.raises(JobFailed, match="scratch: No space left on device; free some space"):
        roll(data)
    left = [path.name for path in (tmp_path / "scratch").rglob("*") if path.suffix != ".lock"]
    assert left == ["brokerd-journal"]
