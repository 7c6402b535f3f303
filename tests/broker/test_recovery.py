"""Random work, stopped and started at random moments: what was acknowledged is always there."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from brokerd.broker import BrokerSettings, Congested
from brokerd.errors import LeaseLost, NotLeaseOwner
from brokerd.groups import GroupSettings
from brokerd.wal import WalOptions
from simulator.machine.disk import CrashModel
from tests.broker.desk import SECOND_US, acknowledged, grants, lease, read, settle
from tests.house import House

TOPICS = ("a", "b")
GROUPS = ("g", "h")
OWNERS = ("ann", "bob")
MAX_ATTEMPTS = 3


@dataclass
class Book:
    """What one group may expect of one record. ``sure`` is False after work that went down."""

    sure: bool = True
    state: str = "open"  # leased, delayed, settled, dead
    until_us: int = 0
    """End of the lease or of the delay."""
    duration_us: int = 0
    lapsed: bool = False
    """The lease was over before a restart, which may give it its full duration again, or not."""
    owner: str = ""
    grants: int = 0
    failures: int = 0
    known_grants: int = 0
    """Acknowledged: never fewer again."""
    known_failures: int = 0


Place = tuple[str, str, int]
"""Topic, group, offset."""


class Brokerage(RuleBasedStateMachine):
    """A broker whose disk loses power now and then, and the books of its clients."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House(
            settings=BrokerSettings(
                tail_cache_bytes=2000,
                read_cache_bytes=1000,
                snapshot_interval_bytes=1500,
                groups=GroupSettings(max_attempts=MAX_ATTEMPTS),
            ),
            options=WalOptions(segment_bytes=64 << 10, free_bytes_min=0),
        )
        self.now_us = 0
        self.serial = 0
        self.issued: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.known: dict[str, int] = dict.fromkeys(TOPICS, 0)
        """How many records of each topic are acknowledged."""
        self.books: dict[Place, Book] = {}
        self.pending: list[tuple[list[bool], list[Place], dict[str, int]]] = []

    # -- the clients' books -------------------------------------------------------------------

    def book(self, *place: str | int) -> Book:
        return self.books.setdefault(place, Book())  # type: ignore[arg-type]

    def changed(self, places: list[Place]) -> None:
        """Some work is under way: it counts once it is acknowledged."""
        ends = {topic: len(values) for topic, values in self.issued.items()}
        self.pending.append((acknowledged(self.house), places, ends))
        self.note()

    def end_of_lease(self, duration_us: int) -> int:
        """A lease lives until then, that moment included; one of no duration is over at once."""
        return self.now_us + duration_us if duration_us else self.now_us - 1

    def note(self) -> None:
        """Take over what was acknowledged meanwhile."""
        for done, places, ends in self.pending:
            if done:
                for place in places:
                    book = self.books[place]
                    book.known_grants = max(book.known_grants, book.grants)
                    book.known_failures = max(book.known_failures, book.failures)
                for topic, end in ends.items():
                    self.known[topic] = max(self.known[topic], end)
        self.pending = [work for work in self.pending if not work[0]]

    # -- work ---------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS), count=st.integers(1, 4), size=st.sampled_from([0, 0, 3000])
    )
    def produce(self, topic: str, count: int, size: int) -> None:
        broker = self.house.broker
        values = []
        for _ in range(count):
            self.serial += 1
            values.append(b"%d" % self.serial + bytes(size))
        try:
            broker.group_commit.admit(sum(map(len, values)) + 64 * count)
            partition = (broker.topics.find(topic) or broker.topics.create(topic)).partition(0)
        except Congested:
            return
        for value in values:
            offset = broker.appender.append(partition, value)
            assert offset == len(self.issued[topic]), "offsets are dense and never reused"
            self.issued[topic].append(value)
        self.changed([])

    @rule(
        topic=st.sampled_from(TOPICS),
        group=st.sampled_from(GROUPS),
        owner=st.sampled_from(OWNERS),
        seconds=st.sampled_from([0.0, 1.0, 5.0, 60.0]),
        limit=st.integers(1, 4),
    )
    def acquire(self, topic: str, group: str, owner: str, seconds: float, limit: int) -> None:
        places: list[Place] = []
        for grant, value in grants(self.house, topic, group, owner, seconds, limit):
            place = (topic, group, grant.offset)
            places.append(place)
            assert value == self.issued[topic][grant.offset]
            book = self.book(*place)
            if book.sure:
                assert book.state not in ("settled", "dead"), f"{place} is {book.state}"
                if book.state == "leased" and not book.lapsed:
                    assert self.now_us > book.until_us, f"{place} is leased to {book.owner}"
                if book.state == "delayed":
                    assert self.now_us >= book.until_us, f"{place} is delayed"
                assert (grant.grants, grant.failures) == (book.grants + 1, book.failures)
            assert grant.grants > book.known_grants
            assert grant.failures >= book.known_failures
            duration_us = int(seconds * SECOND_US)
            book.sure, book.state, book.owner, book.lapsed = True, "leased", owner, False
            book.until_us, book.duration_us = self.end_of_lease(duration_us), duration_us
            book.grants, book.failures = grant.grants, grant.failures
        self.changed(places)

    def leased(self) -> list[Place]:
        return [place for place, book in self.books.items() if book.sure and book.state == "leased"]

    @precondition(lambda self: self.leased())
    @rule(
        data=st.data(),
        success=st.booleans(),
        delay=st.sampled_from([None, 0.0, 2.0, 20.0]),
        twice=st.booleans(),
    )
    def settle(self, data: st.DataObject, success: bool, delay: float | None, twice: bool) -> None:
        """The holder settles, in time or late, and sometimes again."""
        place = data.draw(st.sampled_from(sorted(self.leased())))
        topic, group, offset = place
        book = self.books[place]
        for _ in range(1 + twice):
            settle(self.house, offset, success, topic, group, book.owner, delay)
        if success:
            book.state = "settled"
        else:
            book.failures += 1
            book.state = "dead" if book.failures == MAX_ATTEMPTS else "delayed"
            book.until_us = self.now_us + int((delay or 0) * SECOND_US)
        self.changed([place])

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), success=st.booleans())
    def settle_what_another_holds(self, data: st.DataObject, success: bool) -> None:
        topic, group, offset = place = data.draw(st.sampled_from(sorted(self.leased())))
        book = self.books[place]
        if self.now_us > book.until_us or book.lapsed:
            return
        try:
            settle(self.house, offset, success, topic, group, "eve")
        except NotLeaseOwner:
            return
        raise AssertionError(f"{place} is leased to {book.owner}, and eve settled it")

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 10.0]))
    def extend(self, data: st.DataObject, seconds: float) -> None:
        topic, group, offset = place = data.draw(st.sampled_from(sorted(self.leased())))
        book = self.books[place]
        group_partition = self.house.broker.leases.group_partition(topic, group, 0, offset)
        duration_us = int(seconds * SECOND_US)
        try:
            self.house.broker.leases.extend(group_partition, offset, duration_us, owner=book.owner)
        except LeaseLost:
            assert self.now_us > book.until_us or book.lapsed
            book.state, book.until_us = "delayed", 0
        else:
            assert self.now_us <= book.until_us
            book.lapsed = False
            book.until_us, book.duration_us = self.now_us + duration_us, duration_us
        self.changed([place])

    # -- time and threads ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 7.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.house.wall_seconds += seconds
        self.house.clock.advance(seconds)
        self.now_us += int(seconds * SECOND_US)
        self.note()

    @rule()
    def end_turn(self) -> None:
        self.house.turn()
        self.note()

    @rule(thread=st.sampled_from(["writer", "background", "readers", "snapshot_writer"]))
    def let_one_thread_work(self, thread: str) -> None:
        getattr(self.house, thread).step()
        self.note()

    @rule()
    def let_all_work(self) -> None:
        self.house.run()
        self.note()
        assert not self.pending, "an answer waits although nothing is left to do"

    # -- ends and beginnings ------------------------------------------------------------------

    @rule()
    def stop(self) -> None:
        self.house.stop()
        self.note()
        assert not self.pending, "a clean stop acknowledges everything"
        self.begin_again(self.house.again())

    @rule(model=st.sampled_from(CrashModel), dice=st.randoms(use_true_random=False))
    def crash(self, model: CrashModel, dice: random.Random) -> None:
        """Lose power; some of what was being written may have reached the disk."""
        self.house.disk.crash(model, dice)
        self.begin_again(self.house.again())

    def begin_again(self, house: House) -> None:
        self.house = house
        assert house.report.damages == []
        for _, places, _ in self.pending:
            for place in places:
                self.books[place].sure = False
        self.pending.clear()
        for topic in TOPICS:
            target = house.broker.topics.find(topic)
            end = 0 if target is None else target.partitions[0].next_offset
            assert self.known[topic] <= end <= len(self.issued[topic])
            del self.issued[topic][end:]
            for offset in range(end):
                assert read(house, topic, offset).value == self.issued[topic][offset]
            self.known[topic] = end
        for place in list(self.books):
            if place[2] >= len(self.issued[place[0]]):
                del self.books[place]
        for book in self.books.values():
            if book.state == "leased":
                book.lapsed = book.lapsed or self.now_us > book.until_us
                book.until_us = self.end_of_lease(book.duration_us)
        self.check_dead_letters()

    def check_dead_letters(self) -> None:
        for topic in TOPICS:
            for group in GROUPS:
                dead = set()
                if self.house.broker.topics.find(topic) is not None:
                    letters = self.house.broker.leases.dead_letters(topic, group)
                    dead = {letter.offset for _, letter in letters}
                for offset in range(len(self.issued[topic])):
                    book = self.books.get((topic, group, offset))
                    if book is not None and book.sure:
                        assert (offset in dead) == (book.state == "dead")

    def teardown(self) -> None:
        """In the end every record was settled, is dead, or is delivered."""
        self.house.disk.crash()
        self.begin_again(self.house.again())
        self.pass_time(70.0)
        self.pass_time(70.0)
        for topic in TOPICS:
            for group in GROUPS:
                delivered: set[int] = set()
                while found := lease(self.house, topic, group, limit=50):
                    delivered.update(offset for offset, _ in found)
                for offset in range(len(self.issued[topic])):
                    book = self.books.get((topic, group, offset), Book())
                    if book.sure:
                        over = book.state in ("settled", "dead")
                        assert (offset in delivered) != over, (topic, group, offset, book)
        assert self.house.failures == []


TestBrokerage = Brokerage.TestCase
TestBrokerage.settings = settings(stateful_step_count=40)
