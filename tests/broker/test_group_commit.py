"""Group commit: when answers may leave, what one commit takes, and what happens without room."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.group_commit import ADMITTED_EXTRA_BYTES
from brokerd.codecs.mamamia import GroupInfo, Produce
from brokerd.errors import NoSpace, ShuttingDown, StorageFailed
from brokerd.wal import WalOptions
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.log import WAIT_SECONDS
from brokerd.wal.read.scanner import ScanFrame
from brokerd.walformat import EntryKind
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import SimDisk
from tests.broker.desk import acknowledged, lease, produce, read, settle
from tests.house import House, ask

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)


def frames(house: House) -> Iterator[list[tuple[EntryKind, int]]]:
    """(kind, count) of the entries of every frame on the disk."""
    for _, found in scan_log(house.disk, WAL_DIR):
        assert isinstance(found, ScanFrame)
        yield [(EntryKind(entry.header.kind), entry.header.count) for entry in found.entries]


def test_entries_of_topics_come_first_in_a_frame() -> None:
    """The format promises it, and a topic may be created after a batch of another one."""
    house = House()
    broker = house.broker
    first = broker.topics.create("first")
    house.run()
    ids = produce(house, "first", b"x")
    broker.producers.remember(first, "p", 1, ids)
    produce(house, "second", b"y")
    house.run()
    kinds = [[kind for kind, _ in entries] for entries in frames(house)]
    assert [EntryKind.TOPIC, EntryKind.PRODUCER, *[EntryKind.RECORDS] * 2] in kinds


def test_a_frame_that_cannot_be_prepared_stops_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    house = House()
    produce(house, "t", b"x")
    done = acknowledged(house)
    monkeypatch.setattr(house.broker.group_commit, "_before_frame", fail)
    house.run()
    assert not done
    assert [str(error)[:48] for error in house.failures] == [
        "a frame could not be made: MemoryError: MemoryEr"
    ]


class TestAnswers:
    def test_no_answer_leaves_before_the_sync_that_makes_it_durable_has_returned(self) -> None:
        house = House()
        produce(house, "t", b"x")
        done = acknowledged(house)
        seen: list[tuple[str, bool]] = []
        house.disk.enter = lambda call: seen.append((call.name, bool(done)))
        house.turn()
        assert not done
        house.writer.step()
        assert done
        assert ("sync", False) in seen
        assert not any(answered for _, answered in seen)

    def test_what_gathers_during_a_commit_waits_for_the_next_one(self) -> None:
        house = House()
        produce(house, "t", b"first")
        first = acknowledged(house)
        house.turn()
        produce(house, "t", b"second")
        second = acknowledged(house)
        house.writer.step()
        assert (bool(first), bool(second)) == (True, False)
        house.writer.step()
        assert second

    def test_answers_leave_in_the_order_they_were_asked_for(self) -> None:
        house = House()
        order: list[int] = []
        group_commit = house.broker.group_commit
        for index in range(6):
            produce(house, "t", b"x")
            group_commit.when_durable(
                group_commit.ticket(), lambda index=index: order.append(index)
            )
            if index % 2:
                house.turn()
        house.run()
        assert order == [0, 1, 2, 3, 4, 5]

    def test_a_fault_in_one_answer_delays_no_other(self) -> None:
        """It is logged, and what is gathered behind it is committed all the same."""
        house = House()
        order: list[str] = []
        group_commit = house.broker.group_commit

        def faulty() -> None:
            raise RuntimeError("as asked for")

        produce(house, "t", b"x")
        for callback in (faulty, lambda: order.append("first")):
            group_commit.when_durable(group_commit.ticket(), callback)
        with capturedLogs() as captured:
            house.run()
        assert order == ["first"]
        assert [one["event_id"] for one in captured if "log_failure" in one] == ["callback-fault"]
        assert acknowledged(house)

    def test_an_answer_that_depends_on_nothing_new_waits_for_nothing(self) -> None:
        house = House()
        produce(house, "t", b"x")
        house.run()
        assert acknowledged(house)

    def test_a_dead_letter_that_changes_nothing_keeps_no_answer_waiting(self) -> None:
        house = House()
        produce(house, "t", b"x")
        house.broker.leases.dead_letter(
            house.broker.leases.group_partition("t", "g", 0, 0), 0, "damaged"
        )
        house.run()
        assert not house.broker.leases.dead_letter(
            house.broker.leases.group_partition("t", "g", 0, 0), 0, "damaged"
        )
        assert acknowledged(house)

    def test_a_failed_sync_lets_no_answer_leave_and_no_work_in(self) -> None:
        house = House()
        produce(house, "t", b"x")
        done = acknowledged(house)
        house.disk.fail("sync")
        house.run()
        assert [type(error) for error in house.failures] == [StorageFailed]
        with pytest.raises(StorageFailed):
            produce(house, "t", b"y")
        house.pass_time(1)
        assert not done


class TestOneCommit:
    def test_a_turn_over_many_topics_and_groups_costs_one_sync(self) -> None:
        house = House()
        for topic in "abcdef":
            produce(house, topic, b"1", b"2")
        house.run()
        house.disk.calls.clear()
        for topic in "abcdef":
            produce(house, topic, b"3")
            for group in "ghi":
                [(offset, _)] = lease(house, topic, group)
                settle(house, offset, topic=topic, group=group)
        done = acknowledged(house)
        house.run()
        assert done
        assert house.disk.calls["sync"] == 1
        assert house.disk.calls["pwrite"] == 1

    def test_a_topic_comes_before_its_records_and_they_before_their_leases(self) -> None:
        house = House()
        produce(house, "t", b"1", b"2")
        lease(house, limit=2)
        house.run()
        [frame] = frames(house)
        kinds = [EntryKind.TOPIC, EntryKind.RECORDS, EntryKind.GROUP_EVENTS]
        assert frame == list(zip(kinds, [0, 2, 2], strict=True))

    def test_a_frame_is_cut_between_requests_when_it_is_full(self) -> None:
        house = House(settings=BrokerSettings(frame_bytes=10 * KIB))
        for _ in range(5):
            produce(house, "t", bytes(2 * KIB), bytes(2 * KIB))
        house.run()
        records = [count for frame in frames(house) for kind, count in frame if kind == 1]
        assert sum(records) == 10
        assert records == [4, 4, 2]

    def test_a_batch_is_in_one_frame_however_large(self) -> None:
        house = House(settings=BrokerSettings(frame_bytes=10 * KIB))
        produce(house, "t", b"x")
        produce(house, "t", *[bytes(KIB)] * 40)
        house.run()
        assert [frame[-1] for frame in frames(house)] == [(1, 1), (1, 40)]

    def test_a_large_frame_does_not_wait_for_the_next_request(self) -> None:
        """Its encoding would take too long together with that of the next ones."""
        house = House(options=WalOptions(segment_bytes=16 << 20, free_bytes_min=0))
        produce(house, "t", b"x")
        house.run()
        group_commit = house.broker.group_commit
        partition = house.broker.topics.existing("t").partitions[0]
        before = group_commit.frames
        tickets = []
        for _ in range(5):
            house.broker.appender.produce(partition, b"x" * (700 << 10))
            tickets.append(group_commit.ticket())
        assert [ticket - tickets[0] for ticket in tickets] == [0, 0, 1, 1, 2]
        assert group_commit.frames == before + 2
        house.run()
        assert group_commit.durable_ticket == tickets[-1]

    def test_settles_of_one_turn_are_cut_into_frames_too(self) -> None:
        house = House(options=SMALL)
        for _ in range(20):
            produce(house, "t", *[b""] * 50)
            house.run()
        while lease(house, limit=50):
            house.run()
        for offset in range(1000):
            settle(house, offset)
        done = acknowledged(house)
        house.run()
        assert done
        events = [count for frame in frames(house) for kind, count in frame if kind == 2]
        assert max(events) * 37 < 16 * KIB
        assert house.crash().broker.overview.group_info("t", "g").floor == 1000

    def test_empty_records_never_outnumber_the_bytes_of_their_batch(self) -> None:
        """Recovery counts on it: a damaged stretch held no more records than bytes."""
        house = House()
        produce(house, "t", *[b""] * 1000)
        house.run()
        for _, found in scan_log(house.disk, WAL_DIR):
            assert isinstance(found, ScanFrame)
            for entry in found.entries:
                assert entry.header.count <= entry.header.body_bytes
        house = house.crash()
        assert [read(house, "t", offset).value for offset in (0, 88, 999)] == [b"", b"", b""]
        assert lease(house, limit=3, group="other") == [(0, b""), (1, b""), (2, b"")]


OWNERS = st.sampled_from(["a", "é" * 127, "\U0001f600" * 63, "x" * 255])
REQUESTS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(0, 3), st.sampled_from([0, 1, 7, 900])),
        st.tuples(st.just("lease"), st.integers(0, 3), OWNERS),
        st.tuples(st.just("fail"), st.integers(0, 3), OWNERS),
        st.tuples(st.just("pass"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(requests=REQUESTS, odd=st.booleans())
def test_a_frame_never_takes_more_than_was_counted(
    requests: list[tuple[str, int, int | str]], odd: bool
) -> None:
    """Room is admitted by the count, so an undercount would end in work that finds no room."""
    house = House()
    topics = [f"{index}" * (255 if odd else 1) for index in range(4)]
    groups = [f"{index}" * 255 for index in range(4)]
    for topic in topics:
        produce(house, topic, b"1", b"2", b"3")
    house.run()
    for kind, index, what in requests:
        if kind == "produce":
            assert isinstance(what, int)
            partition = house.broker.topics.existing(topics[index]).partition(0)
            key = b"k" * what if odd else None
            house.broker.appender.produce(
                partition, bytes(what), 2, key, key, 1, index or None, index
            )
        elif kind == "pass":
            house.wall_seconds += 1
            house.clock.rightNow += 1  # no timer runs: leases lapse under the request's hands
        else:
            assert isinstance(what, str)
            for offset, _ in lease(house, topics[index], groups[index], what, 0.5, limit=2):
                if kind == "fail":
                    house.clock.rightNow += 1
                    settle(house, offset, False, topics[index], groups[index], what)
    before, counted = house.wal.appended_lsn, house.broker.group_commit.gathered_bytes
    house.broker.group_commit.append_frame()
    assert house.wal.appended_lsn - before <= counted + 64


@pytest.mark.parametrize("count", [1, 100])
def test_settles_never_take_more_than_was_counted(count: int) -> None:
    """At its tightest: one settle with a long group name, or many of leases that lapsed."""
    house = House()
    group = "g" * 255
    produce(house, "t", *[b""] * count)
    house.run()
    if count > 1:
        lease(house, group=group, owner="", seconds=0.5, limit=count)
        house.run()
        house.clock.rightNow += 1
    for offset in range(count):
        settle(house, offset, count == 1, group=group)
    before, counted = house.wal.appended_lsn, house.broker.group_commit.gathered_bytes
    house.broker.group_commit.append_frame()
    assert house.wal.appended_lsn - before <= counted + 64


class TestNoRoom:
    def full(self, capacity: int = 230 * KIB) -> House:
        """A house whose disk took all the records that ordinary work may write."""
        house = House(SimDisk(capacity), options=SMALL)
        with pytest.raises(NoSpace, match="free some space, then try again"):
            for _ in range(1000):
                try:
                    produce(house, "t", bytes(300))
                except Congested:
                    house.run()
                lease(house)
                house.run()
        return house

    def test_a_refused_produce_changes_nothing(self) -> None:
        house = self.full()
        end = house.broker.topics.existing("t").partitions[0].next_offset
        with pytest.raises(NoSpace):
            produce(house, "new", bytes(3000))
        assert house.broker.topics.find("new") is None
        assert house.broker.topics.existing("t").partitions[0].next_offset == end
        assert acknowledged(house)

    def test_leases_and_settles_go_on_in_the_reserve_and_are_kept(self) -> None:
        house = self.full()
        for offset in range(20):
            assert settle(house, offset)
            house.run()
        house = house.crash()
        assert house.broker.overview.group_info("t", "g").floor == 20

    def test_when_the_reserve_is_used_up_settles_are_refused_before_they_are_applied(self) -> None:
        house = self.full()
        end = house.broker.topics.existing("t").partitions[0].next_offset
        settled = 0
        with pytest.raises(NoSpace, match="not even the reserve"):
            for settled in range(end):
                settle(house, settled)
                house.pass_time(0.3)
        house.pass_time(1)
        assert not house.failures
        assert house.broker.overview.group_info("t", "g").floor == settled
        assert house.crash().broker.overview.group_info("t", "g").floor == settled

    def test_leases_that_lapse_on_a_full_disk_end_when_there_is_room_again(self) -> None:
        house = self.full()
        end = house.broker.topics.existing("t").partitions[0].next_offset
        with pytest.raises(NoSpace, match="not even the reserve"):
            for offset in range(end):
                settle(house, offset)
                house.run()
        house.pass_time(40, step=1)
        assert not house.failures
        assert house.broker.overview.group_info("t", "g").leased > 0
        house.disk.capacity = 10_000 * KIB
        house.wal.retry_allocation()
        house.pass_time(1)
        assert house.broker.overview.group_info("t", "g").leased == 0

    def test_service_resumes_by_itself_when_space_returns(self) -> None:
        house = self.full()
        house.disk.capacity = 10_000 * KIB
        with pytest.raises(NoSpace):
            produce(house, "t", bytes(300))
        house.wal.retry_allocation()
        house.run()
        produce(house, "t", bytes(300))
        done = acknowledged(house)
        house.run()
        assert done

    @pytest.mark.parametrize("free", [0, 30 * KIB])
    def test_a_start_on_a_full_disk_serves_reads_and_goes_on_when_space_returns(
        self, free: int
    ) -> None:
        """With space for a reserve it takes settles too."""
        house = House(options=SMALL)
        produce(house, "t", b"0", b"1")
        lease(house)
        house.run()
        house.disk.crash()
        spares = [name for name in house.disk.list(WAL_DIR) if name.endswith(".tmp")]
        for name in spares:
            house.disk.unlink(f"{WAL_DIR}/{name}")
        house.disk.sync_directory(WAL_DIR)
        trimmed = 56 * KIB  # the unused tail of the only segment, which the start gives back
        house.disk.capacity = house.disk.used_bytes - trimmed + free
        house = house.again()
        assert (house.failures, house.report.damages) == ([], [])
        assert read(house, "t", 1).value == b"1"
        with pytest.raises(NoSpace):
            produce(house, "t", b"2")
        if free:
            settle(house, 0)
            house.run()
        else:
            with pytest.raises(NoSpace):
                settle(house, 0)
        house.pass_time(1)
        house.disk.capacity = None
        house.wal.retry_allocation()
        house.run()
        assert produce(house, "t", b"2") == [2]
        settle(house, 0)
        acknowledged(house)
        house.run()
        assert house.crash().broker.overview.group_info("t", "g").floor == 1

    def test_a_request_larger_than_a_segment_waits_for_one_of_its_own(self) -> None:
        house = House(options=SMALL)
        produce(house, "t", b"small")
        value = bytes(range(256)) * 1024
        with pytest.raises(Congested):
            produce(house, "t", value)
        ready: list[bool] = []
        house.broker.group_commit.when_uncongested(lambda: ready.append(True))
        house.background.run()
        assert ready
        assert produce(house, "t", value) == [1]
        house.run()
        house = house.crash()
        assert read(house, "t", 1).value == value

    def test_too_much_uncommitted_work_waits_for_the_disk(self) -> None:
        house = House(settings=BrokerSettings(max_uncommitted_bytes=20 * KIB))
        produce(house, "t", bytes(15 * KIB))
        house.turn()
        with pytest.raises(Congested):
            produce(house, "t", bytes(10 * KIB))
        again: list[list[int]] = []
        house.broker.group_commit.when_uncongested(
            lambda: again.append(produce(house, "t", bytes(10 * KIB)))
        )
        assert not again
        house.writer.step()
        assert again == [[1]]

    def test_small_requests_pass_a_large_one_that_waits_and_do_not_stop_it(self) -> None:
        """It is larger than all uncommitted work may be, so it waits for the work before it."""
        house = House(settings=BrokerSettings(max_uncommitted_bytes=80 * KIB))
        produce(house, "t", bytes(70 * KIB))
        house.turn()
        with pytest.raises(Congested):
            produce(house, "t", bytes(90 * KIB))
        order: list[str] = []

        def again() -> None:
            try:
                produce(house, "t", bytes(90 * KIB))
            except Congested:
                house.broker.group_commit.when_uncongested(again)
            else:
                order.append("large")

        house.broker.group_commit.when_uncongested(again)
        assert produce(house, "t", bytes(6 * KIB)) == [1]
        with pytest.raises(Congested):
            produce(house, "t", bytes(6 * KIB))
        house.broker.group_commit.when_all_durable(lambda: order.append("small"))
        house.writer.step()
        assert order == ["large"]
        produce(house, "t", bytes(10))
        house.turn()
        house.writer.step()
        assert order == ["large", "small"]
        house.run()
        house = house.crash()
        assert [len(read(house, "t", offset).value) for offset in (1, 2, 3)] == [
            6 * KIB,
            90 * KIB,
            10,
        ]

    def test_small_requests_pass_again_after_a_commit(self) -> None:
        house = House(settings=BrokerSettings(max_uncommitted_bytes=80 * KIB))
        for _ in range(3):
            produce(house, "t", bytes(78 * KIB))
            house.turn()
            produce(house, "t", bytes(6 * KIB))
            house.run()

    def test_light_requests_wait_for_the_commit_in_flight_and_for_their_own(self) -> None:
        house = House()
        commit = house.broker.group_commit
        produce(house, "t", b"x")
        house.turn()
        assert commit.light_waits() == 0
        produce(house, "t", b"y")
        commit.when_durable(commit.ticket(), lambda: None)
        assert commit.light_waits() == 0, "a request in slices is not light"
        commit.when_durable(commit.ticket(), lambda: None, is_light=True)
        first = commit.light_waits()
        assert first
        house.writer.step()
        assert commit.light_waits() == first + 1
        house.run()
        assert commit.light_waits() == 0

    def test_a_small_request_that_is_admitted_twice_passes_once(self) -> None:
        """One that creates its topic is admitted before, and again before it appends."""
        house = House(settings=BrokerSettings(max_uncommitted_bytes=80 * KIB))
        produce(house, "t", bytes(78 * KIB))
        house.turn()
        for _ in range(3):
            house.broker.group_commit.admit(6 * KIB)
        produce(house, "t", bytes(6 * KIB))
        with pytest.raises(Congested):
            produce(house, "t", bytes(6 * KIB))
        house.writer.step()
        house.run()

    def test_settles_wait_for_no_other_work_to_become_durable(self) -> None:
        house = House(settings=BrokerSettings(max_uncommitted_bytes=20 * KIB))
        produce(house, "t", b"x")
        lease(house)
        produce(house, "t", bytes(19 * KIB))
        house.turn()
        with pytest.raises(Congested):
            produce(house, "t", bytes(5 * KIB))
        assert settle(house, 0)

    def test_many_owners_with_long_names_find_room_for_their_leases(self) -> None:
        house = House(options=SMALL)
        for _ in range(4):
            produce(house, "t", *[b""] * 100)
            house.run()
        for _ in range(2):
            for index in range(150):
                assert lease(house, owner=f"{index:0>255}")
            house.run()
        done = acknowledged(house)
        house.run()
        assert done
        assert not house.failures

    def test_an_acquire_of_any_size_takes_what_fits_a_frame(self) -> None:
        house = House(options=SMALL)
        for _ in range(10):
            produce(house, "t", *[b""] * 100)
            house.run()
        taken = []
        while found := lease(house, limit=10_000):
            taken.append(len(found))
            house.run()
        assert sum(taken) == 1000
        assert min(taken[:-1]) >= 100
        assert len(house.wal.segments()) <= 4, "no segment was made for an acquire alone"

    def test_admitted_work_without_room_stops_the_broker_rather_than_being_lost(self) -> None:
        house = House()
        produce(house, "t", b"x")
        done = acknowledged(house)

        def no_room(*_: object) -> int:
            raise NoSpace("no segment")

        house.wal.append = no_room  # type: ignore[method-assign]
        house.turn()
        assert [type(error) for error in house.failures] == [StorageFailed]
        with pytest.raises(StorageFailed):
            produce(house, "t", b"y")
        assert not done


class TestQuiet:
    def marks(self, house: House) -> int:
        return sum(frame == [(EntryKind.MARK, 0)] for frame in frames(house))

    def test_after_a_quiet_moment_one_mark_is_written_and_no_more(self) -> None:
        house = House()
        produce(house, "t", b"x")
        house.run()
        assert self.marks(house) == 0
        house.pass_time(0.3)
        assert self.marks(house) == 1
        house.pass_time(10)
        assert self.marks(house) == 1

    def test_a_clean_stop_ends_with_a_mark(self) -> None:
        house = House()
        produce(house, "t", b"x")
        house.stop()
        assert self.marks(house) == 1

    def test_a_lease_that_lapses_forces_no_commit_but_is_written_soon(self) -> None:
        house = House()
        produce(house, "t", b"x")
        lease(house, seconds=5)
        house.pass_time(4.9)
        frames_before = house.broker.group_commit.frames
        house.pass_time(0.15)
        assert house.broker.overview.group_info("t", "g").leased == 0
        assert house.broker.group_commit.frames == frames_before
        house.pass_time(0.3)
        assert house.broker.group_commit.frames == frames_before + 2, "the lapse, then a mark"
        assert house.crash().broker.overview.group_info("t", "g").leased == 0

    def test_a_lapse_is_written_with_the_next_frame_if_that_comes_first(self) -> None:
        house = House()
        produce(house, "t", b"x")
        lease(house, seconds=5)
        house.pass_time(5.01)
        frames_before = house.broker.group_commit.frames
        produce(house, "t", b"y")
        house.run()
        assert house.broker.group_commit.frames == frames_before + 1
        assert house.crash().broker.overview.group_info("t", "g").leased == 0

    def test_an_idle_broker_writes_nothing_and_sets_no_timer(self) -> None:
        house = House()
        house.pass_time(10)
        assert list(frames(house)) == []
        [call] = house.clock.getDelayedCalls()
        assert call.getTime() - house.clock.seconds() > 1, "only retention has its next round"


class TestStopping:
    def test_work_is_refused_once_the_broker_stops(self) -> None:
        house = House()
        produce(house, "t", b"x", b"y")
        lease(house)
        house.run()
        house.stop()
        with pytest.raises(ShuttingDown):
            produce(house, "t", b"z")
        with pytest.raises(ShuttingDown):
            settle(house, 0)
        with pytest.raises(ShuttingDown):
            lease(house)

    def test_what_was_gathered_before_the_stop_is_acknowledged(self) -> None:
        house = House()
        produce(house, "t", b"x")
        done = acknowledged(house)
        house.stop()
        assert done

    def test_requests_that_wait_for_room_are_tried_again_and_refused(self) -> None:
        house = House(settings=BrokerSettings(max_uncommitted_bytes=20 * KIB))
        produce(house, "t", bytes(19 * KIB))
        house.turn()
        refused: list[bool] = []

        def again() -> None:
            with pytest.raises(ShuttingDown):
                produce(house, "t", bytes(5 * KIB))
            refused.append(True)

        house.broker.group_commit.when_uncongested(again)
        house.stop()
        assert refused

    def test_so_are_those_that_wait_for_a_segment_and_have_nothing_in_flight(self) -> None:
        house = House(options=SMALL)
        with pytest.raises(Congested):
            produce(house, "t", bytes(100 * KIB))
        refused: list[bool] = []
        house.broker.group_commit.when_uncongested(lambda: refused.append(True))
        house.broker.stop()
        assert refused

    def test_nothing_is_timed_after_a_stop(self) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=100))
        produce(house, "t", b"x")
        lease(house)
        house.stop()
        assert house.clock.getDelayedCalls() == []


def test_the_limit_leaves_room_for_a_topic_and_a_partition() -> None:
    """A request admitted by the fast check alone still fits with all that it may create."""
    house = House()
    group_commit = house.broker.group_commit
    name = "n" * 255
    assert group_commit.limit_bytes + ADMITTED_EXTRA_BYTES <= house.wal.room
    produce(house, name, bytes(group_commit.limit_bytes - 64))
    assert group_commit.gathered_bytes <= group_commit.limit_bytes + ADMITTED_EXTRA_BYTES


def test_a_disk_that_fails_with_an_error_of_its_own_is_told_as_such() -> None:
    house = House()
    produce(house, "t", b"x")
    house.disk.fail("pwrite", error=errno.EIO)
    house.run()
    assert "Input/output error" in str(house.failures[0])


def test_a_frame_that_cannot_be_made_stops_the_broker_and_answers_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever went wrong: the next frame must not vouch for work that is in none."""
    house = House()
    client = house.connect()
    client.send(Produce("t", b"x"))

    def faulty(*record: object) -> bytes:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("brokerd.broker.model.chunks.encode_plain_record", faulty)
    with capturedLogs():
        house.run()
    monkeypatch.undo()
    [failure] = house.failures
    assert str(failure).startswith("a frame could not be made: ValueError: a fault of ours")
    house.pass_time(1)
    house.broker.stop()
    house.run()
    assert client.answers() == []
    assert ask(house.crash(), GroupInfo("t", "g"))[0].next == 0


@pytest.mark.parametrize("clients", [1, 2])
def test_the_reactor_waits_for_a_commit_if_only_one_connection_does(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other connections would wait for their requests to be read meanwhile."""
    house = House()
    produce(house, "t", b"x")
    house.run()
    waits: list[bool] = []

    def wait() -> None:
        waits.append(house.wal.busy)
        house.writer.step()

    monkeypatch.setattr(house.wal, "wait_if_quick", wait)
    connected = [house.connect() for _ in range(clients)]
    for client in connected:
        client.send(Produce("t", b"y"))
    house.turn()
    assert waits == [True] * (clients == 1)
    assert [len(client.answers()) for client in connected] == [clients == 1] * clients
    house.run()
    assert clients == 1 or [len(client.answers()) for client in connected] == [1, 1]


def test_light_requests_get_their_answers_before_heavy_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit in flight is one of earlier requests, and theirs follows."""
    house = House()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        house.writer.step()

    monkeypatch.setattr(house.wal, "_wait", wait)
    clients = [house.connect() for _ in range(3)]
    for client in clients[:2]:
        client.send(Produce("t", b"x"))
    house.turn()
    clients[2].send(Produce("t", b"y"))
    house.turn()
    assert not any(client.answers() for client in clients)
    house.broker.group_commit.answer_light_first()
    assert [len(client.answers()) for client in clients] == [1, 1, 1]
    assert waits == [WAIT_SECONDS] * 2
    house.broker.group_commit.answer_light_first()
    assert len(waits) == 2


def test_nothing_waits_for_a_commit_of_heavy_work(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    waits: list[float] = []
    monkeypatch.setattr(house.wal, "_wait", waits.append)
    house.broker.topics.create("t", 1)
    house.broker.group_commit.when_all_durable(lambda: None)
    house.turn()
    assert house.wal.busy
    house.broker.group_commit.answer_light_first()
    assert not waits


def test_a_commit_that_is_not_quick_is_awaited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    waits: list[float] = []
    monkeypatch.setattr(house.wal, "_wait", waits.append)
    for client in (house.connect(), house.connect()):
        client.send(Produce("t", b"x"))
    house.turn()
    for _ in range(3):
        house.broker.group_commit.answer_light_first()
    assert waits == [WAIT_SECONDS]
