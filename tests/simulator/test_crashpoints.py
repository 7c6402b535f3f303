"""Crash at every disk call: a slice of the points, and proof that the checks are not blind."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from brokerd.backup import restore
from brokerd.wal import Snapshots
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.read.scanner import ScanFrame
from brokerd.wal.recovery import startup
from brokerd.wal.write import sealer
from brokerd.walformat import EntryKind, EventKind, decode_group_events
from simulator.crashpoints import __main__ as command
from simulator.crashpoints import archive, backup, changes
from simulator.crashpoints.expect import (
    UNTOUCHED,
    Boundary,
    Leased,
    State,
    Status,
    states_after,
)
from simulator.crashpoints.expect import Settled as SettledStep
from simulator.crashpoints.log import LogScript
from simulator.crashpoints.points import CHANGING, Point, Points
from simulator.crashpoints.script import Script
from simulator.crashpoints.sweep import Outcome, sweep
from simulator.history.operations import (
    Acquire,
    Boot,
    Cancel,
    Configure,
    ConfigureTopic,
    DeleteGroup,
    DeleteTopic,
    Delivery,
    Pause,
    Place,
    Produce,
    Purge,
    Release,
    Replay,
    Resume,
    Seek,
    Settle,
    Settlement,
    Trim,
)
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk, SimFile
from simulator.machine.inline import InlinePool
from simulator.machine.threads import SimThreads
from simulator.run import run
from tests.simulator.processes import said_with_two_hash_seeds

WORKLOADS = ["broker", "log"]
EVERY = 60
"""One of so many points is checked here; `python -m simulator.crashpoints` checks all."""


def slice_of(workload: str, step: int = EVERY, *models: CrashModel) -> Outcome:
    return sweep(workload, lambda number: number % step == 1, models or tuple(CrashModel))


def texts(outcome: Outcome) -> str:
    return "\n".join(map(str, outcome.findings))


# -- the promise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", [*WORKLOADS, "killed-log", "backup"])
def test_nothing_acknowledged_is_lost_at_any_crash_point(workload: str) -> None:
    """A slice of the points, all four models; and there are enough points in all."""
    outcome = slice_of(workload)
    assert not outcome.findings, texts(outcome)
    assert outcome.points >= 500
    assert outcome.checks.total() >= outcome.points // EVERY * 4


@pytest.mark.parametrize("workload", ["changes", "archive"])
@pytest.mark.slow
def test_what_a_plan_does_is_atomic_and_durable_at_every_crash_point(workload: str) -> None:
    """A smaller slice, for each point is a whole run."""
    outcome = sweep(workload, lambda number: number % 240 == 60, tuple(CrashModel))
    assert not outcome.findings, texts(outcome)
    assert outcome.points >= 400
    assert outcome.checks.total() >= outcome.points // 240 * len(CrashModel)


@pytest.mark.parametrize("workload", ["killed-changes", "killed-archive"])
@pytest.mark.slow
def test_a_loss_of_power_in_the_life_after_a_kill_takes_nothing_acknowledged(
    workload: str,
) -> None:
    outcome = sweep(workload, lambda number: number % 240 == 60, tuple(CrashModel))
    assert not outcome.findings, texts(outcome)
    assert outcome.points >= 400
    assert outcome.checks.total() >= outcome.points // 240 * len(CrashModel)


def test_in_the_archive_workload_the_log_shrinks_and_is_read_from_the_archive() -> None:
    """Bounds are written, records compacted, and the mark of what is archived is journaled."""
    result = run(archive.PLAN)
    assert result.violations == []
    assert result.counts["archive deleted_segments"] >= 3
    assert result.counts["archive reads"] >= 5
    assert result.counts["compacted"] >= 10
    assert sum("rename bounds" in line for line in result.lines) >= 5


# -- the workloads ---------------------------------------------------------------------------------


def played(script: Script | LogScript) -> Points:
    points = Points("any", lambda number: False, lambda point: None)
    points.watch(script.disk)
    script.play()
    return points


def entries_of(disk: SimDisk) -> list[Any]:
    found_in = scan_log(disk.fork(), WAL_DIR)
    frames = [found for _, found in found_in if isinstance(found, ScanFrame)]
    return [entry for frame in frames for _, _, entry in frame.entries]


def test_the_broker_writes_every_kind_of_entry_and_event_that_it_knows() -> None:
    """What the Mamamia format can cause; of the rest, the log is crashed by itself."""
    script = Script()
    played(script)
    entries = entries_of(script.disk)
    kinds = {EntryKind.RECORDS, EntryKind.GROUP_EVENTS, EntryKind.TOPIC, EntryKind.MARK}
    assert {entry.kind for entry in entries} == kinds
    events = [
        event[0]
        for entry in entries
        if entry.kind == EntryKind.GROUP_EVENTS
        for event in decode_group_events(entry.body, entry.count)[1]
    ]
    assert set(events) == {
        EventKind.LEASED,
        EventKind.EXTENDED,
        EventKind.SETTLED,
        EventKind.FAILED,
        EventKind.EXPIRED,
        EventKind.DEAD,
    }


def test_the_changes_are_all_that_can_be_done_to_groups_and_topics() -> None:
    """Each is answered at least once, and has an effect."""
    result = run(changes.PLAN)
    assert result.violations == []
    done = [op for op in result.history.operations if op.succeeded]
    assert {type(op) for op in done} >= {
        Cancel,
        Configure,
        ConfigureTopic,
        DeleteGroup,
        DeleteTopic,
        Pause,
        Purge,
        Release,
        Replay,
        Resume,
        Seek,
        Trim,
    }
    assert any(op.count for op in done if isinstance(op, Replay))
    assert any(op.count for op in done if isinstance(op, Purge))
    assert any(op.cancelled for op in done if isinstance(op, Cancel))
    assert any(op.start for op in done if isinstance(op, Trim))
    assert any(op.rules.key_ordered for op in done if isinstance(op, Configure))
    assert any(op.producer_id for op in done if isinstance(op, Produce))
    assert any(None in op.places for op in done if isinstance(op, Produce))
    assert result.counts["segment-deleted"]


def test_the_log_is_crashed_with_entries_of_every_kind() -> None:
    """Those included that the broker refuses; some frames are larger than a segment."""
    script = LogScript()
    played(script)
    assert {entry.kind for frame in script.frames for entry in frame} == set(EntryKind)
    assert any(len(entry.body) > 64 << 10 for frame in script.frames for entry in frame)


@pytest.mark.parametrize("make", [Script, LogScript])
def test_a_workload_makes_every_changing_call_and_each_is_two_points(
    make: Callable[[], Script | LogScript],
) -> None:
    """Segments are sealed, indexes written, old snapshots deleted, leftovers too."""
    script = make()
    deleted: list[str] = []
    points = Points("any", lambda number: True, lambda point: note(point.call, point.name))

    def note(call: str, name: str) -> None:
        if call == "unlink":
            deleted.append(os.path.splitext(name)[1])

    points.watch(script.disk)
    script.play()
    assert set(points.calls) == set(CHANGING)
    assert points.count == 2 * points.calls.total()
    never_done = sum(script.disk.calls[name] for name in CHANGING) - points.calls.total()
    assert 0 <= never_done <= 2, "those that SIGKILL or loss of power came before"
    assert {".snap", ".tmp"} <= set(deleted)
    assert script.disk.fork().list(STATE_DIR)


PLAYED = """
from simulator.crashpoints.log import LogScript
from simulator.crashpoints.points import Points
from simulator.crashpoints.script import Script

for script in (Script(), LogScript()):
    seen = []
    points = Points("any", lambda number: True, lambda point: seen.append(str(point)))
    points.watch(script.disk)
    script.play()
    print(*seen, script.digest(), sep="\\n")
"""


@pytest.mark.slow
def test_a_workload_is_the_same_in_every_process() -> None:
    """So that a number names the same point, whatever the hash seed of the interpreter."""
    first, second = said_with_two_hash_seeds(PLAYED)
    assert first == second
    assert len(first.splitlines()) > 1_000


def test_clients_are_left_without_answers_and_nobody_knows_what_became_of_them() -> None:
    """SIGKILL and loss of power come while commits are under way."""
    script = Script()
    played(script)
    unanswered = [op for op in script.history.operations if op.answered_us < 0]
    assert {op.boot for op in unanswered} == {1, 2}
    assert [boot.end for boot in script.machine.boots] == ["stopped", "killed", "power", "stopped"]


# -- planted lies ----------------------------------------------------------------------------------


original_submit = SimThreads.submit


def is_commit(work: Any) -> bool:
    """Return whether a job writes a commit. A compiled closure is an object of a class."""
    name = getattr(work, "__qualname__", type(work).__name__)
    return "_start_commit" in name


def hasty_submit(self: SimThreads, work: Any, done: Any) -> None:
    """Says that a commit is done before it is."""
    if is_commit(work):
        self._process.call_after(0, done, 0.0, None)
        original_submit(self, work, lambda result, error: None)
    else:
        original_submit(self, work, done)


def leave_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commits without the fdatasync of segments."""
    committing = _note_commits(monkeypatch)
    sync = SimFile.sync

    def sync_but_commits(self: SimFile) -> None:
        if getcurrent() not in committing:
            sync(self)

    monkeypatch.setattr(SimFile, "sync", sync_but_commits)


def leave_nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commits that forget the directory's fsync."""
    committing = _note_commits(monkeypatch)
    sync_directory = SimDisk.sync_directory

    def sync_but_commits(self: SimDisk, directory: str) -> None:
        if getcurrent() not in committing:
            sync_directory(self, directory)

    monkeypatch.setattr(SimDisk, "sync_directory", sync_but_commits)


def _note_commits(monkeypatch: pytest.MonkeyPatch) -> set[greenlet]:
    """Return the set of the simulated threads that write a commit at the moment."""
    committing: set[greenlet] = set()

    def noted(work: Callable[[], object]) -> object:
        committing.add(getcurrent())
        try:
            return work()
        finally:
            committing.discard(getcurrent())

    for threads in (SimThreads, InlinePool):
        submit = threads.submit

        def submit_noted(self: Any, work: Any, done: Any, submit: Any = submit) -> None:
            submit(self, partial(noted, work) if is_commit(work) else work, done)

        monkeypatch.setattr(threads, "submit", submit_noted)
    return committing


def test_an_answer_before_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimThreads, "submit", hasty_submit)
    outcome = slice_of("broker", EVERY // 2, CrashModel.DROP)
    assert outcome.losses > 3, texts(outcome)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("plant", [leave_unsynced, leave_nameless])
def test_a_commit_that_does_not_sync_is_found(
    workload: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the data nor the name of a new segment may be left to the page cache."""
    plant(monkeypatch)
    outcome = slice_of(workload, EVERY // 2, CrashModel.DROP)
    assert outcome.losses > 3, texts(outcome)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_start_that_does_not_write_again_what_it_found_is_found(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGKILL, what was read may be in the page cache only."""

    def trim_unsynced(disk: SimDisk, path: str, segment: Any) -> None:
        file = disk.open(os.path.join(path, segment.name), write=True)
        file.truncate(segment.position)

    monkeypatch.setattr(startup, "trim", trim_unsynced)
    monkeypatch.setattr(sealer, "trim", startup.trim)
    outcome = slice_of(workload, 15, CrashModel.DROP)
    assert outcome.findings


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_snapshot_that_is_named_before_it_is_synced_is_found(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = SimFile.sync

    def sync_no_snapshot(self: SimFile) -> None:
        if ".snap" not in self._path:
            sync(self)

    monkeypatch.setattr(SimFile, "sync", sync_no_snapshot)
    outcome = slice_of(workload, 10, CrashModel.DROP)
    assert "snapshot" in texts(outcome)


def test_a_deletion_for_a_snapshot_that_a_killed_process_did_not_sync_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the points where the process is killed between the rename and the sync."""
    unsynced: set[int] = set()

    def note(point: Point) -> None:
        if (point.side, point.call) == ("after", "rename") and point.name.endswith(".snap"):
            unsynced.add(point.number)

    script = LogScript()
    points = Points("killed-log", lambda number: True, note)
    points.watch(script.disk)
    script.play()

    def second_newest(self: Snapshots) -> int | None:
        self._durable_names.update(self.names())
        return really(self)

    really = Snapshots.second_newest
    monkeypatch.setattr(Snapshots, "second_newest", second_newest)
    outcome = sweep("killed-log", unsynced.__contains__, tuple(CrashModel))
    assert "without the snapshot" in texts(outcome)
    assert outcome.losses == 0, "the newest snapshot alone holds everything"


def test_a_restore_that_does_not_sync_what_it_wrote_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the restored logs lose their power at once."""

    class Unsynced(SimDisk):
        def sync_directory(self, directory: str) -> None:
            """Leave all names to the page cache."""

    monkeypatch.setattr(backup, "SimDisk", Unsynced)
    outcome = slice_of("backup", EVERY, CrashModel.DROP)
    assert outcome.losses > 3, texts(outcome)


def test_a_restore_that_forgets_deleted_parts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some of the moments have a deleted part that snapshots do not follow at once."""
    monkeypatch.setattr(restore, "deleted_name", lambda deleted: f"{deleted.first:020d}.tmp")
    outcome = slice_of("backup", EVERY, CrashModel.DROP)
    assert outcome.findings


def test_a_snapshot_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log still tells what the snapshot does not."""
    write = Snapshots.write

    def write_some(self: Snapshots, start_lsn: int, chunks: Any) -> int:
        return write(self, start_lsn, list(chunks)[:-1])

    monkeypatch.setattr(Snapshots, "write", write_some)
    outcome = slice_of("broker", EVERY, CrashModel.DROP)
    assert "snapshots and the log tell different things" in texts(outcome)


# -- what may be -----------------------------------------------------------------------------------


PLACE = Place(0, 0)


def acquire(at_us: int, owner: str = "ann", duration_us: int = 1_000, **told: Any) -> Leased:
    delivery = Delivery(PLACE, b"", **told)
    return Leased(
        Acquire(
            number=at_us,
            client=owner,
            arrived_us=at_us,
            written_us=at_us + 10,
            topic="t",
            group="g",
            duration_us=duration_us,
        ),
        delivery,
    )


def settle(at_us: int, success: bool, owner: str = "ann", written_us: int = 0) -> SettledStep:
    settlement = Settlement(PLACE, success)
    operation = Settle(
        number=at_us,
        client=owner,
        arrived_us=at_us,
        written_us=written_us or at_us + 10,
        topic="t",
        group="g",
        settlements=(settlement,),
    )
    return SettledStep(operation, settlement, 3)


statuses = partial(map, lambda state: state.status)


def test_what_has_not_arrived_is_not_there_and_what_is_answered_is() -> None:
    """Between the two, both are possible."""
    steps = [acquire(100)]
    assert states_after(steps, [], 99) == {UNTOUCHED}
    assert set(statuses(states_after(steps, [], 105))) == {Status.OPEN, Status.LEASED}
    assert set(statuses(states_after(steps, [], 111))) == {Status.LEASED}


def test_a_lease_may_be_over_only_after_its_time() -> None:
    """And a start of the broker gives it all of its time again."""
    steps = [acquire(100)]
    assert set(statuses(states_after(steps, [], 1_100))) == {Status.LEASED}
    assert set(statuses(states_after(steps, [], 1_101))) == {Status.LEASED, Status.OPEN}
    boots = [
        Boot(number=0, begun_us=0, ready_us=1, ended_us=150),
        Boot(number=1, begun_us=160, ready_us=500),
    ]
    assert Boundary(boots[1]).at_us == 500
    assert set(statuses(states_after(steps, boots, 1_500))) == {Status.LEASED}
    assert set(statuses(states_after(steps, boots, 1_501))) == {Status.LEASED, Status.OPEN}


def test_failures_are_counted_until_the_record_is_dead() -> None:
    """Each once, whatever was not answered in between."""
    steps = [step for n in range(3) for step in (acquire(100 * n + 1), settle(100 * n + 50, False))]
    assert states_after(steps, [], 90) == {State(grants=1, failures=1, counted=True)}
    assert states_after(steps, [], 300) == {State(Status.DEAD, 3, 3)}
    unanswered = [acquire(1), settle(50, False, written_us=-1)]
    assert states_after(unanswered, [], 90) >= {State(grants=1, failures=1, counted=True)}
    assert Status.LEASED in set(statuses(states_after(unanswered, [], 90)))


def test_answers_that_contradict_one_another_leave_nothing_possible() -> None:
    """Two leases at once, a grant counted twice, another's settle."""
    assert not states_after([acquire(1), acquire(20, "bob")], [], 90)
    assert not states_after([acquire(1, grants=2)], [], 90)
    assert not states_after([acquire(1), settle(20, True, "bob")], [], 90)


# -- the command -----------------------------------------------------------------------------------


def test_one_point_can_be_seen_again(capsys: pytest.CaptureFixture[str]) -> None:
    """And the last line sums up."""
    assert command.main(["--only", "log:100", "--model", "tear"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " 1 checks, 0 violations, 0 acknowledged losses" in lines[-1]


def test_a_violation_names_point_model_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_unsynced(monkeypatch)
    point = slice_of("log", EVERY, CrashModel.DROP).findings[0].point
    assert point is not None
    assert command.main(["--only", f"log:{point.number}", "--model", "drop"]) == 1
    output = capsys.readouterr().out
    assert f"log:{point.number} ({point.side} {point.call} of {point.name}), drop: LOST: " in output
    repeat = f"python -m simulator.crashpoints --only log:{point.number} --model drop"
    assert f"again: {repeat}\n" in output
    assert " 1 acknowledged losses" in output


def test_shares_of_jobs_are_all_points_once() -> None:
    """However many jobs there are."""
    arguments = command.parser().parse_args(["--jobs", "3", "--workload", "log"])
    shares = command.shares(arguments)
    for number in range(1, 50):
        assert sum(share.wants(number) for share in shares) == 1


@pytest.mark.parametrize("text", ["", "broker", "broker:", "flymq:1", "log:x"])
def test_a_point_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", text])
    assert "write one such as broker:123" in capsys.readouterr().err


def test_no_processes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--jobs", "0"])
    assert "--jobs must be at least 1" in capsys.readouterr().err
