"""The log goes into the tables once, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.bounds import DamagedPlace
from brokerd.archive.contract.view import ForeignArchive
from brokerd.archive.delta.table import TableConflict
from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest.ingest import IngestReport
from brokerd.archive.ingest.tasks import TaskProblem
from brokerd.archive.journal.topics import new_topics
from tests.archive.data import Data
from tests.archive.making import body_position, damage

POINTS = [
    "planned",
    "records written",
    "events written",
    "before records commit",
    "after records commit",
    "before events commit",
    "after events commit",
]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


class Stopped(Exception):
    """The process ends here."""


def test_all_that_is_sealed_is_taken_once(data: Data) -> None:
    """Also what is added later; what is not sealed stays."""
    data.fill()
    done = data.roll_up()
    data.check()
    assert (done.lots, done.segments, done.log_bytes) == (1, 3, data.log.first_lsn)
    assert (done.records, done.events) == (len(data.appended), len(data.happened))
    assert done.records_lsn == done.events_lsn == data.log.first_lsn
    assert done.stop is not None and not done.stop.is_problem
    again = data.roll_up()
    assert (again.lots, again.files) == (0, 0)
    data.fill(2)
    taken = data.roll_up()
    assert taken.segments == 2
    assert taken.records == len(data.appended) - done.records
    data.check()


def test_it_goes_lot_by_lot(data: Data) -> None:
    """No more at once than is allowed, until all is taken."""
    data.fill(5)
    done = data.roll_up(lot_bytes=2 * data.log.first_lsn // 5 + 1)
    assert (done.lots, done.segments) == (3, 5)
    data.check()


@pytest.mark.parametrize("lots", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_stopped_is_gone_on_with(data: Data, point: str, lots: int) -> None:
    """At whatever point, in the first lot or a later one: nothing is lost or twice there."""
    data.fill(4)
    seen = []

    def stop(at: str) -> None:
        seen.append(at)
        if at == point and seen.count(at) == lots:
            raise Stopped

    lot_bytes = data.log.first_lsn // 2 + 1
    with pytest.raises(Stopped):
        data.roll_up(at=stop, lot_bytes=lot_bytes)
    data.fill(1)
    data.roll_up(lot_bytes=lot_bytes)
    data.check()


def test_every_point_is_passed(data: Data) -> None:
    """In this order, for each lot."""
    data.fill(1)
    seen: list[str] = []
    data.roll_up(at=seen.append)
    assert seen == POINTS


def test_files_of_the_slower_of_two_jobs_are_discarded(data: Data) -> None:
    """It adds nothing, and stops."""
    data.fill()
    faster: list[IngestReport] = []

    def overtake(point: str) -> None:
        if point == "before records commit":
            faster.append(data.roll_up())

    with pytest.raises(TableConflict, match="another job ingested this log first"):
        data.roll_up(at=overtake)
    data.check()
    assert faster[0].records == len(data.appended)
    for name in ("records", "events"):
        table = DeltaTable(str(data.root / name))
        assert len(list((data.root / name).rglob("*.parquet"))) == len(table.file_uris())


def test_unknown_damage_ends_it_before_its_segment(data: Data) -> None:
    """What comes before is archived; when the broker knows of it, the rest is, too."""
    paths = data.fill(4)
    where = body_position(paths[2], b"value 24")
    damage(paths[2], where)
    done = data.roll_up()
    assert done.segments == 2
    assert done.stop is not None and done.stop.is_problem
    assert done.stop.lsn == int(paths[2].stem)
    assert str(paths[2]) in done.stop.reason
    assert "restart the broker, or run `brokerctl wal repair`" in done.stop.reason
    again = data.roll_up()
    assert (again.segments, again.stop) == (0, done.stop)
    offsets = {record[2] for record in data.appended if record[3] in (b"value 24", b"value 26")}
    data.damage = [DamagedPlace(paths[2].name, where - 200, where + 200)]
    data.gaps = [(min(offsets), max(offsets) + 1)]
    assert data.roll_up().segments == 2
    lost = [record for record in data.appended if record not in data.records()]
    assert [record[3] for record in lost] == [b"value 24", b"value 25", b"value 26"]
    assert data.events() == data.happened


def test_segments_that_the_broker_deletes_are_planned_again(data: Data) -> None:
    """When it says that it did; what was in them is not needed."""
    paths = data.fill(4)

    def delete(point: str) -> None:
        if point == "planned" and paths[0].exists():
            (data.wal / f"{0:020}-{int(paths[1].stem):020}.deleted").touch()
            for suffix in (".idx", ".wal"):
                paths[0].with_suffix(suffix).unlink()

    done = data.roll_up(at=delete)
    assert done.segments == 3
    assert len(data.records()) == len(data.appended) * 3 // 4


def test_names_told_in_segments_that_the_broker_deletes_are_kept(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is newer than the bounds is named in the first lot, and has records in more."""
    before = data.bounds()
    monkeypatch.setattr(data, "bounds", lambda: before)
    paths = []
    for value in (b"a", b"b", b"c"):
        data.append(1, 0, value)
        paths.append(data.log.seal())

    def delete(point: str) -> None:
        if point == "after events commit" and paths[0].exists():
            (data.wal / f"{0:020}-{int(paths[1].stem):020}.deleted").touch()
            for suffix in (".idx", ".wal"):
                paths[0].with_suffix(suffix).unlink()

    done = data.roll_up(at=delete, lot_bytes=1)
    assert done.stop is not None and not done.stop.is_problem, done.stop
    assert (done.lots, data.records()) == (3, data.appended)


def test_names_told_in_a_segment_that_was_just_sealed_are_found(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index came after the log was looked through for names."""
    before = data.bounds()
    monkeypatch.setattr(data, "bounds", lambda: before)
    data.append(1, 0, b"a")
    data.log.seal()
    read: list[dict[int, str]] = [{}, new_topics(data.wal, before)]
    monkeypatch.setattr("brokerd.archive.ingest.plan.new_topics", lambda *args: read.pop(0))
    assert data.roll_up().segments == 1


def test_a_segment_that_vanishes_each_time_ends_it(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some tries it says so."""
    data.fill(1)
    monkeypatch.setattr(
        "brokerd.archive.ingest.ingest.write_records",
        lambda task: TaskProblem("gone", "0.wal is gone"),
    )
    with pytest.raises(JobFailed, match=r"^0\.wal is gone: the broker deletes files faster"):
        data.roll_up()


def test_a_short_disk_is_gone_on_with_segment_by_segment(data: Data) -> None:
    """As long as there is room for one."""
    data.fill(4)
    size = data.log.first_lsn // 4 + 500
    done = data.roll_up(free_bytes=lambda: size)
    assert (done.lots, done.segments) == (4, 4)
    data.check()
    data.fill(1)
    with pytest.raises(JobFailed, match="has 1000 bytes of free space"):
        data.roll_up(free_bytes=lambda: 1000)


def test_a_disk_that_is_full_meanwhile_is_tried_with_less(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written for nothing is removed; if one segment is too much, it says so."""
    data.fill(3)
    from brokerd.archive.ingest import ingest

    write = ingest.write_events
    monkeypatch.setattr(
        ingest,
        "write_events",
        lambda task: (
            TaskProblem("full", "/archive: No space left on device")
            if len(task[1].segments) > 1
            else write(task)
        ),
    )
    done = data.roll_up()
    assert done.lots == 3
    data.check()
    files = [path for path in (data.root / "records").rglob("*.parquet") if "bucket" in str(path)]
    assert len(files) == done.files - 3
    data.fill(1)
    full = TaskProblem("full", "/archive: No space left on device")
    monkeypatch.setattr(ingest, "write_events", lambda task: full)
    with pytest.raises(JobFailed, match=r"^/archive: No space left on device; free some space$"):
        data.roll_up()


@pytest.mark.parametrize("point", ["after records commit", "after events commit"])
def test_an_older_copy_of_the_log_is_refused(data: Data, point: str) -> None:
    """It would go on otherwise than the archive has it, be it only one of the tables."""
    paths = data.fill(3)

    def stop(at: str) -> None:
        if at == point:
            raise Stopped

    with pytest.raises(Stopped):
        data.roll_up(at=stop)
    for path in paths[1:]:
        path.unlink()
        path.with_suffix(".idx").unlink()
    data.log.first_lsn = int(paths[1].stem)
    with pytest.raises(ForeignArchive, match="an older copy of the log was restored"):
        data.roll_up()


def test_nothing_is_nothing(data: Data) -> None:
    """Without a segment there is nothing to take."""
    done = data.roll_up()
    expected = IngestReport(stop=done.stop)
    assert done == expected
    assert done.stop is not None and not done.stop.is_problem
