"""Segments whose records the archive has go from the log, in time and not before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.logger import capturedLogs

from brokerd.archive.bounds import Bounds, decode_bounds
from brokerd.archive.view import Archive, ArchiveUnavailable, DamagedArchive
from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.archive_access import ArchiveSettings
from brokerd.broker.retention import RetentionSettings
from brokerd.broker.topics import TopicSettings
from brokerd.errors import DamagedData, NoSpace
from brokerd.sim.bare import STATE_DIR, WAL_DIR
from brokerd.sim.disk import SimDisk
from brokerd.sim.state_text import describe
from brokerd.wal import WalOptions
from brokerd.wal.repair import Deed, Rooms, examine, repair
from brokerd.wal.verify import verify
from tests.broker.desk import SECOND_US, lease, produce
from tests.broker.fakearchive import FakeArchive, FakeView
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
CHECK_SECONDS = 60
POLL_SECONDS = 5


class CountedArchive(FakeArchive):
    """Counts how often it is asked whether it covers something."""

    asked = 0

    def opened(self, log_id: str) -> Archive:
        self.log_id = log_id
        return self


@pytest.fixture(autouse=True)
def _counts_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    really = FakeView.covers

    def covers(self: FakeView, *of: int) -> bool:
        if isinstance(self._archive, CountedArchive):
            self._archive.asked += 1
        return really(self, *of)

    monkeypatch.setattr(FakeView, "covers", covers)


def settings(keep_wal_bytes: int = 0, **changes: Any) -> BrokerSettings:
    return BrokerSettings(
        tail_cache_bytes=0,
        read_cache_bytes=0,
        snapshot_interval_bytes=changes.pop("snapshot_interval_bytes", 100 * KIB),
        archive=ArchiveSettings(POLL_SECONDS * SECOND_US, keep_wal_bytes=keep_wal_bytes, **changes),
        retention=RetentionSettings(check_us=CHECK_SECONDS * SECOND_US),
    )


def make(archive: CountedArchive, **changes: Any) -> House:
    return House(
        settings=changes.pop("settings", settings()),
        options=changes.pop("options", SMALL),
        open_archive=archive.opened,
        **changes,
    )


def fill(house: House, kib: int, *topics: str) -> None:
    """Produce so much in turns, in frames of some size."""
    for number in range(kib // 10):
        for topic in topics or ("t",):
            produce(house, topic, b"%d" % number + bytes(10 * KIB))
            house.run()


def segments(house: House) -> list[str]:
    return [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]


def marks(house: House) -> dict[str, list[int]]:
    return {one.name: [p.archived for p in one.partitions] for one in house.broker.topics()}


def firsts(house: House) -> dict[tuple[int, int], int]:
    """The first offset that the log has of each partition, by topic id and partition."""
    catalog = house.wal._catalog
    return {key: where[0][0] for key, where in catalog._where.items()}


def without_marks(house: House) -> list[str]:
    return [line.partition(", archived")[0] for line in describe(house.broker)]


def archive_all(house: House, archive: CountedArchive) -> None:
    """Seal, roll up, and let it be time for the broker to see it."""
    house.wal.seal()
    house.run()
    archive.roll_up(house)
    house.pass_time(POLL_SECONDS + 1, step=0.5)


class TestWhatGoes:
    def test_segments_go_soon_after_the_archive_has_them_and_nothing_is_lost(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        house.broker.dead_letter(house.broker.lane("t", "g", 0, 3), 3, "bad")
        house.run()
        state, count = without_marks(house), len(segments(house))
        assert count > 9
        archive_all(house, archive)
        assert len(segments(house)) < 5
        assert without_marks(house) == state, "nobody settles or forgets anything"
        (first,) = firsts(house).values()
        assert marks(house) == {"t": [first]}
        assert first > 40
        status = house.broker.sweep.status()
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
        assert house.broker.sweep.status()["behind_bytes"] > 300 * KIB

    @pytest.mark.parametrize("table", ["records_lsn", "events_lsn"])
    def test_both_tables_must_have_got_there(self, table: str) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        view = archive.roll_up(house)
        lsn = house.wal.segments()[2].end_lsn
        setattr(view, table, lsn)
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
        assert house.broker.sweep.status()["kept_bytes"] > 0

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
        assert house.broker.sweep.status()["snapshot_bytes"] > 0
        fill(house, 300)
        archive_all(house, archive)
        assert not set(before) & set(segments(house)), "snapshots were taken for it"
        assert house.broker.status()["snapshots_written"] >= 2

    def test_records_that_were_removed_need_no_archive(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "removed", "archived")
        archive_all(house, archive)
        count = len(segments(house))
        fill(house, 300, "removed", "archived")
        house.broker.trim_topic("removed", 0, 60)
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
        status = house.broker.sweep.status()
        assert "topic id 1 partition 0" in status["lack"]
        assert 0 < status["lacking_bytes"] <= 64 * KIB
        told = [event for event in logs if event.get("event_id") == "archive-lacks"]
        assert len(told) == 1
        assert firsts(house)[1, 0] <= 20
        archive.cover((1, 0), 20, 21)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert firsts(house)[1, 0] > 40
        assert house.broker.sweep.status()["lack"] is None

    def test_what_it_lacks_may_be_removed_instead(self) -> None:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        view = archive.roll_up(house)
        view._held = {(1, 0): view._held[1, 0]._replace(covered=((9, 60),))}
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert firsts(house)[1, 0] == 0
        house.broker.trim_topic("t", 0, 9)
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
        monkeypatch.setattr("brokerd.wal.removal.SPANS_MAX", 3)
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
        house.broker.delete_topic("u")
        house.run()
        house.pass_time(CHECK_SECONDS, step=0.5)
        assert not house.failures
        assert len(segments(house)) < 5
        assert house.crash().report.damages == []


def stopped(house: House) -> House:
    house = house.again()
    house.stop()
    return house


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
        archive.asked = 0
        house.broker.archived.refresh()
        house.broker.sweep.wake()
        house.snapshot_writer.step()
        house.run()
        assert archive.asked > 1
        assert set(before) <= set(segments(house))
        assert marks(house) == {"t": [0]}

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
        assert str(error) in house.broker.sweep.status()["lack"]
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
            again.broker.seek_group("t", "g", first)
            found = lease(again, limit=99)
            assert [offset for offset, _ in found] == list(range(first, 60))
            assert not again.broker.quarantine.status()["places"]


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
            for topic in again.broker.topics():
                (partition,) = topic.partitions
                first = held.get((topic.topic_id, 0), partition.next_offset)
                assert first <= partition.archived, "nothing is gone that is not on record"
                seen.add((first > 0, partition.archived > 0))
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
            for thread in (house.writer, house.background, house.archive_threads):
                thread.step()
            house.snapshot_writer.step()
            house.clock.advance(0.01)
        house = house.crash()
        assert house.report.damages == []
        house.pass_time(CHECK_SECONDS, step=0.5)
        assert len(segments(house)) < 5


class TestDamage:
    """Damage to what is left of the log, when the archive has what came before."""

    def shrunk(self) -> tuple[House, int]:
        """A broker whose log has the newest records of one topic, and the first of them."""
        archive = CountedArchive()
        house = make(archive, settings=settings(200 * KIB, snapshot_interval_bytes=50 * KIB))
        fill(house, 600)
        lease(house, limit=3)
        house.run()
        archive_all(house, archive)
        first = firsts(house)[1, 0]
        assert 20 < first < 45
        house.disk.crash()
        return house, first

    def lose(self, house: House, name: str) -> None:
        for one in (name, name.replace(".wal", ".idx")):
            if one in house.disk.list(WAL_DIR):
                house.disk.unlink(f"{WAL_DIR}/{one}")
        house.disk.sync_directory(WAL_DIR)

    def lanes(self, house: House) -> list[str]:
        return [line for line in describe(house.broker) if line.startswith("  ")]

    @pytest.mark.parametrize("number", [0, 1])
    def test_what_is_archived_is_not_called_lost(self, number: int) -> None:
        house, first = self.shrunk()
        before = self.lanes(house)
        names = segments(house)
        self.lose(house, names[number])
        report = verify(house.disk.copy(), WAL_DIR, STATE_DIR)
        again = house.again(open_archive=None)
        for damages in (report.damages, again.report.damages):
            (damage,) = damages
            (lost,) = damage.lost
            assert lost[:2] == (1, 0)
            assert lost.first == first if number == 0 else lost.first > first
            assert lost.first < lost.end <= 60
        (partition,) = again.broker.existing_topic("t").partitions
        assert partition.gaps == [(lost.first, lost.end)]
        assert self.lanes(again) == [
            line.replace(f"lag {60 - 0}", f"lag {60 - (lost.end - lost.first)}") for line in before
        ]

    def test_snapshots_tell_it_of_a_topic_that_was_quiet_since(self) -> None:
        """What the log said of it is archived, too."""
        archive = CountedArchive()
        house = make(archive, settings=settings(200 * KIB, snapshot_interval_bytes=50 * KIB))
        fill(house, 300, "quiet", "t")
        archive_all(house, archive)
        (mark,) = marks(house)["quiet"]
        assert mark > 0
        fill(house, 600)
        archive_all(house, archive)
        (mark,) = marks(house)["quiet"]
        fill(house, 600)
        archive_all(house, archive)
        produce(house, "quiet", b"at last")
        house.run()
        house.disk.crash()
        self.lose(house, segments(house)[0])
        report = verify(house.disk.copy(), WAL_DIR, STATE_DIR)
        again = house.again(open_archive=None)
        assert marks(again)["quiet"] == [mark]
        for damages in (report.damages, again.report.damages):
            (damage,) = damages
            assert damage.lost
            assert all(lost.first >= mark for lost in damage.lost if lost.topic_id == 1)

    def test_a_repair_puts_no_archived_record_on_record_as_lost(self) -> None:
        house, first = self.shrunk()
        names = segments(house)
        rooms = Rooms.of("/data")
        data = house.disk.content(f"{WAL_DIR}/{names[1]}")
        data[200] ^= 1
        data[9000] ^= 1
        plan = examine(house.disk, rooms)
        recorded = [action for action in plan.actions if action.deed == Deed.RECORD]
        assert recorded
        assert all(lost.first >= first for action in recorded for lost in action.lost)
        repair(house.disk, rooms, plan, "20231114T221320Z", lambda count: b"\7" * count)
        again = house.again(open_archive=None)
        assert again.report.damages == []
        assert again.broker._state.recorded

    def test_an_archived_record_that_came_back_damaged_is_not_lost(self) -> None:
        """Somebody brought the segment back, and the archive has what cannot be read of it."""
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        house.run()
        old = house.disk.copy()
        name = segments(house)[0]
        archive_all(house, archive)
        house.disk.crash()
        data = bytearray(old.content(f"{WAL_DIR}/{name}"))
        data[20_000] ^= 1
        house.disk.create(f"{WAL_DIR}/{name}").pwrite(bytes(data), 0)
        house.disk.sync_directory(WAL_DIR)
        before = self.lanes(house)
        again = house.again(open_archive=None)
        assert self.lanes(again) == before
        assert all(damage.lost == [] for damage in again.report.damages)
        (partition,) = again.broker.existing_topic("t").partitions
        assert partition.gaps == []


class TestFullDisk:
    ROOM = WalOptions(segment_bytes=64 * KIB, reserve_bytes=8 * KIB, free_bytes_min=128 * KIB)

    def full(self, archive: CountedArchive) -> House:
        house = make(archive, disk=SimDisk(1 << 20), settings=settings(1 << 40), options=self.ROOM)
        with pytest.raises(NoSpace):
            for number in range(1000):
                try:
                    produce(house, f"t{number % 40}", bytes(2 * KIB))
                except Congested:
                    house.run()
        house.run()
        return house

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
        assert house.broker.sweep.status()["kept_bytes"] > 100 * KIB
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
            patch.setattr(house.broker.journal, "admit_events", no_space)
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
        admit = house.broker.journal.admit_events

        def little(size: int) -> None:
            if size > 2048:
                no_space(size)
            admit(size)

        monkeypatch.setattr(house.broker.journal, "admit_events", little)
        house.pass_time(POLL_SECONDS + 1, step=0.5)
        assert len(segments(house)) < 5
        assert house.crash().report.damages == []


def no_space(size: int) -> None:
    raise NoSpace("not one byte is left")


class TestRuns:
    def test_whoever_asks_while_one_is_on_is_told_by_the_next(self) -> None:
        house = make(CountedArchive())
        told: list[str] = []
        sweep = house.broker.sweep
        sweep.run(lambda: told.append("first"))
        sweep.run(lambda: told.append("second"))
        sweep.run(lambda: told.append("third"))
        assert told == []
        house.run()
        assert told == ["first", "second", "third"]

    def test_nobody_is_told_after_a_stop(self) -> None:
        house = make(CountedArchive())
        told: list[str] = []
        house.broker.sweep.run(lambda: told.append("first"))
        house.broker.sweep.run(lambda: told.append("second"))
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
    (partition,) = house.broker.existing_topic("t").partitions
    assert partition.start_offset > partition.archived > 0
    assert house.crash().report.damages == []


class TestLostState:
    """All snapshots are lost, and the log that they stood for is in the archive."""

    def shrunk(self) -> House:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "t", "gone")
        produce(house, "t", b"last")
        house.run()
        archive_all(house, archive)
        house.stop()
        assert marks(house)["gone"][0] > 20
        return house

    def lose_snapshots(self, house: House, how: str) -> None:
        names = house.disk.list(STATE_DIR)
        snapshots = [name for name in names if name.endswith(".snap")]
        assert len(snapshots) == 2
        for name in snapshots if how == "flipped" else names:
            if how == "flipped":
                house.disk.content(f"{STATE_DIR}/{name}")[100] ^= 1
            else:
                house.disk.unlink(f"{STATE_DIR}/{name}")
        house.disk.sync_directory(STATE_DIR)

    @pytest.mark.parametrize("how", ["flipped", "deleted"])
    def test_a_start_is_refused_and_says_what_to_do(self, how: str) -> None:
        house = self.shrunk()
        whole = house.disk.copy()
        self.lose_snapshots(house, how)
        before = house.disk.files()
        with pytest.raises(DamagedData, match=r"Nothing was changed\. Bring back state/"):
            house.again()
        assert house.disk.files() == before
        for name in whole.list(STATE_DIR):
            if how == "deleted":
                house.disk.create(f"{STATE_DIR}/{name}")
            data = bytes(whole.content(f"{STATE_DIR}/{name}"))
            house.disk.content(f"{STATE_DIR}/{name}")[:] = data
        assert list(describe(house.again().broker)) == list(describe(house.broker))

    def test_after_a_repair_nothing_is_given_again_and_no_topic_passes_for_deleted(self) -> None:
        house = self.shrunk()
        before = house.broker._state.next_topic_id
        self.lose_snapshots(house, "flipped")
        rooms = Rooms.of("/data")
        plan = examine(house.disk, rooms)
        repair(house.disk, rooms, plan, "20231114T221320Z", lambda count: b"\7" * count)
        house = house.again()
        for name in ("new", "newer"):
            assert house.report.damages == []
            old = house.broker._state.partition(1, 0)
            assert old is None or old.next_offset >= 31
            new = house.broker.create_topic(name)
            assert new.topic_id >= before
            before = new.topic_id + 1
            assert published(house).next_topic_id == 1, "of no id it is known that it was deleted"
            house = house.crash()
        house.stop()
        assert published(house.again()).next_topic_id == 1

    def test_a_sound_log_knows_all_of_its_topics(self) -> None:
        assert published(self.shrunk().again()).next_topic_id == 3

    def wipe(self, house: House, name: str, number: int) -> House:
        """Damage the beginning of a frame, by its number in the segment, and start again."""
        data = house.disk.content(f"{WAL_DIR}/{name}")
        at = -1
        for _ in range(number):
            at = data.index(b"BKfr", at + 1)
        data[at : at + 120] = bytes(120)
        return house.again()

    def test_topics_that_a_snapshot_tells_of_are_known_whatever_the_log_lost(self) -> None:
        house = make(CountedArchive())
        for name in "abc":
            produce(house, name, b"0")
            house.run()
        house.stop()
        house = self.wipe(house, segments(house)[0], 2)
        assert house.report.damages
        assert published(house).next_topic_id == 4
        house.broker.create_topic("d")
        house.broker.delete_topic("d")
        house.pass_time(61, step=1)
        assert published(house).next_topic_id == 5

    def test_topics_that_are_newer_than_the_snapshot_may_be_lost(self) -> None:
        house = make(CountedArchive())
        for name in "abc":
            produce(house, name, b"0")
            house.run()
        house.stop()
        house = house.again()
        for name in "defg":
            produce(house, name, b"0")
            house.run()
        house.pass_time(1)
        house.disk.crash()
        house = self.wipe(house, segments(house)[1], 2)
        assert house.report.damages
        assert published(house).next_topic_id == 4
        assert house.broker.create_topic("new").topic_id >= 8


def published(house: House) -> Bounds:
    """What the broker has the archive's job know."""
    house.pass_time(2, step=0.5)
    file = house.disk.open(f"{STATE_DIR}/bounds")
    return decode_bounds(file.pread(file.size(), 0))
