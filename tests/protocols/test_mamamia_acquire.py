"""Acquires of Mamamia that find what they cannot have: expired, paused, deleted, in order."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest

from brokerd.broker import BrokerSettings
from brokerd.codecs.mamamia import Acquire, AcquireBatch, Acquired, AcquiredBatch
from brokerd.errors import DamagedData, UnknownTopic
from brokerd.groups import GroupSettings
from brokerd.protocols.base.leasing import GONE_MAX
from tests.broker.desk import SECOND_US, lease, produce, settle
from tests.house import Client, House, ask

FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)


def expired(house: House, count: int) -> None:
    """Records of topic "t" that nobody can have any more."""
    broker = house.broker
    partition = (broker.topics.find("t") or broker.topics.create("t")).partition(0)
    soon_us = broker.time.time_us() + SECOND_US
    for _ in range(count):
        broker.appender.produce(partition, b"gone", expires_at_us=soon_us)
    house.run()
    house.pass_time(1.1, 1.1)


def leased(house: House, wait: float = 0.0) -> int | None:
    """Acquire over a connection; the id of the message."""
    (answer,) = ask(house, Acquire("t", "g", "ann", wait=wait))
    assert isinstance(answer, Acquired)
    return None if answer.message is None else answer.message.id


def waiting(house: House, seconds: float = 60.0) -> Client:
    """A connection with a long poll that found nothing yet."""
    client = house.connect()
    client.send(Acquire("t", "g", "poll", wait=seconds))
    house.run()
    assert client.answers() == []
    return client


def served(client: Client) -> int | None:
    """The id of the message that answered a long poll."""
    (answer,) = client.answers()
    assert isinstance(answer, Acquired)
    return None if answer.message is None else answer.message.id


class TestExpired:
    @pytest.mark.parametrize("settings", [BrokerSettings(), FORGETFUL], ids=["memory", "disk"])
    def test_expired_messages_are_passed_over_and_settled(self, settings: BrokerSettings) -> None:
        house = House(settings=settings)
        expired(house, 3)
        produce(house, "t", b"x")
        house.run()
        assert leased(house) == 3
        assert house.broker.overview.group_info("t", "g").floor == 3
        house = house.crash()
        assert house.broker.overview.group_info("t", "g").floor == 3

    def test_only_expired_messages_are_none(self) -> None:
        house = House()
        expired(house, 3)
        assert leased(house) is None
        assert house.broker.overview.group_info("t", "g").lag == 0

    def test_a_message_that_expires_while_it_is_leased_may_be_settled(self) -> None:
        house = House()
        partition = house.broker.topics.create("t").partition(0)
        soon_us = house.broker.time.time_us() + SECOND_US
        house.broker.appender.produce(partition, b"x", expires_at_us=soon_us)
        assert leased(house) == 0
        house.pass_time(2)
        assert settle(house, 0)

    def test_one_that_expires_between_attempts_is_not_delivered_again(self) -> None:
        house = House()
        partition = house.broker.topics.create("t").partition(0)
        soon_us = house.broker.time.time_us() + SECOND_US
        house.broker.appender.produce(partition, b"x", expires_at_us=soon_us)
        assert leased(house) == 0
        settle(house, 0, success=False, delay_seconds=0)
        house.pass_time(2)
        assert leased(house) is None

    def test_many_expired_messages_are_passed_over_in_several_turns(self) -> None:
        house = House()
        expired(house, 3 * GONE_MAX)
        produce(house, "t", b"x")
        house.run()
        client = house.connect()
        client.send(Acquire("t", "g", "ann"))
        floors = [house.broker.overview.group_info("t", "g").floor]
        while house.clock.calls and house.clock.calls[0].getTime() <= house.clock.seconds():
            turn = house.clock.calls.pop(0)
            turn.called = 1
            turn.func(*turn.args, **turn.kw)
            floors.append(house.broker.overview.group_info("t", "g").floor)
        steps = [after - before for before, after in pairwise([0, *floors])]
        assert 0 < max(steps) < GONE_MAX
        house.run()
        assert served(client) == 3 * GONE_MAX

    def test_a_long_poll_waits_on_behind_expired_messages(self) -> None:
        house = House()
        expired(house, GONE_MAX + 5)
        client = waiting(house)
        produce(house, "t", b"x")
        house.run()
        assert served(client) == GONE_MAX + 5

    def test_a_client_that_vanishes_meanwhile_is_no_harm(self) -> None:
        house = House()
        expired(house, 2 * GONE_MAX)
        client = house.connect()
        client.send(Acquire("t", "g", "ann", wait=5))
        client.disconnect()
        house.run()
        assert leased(house) is None

    def test_a_batch_holds_what_is_left(self) -> None:
        house = House()
        produce(house, "t", b"a")
        expired(house, 2)
        produce(house, "t", b"b")
        house.run()
        found = []
        while not found or found[-1]:
            (answer,) = ask(house, AcquireBatch("t", "g", "ann", 9))
            assert isinstance(answer, AcquiredBatch)
            found.append([message.id for message in answer.messages])
        assert sorted(chain.from_iterable(found)) == [0, 3]


class TestGroups:
    def test_a_long_poll_of_a_paused_group_is_served_when_it_is_resumed(self) -> None:
        house = House()
        produce(house, "t", b"x")
        house.broker.groups.pause("t", "g")
        house.run()
        client = waiting(house)
        house.broker.groups.resume("t", "g")
        house.run()
        assert served(client) == 0

    def test_a_long_poll_goes_on_when_its_group_is_deleted(self) -> None:
        house = House()
        produce(house, "t", b"x")
        lease(house)
        house.run()
        client = waiting(house)
        house.broker.groups.delete("t", "g")
        house.run()
        assert served(client) == 0

    @pytest.mark.parametrize("what", ["group", "topic"])
    def test_what_is_deleted_while_a_damaged_record_is_read_gets_no_dead_letter(
        self, what: str
    ) -> None:
        house = House(settings=FORGETFUL)
        produce(house, "t", b"x" * 500)
        lease(house)
        house.run()
        settle(house, 0, success=False, delay_seconds=0)
        house.run()
        client = house.connect()
        load, reads = house.broker.reader.load, []
        house.broker.reader.load = lambda *read: reads.append(read)
        client.send(Acquire("t", "g", "ann"))
        house.broker.reader.load = load
        if what == "group":
            house.broker.groups.delete("t", "g")
        else:
            house.broker.topics.delete("t")
        ((_, _, loaded),) = reads
        loaded(None, DamagedData("for a while"))
        house.run()
        assert house.broker.overview.group_info("t", "g").dead == 0
        assert served(client) == (0 if what == "group" else None)
        if what == "topic":
            with pytest.raises(UnknownTopic):
                next(house.broker.leases.dead_letters("t", "g"))

    def test_an_acquire_without_duration_gets_the_groups(self) -> None:
        house = House()
        produce(house, "t", b"x")
        house.broker.groups.configure("t", "g", GroupSettings(default_duration_us=5 * SECOND_US))
        (answer,) = ask(house, AcquireBatch("t", "g", "ann", 1, duration=None))
        assert answer.messages[0].remaining == 5
        house.pass_time(5.1)
        (answer,) = ask(house, AcquireBatch("t", "g", "ann", 1, duration=7))
        assert answer.messages[0].remaining == 7


def test_no_wait_is_longer_than_an_hour() -> None:
    """So that a client that filled its backlog with long polls and vanished is noticed at last."""
    house = House()
    client = waiting(house, 1e300)
    house.pass_time(3_599, step=600)
    assert client.answers() == []
    house.pass_time(2, step=1)
    assert served(client) is None
