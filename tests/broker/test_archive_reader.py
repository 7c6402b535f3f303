"""The broker looks at its archive, reads from it, and does without it while it cannot be used."""

from __future__ import annotations

from functools import partial

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from brokerd.archive.contract.view import (
    ArchiveUnavailable,
    ArchiveView,
    DamagedArchive,
    ForeignArchive,
)
from brokerd.broker.archive.reader import SLOW_SECONDS, ArchiveReader
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import Topic
from brokerd.errors import NewerFormat
from brokerd.values import Record
from simulator.machine.inline import InlinePool
from tests.broker.fakearchive import FakeArchive

POLL_SECONDS = 5
KEY = (1, 0)


def record(offset: int) -> Record:
    return Record(offset, b"%d" % offset, append_time_us=1_000 + offset)


class Desk:
    """`ArchiveRefresher` and `ArchiveReader` without a broker, its thread run by hand."""

    def __init__(self, archive: FakeArchive | None, log_id: str = "") -> None:
        self.clock = Clock()
        self.pool = InlinePool()
        self.refused: list[ArchiveView] = []
        self.refresher = ArchiveRefresher(
            self.pool, self.clock, POLL_SECONDS * 1_000_000, self._guard
        )
        self.archived = ArchiveReader(self.pool, self.clock, self.refresher)
        self.partition = Topic(1, "t", 1).partitions[0]
        self.refresher.start(archive, log_id)

    def _guard(self, view: ArchiveView) -> None:
        if view in self.refused:
            raise ForeignArchive("refused")

    def poll(self) -> None:
        """Let it be time for the next look."""
        self.clock.advance(POLL_SECONDS)
        self.pool.run()

    def read(self, offset: int, max_bytes: int = 1 << 20) -> list[int] | Exception:
        """The offsets of the records that come, or why none do."""
        answers: list[tuple[list[Chunk] | None, Exception | None]] = []
        self.archived.read(
            self.partition, offset, max_bytes, lambda *answer: answers.append(answer)
        )
        assert answers == [], "an answer comes later, never at once"
        self.pool.run()
        ((chunks, error),) = answers
        if error is not None:
            return error
        assert chunks is not None
        return [one.offset for part in chunks for one in part.records(part.base, part.end)]


def with_records(count: int = 10) -> FakeArchive:
    archive = FakeArchive()
    archive.cover(KEY, 0, count, map(record, range(count)), lsn=500)
    return archive


class TestLooking:
    def test_a_version_is_in_use_soon_after_it_is_there(self) -> None:
        archive = FakeArchive()
        desk = Desk(archive)
        desk.pool.run()
        assert desk.refresher.view is None
        first = archive.cover(KEY, 0, 1, [record(0)])
        desk.poll()
        assert desk.refresher.view is first
        second = archive.cover(KEY, 1, 2, [record(1)])
        desk.clock.advance(POLL_SECONDS - 1)
        desk.pool.run()
        assert desk.refresher.view is first
        desk.clock.advance(1)
        desk.pool.run()
        assert desk.refresher.view is second

    def test_others_are_told_of_each_version_once(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        told: list[int] = []
        desk.refresher.on_version.append(lambda: told.append(desk.refresher.status()["version"]))
        desk.pool.run()
        desk.poll()
        archive.remove(KEY, [1])
        desk.poll()
        assert told == [0, 1]

    def test_a_broker_without_an_archive_asks_for_nothing(self) -> None:
        desk = Desk(None)
        done: list[Exception | None] = []
        desk.refresher.refresh(done.append)
        desk.poll()
        assert (done, len(desk.pool), desk.refresher.view) == ([None], 0, None)
        assert desk.clock.getDelayedCalls() == []

    def test_who_asks_for_a_look_has_one_that_began_afterwards_and_shares_it(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        done: list[str] = []
        assert len(desk.pool) == 1, "the first look is under way"
        for name in ("a", "b", "c"):
            desk.refresher.refresh(lambda error, name=name: done.append(name))
        desk.pool.step()
        assert done == []
        newer = archive.remove(KEY, [1])
        desk.pool.run()
        assert (done, archive.refreshes) == (["a", "b", "c"], 2)
        assert desk.refresher.view is newer

    def test_nothing_happens_after_a_stop(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.refresher.stop()
        desk.pool.run()
        desk.poll()
        assert (desk.refresher.view, archive.refreshes) == (None, 1)
        assert desk.clock.getDelayedCalls() == []

    def test_the_status_says_what_is_in_use(self) -> None:
        desk = Desk(with_records())
        desk.pool.run()
        desk.clock.advance(3)
        status = desk.refresher.status()
        assert (status["version"], status["files"], status["records_lsn"]) == (0, 1, 500)
        assert (status["error"], status["looked_seconds_ago"]) == (None, 3)


class TestFailingLooks:
    def test_readers_go_on_and_nothing_can_be_deleted_meanwhile(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        archive.failure = ArchiveUnavailable("not mounted")
        desk.poll()
        assert desk.refresher.view is None
        assert desk.read(3) == list(range(3, 10))
        assert desk.refresher.status()["error"] == "not mounted"
        archive.failure = None
        desk.poll()
        assert desk.refresher.view is archive.newest
        assert desk.refresher.status()["error"] is None

    def test_each_kind_of_failure_is_told_once_until_the_archive_is_back(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        with capturedLogs() as events:
            for failure in (
                ArchiveUnavailable("a"),
                ArchiveUnavailable("b"),
                NewerFormat("c"),
                OSError("d"),
                ArchiveUnavailable("e"),
                None,
                ArchiveUnavailable("f"),
            ):
                archive.failure = failure
                desk.poll()
        assert [(e["log_level"].name, e["event_id"]) for e in events] == [
            ("error", "archive-unusable"),
            ("error", "archive-unusable"),
            ("error", "archive-unusable"),
            ("info", "archive-usable"),
            ("error", "archive-unusable"),
        ]
        assert desk.refresher.status()["failed_refreshes"] == 6

    def test_who_asked_for_a_look_is_told_why_it_failed(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        archive.failure = ArchiveUnavailable("not mounted")
        done: list[Exception | None] = []
        desk.refresher.refresh(done.append)
        desk.pool.run()
        assert done == [archive.failure]

    def test_a_fault_in_one_callback_strands_no_other_and_no_later_look(self) -> None:
        desk, told = Desk(FakeArchive()), []

        def faulty(*_: object) -> None:
            raise RuntimeError("as asked for")

        desk.refresher.on_version.append(faulty)
        desk.pool.run()
        for done in (faulty, told.append):
            desk.refresher.refresh(done)
        with capturedLogs() as captured:
            desk.pool.run()
        assert told == [None]
        assert {one["event_id"] for one in captured if "log_failure" in one} == {"callback-fault"}
        refreshes = desk.refresher.refreshes
        desk.poll()
        assert desk.refresher.refreshes == refreshes + 1

    def test_an_archive_that_is_gone_is_no_empty_one(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        archive.versions.clear()
        desk.poll()
        assert desk.refresher.view is None
        assert "gone" in desk.refresher.status()["error"]

    def test_the_archive_of_another_log_is_used_for_nothing(self) -> None:
        archive = with_records()
        archive.versions[-1].log_id = "f" * 32
        desk = Desk(archive)
        desk.pool.run()
        assert (desk.refresher.view, desk.refresher.last_view) == (None, None)
        assert isinstance(desk.read(3), ArchiveUnavailable)
        assert "log " + "f" * 32 in desk.refresher.status()["error"]

    def test_one_that_the_guard_refuses_is_used_for_nothing_although_it_was_fine(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        assert desk.refresher.view is archive.newest
        desk.refused.append(archive.remove(KEY, [1]))
        desk.poll()
        assert (desk.refresher.view, desk.refresher.last_view) == (None, None)


class TestReading:
    def test_records_come_that_are_not_removed(self) -> None:
        archive = with_records()
        archive.remove(KEY, [4, 5])
        desk = Desk(archive)
        desk.pool.run()
        assert desk.read(3) == [3, 6, 7, 8, 9]
        assert desk.archived.reads == 1
        assert desk.archived.read_bytes > 5

    def test_what_neither_knows_is_nothing(self) -> None:
        desk = Desk(with_records(10))
        desk.pool.run()
        assert desk.read(10) == []

    def test_what_the_archive_alone_has_may_come_later(self) -> None:
        """No archive, one that cannot be used, or one without it: the read may succeed yet."""
        archive = FakeArchive()
        desk = Desk(archive)
        desk.partition.archived_end = 10
        desk.pool.run()
        problems = [desk.read(7)]
        archive.failure = OSError(5, "no such mount")
        desk.poll()
        problems.append(desk.read(7))
        archive.failure = None
        archive.cover(KEY, 0, 5, map(record, range(5)))
        problems.append(desk.read(7))
        assert all(isinstance(problem, ArchiveUnavailable) for problem in problems)
        assert "no archive is open" in str(problems[0])
        assert "no such mount" in str(problems[1])
        assert "does not hold offset 7 of topic 't' partition 0" in str(problems[2])
        archive.cover(KEY, 5, 10, map(record, range(5, 10)))
        assert desk.read(7) == [7, 8, 9]

    def test_what_the_log_lost_is_not_given_up_before_the_archive_was_seen(self) -> None:
        """The log never let go of it, and the first look is under way, or fails."""
        archive = with_records()
        desk = Desk(archive)
        assert desk.read(3) == list(range(3, 10))
        desk = Desk(archive)
        archive.failure = ArchiveUnavailable("not mounted")
        desk.pool.run()
        error = desk.read(3)
        assert isinstance(error, ArchiveUnavailable) and "not mounted" in str(error)
        empty = Desk(FakeArchive())
        assert empty.read(3) == []

    def test_who_waits_behind_a_read_that_hangs_is_told_when_it_ends(self) -> None:
        """And does not wait in turn; who asks afterwards is a new try."""
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        asked: list[int] = []

        def hang(number: int, view: ArchiveView) -> int:
            asked.append(number)
            desk.clock.advance(SLOW_SECONDS + 1)
            raise ArchiveUnavailable("it hangs")

        answers: list[tuple[int | None, Exception | None]] = []
        for number in range(10):
            desk.archived.ask(partial(hang, number), lambda *answer: answers.append(answer))
        desk.pool.run()
        assert [str(error) for _, error in answers].count("the archive does not answer") == 9
        assert (asked, len(answers)) == ([0], 10)
        assert desk.read(0) == list(range(10))

    def test_that_reads_fail_is_told_once_until_one_succeeds(self) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        with capturedLogs() as events:
            for failure in (OSError("a"), OSError("b"), None, OSError("c")):
                archive.read_failure = failure
                desk.read(3)
        assert [event["event_id"] for event in events] == ["archive-read-failed"] * 2
        assert desk.archived.failed_reads == 3

    @pytest.mark.parametrize(
        "failure", [ArchiveUnavailable("x"), OSError(5, "x"), NewerFormat("x")]
    )
    def test_a_failing_read_may_succeed_another_time(self, failure: Exception) -> None:
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        archive.read_failure = failure
        error = desk.read(3)
        assert isinstance(error, ArchiveUnavailable) and "x" in str(error)
        archive.read_failure = None
        assert desk.read(3) == list(range(3, 10))

    def test_a_version_whose_files_are_gone_gives_way_to_a_newer_one(self) -> None:
        """Compaction replaced them and vacuum came before the next look."""
        archive = with_records()
        desk = Desk(archive)
        desk.pool.run()
        archive.remove(KEY, [4])
        archive.vacuum()
        assert desk.read(3) == [3, 5, 6, 7, 8, 9]

    def test_damage_is_told_with_its_range(self) -> None:
        archive = with_records()
        archive.damage[KEY] = (4, 6)
        desk = Desk(archive)
        desk.pool.run()
        error = desk.read(5)
        assert isinstance(error, DamagedArchive)
        assert (error.first, error.end) == (4, 6)
        assert desk.read(3) == [3]
