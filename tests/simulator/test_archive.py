"""The simulated archive, the job that fills it, and a broker whose log shrinks because of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive, ForeignArchive
from brokerd.values import Record
from simulator import plan
from simulator.archive.view import Held, OpenedArchive, SimArchive, SimView
from simulator.machine.disk import SimDisk
from simulator.plan import ClientPlan, Plan, Topic
from simulator.run import Result, run

SECOND = 1_000_000
KEY = 7, 0
TOPICS = (Topic(name="orders", compact=True), Topic(name="wide", partitions=3))
SETTINGS = plan.Settings(
    segment_bytes=65_536,
    segment_age_seconds=1,
    snapshot_interval_bytes=4_096,
    tail_cache_bytes=0,
    read_cache_bytes=0,
    archive=True,
    archive_poll_seconds=1,
)


def record(offset: int, key: bytes | None = None) -> Record:
    return Record(offset, b"v%d" % offset, key, append_time_us=offset * 10)


def archive_of(*offsets: int, covered: tuple[tuple[int, int], ...] = ((0, 10),)) -> SimArchive:
    archive = SimArchive()
    archive.log_id = "log"
    archive.commit({KEY: Held(covered, tuple(map(record, offsets)))}, records_lsn=100)
    return archive


def view_of(archive: SimArchive) -> SimView:
    view = OpenedArchive(archive, "log", lambda: None).refresh()
    assert view is not None
    return view


# -- the archive -----------------------------------------------------------------------------------


def test_a_view_gives_back_what_is_covered_and_nothing_else() -> None:
    """Removed records are missing from what is known; beyond that nothing is."""
    view = view_of(archive_of(0, 1, 5, covered=((0, 3), (5, 6))))
    rows = view.read(*KEY, 1, 1_000)
    assert rows is not None
    assert (rows.first, rows.end, list(rows.offsets)) == (1, 3, [1])
    assert list(rows.columns.values) == [b"v1"]
    assert view.read(*KEY, 3, 1_000) is None
    assert view.read(7, 1, 0, 1_000) is None
    assert view.covers(*KEY, 0, 3)
    assert not view.covers(*KEY, 0, 6)
    assert view.covers(*KEY, 9, 9)


def test_a_read_ends_where_its_bytes_do_and_has_one_record_at_least() -> None:
    view = view_of(archive_of(*range(10)))
    rows = view.read(*KEY, 2, 5)
    assert rows is not None
    assert (rows.first, rows.end, list(rows.offsets)) == (2, 4, [2, 3])
    rows = view.read(*KEY, 2, 0)
    assert rows is not None
    assert list(rows.offsets) == [2]


def test_offsets_are_found_by_time_and_by_size() -> None:
    view = view_of(archive_of(2, 4, 6))
    assert view.offset_at_time(*KEY, 21) == 4
    assert view.offset_at_time(*KEY, 61) is None
    assert view.offset_of_size(*KEY, 6, 2) == 4
    assert view.offset_of_size(*KEY, 2, 100) is None


def test_a_view_stays_as_it_is_until_its_files_are_deleted() -> None:
    """Only those of partitions that were written anew are."""
    archive = archive_of(0, 1)
    archive.commit({(8, 0): Held(((0, 1),), (record(0),))})
    old = view_of(archive)
    archive.commit({KEY: archive.newest.held[KEY].without(frozenset([0]))}, is_rewrite=True)
    rows = old.read(*KEY, 0, 100)
    assert rows is not None
    assert list(rows.offsets) == [0, 1]
    archive.vacuum()
    with pytest.raises(ArchiveUnavailable, match="gone"):
        old.read(*KEY, 0, 100)
    assert old.read(8, 0, 0, 100) is not None
    rows = view_of(archive).read(*KEY, 0, 100)
    assert rows is not None
    assert (rows.first, list(rows.offsets)) == (0, [1])


def test_the_same_view_is_given_until_there_is_another_version() -> None:
    archive = archive_of(0)
    opened = OpenedArchive(archive, "log", lambda: None)
    first = opened.refresh()
    assert opened.refresh() is first
    archive.commit({}, events_lsn=100)
    second = opened.refresh()
    assert second is not first and second is not None
    assert (second.records_lsn, second.events_lsn, second.max_topic_id) == (100, 100, 7)


def test_what_befalls_an_archive_is_told_as_a_real_one_would() -> None:
    archive = archive_of(*range(10))
    view = view_of(archive)
    archive.damage[KEY] = 4, 6
    rows = view.read(*KEY, 0, 100)
    assert rows is not None and rows.end == 4
    with pytest.raises(DamagedArchive) as damaged:
        view.read(*KEY, 5, 100)
    assert (damaged.value.first, damaged.value.end) == (4, 6)
    with pytest.raises(ForeignArchive):
        OpenedArchive(archive, "another", lambda: None).refresh()
    archive.problem = "it is out of reach"
    with pytest.raises(ArchiveUnavailable, match="out of reach"):
        view.read(*KEY, 0, 1)
    assert view.covers(*KEY, 0, 10)
    archive.problem, archive.is_gone = "", True
    assert OpenedArchive(archive, "log", lambda: None).refresh() is None


def test_an_older_copy_takes_the_place_of_what_there_was() -> None:
    """The oldest that has enough of the log; whoever has the newest open reads no more of it."""
    archive = archive_of(0)
    archive.commit({}, events_lsn=100)
    archive.commit({KEY: Held(((0, 10),), ())}, records_lsn=200)
    archive.commit({}, events_lsn=200)
    newest = view_of(archive)
    archive.restore(100)
    with pytest.raises(ArchiveUnavailable):
        newest.read(*KEY, 0, 100)
    older = view_of(archive)
    rows = older.read(*KEY, 0, 100)
    assert rows is not None
    assert (older.version, older.records_lsn, list(rows.offsets)) == (4, 100, [0])


# -- runs ------------------------------------------------------------------------------------------


def client(name: str, seed: int, **changes: Any) -> ClientPlan:
    values: dict[str, Any] = {
        "name": name,
        "identity": name,
        "role": "worker",
        "seed": seed,
        "operations": 160,
        "think_us": 100_000,
        "topics": TOPICS,
        "groups": ("g", "h"),
        "mix": {"produce": 3, "produce_batch": 2, "acquire": 3, "acquire_batch": 2, "settle": 5},
        "keys": 3,
        "payload_bytes_max": 500,
    }
    return ClientPlan(**{**values, **changes})


def plan_of(*faults: plan.AnyFault, **changes: Any) -> Plan:
    rollups = [plan.Rollup(at_us=at * SECOND, lot_segments=2) for at in range(2, 10, 2)]
    values: dict[str, Any] = {
        "seed": 1,
        "end_us": 10 * SECOND,
        "settings": SETTINGS,
        "topics": TOPICS,
        "clients": (client("a", 1), client("b", 2)),
        "faults": tuple(sorted([*rollups, *faults], key=lambda fault: fault.at_us)),
    }
    return Plan(**{**values, **changes})


def test_the_log_shrinks_and_all_is_read_from_the_archive() -> None:
    """Every record that was acknowledged is there in the audit, but for those compacted."""
    result = run(plan_of())
    assert result.violations == []
    assert result.counts["archive deleted_segments"] >= 5
    assert result.counts["archive reads"] >= 5
    assert result.counts["compacted"] >= 1
    assert result.counts["rollups"] == 5


def test_nothing_is_deleted_where_that_is_switched_off() -> None:
    result = run(plan_of(settings=replace(SETTINGS, archive_deletes=False)))
    assert result.violations == []
    assert result.counts["archive deleted_segments"] == 0


@pytest.mark.parametrize("steps", range(1, 13))
def test_a_job_that_is_killed_anywhere_is_made_good_by_the_next(steps: int) -> None:
    """What it had committed stays, and nothing is there twice."""
    killed = plan.Rollup(at_us=5 * SECOND, steps_max=steps, lot_segments=2)
    again = plan.Rollup(at_us=7 * SECOND, lot_segments=3)
    result = run(plan_of(faults=(killed, again)))
    assert result.violations == []
    assert any(line.endswith("rollup killed") for line in result.lines)
    assert result.counts["archive deleted_segments"] >= 5


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (plan.Seal(at_us=SECOND), "seal the log"),
        (plan.ArchiveAway(at_us=3 * SECOND, for_us=5 * SECOND), "out of reach"),
        (plan.ArchiveAway(at_us=3 * SECOND, for_us=5 * SECOND, gone=True), "is gone"),
        (
            plan.ArchiveAway(at_us=3 * SECOND, for_us=15 * SECOND, older=True),
            "an older copy of the archive is back",
        ),
        (plan.ArchiveSlow(at_us=3 * SECOND, for_us=5 * SECOND, factor=500), "500 times slower"),
        (plan.ArchiveDamage(at_us=5 * SECOND, seed=3), "the archive loses"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, plan.Fault) else "",
)
def test_what_befalls_the_archive_is_survived(fault: plan.AnyFault, said: str) -> None:
    result = run(plan_of(fault, end_us=20 * SECOND, clients=(client("a", 1, think_us=400_000),)))
    assert result.violations == []
    assert any(said in line for line in result.lines)


def test_a_seed_with_an_archive_is_the_same_run_twice() -> None:
    assert run(plan_of()).digest == run(plan_of()).digest


def test_the_job_says_that_it_cannot_go_on_when_a_segment_is_missing() -> None:
    """Were one deleted too early, the run would show it, whatever the records are worth."""
    result = _without_a_segment()
    assert "rollup" in {violation.promise for violation in result.violations}


def _without_a_segment() -> Result:
    """A run whose disk hides a segment from the job."""
    paths = SimDisk.paths

    def hidden(disk: SimDisk, directory: str) -> list[str]:
        found = paths(disk, directory)
        segments = [path for path in found if path.endswith(".wal")]
        return [path for path in found if path != segments[0]] if len(segments) > 1 else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimDisk, "paths", hidden)
        return run(plan_of())
