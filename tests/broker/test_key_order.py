"""Key-ordered groups, as their consumers see them: one record of a key at a time, in order."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from brokerd.broker import TAKE, BrokerSettings
from brokerd.codecs.mamamia import Acquire, Acquired
from brokerd.groups import BLOCKED_MAX, GroupSettings
from brokerd.wal import WalOptions
from tests.broker.desk import SECOND_US, TakeAll, lease, settle
from tests.broker.test_broker import Poll
from tests.house import House, ask

POISON = b"poison"
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)


def ordered(house: House | None = None, partitions: int = 1, **settings: int) -> House:
    """A house with a topic "t" and its key-ordered group "g"."""
    house = house or House()
    house.broker.topics.create("t", partitions)
    house.broker.groups.configure("t", "g", GroupSettings(key_ordered=True, **settings))
    return house


def produce_keys(house: House, *keys: bytes | None, expires_at_us: int = 0) -> None:
    """One record for each key, in order; the value is the key."""
    topic = house.broker.topics.existing("t")
    for key in keys:
        value = key or b""
        house.broker.appender.produce(
            topic.choose(key), value, key=key, expires_at_us=expires_at_us
        )
    house.run()


def offsets(house: House, owner: str = "ann", limit: int = 9) -> list[int]:
    """Lease what can be leased now; the offsets."""
    found = []
    while more := lease(house, owner=owner, limit=limit - len(found)):
        found += [offset for offset, _ in more]
    return found


class TestOrder:
    def test_later_records_of_a_key_wait_and_others_flow(self) -> None:
        house = ordered()
        produce_keys(house, b"a", b"a", b"b", None, b"a", None, b"b")
        assert offsets(house) == [0, 2, 3, 5]
        settle(house, 0)
        assert offsets(house, "bob") == [1]
        settle(house, 2)
        assert offsets(house, "bob") == [6]
        assert offsets(house) == []

    def test_a_failed_record_comes_before_its_successors(self) -> None:
        house = ordered()
        produce_keys(house, b"a", b"a", b"b")
        offsets(house, limit=1)
        settle(house, 0, success=False, delay_seconds=5)
        assert offsets(house) == [2]
        house.pass_time(5.1)
        assert offsets(house) == [0]

    def test_a_lapsed_lease_holds_its_key_until_somebody_settles(self) -> None:
        house = ordered()
        produce_keys(house, b"a", b"a")
        assert offsets(house) == [0]
        house.pass_time(31)
        assert offsets(house, "bob") == [0]
        settle(house, 0, owner="bob")
        assert offsets(house, "cid") == [1]

    def test_a_dead_letter_frees_its_key_and_one_that_is_replayed_comes_first(self) -> None:
        house = ordered(max_attempts=1)
        produce_keys(house, b"a", b"a", b"a")
        offsets(house)
        settle(house, 0, success=False)
        assert offsets(house, limit=1) == [1]
        house.broker.groups.replay_dead_letters("t", "g")
        settle(house, 1)
        assert offsets(house) == [0]
        settle(house, 0)
        assert offsets(house) == [2]

    def test_a_settle_serves_a_long_poll_with_the_next_record_of_the_key(self) -> None:
        house = ordered()
        produce_keys(house, b"a", b"a")
        offsets(house)
        poll = Poll(house)
        settle(house, 0)
        house.turn()
        assert poll.found == [(1, b"a")]

    def test_a_group_that_is_not_key_ordered_gives_all_at_once(self) -> None:
        house = House()
        house.broker.topics.create("t")
        produce_keys(house, b"a", b"a")
        assert offsets(house) == [0, 1]

    def test_an_empty_key_is_a_key(self) -> None:
        house = ordered()
        produce_keys(house, b"", b"", None)
        assert offsets(house) == [0, 2]

    def test_more_records_than_can_be_held_wait_and_the_group_goes_on_afterwards(self) -> None:
        house = ordered()
        produce_keys(house, b"a", *[b"a"] * (BLOCKED_MAX + 5), b"b")
        assert offsets(house, limit=2) == [0]
        for offset in range(BLOCKED_MAX + 5):
            settle(house, offset)
            if offset == 4:
                assert offsets(house, limit=3) == [5]
            elif offset > 5:
                assert (offset + 1 in offsets(house, limit=2)) or offset > BLOCKED_MAX


class TestWhatIsNotThere:
    def test_an_expired_record_holds_no_key(self) -> None:
        house = ordered()
        soon_us = house.broker.time.time_us() + SECOND_US
        produce_keys(house, b"a")
        produce_keys(house, b"a", b"b", expires_at_us=soon_us)
        produce_keys(house, b"a", b"b")
        assert offsets(house, limit=1) == [0]
        house.pass_time(2)
        assert offsets(house) == [4]
        settle(house, 0)
        assert offsets(house) == [3]
        assert house.broker.overview.group_info("t", "g").lag == 2

    def test_what_is_too_large_for_an_answer_becomes_a_dead_letter_and_frees_its_key(self) -> None:
        options = WalOptions(segment_bytes=64 << 20, free_bytes_min=0)
        house = ordered(House(options=options))
        topic = house.broker.topics.existing("t")
        huge = b"x" * (10 << 20)
        house.broker.appender.produce(topic.choose(b"a"), huge, key=b"a")
        house.run()
        produce_keys(house, b"a")
        (answer,) = ask(house, Acquire("t", "g", "ann"))
        assert isinstance(answer, Acquired)
        assert answer.message is not None and answer.message.id == 1
        assert house.broker.overview.group_info("t", "g").dead == 1

    def test_a_trim_frees_the_keys_of_the_records_it_removes(self) -> None:
        house = ordered()
        produce_keys(house, b"a", b"a", b"b", b"a")
        assert offsets(house) == [0, 2]
        house.broker.topics.trim("t", 0, 2)
        assert offsets(house) == [3]

    def test_a_trim_serves_a_long_poll_with_the_next_record_of_the_key(self) -> None:
        house = ordered()
        produce_keys(house, b"a", b"a")
        assert offsets(house) == [0]
        poll = Poll(house)
        house.run()
        house.broker.topics.trim("t", 0, 1)
        house.run()
        assert poll.found == [(1, b"a")]

    def test_an_expired_record_keeps_its_place_while_the_clock_cannot_be_trusted(self) -> None:
        """A record expires by the time for removal; a jump of the wall clock does not move it."""
        house = ordered()
        produce_keys(house, b"a")
        produce_keys(house, b"a", expires_at_us=house.broker.time.time_us() + 3600 * SECOND_US)
        settle(house, 1, success=False)  # it came back, and nobody said its key
        house.pass_time(2)
        (first,) = ask(house, Acquire("t", "g", "ann"))
        assert first.message.id == 0
        house.wall_seconds += 7200
        house.pass_time(1)
        assert (
            house.broker.reader.expiry.removal_us() < house.broker.time.time_us() - 3600 * SECOND_US
        )
        assert ask(house, Acquire("t", "g", "bob")) == [Acquired(None)]


class Consumers:
    """Several consumers that work, fail, forget and restart; checks every delivery."""

    def __init__(self, house: House, seed: int) -> None:
        self.house = house
        self.draw = random.Random(seed)
        self.held: dict[tuple[int, int], tuple[str, bytes | None]] = {}
        """Who works on what: (partition, offset) to (owner, key)."""
        self.open: dict[bytes, tuple[int, int]] = {}
        """By key, the record that was delivered last and is neither settled nor dead."""
        self.last: dict[bytes, int] = {}
        self.done: Counter[tuple[int, int]] = Counter()

    def acquire(self) -> None:
        """Lease a few records, reading what has to be read first."""
        owner = self.draw.choice(("ann", "bob", "cid"))
        limit = self.draw.choice((1, 1, 4))
        broker = self.house.broker
        waits = True

        def attempt(*_: object) -> None:
            nonlocal waits
            taking = Looking(self.house)
            found = broker.leases.acquire("t", "g", owner, 10 * SECOND_US, limit, taking)
            waits = not found and taking.cold is not None
            for group_partition, grant in found:
                place = group_partition.partition.index, grant.offset
                self.delivered(place, owner, taking.keys[place])
            if waits and taking.cold is not None:
                # At once when it is there: it may leave the cache again as soon as this returns.
                broker.reader.load(taking.cold[0].partition, taking.cold[1], attempt)

        attempt()
        while waits:
            assert self.house.readers.step(), "a read waits for nothing"

    def delivered(self, place: tuple[int, int], owner: str, key: bytes | None) -> None:
        assert not self.done[place], f"{place} was settled, and is delivered again"
        self.held[place] = owner, key
        if key is not None:
            assert self.open.setdefault(key, place) == place, f"{key!r}: {place} does not wait"
            assert self.last.get(key, -1) <= place[1], f"{key!r} goes back to {place}"
            self.last[key] = place[1]

    def settle(self) -> None:
        if not self.held:
            return
        place = self.draw.choice(list(self.held))
        owner, key = self.held.pop(place)
        success = key != POISON and self.draw.random() < 0.8
        broker = self.house.broker
        before = broker.overview.group_info("t", "g").dead
        settle(
            self.house, place[1], success, owner=owner, index=place[0],
            delay_seconds=self.draw.choice((None, 0, 3)),
        )  # fmt: skip
        if success or broker.overview.group_info("t", "g").dead > before:
            self.done[place] += 1
            if key is not None:
                del self.open[key]

    def pass_time(self) -> None:
        """Leases may lapse: whoever held them forgets."""
        self.house.pass_time(self.draw.choice((0.1, 4, 11)), 1)
        live = {(index, one.offset) for index, one in self.house.broker.groups.leases("t", "g")}
        self.held = {place: held for place, held in self.held.items() if place in live}

    def restart(self) -> None:
        self.house.broker.group_commit.ticket()  # commit, as an answer does
        self.house.run()
        if self.draw.random() < 0.5:
            self.house = self.house.crash()
        else:
            self.house.stop()
            self.house = self.house.again()


class Looking(TakeAll):
    """Takes what is in memory, and knows the keys of what it takes."""

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self.keys: dict[tuple[int, int], bytes | None] = {}

    def accept(self, offset: int) -> int:
        answer = super().accept(offset)
        partition = self.group_partition.partition
        chunk = partition.find(offset)
        if answer == TAKE and chunk is not None:
            self.keys[partition.index, offset] = chunk.keys[offset - chunk.base]
        return answer


@pytest.mark.parametrize("seed", range(12))
def test_no_key_is_ever_reordered_whatever_consumers_do(seed: int) -> None:
    draw = random.Random(seed)
    settings = FORGETFUL if seed % 3 == 0 else BrokerSettings()
    house = ordered(House(settings=settings), partitions=1 + seed % 2, max_attempts=3)
    keys = [b"%d" % number for number in range(8)] + [POISON, None]
    consumers = Consumers(house, seed)
    for _ in range(60):
        produce_keys(consumers.house, *draw.choices(keys, k=draw.randrange(8)))
        for _ in range(draw.randrange(12)):
            draw.choice((consumers.acquire, consumers.acquire, consumers.settle))()
        if draw.random() < 0.2:
            consumers.pass_time()
        if draw.random() < 0.1:
            consumers.restart()
    while consumers.house.broker.overview.group_info("t", "g").lag:
        consumers.acquire()
        consumers.settle()
        if draw.random() < 0.05:
            consumers.pass_time()
    info = consumers.house.broker.overview.group_info("t", "g")
    assert info.dead > 0
    assert sum(consumers.done.values()) == info.next
