"""Appending and group commit: what is acknowledged, when, and at what cost in syncs."""

from __future__ import annotations

import errno
import os
import queue
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.errors import NoSpace, StorageFailed
from brokerd.wal import Frame, RealDisk, Wal, WalOptions
from brokerd.wal.disk import File
from brokerd.wal.log import AWAITED_BYTES, WAIT_SECONDS
from brokerd.walformat import (
    FRAME_BYTES_MAX,
    BodyParts,
    Entry,
    EntryKind,
    RecordColumns,
    encode_large_records,
    frame_size,
)
from brokerd.worker_pool import ThreadPool
from simulator.machine.disk import Call, SimDisk
from simulator.machine.inline import InlinePool
from tests.wal.rig import PATH, SMALL, Rig, content, events, records


@contextmanager
def no_space_for_indexes(rig: Rig) -> Iterator[None]:
    """Meanwhile no index file can be written."""

    def enter(call: Call) -> None:
        if call.name == "pwrite" and ".idx" in call.path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)

    before, rig.disk.enter = rig.disk.enter, enter
    yield
    rig.disk.enter = before


def fail(*_: object) -> None:
    raise MemoryError


class QuickRig(Rig):
    """A log whose commits each take `commit_seconds`."""

    def __init__(self, options: WalOptions = SMALL) -> None:
        super().__init__(options=options)
        self.now = 0.0
        self.commit_seconds = WAIT_SECONDS / 2
        self.waits: list[float] = []
        self.disk.enter = self._pass_time
        self.wal._seconds = lambda: self.now
        self.wal._wait = self._wait

    def _pass_time(self, call: Call) -> None:
        if call.name == "sync":
            self.now += self.commit_seconds

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.commit_seconds <= seconds:
            self.commits.step()

    def commit(self, offset: int) -> bool:
        """Append a frame and wait for it. Return whether the wait made it durable."""
        ticket = self.wal.append([records(offset)], 1)
        self.wal.wait_if_quick()
        waited = self.wal.durable_ticket == ticket
        self.run()
        return waited


class TestWaitIfQuick:
    def test_the_reactor_waits_for_quick_commits(self) -> None:
        rig = QuickRig()
        rig.put(records(0))
        assert all(rig.commit(offset) for offset in range(1, 6))
        assert rig.waits == [WAIT_SECONDS] * 5
        assert rig.durable == list(range(1, 7))

    def test_a_slow_disk_is_awaited_less_and_less(self) -> None:
        """After the n-th wait in vain, 2**(n - 1) commits are not awaited, and 64 at most."""
        rig = QuickRig()
        rig.commit_seconds = 2 * WAIT_SECONDS
        awaited = []
        for offset in range(300):
            rig.waits.clear()
            assert not rig.commit(offset)
            awaited += [offset] * len(rig.waits)
        assert awaited == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]

    def test_one_wait_that_succeeds_ends_this(self) -> None:
        rig = QuickRig()
        rig.commit_seconds = 2 * WAIT_SECONDS
        waited = [rig.commit(offset) for offset in range(11)]
        rig.commit_seconds = WAIT_SECONDS / 2
        waited += [rig.commit(offset) for offset in range(11, 30)]
        assert waited == [False] * 19 + [True] * 11

    def test_a_commit_in_flight_is_awaited_once(self) -> None:
        rig = QuickRig()
        rig.commit_seconds = 60.0
        rig.wal.append([records(0)], 1)
        for _ in range(3):
            rig.wal.wait_if_quick()
        assert rig.waits == [WAIT_SECONDS]

    def test_large_commits_are_not_awaited(self) -> None:
        rig = QuickRig(WalOptions(segment_bytes=4 * AWAITED_BYTES, free_bytes_min=0))
        rig.wal.append([records(0, size=AWAITED_BYTES)], 1)
        rig.wal.wait_if_quick()
        assert not rig.waits
        rig.run()
        assert rig.commit(1)

    def test_nothing_is_awaited_without_a_commit(self) -> None:
        rig = QuickRig()
        rig.wal.wait_if_quick()
        rig.commit(0)
        rig.waits.clear()
        rig.wal.wait_if_quick()
        assert not rig.waits

    def test_a_stuck_sync_does_not_stop_the_reactor(self) -> None:
        """With a real thread: the wait returns while the sync still hangs."""
        disk, stuck, asked = SimDisk(), threading.Event(), queue.SimpleQueue[Callable[[], None]]()
        commits = ThreadPool(asked.put)
        commits.start()
        wal = Wal(disk, PATH, SMALL, commits, InlinePool(), random.Random(1).randbytes, lambda: 0.0)
        wal.open(0, lambda frame: None)

        def enter(call: Call) -> None:
            if call.name == "sync":
                stuck.wait()

        disk.enter = enter
        ticket = wal.append([records(0)], 1)
        wal.wait_if_quick()
        assert wal.busy and wal.durable_ticket == ticket - 1 and not asked.qsize()
        wal.wait_if_quick()
        stuck.set()
        asked.get(timeout=60)()
        assert wal.durable_ticket == ticket and not wal.busy
        assert commits.stop() == []

    def test_a_sync_that_fails_meanwhile_is_fatal(self) -> None:
        rig = QuickRig()
        for offset in range(3):
            rig.commit(offset)
        durable = list(rig.durable)
        rig.disk.fail("sync")
        rig.wal.append([records(20)], 1)
        rig.wal.wait_if_quick()
        assert len(rig.fatal) == 1 and rig.durable == durable


class TestGroupCommit:
    def test_tickets_count_frames_and_become_durable_in_order(self) -> None:
        rig = Rig()
        assert [rig.wal.append([records(i)], 1) for i in range(4)] == [1, 2, 3, 4]
        assert rig.wal.next_ticket == 5
        rig.run()
        assert rig.durable == [1, 4]
        assert rig.wal.durable_ticket == 4
        assert rig.wal.durable_lsn == rig.wal.appended_lsn

    def test_nothing_is_acknowledged_before_the_sync_returned(self) -> None:
        rig = Rig()
        rig.put(records(0))
        seen: list[tuple[str, list[int]]] = []
        rig.disk.enter = lambda call: seen.append((call.name, list(rig.durable)))
        rig.wal.append([records(1)], 1)
        assert rig.durable == [1]
        rig.commits.run()
        assert seen == [("pwrite", [1]), ("sync", [1])]
        assert rig.durable == [1, 2]

    def test_frames_appended_during_a_commit_share_the_next_write_and_sync(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.disk.calls.clear()
        for offset in range(1, 101):
            rig.wal.append([records(offset)], 1)
        rig.run()
        assert rig.disk.calls["sync"] == 2
        assert rig.disk.calls["pwrite"] == 2
        assert rig.durable[-2:] == [2, 101]

    def test_small_frames_do_not_wait_for_the_commit_of_a_large_one_behind_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.wal.log.COMMIT_BYTES", 4000)
        rig = Rig()
        large = records(2, size=4000)
        rig.wal.append([records(0)], 1)
        for entry in (records(1), large, records(3)):
            rig.wal.append([entry], 1)
        for durable in ([1], [1, 2], [1, 2, 3], [1, 2, 3, 4]):
            rig.commits.step()
            assert rig.durable == durable
        assert rig.wal.commits == 4

    def test_busy_until_the_commit_in_flight_is_done(self) -> None:
        rig = Rig()
        states = []
        rig.wal.on_durable = lambda ticket: states.append(rig.wal.busy)
        rig.wal.append([records(0)], 1)
        assert rig.wal.busy
        rig.run()
        assert states == [False]

    def test_a_frame_appended_by_on_durable_is_committed(self) -> None:
        rig = Rig()

        def on_durable(ticket: int) -> None:
            rig.durable.append(ticket)
            if ticket < 3:
                rig.wal.append([records(ticket)], 1)

        rig.wal.on_durable = on_durable
        rig.put(records(0))
        assert rig.durable == [1, 2, 3]

    def test_a_frame_says_how_far_the_log_was_synced_when_it_was_written(self) -> None:
        rig = Rig()
        rig.put(records(0))
        synced = rig.wal.durable_lsn
        rig.put(records(1))
        frame = content(rig.disk, rig.files()[0])[synced:]
        assert int.from_bytes(frame[40:48], "little") == synced


class TestDurabilityModes:
    def test_os_acknowledges_what_is_written_without_a_sync(self) -> None:
        rig = Rig(options=WalOptions(64 << 10, "os", free_bytes_min=0))
        rig.put(records(0))
        rig.disk.calls.clear()
        rig.put(records(1))
        assert rig.durable == [1, 2]
        assert rig.disk.calls["sync"] == 0

    def test_interval_syncs_when_its_owner_says_and_only_if_there_is_news(self) -> None:
        rig = Rig(options=WalOptions(64 << 10, "interval", free_bytes_min=0))
        rig.put(records(0))
        rig.disk.calls.clear()
        rig.put(records(1))
        for _ in range(3):
            rig.wal.sync()
            rig.run()
        assert rig.disk.calls["sync"] == 1
        assert len(rig.restart().frames) == 2

    def test_interval_syncs_never_queue_up_behind_a_slow_one(self) -> None:
        rig = Rig(options=WalOptions(64 << 10, "interval", free_bytes_min=0))
        rig.put(records(0))
        rig.put(records(1))
        for _ in range(3):
            rig.wal.sync()
        assert len(rig.commits) == 1
        rig.put(records(2))
        rig.disk.calls.clear()
        rig.wal.sync()
        rig.run()
        assert rig.disk.calls["sync"] == 1
        assert len(rig.restart().frames) == 3

    def test_frames_that_share_a_commit_are_one_commit(self) -> None:
        rig = Rig()
        rig.put(records(0))
        for offset in range(1, 4):
            rig.wal.append([records(offset)], 1)
        rig.run()
        assert (rig.wal.durable_ticket, rig.wal.commits) == (4, 3)

    def test_a_failed_interval_sync_is_fatal(self) -> None:
        rig = Rig(options=WalOptions(64 << 10, "interval", free_bytes_min=0))
        rig.put(records(0))
        rig.put(records(1))
        rig.disk.fail("sync")
        rig.wal.sync()
        rig.run()
        assert rig.wal.failed and len(rig.fatal) == 1

    @pytest.mark.parametrize("mode", ["os", "interval"])
    def test_an_older_segment_is_synced_before_a_newer_one_exists(self, mode: str) -> None:
        rig = Rig(options=WalOptions(64 << 10, mode, free_bytes_min=0))  # type: ignore[arg-type]
        for offset in range(30):
            rig.wal.append([records(offset, size=4000)], 1)
            rig.commits.run()
            if offset < 15:
                rig.background.run()
        after = rig.restart()
        assert after.report.damages == []
        assert [entry.base_offset for entry in after.entries()] == list(range(len(after.entries())))
        assert len(after.entries()) >= 15

    @pytest.mark.parametrize("mode", ["os", "interval"])
    def test_what_waits_for_a_sync_is_told_when_a_segment_just_closed_is_on_the_disk_too(
        self, mode: str
    ) -> None:
        """Else a file that tells of the log would know more than the log after a power cut."""
        rig = Rig(options=WalOptions(64 << 10, mode, free_bytes_min=0))  # type: ignore[arg-type]
        rig.put(records(0))
        rig.put(records(1))
        rig.wal.seal()  # the background has it to trim and sync, and is slow
        told: list[Exception | None] = []
        rig.wal.when_synced(told.append)
        rig.commits.run()
        assert told == [None]
        again = rig.restart()
        assert [entry.base_offset for entry in again.entries()] == [0, 1]
        assert again.report.damages == []


class TestFailures:
    @pytest.mark.parametrize("call", ["pwrite", "sync"])
    def test_a_failed_write_or_sync_acknowledges_nothing_ever_again(self, call: str) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.disk.fail(call)
        rig.wal.append([records(1)], 1)
        rig.wal.append([records(2)], 1)
        rig.run()
        assert rig.durable == [1]
        assert [type(error) for error in rig.fatal] == [StorageFailed]
        assert rig.wal.failed
        with pytest.raises(StorageFailed):
            rig.wal.append([records(3)], 1)
        rig.run()
        assert rig.durable == [1] and len(rig.fatal) == 1

    @pytest.mark.parametrize("call", ["rename", "sync_directory"])
    def test_a_segment_that_cannot_begin_is_fatal(self, call: str) -> None:
        rig = Rig()
        rig.disk.fail(call)
        rig.wal.append([records(0)], 1)
        rig.run()
        assert rig.durable == [] and len(rig.fatal) == 1

    def test_the_index_of_a_segment_takes_no_failed_sync_of_the_directory_from_a_commit(
        self,
    ) -> None:
        """The sync may cover the name of a new segment; only its commit can make that known."""
        rig = Rig()
        rig.put(records(0))
        rig.wal.seal()
        rig.disk.fail("sync_directory")
        rig.run()
        assert len(rig.files(".idx")) == 1 and rig.fatal == []
        rig.put(records(1))
        assert rig.durable == [1] and len(rig.fatal) == 1

    def test_a_frame_that_cannot_be_encoded_stops_the_log_and_does_not_hang_it(self) -> None:
        for entry in (records(0)._replace(partition=-1), records(0)._replace(kind=300)):
            rig = Rig()
            rig.wal.append([entry], 1)
            rig.run()
            assert rig.durable == [] and len(rig.fatal) == 1

    @pytest.mark.pure_only("replaces functions of a module")
    @pytest.mark.parametrize("step", ["encode_frames", "SegmentWrite", "encode_segment_header"])
    def test_whatever_stops_the_making_of_a_commit_is_fatal(
        self, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise MemoryError

        rig = Rig()
        monkeypatch.setattr(f"brokerd.wal.log.{step}", fail)
        rig.wal.append([records(0)], 1)
        rig.run()
        assert [str(error) for error in rig.fatal] == [
            "a commit cannot be made: MemoryError; the broker stops and replays at its next start"
        ]
        assert rig.durable == [] and rig.wal.failed

    def test_a_large_frame_that_cannot_be_encoded_is_fatal_too(self) -> None:
        """The writer's thread encodes it, and other frames of the commit are lost with it."""
        rig = Rig(options=LARGE)
        rig.wal.append([large_records(0)._replace(partition=-1)], 1)
        assert not rig.fatal
        rig.run()
        assert rig.durable == [] and len(rig.fatal) == 1

    def test_a_failure_without_memory_for_its_text_is_fatal(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise MemoryError

        rig = Rig()
        monkeypatch.setattr("brokerd.wal.log.error_text", fail)
        rig.wal.fail("a test", MemoryError())
        assert [str(error) for error in rig.fatal] == [
            "memory ran out; the broker stops and replays at its next start"
        ]

    def test_whatever_stops_the_indexing_of_a_commit_is_fatal(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = Rig()
        rig.wal.append([records(0)], 1)
        monkeypatch.setattr("brokerd.wal.catalog.Catalog.add_partition", fail)
        rig.run()
        assert len(rig.fatal) == 1 and rig.durable == [] and rig.wal.durable_ticket == 0

    def test_an_error_after_disk_work_is_fatal(self) -> None:
        """The reactor would only log it, and the caller would wait forever."""
        for name in ("on_durable", "on_room"):
            rig = Rig()
            setattr(rig.wal, name, fail)
            rig.put(records(0))
            assert [str(error) for error in rig.fatal] == [
                "the log cannot go on after disk work: MemoryError; "
                "the broker stops and replays at its next start"
            ]

    def test_a_frame_over_the_limit_is_refused_and_the_log_goes_on(self) -> None:
        rig = Rig()
        body = bytes(FRAME_BYTES_MAX // 4)
        with pytest.raises(ValueError, match="over the limit"):
            rig.wal.append([events(0)._replace(body=body)] * 4, 1)
        rig.put(records(0))
        assert rig.durable == [1]

    def test_nothing_is_retried_after_a_failure(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.disk.fail("sync")
        rig.wal.append([records(1)], 1)
        rig.run()
        rig.disk.calls.clear()
        rig.wal.seal()
        rig.wal.sync()
        rig.run()
        assert not rig.disk.calls["pwrite"] and not rig.disk.calls["sync"]


class TestSegments:
    def fill(self, rig: Rig, frames: int = 40, size: int = 4000) -> None:
        for offset in range(frames):
            rig.put(records(offset, size=size), events(offset))

    def test_names_meet_end_to_end_and_sealed_segments_are_trimmed_and_indexed(self) -> None:
        rig = Rig()
        self.fill(rig)
        status = rig.wal.segments()
        assert len(status) > 2
        assert [s.first_lsn for s in status[1:]] == [s.end_lsn for s in status[:-1]]
        assert [s.sealed for s in status] == [True] * (len(status) - 1) + [False]
        for segment in status[:-1]:
            assert len(content(rig.disk, segment.name)) == segment.end_lsn - segment.first_lsn
        assert len(rig.files(".idx")) == len(status) - 1
        assert len({segment.segment_id for segment in status}) == len(status)

    def test_a_commit_across_two_segments_keeps_the_order(self) -> None:
        rig = Rig()
        rig.put(records(0))
        for offset in range(1, 25):
            rig.wal.append([records(offset, size=4000)], 1)
        rig.run()
        assert len(rig.wal.segments()) == 2
        assert [f.entries[0].base_offset for f in rig.restart().frames] == list(range(25))

    def test_seal_begins_a_new_segment_and_does_nothing_to_an_empty_one(self) -> None:
        rig = Rig()
        rig.wal.seal()
        rig.put(records(0))
        rig.wal.seal()
        rig.wal.seal()
        rig.run()
        assert [s.sealed for s in rig.wal.segments()] == [True]
        rig.put(records(1))
        assert [s.sealed for s in rig.wal.segments()] == [True, False]
        assert rig.read(0, 900) == [b"0", b"1"]

    def test_seal_waits_for_a_commit_in_flight(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.wal.append([records(1)], 1)
        rig.wal.seal()
        rig.background.run()
        assert not rig.wal.segments()[0].sealed
        rig.run()
        assert rig.wal.segments()[0].sealed

    def test_seal_waits_for_a_spare(self) -> None:
        rig = Rig()
        rig.wal.append([records(0)], 1)
        rig.commits.run()
        rig.wal.seal()
        assert not rig.wal.segments()[0].sealed
        rig.run()
        assert rig.wal.segments()[0].sealed

    def test_a_segment_is_sealed_by_the_age_of_its_first_frame(self) -> None:
        rig = Rig()
        rig.put(records(0), time_us=1_000)
        rig.put(records(1), time_us=800_000_000)
        rig.wal.seal_if_older(900_000_999)
        rig.run()
        assert not rig.wal.segments()[0].sealed
        rig.wal.seal_if_older(900_001_000)
        rig.run()
        assert rig.wal.segments()[0].sealed

    def test_an_index_that_finds_no_space_is_written_later(self) -> None:
        rig = Rig()
        rig.put(records(0))
        with no_space_for_indexes(rig):
            rig.wal.seal()
            rig.run()
        assert rig.files(".idx") == []
        assert rig.read(0) == [b"0"] and not rig.wal.failed
        rig.wal.retry_allocation()
        rig.run()
        assert len(rig.files(".idx")) == 1
        assert rig.read(0) == [b"0"]

    def test_an_index_that_found_no_space_is_written_with_the_next_one(self) -> None:
        rig = Rig()
        rig.put(records(0))
        with no_space_for_indexes(rig):
            rig.wal.seal()
            rig.run()
        rig.put(records(1))
        rig.wal.seal()
        rig.run()
        assert len(rig.files(".idx")) == 2

    def test_a_failed_trim_is_fatal(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.wal.seal()
        rig.disk.fail("truncate")
        rig.run()
        assert len(rig.fatal) == 1


class TestRoom:
    @given(
        st.integers(0, 12),
        st.lists(st.sampled_from([200, 9_000, 20_000, 30_000, 40_000]), min_size=2, max_size=9),
    )
    def test_whatever_is_admitted_finds_room_however_it_is_cut_into_frames(
        self, before: int, sizes: list[int]
    ) -> None:
        rig = Rig()
        for offset in range(before):
            rig.put(records(offset, size=4_000))
        room = rig.wal.room
        offset = before
        for size in sizes:
            frame = [records(offset, size=size - 184)]
            if frame_size(frame) > room:
                continue
            room -= frame_size(frame)
            rig.wal.append(frame, 1)
            offset += 1
        assert rig.wal.room >= 0
        rig.run()
        assert rig.durable[-1:] == [offset][: len(rig.durable)]

    def test_a_full_disk_is_met_before_it_happens_and_settles_go_on(self) -> None:
        rig = Rig(SimDisk(capacity=70 << 10))
        offset = 0
        while rig.wal.room > 5_000:
            rig.put(records(offset, size=4000))
            offset += 1
        assert "space" in str(rig.wal.allocation_error)
        settles = 0
        while rig.wal.reserve_room > 200:
            rig.put(events(settles))
            settles += 1
        assert settles >= SMALL.reserve // 300
        assert rig.fatal == []
        with pytest.raises(NoSpace, match="space"):
            rig.wal.append([records(offset, size=9000)], 1)
        assert len(rig.restart().frames) == offset + settles

    def test_service_resumes_when_space_returns(self) -> None:
        rig = Rig(SimDisk(capacity=70 << 10))
        rig.put(records(0))
        assert rig.wal.allocation_error is not None
        calls = rig.room_calls
        rig.disk.capacity = 1 << 20
        rig.wal.retry_allocation()
        rig.run()
        assert rig.wal.allocation_error is None
        assert rig.room_calls > calls
        assert rig.wal.room > 40_000

    def test_a_failed_allocation_leaves_no_file_behind(self) -> None:
        rig = Rig(SimDisk(capacity=70 << 10))
        rig.put(records(0))
        assert rig.files(".tmp") == []

    def test_an_allocation_without_memory_has_a_reason_leaves_no_file_and_is_tried_again(
        self,
    ) -> None:
        rig = Rig()

        def enter(call: Call) -> None:
            if call.name == "pwrite" and call.length > 200 << 10:
                raise MemoryError

        rig.put(records(0))
        rig.disk.enter = enter
        rig.wal.request_room(200 << 10)
        rig.run()
        assert rig.wal.allocation_error == "MemoryError"
        assert len(rig.files(".tmp")) == 1
        rig.disk.enter = lambda call: None
        rig.wal.retry_allocation()
        rig.wal.request_room(200 << 10)
        rig.run()
        assert rig.wal.allocation_error is None
        assert rig.wal.room >= 200 << 10

    def test_an_allocation_that_no_thread_took_is_not_under_way(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = Rig()
        rig.put(records(0))
        with monkeypatch.context() as patch:
            patch.setattr(rig.background, "submit", fail)
            with pytest.raises(MemoryError):
                rig.wal.request_room(200 << 10)
        rig.wal.request_room(200 << 10)
        rig.run()
        assert rig.wal.room >= 200 << 10

    def test_an_allocation_that_would_eat_the_reserve_of_others_is_refused(self) -> None:
        options = WalOptions(64 << 10, free_bytes_min=100 << 10)
        rig = Rig(SimDisk(capacity=200 << 10), options)
        rig.put(records(0))
        assert "free" in str(rig.wal.allocation_error)

    def test_a_start_on_a_full_disk_still_takes_settles(self) -> None:
        options = WalOptions(64 << 10, free_bytes_min=1 << 20)
        rig = Rig(SimDisk(capacity=100 << 10), options)
        assert rig.wal.room == 0
        assert rig.wal.reserve_room >= options.reserve - options.last_reserve
        rig.put(events(0))
        assert rig.durable == [1]

    @pytest.mark.parametrize("is_clean", [True, False])
    @pytest.mark.parametrize("own_blocks", [0, 16 << 10], ids=["exact", "with metadata"])
    def test_restarts_on_a_full_disk_keep_most_of_the_reserve(
        self, own_blocks: int, is_clean: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another program takes what is free while the broker runs, and the file system a little.

        Each start finds less than the one before: the used part of a segment, and its index.
        """
        free_bytes = SimDisk.free_bytes
        monkeypatch.setattr(
            SimDisk, "free_bytes", lambda self, path: free_bytes(self, path) + own_blocks
        )
        options = WalOptions(2 << 20, free_bytes_min=2 << 20)
        disk = SimDisk(capacity=400 << 10)
        rig = Rig(disk, options)
        for number in range(4):
            disk.capacity = disk.used_bytes
            assert rig.wal.room == 0
            assert rig.wal.reserve_room > options.reserve // 4
            rig.put(events(number))
            if is_clean:
                rig.wal.close(lambda error: None)
                rig.run()
            else:
                disk.kill()
            rig = Rig(disk, options)
        assert len(rig.entries()) == 4

    def test_a_start_on_a_disk_without_any_space_goes_on_when_there_is_some(self) -> None:
        rig = Rig(SimDisk(capacity=0))
        assert rig.wal.reserve_room == 0
        with pytest.raises(NoSpace):
            rig.wal.append([events(0)], 1)
        rig.disk.capacity = 1 << 20
        rig.wal.retry_allocation()
        rig.run()
        rig.put(events(0))
        assert rig.durable == [1]

    def test_settles_go_on_as_soon_as_there_is_space_for_a_reserve_again(self) -> None:
        rig = Rig(SimDisk(capacity=0))
        rig.disk.capacity = 40 << 10
        rig.wal.retry_allocation()
        rig.run()
        assert rig.wal.reserve_room >= SMALL.reserve - SMALL.last_reserve
        assert (rig.wal.room, rig.wal.allocation_error is None) == (0, False)
        rig.put(events(0))
        rig.disk.capacity = 1 << 20
        rig.wal.retry_allocation()
        rig.run()
        assert rig.wal.allocation_error is None
        assert rig.wal.room > 40_000
        rig.put(records(0))
        assert len(rig.restart().entries()) == 2

    @pytest.mark.parametrize("limit", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
    def test_no_kind_of_limit_stops_a_start(self, limit: int) -> None:
        """The disk's, the user's, or that of ``ulimit -f``."""
        disk = SimDisk()
        disk.fail("pwrite", 1, limit)
        rig = Rig(disk)
        rig.wal.retry_allocation()
        rig.run()
        rig.put(events(0))
        assert rig.durable == [1]

    def test_a_full_disk_is_told_once_also_by_a_start_until_there_is_room_again(self) -> None:
        with capturedLogs() as captured:
            rig = Rig(SimDisk(capacity=0))
            for capacity in (0, 0, 1 << 20, 70 << 10, 70 << 10):
                rig.disk.capacity = capacity
                rig.wal.retry_allocation()
                rig.run()
                while rig.wal.room > 10_000:
                    rig.put(events(0)._replace(body=bytes(9_000)))
        told = [event for event in captured if event.get("event_id") == "allocation-failed"]
        assert len(told) == 2

    def test_one_frame_larger_than_a_segment_gets_room_on_request(self) -> None:
        rig = Rig()
        big = records(0, size=300_000)
        assert rig.wal.room < 300_000
        rig.wal.request_room(300_500)
        rig.run()
        assert rig.wal.room >= 300_500
        rig.put(events(1))
        rig.put(big)
        rig.put(records(1))
        after = rig.restart()
        assert after.read(0)[0].startswith(b"0...")
        assert after.read(1) == [b"1"]

    def test_room_for_a_large_frame_is_kept_for_it_while_small_ones_go_on(self) -> None:
        rig = Rig()
        rig.wal.append([records(0)], 1)
        rig.wal.request_room(300_500)
        rig.run()
        for offset in range(1, 4):
            rig.put(records(offset, size=25_000))
        assert len(rig.wal.segments()) == 2
        assert rig.wal.room >= 300_500

    def test_an_allocation_that_fails_half_way_is_taken_back(self) -> None:
        rig = Rig()
        rig.wal.append([records(0)], 1)
        rig.commits.run()
        rig.disk.fail("pwrite", 1, errno.ENOSPC)
        rig.run()
        assert rig.wal.allocation_error is not None
        assert rig.files(".tmp") == []

    def test_a_large_request_that_finds_no_space_says_so_and_small_work_goes_on(self) -> None:
        rig = Rig(SimDisk(capacity=200 << 10))
        rig.put(records(0))
        rig.wal.request_room(300_000)
        rig.run()
        assert rig.wal.allocation_error is not None
        assert rig.wal.room > 20_000
        rig.wal.retry_allocation()
        rig.run()
        assert rig.wal.allocation_error is None

    def test_the_next_segment_is_allocated_ahead_of_need(self) -> None:
        rig = Rig()
        rig.put(records(0))
        assert len(rig.files(".tmp")) == 1
        assert rig.wal.room > 40_000


class TestClose:
    def test_close_waits_for_queued_frames_and_leaves_only_segments(self) -> None:
        rig = Rig()
        rig.put(records(0))
        for offset in range(1, 5):
            rig.wal.append([records(offset)], 1)
        closed: list[StorageFailed | None] = []
        rig.wal.close(closed.append)
        assert closed == []
        rig.run()
        assert closed == [None]
        assert rig.durable[-1] == 5
        assert rig.files(".tmp") == []
        assert len(rig.restart().frames) == 5

    @pytest.mark.parametrize("mode", ["os", "interval"])
    def test_close_syncs_in_every_mode(self, mode: str) -> None:
        rig = Rig(options=WalOptions(64 << 10, mode, free_bytes_min=0))  # type: ignore[arg-type]
        rig.put(records(0))
        rig.put(records(1))
        closed: list[StorageFailed | None] = []
        rig.wal.close(closed.append)
        rig.run()
        assert closed == [None]
        assert len(rig.restart().frames) == 2

    def test_a_log_that_is_closed_takes_nothing(self) -> None:
        rig = Rig()
        rig.wal.close(lambda error: None)
        with pytest.raises(StorageFailed):
            rig.wal.append([records(0)], 1)

    def test_close_leaves_no_file_open(self) -> None:
        """Though the log lives on. A later read opens its file again."""

        opened: list[weakref.ref[File]] = []

        class Noting(SimDisk):
            def create(self, path: str) -> File:
                return self.note(super().create(path))

            def open(self, path: str, write: bool = False) -> File:
                return self.note(super().open(path, write))

            def note(self, file: File) -> File:
                opened.append(weakref.ref(file))
                return file

        def open_files() -> int:
            return sum(file() is not None for file in opened)

        rig = Rig(Noting())
        rig.put(records(0))
        rig.wal.seal()
        rig.run()
        rig.put(records(1))
        values = rig.read(0) + rig.read(1)
        assert open_files() == 3, "of a sealed segment, the active one, and a spare"
        rig.wal.close(lambda error: None)
        rig.run()
        assert open_files() == 0
        assert rig.read(0) + rig.read(1) == values

    def test_close_during_allocation_and_sealing_waits_for_them(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.wal.seal()
        closed: list[StorageFailed | None] = []
        rig.wal.close(closed.append)
        rig.commits.run()
        assert closed == []
        rig.run()
        assert closed == [None]
        assert rig.files(".tmp") == []

    def test_close_ends_an_allocation_after_one_more_sync(self) -> None:
        """A disk may take seconds for each sync, and a segment has a sync for each MiB."""
        rig = Rig()
        rig.put(records(0))
        closed: list[StorageFailed | None] = []
        rig.wal.request_room(20 << 20)

        def enter(call: Call) -> None:
            if call.name == "sync" and not closed:
                rig.wal.close(closed.append)

        rig.disk.enter = enter
        before = rig.disk.calls["sync"]
        rig.run()
        assert closed == [None] and rig.disk.calls["sync"] == before + 1
        assert rig.files(".tmp") == [] and rig.fatal == []

    def test_closing_a_log_that_failed_says_so(self) -> None:
        rig = Rig()
        rig.disk.fail("pwrite")
        rig.wal.append([records(0)], 1)
        closed: list[StorageFailed | None] = []
        rig.wal.close(closed.append)
        rig.run()
        assert [type(error) for error in closed] == [StorageFailed]


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="segment_bytes must be"):
        WalOptions(segment_bytes=1000)


def test_the_log_keeps_to_its_directory() -> None:
    rig = Rig()
    rig.put(records(0))
    assert all(path.startswith(PATH + "/") for path in rig.disk.files())


def test_with_threads_and_a_real_disk(tmp_path: Path) -> None:
    calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    pools = [ThreadPool(lambda *call: calls.put(call)) for _ in range(2)]
    for pool in pools:
        pool.start()

    def fresh() -> Wal:
        path = str(tmp_path / "wal")
        return Wal(RealDisk(), path, SMALL, *pools, random.Random(3).randbytes, lambda: 0.0)

    def run_until(condition: Callable[[], object]) -> None:
        while not condition():
            function, *args = calls.get(timeout=60)
            function(*args)

    wal = fresh()
    wal.open(0, lambda frame: None)
    ticket = 0
    for offset in range(200):
        run_until(lambda: wal.room > 5000)
        ticket = wal.append([records(offset, size=2000)], 1)
    run_until(lambda: wal.durable_ticket == ticket)
    closed: list[StorageFailed | None] = []
    wal.close(closed.append)
    run_until(lambda: closed)
    for pool in pools:
        pool.stop()
    frames: list[Frame] = []
    report = fresh().open(0, frames.append)
    assert [frame.entries[0].base_offset for frame in frames] == list(range(200))
    assert report.damages == [] and report.cut is None


LARGE = WalOptions(segment_bytes=4 << 20, free_bytes_min=0)


def large_records(first: int) -> Entry:
    """Return a batch of two records, of 2 MiB and of one byte, whose parts are not joined yet."""
    body = encode_large_records(RecordColumns([bytes([first]) * (2 << 20), b"x"]))
    assert isinstance(body, BodyParts)
    entry = Entry(EntryKind.RECORDS, 1, 0, first, 2, b"")
    return entry._replace(body=body)  # type: ignore[arg-type]


@pytest.mark.parametrize("restarts", [False, True])
def test_large_batches_are_written_like_small_ones(restarts: bool) -> None:
    """Alone, beside small frames of the same commit, and at the beginning of a segment."""
    rig = Rig(options=LARGE)
    rig.wal.append([large_records(0)], 1)
    rig.run()
    for first in (2, 5):
        rig.wal.append([records(first)], 1)
        rig.wal.append([large_records(first + 1)], 1)
        rig.run()
    assert len(rig.files()) > 1
    assert rig.durable[-1] == 5
    if restarts:
        rig = rig.restart()
        assert [len(entry.body) for entry in rig.entries() if entry.count == 2] == [
            len(large_records(0).body)
        ] * 3
    for offset in (0, 3, 6):
        assert rig.read(offset)[:2] == [bytes([offset]) * (2 << 20), b"x"]
    assert rig.read(2)[:1] == [b"2"]
