"""Transactions: seen by nobody before their commit, and never in part, whenever the power goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.model.topics import TopicSettings
from brokerd.broker.transactions import (
    CHANGES_MAX,
    HELD_BYTES_MAX,
    OPEN_BYTES,
    RECORD_BYTES,
    Transaction,
)
from brokerd.errors import BrokerdError, InvalidName, InvalidRequest, LimitExceeded, NoSpace
from brokerd.values import Format
from brokerd.wal import WalOptions
from brokerd.walformat import Entry, EntryKind
from simulator.machine.disk import Call, CrashModel, PowerLost
from tests.broker.desk import acknowledged
from tests.broker.test_schedule import values
from tests.house import House

KIB = 1024
SMALL = BrokerSettings(frame_bytes=16 * KIB)
RECORDS = (("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4"), ("c", b"5"))
"""Of one transaction: to three topics, of which ``c`` is not there before it."""


def begin(house: House, *records: tuple[str, bytes]) -> Transaction:
    transaction = house.broker.transactions.begin()
    for topic, value in records:
        house.broker.transactions.produce(transaction, topic, value, 1)
    return transaction


def commit(house: House, transaction: Transaction, partitions: int = 1) -> list[str]:
    """Commit as a Protocol does: again and again while there is no room yet."""
    while True:
        try:
            return house.broker.transactions.commit(transaction, partitions, Format.FLYMQ)
        except Congested:
            house.run()


def held_bytes(house: House) -> int:
    return int(house.broker.transactions.status()["held_bytes"])


def contents(house: House, topic: str) -> list[list[bytes]] | None:
    """What each partition of a topic holds; None if there is no such topic."""
    found = house.broker.topics.find(topic)
    if found is None:
        return None
    return [values(house, topic, index) for index in range(len(found.partitions))]


class TestCommit:
    def test_nothing_is_seen_before_it_and_all_of_it_after(self) -> None:
        house = House()
        house.broker.topics.create("a", 1)
        transaction = begin(house, *RECORDS)
        house.run()
        assert values(house, "a") == []
        assert house.broker.topics.find("b") is None
        assert commit(house, transaction) == ["b", "c"]
        house.run()
        assert [values(house, topic) for topic in "abc"] == [[b"1", b"4"], [b"2"], [b"3", b"5"]]
        assert held_bytes(house) == 0

    def test_records_go_to_the_partitions_in_turn(self) -> None:
        house = House()
        house.broker.topics.create("a", 3)
        records = [("a", b"%d" % number) for number in range(4)]
        commit(house, begin(house, *records))
        house.run()
        assert contents(house, "a") == [[b"0", b"3"], [b"1"], [b"2"]]
        commit(house, begin(house, ("new", b"x"), ("new", b"y")), partitions=2)
        house.run()
        assert contents(house, "new") == [[b"x"], [b"y"]]

    def test_the_rotation_goes_on_with_the_next_record(self) -> None:
        """Whether a transaction or another request appends it."""
        house = House()
        house.broker.topics.create("t", 4)
        for lot in (b"abc", b"defghi", b"j"):
            commit(house, begin(house, *[("t", bytes([value])) for value in lot]))
            house.run()
        house.broker.appender.produce(house.broker.topics.existing("t").choose(None), b"k")
        house.run()
        assert contents(house, "t") == [
            [b"a", b"e", b"i"],
            [b"b", b"f", b"j"],
            [b"c", b"g", b"k"],
            [b"d", b"h"],
        ]

    def test_an_empty_one_is_committed_too(self) -> None:
        house = House()
        transaction = begin(house)
        assert commit(house, transaction) == []
        assert transaction.state == "committed"

    def test_a_topic_that_went_meanwhile_is_made_anew(self) -> None:
        house = House()
        house.broker.topics.create("a", 1)
        transaction = begin(house, ("a", b"1"))
        house.broker.topics.delete("a")
        assert commit(house, transaction) == ["a"]
        house.run()
        assert values(house, "a") == [b"1"]

    def test_records_live_as_long_as_those_of_their_topic(self) -> None:
        house = House()
        house.broker.topics.create("a", 1, TopicSettings(ttl_us=5_000_000))
        commit(house, begin(house, ("a", b"1")))
        house.pass_time(4.0)
        assert values(house, "a") == [b"1"]
        house.pass_time(1.1)
        assert values(house, "a") == []

    def test_it_is_one_frame_however_full_the_frame_before_is_and_however_large_it_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A frame as large as the whole transaction, with the topics that it brings about."""
        house = House(settings=SMALL)
        frames: list[list[str]] = []
        append = house.wal.append

        def appended(entries: Sequence[Entry], time_us: int) -> int:
            frames.append([EntryKind(entry.kind).name for entry in entries])
            return append(entries, time_us)

        monkeypatch.setattr(house.wal, "append", appended)
        partition = house.broker.topics.create("x").partition(0)
        house.broker.appender.produce(partition, b"x" * 8 * KIB)
        records = [(f"t{number % 7}", b"%d" % number * KIB) for number in range(60)]
        commit(house, begin(house, *records), partitions=3)
        house.run()
        assert frames == [["TOPIC", "RECORDS"], ["TOPIC"] * 7 + ["RECORDS"] * 21]

    def test_large_records_of_new_topics_are_one_frame(self) -> None:
        """A new topic after more than a mebibyte of records ended the frame before them."""
        house = House(options=WalOptions(segment_bytes=32 << 20, free_bytes_min=0))
        transaction = begin(house, *[(f"t{number}", b"x" * 700 * KIB) for number in range(6)])
        house.run()
        frames = house.broker.group_commit.frames
        commit(house, transaction)
        house.run()
        assert house.broker.group_commit.frames == frames + 1
        assert all(contents(house, f"t{number}") == [[b"x" * 700 * KIB]] for number in range(6))


class TestPower:
    @pytest.mark.parametrize("model", list(CrashModel))
    def test_it_is_there_as_a_whole_or_not_at_all_whenever_the_power_goes(
        self, model: CrashModel
    ) -> None:
        """At whatever call of the disk, whatever of the last writes it leaves; whole once its
        commit was answered."""
        base = House()
        base.broker.topics.create("a", 1)
        base.append("b", b"before")
        calls, outcomes = 0, set()
        while True:
            house = House(disk=base.disk.copy())
            is_done, answered = self._work_until(house, calls)
            house.disk.crash(model, Random(calls))
            house = House(disk=house.disk)
            found = [contents(house, topic) for topic in "abc"]
            whole = [[[b"1", b"4"]], [[b"before", b"2"]], [[b"3", b"5"]]]
            assert found in ([[[]], [[b"before"]], None], whole), (calls, found)
            assert found == whole or not answered, calls
            outcomes.add((str(found), answered))
            if is_done:
                break
            calls += 1
        assert len(outcomes) >= 2

    @staticmethod
    def _work_until(house: House, calls: int) -> tuple[bool, bool]:
        """Commit a transaction; whether it got so far, and whether the commit was answered."""
        left = calls
        answers: list[bool] = []

        def enter(call: Call) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLost

        house.disk.enter = enter
        try:
            transaction = begin(house, *RECORDS)
            house.run()
            commit(house, transaction)
            answers = acknowledged(house)
            house.run()
        except PowerLost:
            return False, bool(answers)
        finally:
            house.disk.enter = lambda call: None
        return True, bool(answers)

    def test_one_that_was_not_committed_is_gone(self) -> None:
        house = House()
        begin(house, *RECORDS)
        house.run()
        assert house.crash().broker.topics.find("a") is None


class TestEnds:
    def test_a_rollback_lets_go_of_its_records(self) -> None:
        house = House()
        transaction = begin(house, *RECORDS)
        house.broker.transactions.roll_back(transaction)
        with pytest.raises(InvalidRequest, match=r"^transaction is not active: aborted$"):
            house.broker.transactions.produce(transaction, "a", b"x", 1)
        with pytest.raises(InvalidRequest, match="not active: aborted"):
            commit(house, transaction)
        assert held_bytes(house) == 0
        house.run()
        assert house.broker.topics.find("a") is None

    def test_what_is_committed_is_over_and_stays_so(self) -> None:
        house = House()
        transaction = begin(house, ("a", b"1"))
        commit(house, transaction)
        house.broker.transactions.roll_back(transaction)
        with pytest.raises(InvalidRequest, match=r"^transaction is not active: committed$"):
            commit(house, transaction)
        house.run()
        assert values(house, "a") == [b"1"]
        assert house.broker.transactions.status() == {
            "open": 0,
            "held_bytes": 0,
            "committed": 1,
            "rolled_back": 0,
            "timed_out": 0,
        }

    def test_it_ends_by_itself_after_a_minute(self) -> None:
        house = House()
        first = begin(house, ("a", b"1"))
        house.pass_time(30.0, step=1.0)
        second = begin(house, ("a", b"2"))
        house.pass_time(29.9, step=1.0)
        assert (first.state, second.state) == ("active", "active")
        house.pass_time(0.2)
        assert (first.state, second.state) == ("aborted", "active")
        with pytest.raises(InvalidRequest, match=r"aborted \(it was open for 60 seconds\)$"):
            commit(house, first)
        commit(house, second)
        house.run()
        assert values(house, "a") == [b"2"]
        assert house.broker.transactions.status()["timed_out"] == 1

    def test_each_has_its_own_minute(self) -> None:
        """Also when one is begun after all before it are over."""
        house = House(settings=BrokerSettings(transaction_us=5_000_000))
        house.broker.transactions.roll_back(begin(house))
        house.pass_time(3.0)
        later = begin(house)
        house.pass_time(4.9)
        assert later.state == "active"
        house.pass_time(0.2)
        assert later.state == "aborted"

    def test_a_commit_that_waits_for_room_is_not_too_late(self) -> None:
        house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB))
        partition = house.broker.topics.create("x").partition(0)
        transaction = begin(house, ("a", b"1" * 64 * KIB))
        house.broker.appender.produce(partition, b"x" * KIB)
        with pytest.raises(Congested):
            for _ in range(3):
                house.broker.group_commit.append_frame()
                house.broker.transactions.commit(transaction, 1, Format.FLYMQ)
        for _ in range(5):  # behind others, who are served first
            house.clock.advance(61)
        assert transaction.state == "active"
        commit(house, transaction)
        house.run()
        assert len(values(house, "a")) == 1

    def test_a_commit_that_waited_and_was_refused_is_of_an_age_again(self) -> None:
        house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, max_topics=1))
        partition = house.broker.topics.create("x").partition(0)
        transaction = begin(house, ("a", b"1" * 64 * KIB))
        transaction.commit_waits = True
        house.broker.appender.produce(partition, b"x" * KIB)
        with pytest.raises(LimitExceeded):
            house.broker.transactions.commit(transaction, 1, Format.FLYMQ)
        house.clock.advance(61)
        assert transaction.state == "aborted"

    def test_a_full_disk_refuses_it_as_a_whole_and_it_stays_open(self) -> None:
        house = House()
        house.append("x", b"x")
        transaction = begin(house, ("a", b"1" * (1 << 20)), ("b", b"2"))
        house.disk.capacity = house.disk.used_bytes
        with pytest.raises(NoSpace):
            commit(house, transaction)
        assert house.broker.topics.find("b") is None
        house.disk.capacity = None
        house.wal.retry_allocation()
        house.run()
        assert commit(house, transaction) == ["a", "b"]
        house.run()
        assert values(house, "b") == [b"2"]

    def test_a_stop_lets_go_of_all(self) -> None:
        house = House()
        transaction = begin(house, ("a", b"1"))
        house.broker.stop()
        assert transaction.state == "aborted"
        assert held_bytes(house) == 0


def refused(call: Callable[[], object], error: type[BrokerdError], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


class TestLimits:
    def test_a_transaction_holds_48_mib(self) -> None:
        house = House()
        transactions = house.broker.transactions
        transaction = begin(house, ("a", b"x" * (32 << 20)))
        rest = HELD_BYTES_MAX - (32 << 20) - OPEN_BYTES - 2 * RECORD_BYTES
        refused(
            lambda: transactions.produce(transaction, "a", b"x" * (rest + 1), 1),
            LimitExceeded,
            "a transaction holds at most 50331648 bytes",
        )
        transactions.produce(transaction, "a", b"x" * rest, 1)
        assert transaction.held_bytes == HELD_BYTES_MAX
        refused(lambda: transactions.produce(transaction, "a", b"", 1), LimitExceeded, "at most")
        commit(house, transaction)
        house.run()
        assert [len(value) for value in values(house, "a")] == [32 << 20, rest]

    def test_all_together_hold_what_the_configuration_says(self) -> None:
        house = House(settings=BrokerSettings(max_transaction_bytes=100 * KIB))
        transactions = house.broker.transactions
        first = begin(house, ("a", b"x" * 89 * KIB))
        second = begin(house)
        refused(
            lambda: transactions.produce(second, "a", b"x" * KIB * 10, 1),
            LimitExceeded,
            "of 102400 .limits.transaction_bytes, at most a quarter of limits.memory.;",
        )
        refused(transactions.begin, LimitExceeded, "all open transactions together hold")
        transactions.roll_back(first)
        transactions.produce(second, "a", b"x" * KIB, 1)
        assert second.values == {"a": [b"x" * KIB]}

    def test_it_changes_so_many_partitions(self) -> None:
        """A record in each of 10,000 held the reactor for 80 ms; unchanged ones do not count."""
        house = House()
        transactions = house.broker.transactions
        house.broker.topics.create("wide", CHANGES_MAX - 2)
        house.broker.topics.create("a", 3)
        transaction = begin(house, *[("wide", b"1")] * CHANGES_MAX, ("a", b"2"), ("a", b"3"))
        for name in "a", "b":
            refused(
                lambda name=name: transactions.produce(transaction, name, b"4", 1),
                LimitExceeded,
                "changes at most 1000 partitions",
            )
        transactions.produce(transaction, "wide", b"5", 1)
        assert transaction.topics == ("wide", "a")
        assert commit(house, transaction) == []

    def test_a_new_topic_counts_one_more_than_its_partitions(self) -> None:
        """A record in each of 10,000 new topics held the reactor for 250 ms."""
        house = House()
        transactions = house.broker.transactions
        names = [f"t{number}" for number in range(CHANGES_MAX // 2)]
        transaction = begin(house, *[(name, b"1") for name in names])
        transactions.produce(transaction, "t0", b"2", 1)
        refused(
            lambda: transactions.produce(transaction, "one more", b"1", 1),
            LimitExceeded,
            "a new topic counts one more than it has",
        )
        assert commit(house, transaction) == names

    def test_topics_that_were_deleted_since_count_as_new_ones(self) -> None:
        """The refused commit leaves the transaction open and creates nothing."""
        house = House()
        names = [f"t{number}" for number in range(CHANGES_MAX // 2 + 1)]
        for name in names:
            house.broker.topics.create(name, 1)
        transaction = begin(house, *[(name, b"1") for name in names])
        for name in names:
            house.broker.topics.delete(name)
        house.run()
        refused(lambda: commit(house, transaction), LimitExceeded, "it changes 1002 partitions now")
        assert transaction.state == "active"
        assert not list(house.broker.topics.all())
        house.broker.topics.create("t0", 1)
        house.broker.topics.create("t1", 1)
        assert commit(house, transaction) == names[2:]

    def test_names_and_limits_of_topics_hold(self) -> None:
        """Also for several new ones at once; a refused commit leaves nothing behind."""
        house = House(settings=BrokerSettings(max_topics=3))
        transactions = house.broker.transactions
        house.broker.topics.create("a", 1)
        transaction = begin(house, ("b", b"1"), ("c", b"2"))
        for name in ("__brokerd.x", "a\nb"):
            with pytest.raises(InvalidName):
                transactions.produce(transaction, name, b"", 1)
        transactions.produce(transaction, "d", b"3", 1)
        refused(
            lambda: commit(house, transaction),
            LimitExceeded,
            "there are 1 topics already, and 2 more are to be made before 'd', and "
            "limits.max_topics is 3",
        )
        assert {topic.name for topic in house.broker.topics.all()} == {"a"}
        house.broker.topics.delete("a")
        assert commit(house, transaction) == ["b", "c", "d"]
