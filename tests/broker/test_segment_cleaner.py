"""Segments whose records the archive has go from the log, in time and not before."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from twisted.logger import capturedLogs

from brokerd.archive.contract.bounds import decode_bounds
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.broker import Congested
from brokerd.broker.archive.bounds_writer import EVERY_SECONDS, RETRY_SECONDS, SOON_SECONDS
from brokerd.broker.model.topics import TopicSettings
from brokerd.broker.retention.retention import RetentionSettings
from brokerd.errors import NoSpace
from brokerd.wal import WalOptions
from brokerd.wal.damage.verify import verify
from brokerd.wal.disk import File
from simulator.directory.state_text import describe
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import SimDisk
from tests.broker.desk import SECOND_US, lease, produce
from tests.broker.fakearchive import FakeView
from tests.broker.shrinking import (
    CHECK_SECONDS,
    KIB,
    POLL_SECONDS,
    SMALL,
    CountedArchive,
    archive_all,
    fill,
    firsts,
    make,
    marks,
    segments,
    settings,
    without_marks,
)
from tests.house import House


@pytest.fixture(autouse=True)
def _counts_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    really = FakeView.covers

    def covers(self: FakeView, *of: int) -> bool:
        if isinstance(self._archive, CountedArchive):
            self._archive.asked += 1
        return really(self, *of)

    monkeypatch.setattr(FakeView, "covers", covers)


class TestWhatGoes:
    def test_segments_go_soon_after_the_archive_has_them_and_nothing_is_lost(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        house.broker.leases.dead_letter(
            house.broker.leases.group_partition("t", "g", 0, 3), 3, "bad"
        )
        house.run()
        state, count = without_marks(house), len(segments(house))
        assert count > 9
        archive_all(house, archive)
        assert len(segments(house)) < 5
        assert without_marks(house) == state, "nobody settles or forgets anything"
        (first,) = firsts(house).values()
        assert marks(house) == {"t": [first]}
        assert first > 40
        status = house.broker.segment_cleaner.status()
        assert status["deleted_segments"] == count - len(segments(house)) + 1
        assert status["deleted_bytes"] > 400 * KIB
        assert (status["lack"], status["lacking_bytes"]) == (None, 0)
        for again in (house.crash(), stopped(house).again()):
            assert again.report.damages == [] and again.report.holes == []
            assert without_marks(again) == state
            assert marks(again) == {"t": [first]}
            assert produce(again, "t", b"new") == [60]

    def test_what_the_archive_has_not_got_to_stays(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300)
        archive.roll_up(house)
        lsn = archive.versions[-1].records_lsn
        fill(house, 600)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert min(int(name[:20]) for name in segments(house)) == lsn
        assert house.broker.segment_cleaner.status()["behind_bytes"] > 300 * KIB

    @pytest.mark.parametrize("table", ["records_lsn", "events_lsn"])
    def test_both_tables_must_have_got_there(self, table: str) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        view = archive.roll_up(house)
        lsn = house.wal.segments()[2].end_lsn
        setattr(view, table, lsn)
        view.segment_hash = 0
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert min(int(name[:20]) for name in segments(house)) == lsn
        assert marks(house)["t"][0] == firsts(house)[1, 0]

    @pytest.mark.parametrize("keep_kib", [100, 350])
    def test_the_newest_bytes_stay_if_they_are_to(self, keep_kib: int) -> None:
        archive = CountedArchive()
        house = make(archive, settings=settings(keep_kib * KIB, snapshot_interval_bytes=32 * KIB))
        fill(house, 600)
        archive_all(house, archive)
        first_lsn = min(int(name[:20]) for name in segments(house))
        left = house.wal.appended_lsn - first_lsn
        assert keep_kib * KIB <= left < (keep_kib + 128) * KIB
        assert house.broker.segment_cleaner.status()["kept_bytes"] > 0

    def test_nothing_goes_if_the_broker_is_not_to_delete(self) -> None:
        archive = CountedArchive()
        house = make(archive, settings=settings(delete_segments=False))
        fill(house, 600)
        before = segments(house)
        archive_all(house, archive)
        assert set(before) <= set(segments(house))
        assert archive.asked == 0

    def test_nothing_goes_before_two_snapshots_hold_what_else_it_says(self) -> None:
        archive = CountedArchive()
        house = make(archive, settings=settings(snapshot_interval_bytes=1 << 40))
        fill(house, 40)
        before = segments(house)
        archive_all(house, archive)
        assert set(before) <= set(segments(house)), "too little for a snapshot"
        assert house.broker.segment_cleaner.status()["snapshot_bytes"] > 0
        fill(house, 300)
        archive_all(house, archive)
        assert not set(before) & set(segments(house)), "snapshots were taken for it"
        assert house.broker.status()["snapshots_written"] >= 2

    @pytest.mark.parametrize("removed", [False, True])
    def test_snapshots_written_during_a_run_start_the_next_one(
        self, removed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run finds too little for a snapshot of its own."""
        archive = CountedArchive()
        few = settings(delete_segments=not removed, snapshot_interval_bytes=1 << 40)
        house = make(archive, settings=few)
        fill(house, 40)
        house.wal.seal()
        house.run()
        (before,) = segments(house)
        lsn = house.wal.appended_lsn
        produce(house, "u", b"0")
        house.run()
        house.pass_time(EVERY_SECONDS + 1, step=0.5)
        bounds = decode_bounds(bytes(house.disk.content(f"{STATE_DIR}/bounds")))
        assert bounds.lsn >= lsn
        thread = house.readers if removed else house.archive_threads
        step = thread.step
        with monkeypatch.context() as patch:
            patch.setattr(thread, "step", lambda: False)
            archive.roll_up(house)
            if removed:
                (partition,) = house.broker.topics.existing("t").partitions
                house.broker.topics.trim("t", 0, partition.next_offset)
            while house.broker.status()["archive"]["records_lsn"] < lsn:
                house.pass_time(0.1, step=0.1)
                if not removed:
                    step()
            house.run()
            for _ in range(2):
                produce(house, "u", b"1")
                house.run()
                house.broker.snapshotter.begin()
                produce(house, "u", b"1")
                house.run()
            assert house.broker.status()["snapshots_written"] == 2
            assert before in segments(house), "the run is under way"
            assert house.broker.segment_cleaner.waiting_bytes == 0
        house.run()
        assert before not in segments(house)

    def test_records_that_were_removed_need_no_archive(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "removed", "archived")
        archive_all(house, archive)
        count = len(segments(house))
        fill(house, 300, "removed", "archived")
        house.broker.topics.trim("removed", 0, 60)
        archive.roll_up(house)
        newest = archive.versions[-1]
        newest._held = {key: held for key, held in newest._held.items() if key != (1, 0)}
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert len(segments(house)) <= count + 1
        assert marks(house)["removed"][0] <= 30 < marks(house)["archived"][0]

    def test_a_segment_of_which_the_archive_lacks_something_stays_alone(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        view = archive.roll_up(house)
        whole = dict(view._held)
        view._held = {(1, 0): whole[1, 0]._replace(covered=((0, 20), (21, 60)))}
        with capturedLogs() as logs:
            house.pass_time(POLL_SECONDS + 1, step=0.5)
            asked = archive.asked
            house.pass_time(2 * CHECK_SECONDS, step=0.5)
        assert archive.asked == asked, "one version is asked once"
        status = house.broker.segment_cleaner.status()
        assert "topic id 1 partition 0" in status["lack"]
        assert 0 < status["lacking_bytes"] <= 64 * KIB
        told = [event for event in logs if event.get("event_id") == "archive-lacks"]
        assert len(told) == 1
        assert firsts(house)[1, 0] <= 20
        archive.cover((1, 0), 20, 21)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert firsts(house)[1, 0] > 40
        assert house.broker.segment_cleaner.status()["lack"] is None

    def test_what_it_lacks_may_be_removed_instead(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        view = archive.roll_up(house)
        view._held = {(1, 0): view._held[1, 0]._replace(covered=((9, 60),))}
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert firsts(house)[1, 0] == 0
        house.broker.topics.trim("t", 0, 9)
        house.pass_time(2 * CHECK_SECONDS, step=0.5)
        assert firsts(house)[1, 0] > 40

    def test_many_partitions_go_on_record_some_at_a_time(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        names = [f"t{number}" for number in range(250)]
        for number in range(3):
            for name in names:
                produce(house, name, b"%d" % number + bytes(500))
                house.run()
        archive_all(house, archive)
        assert all(found[0] >= 2 for found in marks(house).values())
        again = house.crash()
        assert again.report.damages == []
        assert marks(again) == marks(house)

    def test_all_go_however_many_partitions_they_have(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.wal.deletion.coverage.SPANS_MAX", 3)
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "t", "u")
        archive_all(house, archive)
        assert len(segments(house)) < 5

    def test_a_topic_deleted_meanwhile_is_passed_over(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "t", "u")
        house.wal.seal()
        house.run()
        archive.roll_up(house)
        house.pass_time(POLL_SECONDS - 1, step=0.5)
        house.clock.advance(1)
        for _ in range(50):
            for thread in (house.archive_threads, house.snapshot_writer, house.readers):
                if thread.step():
                    break
            else:
                break
        house.broker.topics.delete("u")
        house.run()
        house.pass_time(CHECK_SECONDS, step=0.5)
        assert not house.failures
        assert len(segments(house)) < 5
        assert house.crash().report.damages == []


def stopped(house: House) -> House:
    house = house.again()
    house.stop()
    return house


def ask_again(house: House, archive: CountedArchive) -> None:
    """Let the cleaner ask the archive, which another look of the refresher finds changed."""
    archive.asked = 0
    house.broker.archive_refresher.refresh()
    house.broker.segment_cleaner.wake()
    house.snapshot_writer.step()
    house.run()
    assert archive.asked > 1


class TestAnArchiveThatCannotBeUsed:
    def test_nothing_goes_until_a_look_finds_it_in_order_again(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        archive.roll_up(house)
        archive.failure = ArchiveUnavailable("not mounted")
        before = segments(house)
        house.pass_time(2 * CHECK_SECONDS, step=0.5)
        assert set(before) <= set(segments(house))
        archive.failure = None
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert len(segments(house)) < 5

    def test_nothing_goes_when_it_is_lost_after_it_was_seen(self) -> None:
        archive = CountedArchive()
        house = make(archive, settings=settings(1 << 40))
        fill(house, 600)
        archive_all(house, archive)
        archive.failure = ArchiveUnavailable("not mounted")
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        house = house.again(settings=settings())
        before = segments(house)
        house.pass_time(2 * CHECK_SECONDS, step=0.5)
        assert set(before) <= set(segments(house))

    def test_nothing_goes_when_it_is_lost_while_it_is_asked(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        archive.read_failure = ArchiveUnavailable("not mounted")
        archive_all(house, archive)
        before = segments(house)
        archive.failure, archive.read_failure = archive.read_failure, None
        ask_again(house, archive)
        assert set(before) <= set(segments(house))
        assert marks(house) == {"t": [0]}

    @pytest.mark.parametrize("table", ["records_lsn", "events_lsn"])
    def test_nothing_goes_when_an_older_version_is_back_while_it_is_asked(self, table: str) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300)
        archive.roll_up(house)
        fill(house, 300)
        archive.read_failure = ArchiveUnavailable("not mounted")
        archive_all(house, archive)
        newest = archive.versions.pop()
        older = archive.versions[-1]
        for name in {"records_lsn", "events_lsn"} - {table}:
            setattr(older, name, newest.records_lsn)
        older.segment_hash = 0
        archive.read_failure = None
        ask_again(house, archive)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert min(int(name[:20]) for name in segments(house)) == getattr(older, table)

    @pytest.mark.parametrize(
        "error", [ArchiveUnavailable("gone"), DamagedArchive("flipped", 0, 60), OSError(5, "I/O")]
    )
    def test_a_segment_about_which_it_cannot_say_stays(self, error: Exception) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        before = segments(house)
        archive.read_failure = error
        archive_all(house, archive)
        assert set(before) <= set(segments(house))
        assert str(error) in house.broker.segment_cleaner.status()["lack"]
        assert not house.failures
        archive.read_failure = None
        house.pass_time(CHECK_SECONDS + 1, step=0.5)
        assert len(segments(house)) < 5

    def test_a_broker_that_lost_it_starts_and_serves_what_the_log_has(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        archive_all(house, archive)
        state = list(describe(house.broker))
        archive.failure = ArchiveUnavailable("not mounted")
        for again in (house.crash(), house.crash(open_archive=None)):
            assert again.report.damages == []
            assert list(describe(again.broker)) == state
            first = marks(again)["t"][0]
            again.broker.groups.seek("t", "g", first)
            found = lease(again, limit=99)
            assert [offset for offset, _ in found] == list(range(first, 60))
            assert not again.broker.damage.status()["places"]

    def test_one_that_never_answers_holds_up_no_retention(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "t", "u")
        archive.roll_up(house)
        house.pass_time(POLL_SECONDS - 1, step=0.5)
        house.run()
        before = set(segments(house))
        with monkeypatch.context() as patch:
            patch.setattr(house.archive_threads, "step", lambda: False)
            house.broker.topics.delete("t")
            house.broker.topics.delete("u")
            fill(house, 300, "v")
            house.pass_time(4 * CHECK_SECONDS, step=1)
            assert len(before & set(segments(house))) < 3
        house.pass_time(CHECK_SECONDS, step=1)
        assert not house.failures

    def test_its_records_come_late_and_are_not_lost(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300)
        archive_all(house, archive)
        assert firsts(house).get((1, 0), 30) > 20
        assert [offset for offset, _ in lease(house, limit=10)] == list(range(10))
        archive.failure = archive.read_failure = ArchiveUnavailable("not mounted")
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        with pytest.raises(ArchiveUnavailable):
            lease(house, limit=30)
        assert house.broker.overview.group_info("t", "g").dead == 0
        assert not house.broker.damage.status()["places"]
        archive.failure = archive.read_failure = None
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert [offset for offset, _ in lease(house, limit=30)] == list(range(10, 30))


class TestCrashes:
    @pytest.mark.parametrize("writes_last", [False, True])
    def test_a_record_is_in_the_log_or_on_record_as_archived_at_every_moment(
        self, writes_last: bool
    ) -> None:
        """A crash may come before, between and after the marks and each step of the deletion."""
        archive = CountedArchive()
        house = make(archive, options=replace(SMALL, seal_age_us=1 << 60))
        fill(house, 250, "t", "u")
        house.wal.seal()
        house.run()
        archive.roll_up(house)
        house.pass_time(POLL_SECONDS - 1, step=0.5)
        state = without_marks(house)
        house.clock.advance(1)
        seen = set()
        for _ in range(400):
            disk = house.disk.copy()
            disk.crash()
            sound = verify(disk.fork(), WAL_DIR, STATE_DIR)
            assert sound.sound
            again = house.again(disk=disk, open_archive=None)
            assert again.report.damages == []
            assert without_marks(again) == state
            held = firsts(again)
            for topic in again.broker.topics.all():
                (partition,) = topic.partitions
                first = held.get((topic.topic_id, 0), partition.next_offset)
                assert first <= partition.archived_end, "nothing is gone that is not on record"
                seen.add((first > 0, partition.archived_end > 0))
            assert produce(again, "t", b"new") == [25]
            threads = [
                house.writer,
                house.background,
                house.archive_threads,
                house.readers,
                house.snapshot_writer,
            ]
            for thread in reversed(threads) if writes_last else threads:
                if thread.step():
                    break
            else:
                if len(segments(house)) < 5:
                    break
            house.clock.advance(0.01)
        assert len(segments(house)) < 5
        assert seen == {(False, False), (False, True), (True, True)}

    def test_a_deletion_that_a_crash_cut_off_is_finished_after_the_start(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        house.wal.seal()
        house.run()
        archive.roll_up(house)
        house.pass_time(POLL_SECONDS - 1, step=0.5)
        house.clock.advance(1)
        while len(segments(house)) > 8:
            for thread in (house.writer, house.background, house.archive_threads, house.readers):
                thread.step()
            house.snapshot_writer.step()
            house.clock.advance(0.01)
        house = house.crash()
        assert house.report.damages == []
        house.pass_time(CHECK_SECONDS, step=0.5)
        assert len(segments(house)) < 5


class TestFullDisk:
    ROOM = WalOptions(segment_bytes=64 * KIB, reserve_bytes=8 * KIB, free_bytes_min=128 * KIB)

    def full(self, archive: CountedArchive) -> House:
        house = self.small(archive)
        self.fill_up(house)
        return house

    def small(self, archive: CountedArchive) -> House:
        disk = SimDisk(1 << 20)
        return make(archive, disk=disk, settings=settings(1 << 40), options=self.ROOM)

    def fill_up(self, house: House, prefix: str = "t") -> None:
        with pytest.raises(NoSpace):
            for number in range(1000):
                try:
                    produce(house, f"{prefix}{number % 40}", bytes(2 * KIB))
                except Congested:
                    house.run()
        house.run()

    def produces(self, house: House) -> bool:
        house.wal.retry_allocation()
        house.run()
        try:
            produce(house, "t0", bytes(2 * KIB))
        except (NoSpace, Congested):
            return False
        house.run()
        return True

    def test_the_archive_makes_room_at_once_whatever_was_to_be_kept(self) -> None:
        archive = CountedArchive()
        house = self.full(archive)
        assert not self.produces(house)
        archive.roll_up(house)
        house.pass_time(2 * POLL_SECONDS, step=0.5)
        assert all(self.produces(house) for _ in range(20))
        assert not house.failures
        assert house.crash().report.damages == []

    def test_the_log_shrinks_as_soon_as_the_disk_is_full(self) -> None:
        archive = CountedArchive()
        house = make(archive, disk=SimDisk(1 << 20), settings=settings(1 << 40), options=self.ROOM)
        for number in range(150):
            produce(house, f"t{number % 40}", bytes(2 * KIB))
            house.run()
        archive.roll_up(house)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert house.broker.segment_cleaner.status()["kept_bytes"] > 100 * KIB
        full_at = 0
        for number in range(1000):
            try:
                produce(house, f"t{number % 40}", bytes(2 * KIB))
            except Congested:
                house.run()
            except NoSpace:
                full_at = number
                break
        house.run()
        assert full_at
        assert self.produces(house)

    def test_when_there_is_no_room_to_put_it_on_record_nothing_goes_for_now(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300)
        archive.roll_up(house)
        before = segments(house)
        with monkeypatch.context() as patch, capturedLogs() as logs:
            patch.setattr(house.broker.group_commit, "admit_events", no_space)
            house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert set(before) <= set(segments(house))
        assert [event["event_id"] for event in logs].count("segments-not-deleted") == 1
        assert house.broker.status()["retention"]["last_error"] == "not one byte is left"
        house.pass_time(CHECK_SECONDS + 1, step=0.5)
        assert len(segments(house)) < 5
        assert house.broker.status()["retention"]["last_error"] is None

    def test_little_room_is_enough_for_some_partitions_at_a_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = CountedArchive()
        house = make(archive)
        for number in range(3):
            for topic in range(60):
                produce(house, f"t{topic}", b"%d" % number + bytes(2 * KIB))
                house.run()
        archive.roll_up(house)
        admit = house.broker.group_commit.admit_events

        def little(size: int) -> None:
            if size > 2048:
                no_space(size)
            admit(size)

        monkeypatch.setattr(house.broker.group_commit, "admit_events", little)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert len(segments(house)) < 5
        assert house.crash().report.damages == []


class TestBounds:
    """A segment that creates topics stays until ``state/bounds`` has their names."""

    def bounds_fail(self, house: House, patch: pytest.MonkeyPatch) -> None:
        create = house.disk.create

        def fail(path: str) -> File:
            if path.endswith("bounds.tmp"):
                raise OSError(errno.EIO, "the file cannot be written")
            return create(path)

        patch.setattr(house.disk, "create", fail)

    def waiting(self, house: House) -> int:
        waiting: int = house.broker.status()["archive"]["waiting_bytes"]["bounds"]
        return waiting

    def known(self, house: House) -> bool:
        """Whether the bounds name all topics that segments no longer on the disk created."""
        bounds = decode_bounds(bytes(house.disk.content(f"{STATE_DIR}/bounds")))
        return bounds.lsn >= min(int(name[:20]) for name in segments(house))

    @pytest.mark.parametrize("removed", [False, True])
    def test_segments_stay_until_the_bounds_cover_them(
        self, removed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = CountedArchive()
        house = make(archive, settings=settings(delete_segments=not removed))
        fill(house, 300)
        house.pass_time(EVERY_SECONDS, step=0.5)
        with monkeypatch.context() as patch:
            self.bounds_fail(house, patch)
            fill(house, 300, "u")
            if removed:
                for name in ("t", "u"):
                    (partition,) = house.broker.topics.existing(name).partitions
                    house.broker.topics.trim(name, 0, partition.next_offset)
            archive_all(house, archive)
            house.pass_time(2 * CHECK_SECONDS, step=0.5)
            assert self.known(house)
            assert self.waiting(house) > 200 * KIB
            assert len(segments(house)) > 5
        house.pass_time(RETRY_SECONDS + 1, step=0.5)
        assert len(segments(house)) < 5, "they go when the bounds are written"
        assert self.waiting(house) == 0
        assert self.known(house)

    @pytest.mark.parametrize("removed", [False, True])
    @pytest.mark.parametrize("fails", [False, True])
    def test_a_full_disk_gets_room_after_one_attempt_to_write_them(
        self, fails: bool, removed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = CountedArchive()
        house = TestFullDisk().full(archive)
        if fails:
            self.bounds_fail(house, monkeypatch)
        if removed:
            for number in range(40):
                house.broker.topics.delete(f"t{number}")
            house.run()
            house.broker.segment_cleaner.wake()
        else:
            archive.roll_up(house)
            house.broker.archive_admin.refresh(lambda error: None)
        house.pass_time(SOON_SECONDS - 0.2, step=0.1)
        assert len(segments(house)) < 5, "no need to wait for the regular write"
        if not fails:
            assert self.known(house)
        assert all(TestFullDisk().produces(house) for _ in range(20))

    def delete_topics(self, house: House, prefix: str) -> None:
        for number in range(40):
            house.broker.topics.delete(f"{prefix}{number}")
        house.run()
        house.broker.segment_cleaner.wake()

    def test_a_write_that_failed_before_the_disk_was_full_does_not_count(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not before the first shortage, and not in an earlier one."""
        room = TestFullDisk()
        house = room.small(CountedArchive())
        with monkeypatch.context() as patch:
            self.bounds_fail(house, patch)
            house.pass_time(SOON_SECONDS + 0.1, step=0.1)
        room.fill_up(house)
        self.delete_topics(house, "t")
        house.pass_time(0.2, step=0.1)
        assert len(segments(house)) < 5
        assert self.known(house)
        assert room.produces(house)
        house.broker.topics.delete("t0")
        with monkeypatch.context() as patch:
            self.bounds_fail(house, patch)
            room.fill_up(house, "u")
            self.delete_topics(house, "u")
            house.pass_time(0.2, step=0.1)
            assert len(segments(house)) < 5
            assert not self.known(house), "a write failed in this shortage"
        assert room.produces(house)
        house.broker.topics.delete("t0")
        room.fill_up(house, "v")
        self.delete_topics(house, "v")
        house.pass_time(0.2, step=0.1)
        assert len(segments(house)) < 5
        assert self.known(house)

    def test_a_disk_that_is_found_full_again_during_each_write_gets_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may have room for a small segment, and a larger one is asked for each second."""
        house = TestFullDisk().full(CountedArchive())
        create = house.disk.create

        def fail(path: str) -> File:
            if path.endswith("bounds.tmp"):
                house.wal.on_disk_full()
                raise OSError(errno.EIO, "the file cannot be written")
            return create(path)

        monkeypatch.setattr(house.disk, "create", fail)
        self.delete_topics(house, "t")
        house.pass_time(SOON_SECONDS - 0.2, step=0.1)
        assert len(segments(house)) < 5
        assert TestFullDisk().produces(house)

    @pytest.mark.parametrize("removed", [False, True])
    def test_bounds_written_during_a_run_start_the_next_one(
        self, removed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = CountedArchive()
        few_wait = settings(delete_segments=not removed, snapshot_interval_bytes=16 * KIB)
        house = make(archive, settings=few_wait)
        fill(house, 300)
        house.wal.seal()
        house.run()
        lsn = house.wal.appended_lsn
        fill(house, 40, "u")  # two snapshots past the segments
        thread = house.readers if removed else house.archive_threads
        step = thread.step
        with monkeypatch.context() as patch:
            patch.setattr(thread, "step", lambda: False)
            if removed:
                (partition,) = house.broker.topics.existing("t").partitions
                house.broker.topics.trim("t", 0, partition.next_offset)
                house.broker.segment_cleaner.wake()
                house.run()
            else:
                archive.roll_up(house)
                with monkeypatch.context() as failing:
                    self.bounds_fail(house, failing)
                    while house.broker.status()["archive"]["records_lsn"] < lsn:
                        house.pass_time(0.1, step=0.1)
                        step()
                    house.run()
            house.pass_time(RETRY_SECONDS, step=0.1)
            bounds = decode_bounds(bytes(house.disk.content(f"{STATE_DIR}/bounds")))
            assert bounds.lsn >= lsn
            assert len(segments(house)) > 4, "the run is under way"
            assert self.waiting(house) == 0
        house.run()
        assert len(segments(house)) < 5


def no_space(size: int) -> None:
    raise NoSpace("not one byte is left")


class TestRuns:
    def test_whoever_asks_while_one_is_on_is_told_by_the_next(self) -> None:
        house = make(CountedArchive())
        told: list[str] = []
        sweep = house.broker.segment_cleaner
        sweep.run(lambda: told.append("first"))
        sweep.run(lambda: told.append("second"))
        sweep.run(lambda: told.append("third"))
        assert told == []
        house.run()
        assert told == ["first", "second", "third"]

    def test_nobody_is_told_after_a_stop(self) -> None:
        house = make(CountedArchive())
        told: list[str] = []
        house.broker.segment_cleaner.run(lambda: told.append("first"))
        house.broker.segment_cleaner.run(lambda: told.append("second"))
        house.stop()
        assert told == []


def test_topics_settings_are_still_topics_settings() -> None:
    """Retention by size and the archive go side by side."""
    archive = CountedArchive()
    limits = RetentionSettings(TopicSettings(0, 100 * KIB, 0), check_us=10 * SECOND_US)
    house = make(archive, settings=replace(settings(), retention=limits))
    fill(house, 300)
    archive_all(house, archive)
    fill(house, 300)
    house.pass_time(30, step=0.5)
    (partition,) = house.broker.topics.existing("t").partitions
    assert partition.start_offset > partition.archived_end > 0
    assert house.crash().report.damages == []
