"""No flipped byte makes a wrong payload or a silent loss; the reference holds one of everything.

All bytes take minutes: ``python -m simulator.flips``. Here the bytes of one sealed segment's
frames and of its index, bodies a few bytes apart; and that the judge would notice what must never
be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from brokerd.errors import NewerFormat
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.verify import verify
from brokerd.wal.read.scanner import ScanFrame
from brokerd.walformat import EntryKind, EventKind, decode_group_events
from simulator import flips
from simulator.directory.byte_map import ByteMap
from simulator.directory.flip_check import (
    VARIANTS,
    VIOLATIONS,
    Outcome,
    StartChecker,
    make_checker,
    start,
)
from simulator.directory.reference import reserved, served
from simulator.directory.visible_state import look
from simulator.flips import Task, check, checker, masks, table, tasks
from simulator.machine.bare import STATE_DIR, WAL_DIR
from tests.simulator.processes import said_with_two_hash_seeds

SEGMENT_HEADER_BYTES = 4096
BODY_STEP = 37
SECOND = f"{WAL_DIR}/00000000000000007448"


class TestReference:
    def test_it_is_the_same_in_every_process(self) -> None:
        """To the byte, whatever the hash seed of the interpreter."""
        digests = said_with_two_hash_seeds(
            "from simulator.directory.reference import reserved, served\n"
            "print(served().disk.digest(), reserved()[0].digest())"
        )
        assert digests[0] == digests[1] != ""

    def test_it_is_small_and_has_every_kind_of_file(self) -> None:
        disk = served().disk
        assert sum(ByteMap(disk).live_bytes.values()) <= 64 << 10
        names = [*disk.list(WAL_DIR), *disk.list(STATE_DIR)]
        kinds = Counter(name.rpartition(".")[2] for name in names)
        assert (kinds["wal"], kinds["idx"], kinds["snap"]) == (4, 3, 2)

    def test_it_holds_every_event_of_a_group(self) -> None:
        events: Counter[int] = Counter()
        for _, frame in scan_log(served().disk, WAL_DIR):
            assert isinstance(frame, ScanFrame)
            for found in frame.entries:
                if found.header.kind == EntryKind.GROUP_EVENTS and found.entry is not None:
                    _, some = decode_group_events(found.entry.body, found.entry.count)
                    events.update(event[0] for event in some)
        assert set(events) == set(EventKind)

    def test_it_holds_every_kind_of_column(self) -> None:
        """By column, from key lengths to metadata lengths: docs/wal-format.rst, section Batch."""
        kinds: list[set[int]] = [set() for _ in range(8)]
        for _, frame in scan_log(served().disk, WAL_DIR):
            assert isinstance(frame, ScanFrame)
            for found in frame.entries:
                if found.header.kind == EntryKind.RECORDS and found.entry is not None:
                    word = int.from_bytes(found.entry.body[:4], "little")
                    for column in range(8):
                        kinds[column].add(word >> 4 * column & 15)
        absent, constant, array, validity = range(4)
        assert kinds[0] == kinds[7] == {absent, constant, array}
        assert kinds[1] == {constant, array}
        assert kinds[3] == {absent, constant, array, validity}
        assert kinds[4] == {absent, constant, array}
        assert kinds[5] == kinds[6] == {constant, array}

    def test_the_two_together_hold_every_kind_of_entry(self) -> None:
        kinds = set()
        for disk in (served().disk, reserved()[0]):
            for _, frame in scan_log(disk, WAL_DIR):
                assert isinstance(frame, ScanFrame)
                kinds |= {found.header.kind for found in frame.entries}
        assert kinds == set(EntryKind)

    def test_a_broker_refuses_what_it_does_not_know_and_changes_nothing(self) -> None:
        disk, _ = reserved()
        before = disk.digest()
        with pytest.raises(NewerFormat, match=r"kind 4.*upgrade brokerd"):
            start(disk)
        assert disk.digest() == before

    def test_the_map_knows_every_live_byte(self) -> None:
        bytemap = ByteMap(served().disk)
        for path, size in bytemap.live_bytes.items():
            for position in range(size):
                region = bytemap.at(path, position)
                assert region.start <= position < region.end


def outcomes(variant: str, path: str, start: int = 0) -> set[Outcome]:
    """Flip the bytes of a file from a position on: all bytes of a kind of field where it comes
    first, and a few of each that follows. Of bodies, which have one checksum, a few.
    """
    one = checker(variant)
    found = set()
    first: dict[tuple[str, str], int] = {}
    for position in range(start, one.live_bytes[path]):
        region = one.bytemap.at(path, position)
        is_first = region.start == first.setdefault((region.area, region.field), region.start)
        if (is_first and region.field != "body") or position % BODY_STEP == 0:
            judged = one.check(path, position, masks(position)[position % 2])
            assert judged.outcome not in VIOLATIONS, (position, judged)
            found.add(judged.outcome)
    return found


class TestBytes:
    @pytest.mark.slow
    def test_of_the_frames_of_a_sealed_segment(self) -> None:
        found = outcomes("without snapshots", f"{SECOND}.wal", SEGMENT_HEADER_BYTES)
        assert found == {Outcome.HARMLESS, Outcome.DETECTED}

    def test_of_its_index(self) -> None:
        assert outcomes("with snapshots", f"{SECOND}.idx") == {Outcome.REBUILT}

    def test_of_its_index_under_a_running_broker(self) -> None:
        assert outcomes("running, index", f"{SECOND}.idx") == {Outcome.REBUILT}

    def test_of_its_frames_under_a_running_broker(self) -> None:
        found = outcomes("running", f"{SECOND}.wal", SEGMENT_HEADER_BYTES)
        assert found == {Outcome.UNUSED, Outcome.DETECTED}

    def test_of_a_log_that_no_broker_of_this_version_reads(self) -> None:
        _, path, _ = sorted(p for p in checker("log alone").live_bytes if p.endswith(".wal"))
        found = outcomes("log alone", path, SEGMENT_HEADER_BYTES)
        assert found == {Outcome.HARMLESS, Outcome.DETECTED}


class TestLastCommit:
    @pytest.mark.parametrize(
        ("variant", "expected"),
        [("with snapshots", Outcome.TORN_TAIL), ("snapshot last", Outcome.DETECTED)],
    )
    def test_is_cut_unless_something_says_that_it_was_synced(
        self, variant: str, expected: Outcome
    ) -> None:
        one = checker(variant)
        path = max(path for path in one.live_bytes if path.endswith(".wal"))
        for position in range(one.live_bytes[path]):
            region = one.bytemap.at(path, position)
            if region.is_last_commit and region.area == "frame header":
                assert one.check(path, position, 0x10).outcome is expected


class TestJudge:
    """Each must-not-be is seen when it is: the code under test is made to lie."""

    def judge(self, checker: StartChecker, **changes: object) -> Outcome:
        path, position = f"{SECOND}.wal", SEGMENT_HEADER_BYTES
        region = checker.bytemap.at(path, position)
        seen = replace(look(start(checker.disk.fork())), **changes)  # type: ignore[arg-type]
        return checker.judge(region, True, seen).outcome

    def test_a_sound_directory_is_unused(self) -> None:
        assert self.judge(StartChecker(served())) is Outcome.UNUSED

    def test_other_bytes_are_a_wrong_payload(self) -> None:
        one = StartChecker(served())
        records = dict(served().records)
        records[1, 0, 3] = records[1, 0, 3]._replace(metadata=b"x")
        assert self.judge(one, records=records) is Outcome.WRONG_PAYLOAD

    def test_a_record_that_never_was_is_a_wrong_payload(self) -> None:
        one = StartChecker(served())
        records = dict(served().records)
        records[1, 0, 99] = records[1, 0, 3]
        assert self.judge(one, records=records) is Outcome.WRONG_PAYLOAD

    def test_a_record_that_is_missing_untold_is_a_silent_loss(self) -> None:
        one = StartChecker(served())
        records = dict(served().records)
        del records[1, 0, 3]
        assert self.judge(one, records=records) is Outcome.SILENT_LOSS

    def test_a_record_that_is_missing_and_told_elsewhere_is_too_much(self) -> None:
        one = StartChecker(served())
        records = dict(served().records)
        del records[1, 0, 3]
        lost = {"topic": "orders", "partition": 0, "first": 3, "last": 3}
        status = look(start(one.disk.fork())).damage
        damage = status | {"degraded": "yes", "shown": [{"lost": [lost]}]}
        assert self.judge(one, records=records, damage=damage) is Outcome.TOO_MUCH

    def test_a_group_that_changed_untold_is_a_silent_loss(self) -> None:
        one = StartChecker(served())
        group_partitions = dict(look(start(one.disk.fork())).group_partitions)
        del group_partitions[1, 0, "workers"]
        assert self.judge(one, group_partitions=group_partitions) is Outcome.SILENT_LOSS

    def test_an_offset_or_topic_id_that_is_free_again_is_reused(self) -> None:
        one = StartChecker(served())
        ends = dict(look(start(one.disk.fork())).ends)
        ends[1, 0] -= 1
        assert self.judge(one, ends=ends) is Outcome.REUSED
        assert self.judge(one, next_topic_id=3) is Outcome.REUSED


class TestDriver:
    def test_every_byte_of_every_file_is_a_task_of_every_variant(self) -> None:
        for variant in VARIANTS:
            for path, size in checker(variant).live_bytes.items():
                mine = [task for task in tasks(variant) if task.path == path]
                assert [task.start for task in mine[1:]] == [task.stop for task in mine[:-1]]
                assert (mine[0].start, mine[-1].stop) == (0, size)

    def test_one_bit_of_each_byte_and_all_of_them_are_flipped(self) -> None:
        assert {masks(position)[1] for position in range(8)} == {1 << bit for bit in range(8)}
        assert masks(3)[0] == 0xFF

    def test_one_byte_can_be_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert flips.main(["--file", "00000000000000007448.wal", "--at", "5000"]) == 0
        said = capsys.readouterr().out
        assert "without snapshots, entry header GROUP_EVENTS" in said or "entry body" in said
        assert "detected" in said

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--file", "nosuch"], "there is no file nosuch; there are:"),
            (["--file", "nosuch", "--at", "0"], "there is no byte 0 of nosuch; there are:"),
            (["--file", f"{SECOND[-20:]}.idx", "--at", "9999999"], "there is no byte 9999999 of"),
        ],
    )
    def test_what_is_not_there_is_said_with_what_is(
        self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing was checked, so that is no success."""
        assert flips.main([*arguments, "--variant", "running, index"]) == 1
        first, *files = capsys.readouterr().out.splitlines()
        assert said in first
        live = checker("running, index").live_bytes
        size = live[f"{SECOND}.idx"]
        assert f"running, index: {SECOND[-20:]}.idx, {size} bytes" in files
        assert len(files) == len(live)

    def test_no_processes_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            flips.main(["--jobs", "0"])
        assert "--jobs must be at least 1" in capsys.readouterr().err

    def test_the_table_counts_and_a_violation_ends_with_1(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counts = check(Task("running, index", f"{SECOND}.idx", 0, 8)).counts
        assert "index header" in table(counts, False)
        assert "index header: magic" in table(counts, True)
        monkeypatch.setattr(
            flips, "run", lambda work, jobs: flips.FlipResult(counts, ["a complaint"])
        )
        assert flips.main(["--variant", "running, index"]) == 1
        assert "a complaint" in capsys.readouterr().out


def test_a_flip_in_what_is_allocated_and_not_written_loses_nothing() -> None:
    """It looks like a torn tail, and is cut off with the zeros around it."""
    reference = served()
    last = max(name for name in reference.disk.list(WAL_DIR) if name.endswith(".wal"))
    path = f"{WAL_DIR}/{last}"
    live = ByteMap(reference.disk).live_bytes[path]
    for position in (live, live + 1, live + 4000, len(reference.disk.content(path)) - 1):
        disk = reference.disk.fork()
        disk.flip(path, position, 0x01)
        assert verify(disk, WAL_DIR, STATE_DIR).sound
        house = start(disk)
        assert house.report.cut is not None and house.report.cut.position == live
        assert look(house).records == reference.records


def test_a_checker_that_is_broken_says_so() -> None:
    """A variant whose sound directory is not as it was written would judge nothing."""
    reference = served()
    reference.disk.flip(f"{SECOND}.wal", SEGMENT_HEADER_BYTES, 0xFF)
    with pytest.raises(AssertionError):
        StartChecker(reference)
    assert make_checker("log alone").live_bytes
