"""Deliveries: in which order, how often, with which tag, and what an ACK is answered."""

from __future__ import annotations

from random import Random

import pytest
from twisted.logger import capturedLogs, formatEvent

from brokerd.broker import BrokerSettings, Congested
from brokerd.codecs import blipmq as bm
from brokerd.codecs import mamamia as mm
from brokerd.errors import DamagedData, NoSpace, RecordRemoved
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.leasing import GONE_MAX
from brokerd.protocols.blipmq.connection import BlipmqSettings
from brokerd.protocols.blipmq.poll import RUN_LEASES_MAX, split_tag, tag_of
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.security import OPEN
from brokerd.security.quotas import Quota
from brokerd.values import Format
from tests.broker.desk import produce
from tests.house import Client
from tests.protocols.blipmq_desk import KEY, BlipmqClient, BlipmqHouse

MIB = 1 << 20
NOT_FOUND = bm.UNKNOWN_DELIVERY


def letters(house: BlipmqHouse, subscription_id: int, topic: str = "t") -> list[tuple[int, str]]:
    """Dead letters of a subscription, as operators see them: (offset, reason)."""
    found = house.broker.leases.dead_letters(topic, f"__blipmq.{subscription_id}")
    return [(letter.offset, letter.reason) for _, letter in found]


def lag(house: BlipmqHouse, subscription_id: int, topic: str = "t") -> int:
    return house.broker.overview.group_info(topic, f"__blipmq.{subscription_id}").lag


def forgetful(**changes: object) -> BlipmqHouse:
    """A house that keeps next to nothing in memory once it is durable."""
    settings = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=1)
    return BlipmqHouse(settings=settings, **changes)


# -- tags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (7, 0), (32_766, (1 << 48) - 1)])
def test_a_tag_names_its_record_and_is_never_0(place: tuple[int, int]) -> None:
    assert tag_of(0, 0) == 1
    assert 0 < tag_of(*place) < 1 << 64
    assert split_tag(tag_of(*place)) == place


def test_0_is_no_tag() -> None:
    assert split_tag(0) == (0, -1)
    client = BlipmqHouse().client()
    one = client.subscribe()
    client.publish(b"x")
    client.poll(one)
    assert client.ask(bm.Ack(0, one)) == [bm.Nack(0, 404, NOT_FOUND)]


# -- QoS 1 ----------------------------------------------------------------------------------------


def test_a_delivery_counts_as_one_request_that_waits() -> None:
    """A client may have as many deliveries on their way as requests that wait."""
    house = BlipmqHouse(limits=Limits(in_flight_requests=3))
    client = house.client()
    one = client.subscribe()
    client.publish(b"a", b"b", b"c", b"d")
    client.send(*[bm.Poll(6, one)] * 3)
    assert not client.transport.paused
    client.send(bm.Poll(6, one))
    assert client.transport.paused
    house.run()
    assert [delivery.message for delivery in client.answers()] == [b"a", b"b", b"c", b"d"]


def test_messages_come_once_in_order_one_a_poll() -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"a", b"b", b"c")
    polls = [bm.Poll(number, one) for number in range(10, 15)]
    deliveries = [
        bm.Publish(tag, 1, "t", value) for tag, value in ((1, b"a"), (2, b"b"), (3, b"c"))
    ]
    assert client.ask(*polls) == deliveries
    assert client.ask(*[bm.Ack(tag, one) for tag in (1, 2, 3)], bm.Ping(5)) == [bm.Pong(5)]
    house.pass_time(10.0, step=0.1)
    assert client.poll_all(one) == []
    assert lag(house, one) == 0


def test_tags_of_a_topic_with_partitions() -> None:
    house = BlipmqHouse()
    house.broker.topics.create("t", 3)
    client = house.client()
    one = client.subscribe()
    client.publish(b"a", b"b", b"c", b"d")
    found = [client.poll(one) for _ in range(4)]
    assert {delivery.correlation_id for delivery in found} == {
        1,
        2,
        (1 << 48) + 1,
        (2 << 48) + 1,
    }
    assert client.ask(*[bm.Ack(each.correlation_id, one) for each in found], bm.Ping(5)) == [
        bm.Pong(5)
    ]
    assert lag(house, one) == 0
    (answer,) = client.ask(bm.Ack((3 << 48) + 1, one))
    assert answer == bm.Nack((3 << 48) + 1, 404, NOT_FOUND)


def test_what_is_not_acknowledged_comes_again_with_the_same_tag_and_later_each_time() -> None:
    """After 100, 200 and 400 ms with a base of 100: then it is a dead letter."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    times = []
    for tick in range(2_000):
        found = client.poll(one)
        if found is not None:
            assert found == bm.Publish(1, 1, "t", b"x")
            times.append(tick)
        house.pass_time(0.001, step=0.001)
    assert len(times) == 3
    assert times[0] == 0
    assert 100 <= times[1] <= 103 and 300 <= times[2] <= 306
    assert letters(house, one) == [(0, "max_attempts")]


@pytest.mark.parametrize(("configured", "deliveries"), [(0, 1), (1, 1), (2, 2), (5, 5)])
def test_the_number_of_deliveries_is_configured(configured: int, deliveries: int) -> None:
    house = BlipmqHouse(
        BlipmqSettings(api_keys=(KEY,), max_deliveries=configured, retry_base_us=10_000)
    )
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    found = []
    for _ in range(200):
        found += client.poll_all(one)
        house.pass_time(0.01, step=0.01)
    assert found == [b"x"] * deliveries
    assert letters(house, one) == [(0, "max_attempts")]


def test_it_comes_before_newer_ones() -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"a", b"b")
    client.poll(one)
    house.pass_time(0.2)
    assert client.poll_all(one) == [b"a", b"b"]


def test_deliveries_count_across_a_restart() -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    for _ in range(3):
        delivery = client.poll(one)
        assert delivery is not None and delivery.correlation_id == 1
        house = house.crash()
        client = house.client()
        assert client.poll(one) is None  # in flight still
        house.pass_time(1.0)
    assert client.poll(one) is None
    assert letters(house, one) == [(0, "max_attempts")]


def test_an_extension_before_a_lease_is_durable_holds() -> None:
    """The time of a lease begins when its delivery may leave, and the extension is later."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    worker = Client(MamamiaFactory(house.broker, house.clock, house.limits), house.clock)
    client.send(bm.Poll(7, one))
    worker.send(mm.Extend("t", f"__blipmq.{one}", "blipmq", 0, 60.0))
    house.run()
    assert worker.answers() == [mm.Extended(60.0)]
    assert len(client.answers()) == 1
    house.pass_time(50)
    assert client.poll(one) is None
    house.pass_time(15)
    assert client.poll(one) is not None


def test_an_acknowledgement_is_durable_with_the_next_pong() -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    client.poll(one)
    client.send(bm.Ack(1, one), bm.Ping(5))
    assert client.first_answers() == [bm.Pong(5)]
    house = house.crash()
    house.pass_time(1.0)
    assert house.client().poll_all(one) == [] and letters(house, one) == []


class TestNotInFlight:
    def refused(self, client: BlipmqClient, tag: int, subscription_id: int) -> bool:
        answers = client.ask(bm.Ack(tag, subscription_id))
        return answers == [bm.Nack(tag, 404, NOT_FOUND)]

    def test_never_delivered(self) -> None:
        client = BlipmqHouse().client()
        one = client.subscribe()
        client.publish(b"x")
        assert self.refused(client, 1, one)
        assert self.refused(client, 2, one)
        assert self.refused(client, (1 << 64) - 1, one)
        assert client.poll_all(one) == [b"x"]

    def test_acknowledged_before(self) -> None:
        client = BlipmqHouse().client()
        one = client.subscribe()
        client.publish(b"x")
        client.poll(one)
        assert client.ask(bm.Ack(1, one)) == []
        assert self.refused(client, 1, one)

    def test_by_somebody_else(self) -> None:
        """Any connection may acknowledge; each subscription has its own."""
        house = BlipmqHouse()
        client, other = house.client(), house.client()
        one, two = client.subscribe(), client.subscribe()
        client.publish(b"x")
        client.poll(one)
        assert self.refused(other, 1, two)
        assert other.ask(bm.Ack(1, one)) == []
        assert self.refused(client, 1, one)

    def test_its_time_was_over_even_if_nobody_polled(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        one = client.subscribe()
        client.publish(b"x")
        client.poll(one)
        house.pass_time(0.15)
        assert self.refused(client, 1, one)
        assert client.poll(one) == bm.Publish(1, 1, "t", b"x")
        assert client.ask(bm.Ack(1, one)) == []

    def test_its_time_was_over_and_no_timer_ran(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        one = client.subscribe()
        client.publish(b"x")
        client.poll(one)
        house.clock.rightNow += 0.2  # as after a long turn
        assert self.refused(client, 1, one)

    def test_a_dead_letter(self) -> None:
        house = BlipmqHouse(BlipmqSettings(api_keys=(KEY,), max_deliveries=1))
        client = house.client()
        one = client.subscribe()
        client.publish(b"x")
        client.poll(one)
        house.pass_time(0.2)
        assert self.refused(client, 1, one)
        assert letters(house, one) == [(0, "max_attempts")]

    def test_unknown_subscription(self) -> None:
        client = BlipmqHouse().client()
        assert self.refused(client, 1, 1)
        assert client.ask(bm.Poll(5, 1)) == []

    def test_expired_subscription(self) -> None:
        house = BlipmqHouse(BlipmqSettings(api_keys=(KEY,), grace_us=5_000_000))
        client = house.client()
        one, used = client.subscribe(), client.subscribe()
        acked = client.subscribe()
        client.publish(b"x")
        client.poll(one)
        client.poll(used)
        for _ in range(8):
            house.pass_time(1.0, step=1.0)
            client.poll(used)
            assert self.refused(client, 99, acked)
        assert self.refused(client, 1, one)
        assert client.poll(one) is None
        assert house.broker.subscriptions.count == 2
        assert client.subscribe() == 4

    def test_no_room_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        house = BlipmqHouse()
        client = house.client()
        one = client.subscribe()
        client.publish(b"x")
        client.poll(one)

        def refuse(*_: object, **__: object) -> None:
            raise NoSpace("the disk is full")

        monkeypatch.setattr(house.broker.leases, "settle_leased", refuse)
        (answer,) = client.ask(bm.Ack(1, one))
        assert answer == bm.Nack(1, 500, "acknowledge failed: the disk is full")


# -- QoS 0 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "subscription"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_effective_qos_is_the_lower_one(message: int, subscription: int) -> None:
    client = BlipmqHouse().client()
    one = client.subscribe(qos=subscription)
    client.publish(b"x", qos=message)
    effective = min(message, subscription)
    delivery = client.poll(one)
    assert delivery == bm.Publish(1 if effective else 6, effective, "t", b"x")


def test_it_is_delivered_once_at_most() -> None:
    """And is done before it leaves: a crash delivers nothing twice."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe(qos=0)
    client.publish(b"a", b"b")
    client.send(bm.Poll(6, one))
    assert client.first_answers() == [bm.Publish(6, 0, "t", b"a")]
    house = house.crash()
    house.pass_time(1.0)
    assert house.client().poll_all(one) == [b"b"]
    house.pass_time(1.0)
    assert house.client().poll_all(one) == []
    assert letters(house, one) == [] and lag(house, one) == 0


def test_an_acknowledgement_of_it_is_of_nothing() -> None:
    client = BlipmqHouse().client()
    one = client.subscribe(qos=0)
    client.publish(b"x")
    client.poll(one)
    assert client.ask(bm.Ack(6, one), bm.Ack(1, one)) == [
        bm.Nack(6, 404, NOT_FOUND),
        bm.Nack(1, 404, NOT_FOUND),
    ]


def test_records_of_other_formats_count_as_qos_1() -> None:
    """Whatever their metadata says."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    topic = house.broker.topics.existing("t")
    for origin in (Format.MAMAMIA, Format.UNKNOWN):
        house.broker.appender.produce(
            topic.partition(0), b"x", metadata=b"\x81\xa3qos\x00", producer_format=origin
        )
    house.run()
    assert [client.poll(one).qos, client.poll(one).qos] == [1, 1]


# -- what cannot be delivered ---------------------------------------------------------------------


class TestTooLarge:
    def test_qos_1_makes_it_a_dead_letter(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        one = client.subscribe()
        limit = bm.MAX_LENGTH - bm.DELIVERY_BYTES - 1
        for size in (limit + 1, limit, 17 * MIB, 5):
            house.append("t", bytes(size))
        found = [client.poll(one) for _ in range(3)]
        assert [len(each.message) if each else None for each in found] == [limit, 5, None]
        assert letters(house, one) == [(0, "too_large"), (2, "too_large")]

    def test_qos_0_passes_it_over_and_counts_it(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        one = client.subscribe(qos=0)
        house.append("t", bytes(17 * MIB))
        client.publish(b"small")
        assert client.poll_all(one) == [b"small"]
        assert house.factory.polls.skipped == 1
        assert letters(house, one) == [] and lag(house, one) == 0


class TestFromDisk:
    def test_a_record_that_left_memory_is_delivered_in_its_order(self) -> None:
        house = forgetful()
        client = house.client()
        one = client.subscribe()
        for number in range(5):
            client.publish(b"%d" % number)
        house = house.crash()
        client = house.client()
        client.send(bm.Poll(6, one), bm.Ping(7), bm.Publish(8, 1, "t", b"last"), bm.Poll(9, one))
        house.turn()
        assert client.answers() == []
        house.run()
        assert client.answers() == [
            bm.Publish(1, 1, "t", b"0"),
            bm.Pong(7),
            bm.Publish(2, 1, "t", b"1"),
        ]
        assert client.poll_all(one) == [b"2", b"3", b"4", b"last"]

    def read_fails(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> tuple[BlipmqHouse, BlipmqClient, int]:
        """A house where the first read of a cold record goes wrong."""
        house = forgetful()
        client = house.client()
        one = client.subscribe()
        client.publish(b"a", b"b")
        house = house.crash()
        load, failures = house.broker.reader.load, [error]

        def fail_once(partition: object, offset: int, loaded: object) -> None:
            if failures:
                house.clock.callLater(0, loaded, None, failures.pop())
            else:
                load(partition, offset, loaded)

        monkeypatch.setattr(house.broker.reader, "load", fail_once)
        return house, house.client(), one

    def test_a_damaged_one_is_a_dead_letter_and_the_next_is_delivered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house, client, one = self.read_fails(monkeypatch, DamagedData("checksum"))
        with capturedLogs() as logs:
            assert client.poll_all(one) == [b"b"]
        assert letters(house, one) == [(0, "damaged")]
        (event,) = [each for each in logs if each.get("event_id") == "record-damaged"]
        assert "offsets 0 to 0 are damaged" in formatEvent(event)

    def test_a_damaged_one_waits_for_room_in_the_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        house, client, one = self.read_fails(monkeypatch, DamagedData("checksum"))
        bury, congested = house.broker.leases.dead_letter, [Congested("try again")]

        def refuse_once(*arguments: object) -> bool:
            if congested:
                raise congested.pop()
            return bury(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(house.broker.leases, "dead_letter", refuse_once)
        client.send(bm.Poll(6, one))
        produce(house, "other", b"c")  # whose commit makes room
        house.run()
        assert congested == []
        assert client.answers() == [bm.Publish(2, 1, "t", b"b")]
        assert letters(house, one) == [(0, "damaged")]

    def test_one_that_was_removed_meanwhile_is_looked_for_no_longer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, client, one = self.read_fails(monkeypatch, RecordRemoved("gone"))
        assert client.poll_all(one) == [b"a", b"b"]

    def test_a_disk_that_does_not_answer_costs_one_poll(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house, client, one = self.read_fails(monkeypatch, OSError("I/O error"))
        house.broker.quotas.put(OPEN, Quota("default", "*", requests=1_000))
        answers = client.ask(bm.Poll(6, one), bm.Poll(8, one), bm.Ping(7))
        assert answers == [bm.Publish(1, 1, "t", b"a"), bm.Pong(7)]
        (quota,) = house.broker.quotas.status()
        assert quota["requests"] == 2  # the first one counts, and so does the next
        assert client.poll_all(one) == [b"b"]

    def test_a_subscription_deleted_meanwhile_is_unknown(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house, client, one = self.read_fails(monkeypatch, DamagedData("checksum"))
        client.send(bm.Poll(6, one), bm.Ping(7))
        house.broker.groups.delete("t", f"__blipmq.{one}")
        house.run()
        assert client.answers() == [bm.Pong(7)]
        two = client.subscribe()
        client.publish(b"c")
        assert client.poll_all(two) == [b"c"]

    @pytest.mark.parametrize("error", [OSError("I/O error"), RecordRemoved("gone")])
    def test_a_connection_that_goes_meanwhile_leases_nothing(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        house, client, one = self.read_fails(monkeypatch, error)
        client.send(bm.Poll(6, one))
        client.disconnect()
        with capturedLogs() as logs:
            house.run()
        assert [event for event in logs if "log_failure" in event] == []
        assert house.client().poll_all(one) == [b"a", b"b"]


def test_many_expired_messages_take_several_turns_and_then_the_next_is_delivered() -> None:
    house = BlipmqHouse(BlipmqSettings(api_keys=(KEY,), message_ttl_us=1_000_000))
    client = house.client()
    one = client.subscribe()
    client.publish(*[b"x"] * (2 * GONE_MAX))
    house.pass_time(2.0, step=0.5)
    client.send(bm.Publish(4, 1, "t", b"young"), bm.Poll(6, one), bm.Ping(7))
    assert lag(house, one) > GONE_MAX
    house.run()
    tag = 2 * GONE_MAX + 1
    assert client.answers() == [bm.Publish(tag, 1, "t", b"young"), bm.Pong(7)]


def test_a_poll_that_the_broker_has_no_room_for_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    with monkeypatch.context() as full:

        def refuse(*_: object) -> None:
            raise NoSpace("the disk is full")

        full.setattr(house.broker.leases, "acquire", refuse)
        assert client.ask(bm.Poll(6, one), bm.Ping(7)) == [bm.Pong(7)]
    assert client.poll_all(one) == [b"x"]


def test_deliveries_to_a_peer_that_does_not_read_stop() -> None:
    """What cannot be sent is not leased."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(*[bytes(100_000)] * 100)
    client.stop_reading()
    client.send(*[bm.Poll(6, one)] * 100)
    house.run()
    assert 0 < house.broker.overview.group_info("t", f"__blipmq.{one}").leased < 50
    assert len(client.transport.buffered) < 5 * MIB
    client.read_on()
    house.run()
    assert [answer.correlation_id for answer in client.answers()] == list(range(1, 101))


def test_a_slow_disk_takes_nothing_of_the_time_for_an_ack() -> None:
    """The time begins when the delivery leaves: also if its commit takes longer than all of it."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    client.send(bm.Poll(2, one))
    house.turn()
    house.clock.advance(0.6)
    assert client.answers() == []
    (delivery,) = client.first_answers()
    house.pass_time(0.09, step=0.09)
    assert client.ask(bm.Ack(delivery.correlation_id, one), bm.Ping(3)) == [bm.Pong(3)]
    assert letters(house, one) == []
    assert lag(house, one) == 0


def test_a_delivery_that_nobody_is_there_for_any_more_comes_again_in_time() -> None:
    house = BlipmqHouse()
    client, other = house.client(), house.client()
    one = client.subscribe()
    client.publish(b"x")
    client.send(bm.Poll(2, one))
    house.turn()
    client.disconnect()
    house.run()
    house.pass_time(0.11, step=0.01)
    assert other.poll_all(one) == [b"x"]


def test_a_subscription_whose_topic_goes_before_its_delivery_leaves_is_over() -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"x")
    client.send(bm.Poll(2, one))
    house.broker.topics.delete("t")
    house.run()
    assert len(client.answers()) == 1
    house.pass_time(1.0)
    assert client.ask(bm.Ack(1, one)) == [bm.Nack(1, 404, NOT_FOUND)]


# -- runs -----------------------------------------------------------------------------------------


class Twins:
    """Two brokers with the same clients. One handles runs of requests in one step."""

    def __init__(self, **settings: int) -> None:
        caches = {"tail_cache_bytes": 0, "read_cache_bytes": 200_000}
        chosen = BrokerSettings(**{**caches, **settings})  # type: ignore[arg-type]
        self.houses = [BlipmqHouse(settings=chosen) for _ in range(2)]
        self.clients = [[house.client(), house.client()] for house in self.houses]
        for client in self.clients[1]:
            client.protocol.handle_run = lambda frames: 0

    def ask(self, client: int, *messages: bm.Message) -> list[bm.Message]:
        """Return the answers, which are the same in both."""
        answers, others = (clients[client].ask(*messages) for clients in self.clients)
        assert answers == others
        return answers


@pytest.mark.parametrize("seed", range(60))
def test_a_run_of_polls_and_acks_has_the_results_of_single_requests(seed: int) -> None:
    random, twins = Random(seed), Twins()
    subscriptions = []
    for topic, qos in (("t", 1), ("t", 1), ("t", 0), ("u", 1)):
        (answer,) = twins.ask(0, bm.Subscribe(1, topic, qos))
        assert isinstance(answer, bm.Ack)
        subscriptions.append(answer.subscription_id)
    tags: dict[int, list[int]] = {one: [0, 1, 1 << 63] for one in subscriptions}
    for _ in range(random.randint(3, 12)):
        messages: list[bm.Message] = []
        for number in range(random.randint(0, 40)):
            qos = random.random() < 0.9
            payload = b"%d" % number * random.choice((1, 1, 1, 1, 20_000))
            messages.append(bm.Publish(number, qos, random.choice("ttu"), payload))
        twins.ask(1, *messages, bm.Ping(1))
        client, subscription = random.randrange(2), random.choice(subscriptions)
        for _ in range(random.randint(1, 5)):
            burst: list[bm.Message] = []
            for number in range(random.choice((1, 4, 20, 300))):
                if random.random() < 0.01:
                    subscription = random.choice(subscriptions)
                kind = random.choice(("poll", "poll", "ack", "ping"))
                if kind == "ack" and tags[subscription]:
                    known = tags[subscription]
                    tag = known.pop(0) if random.random() < 0.9 else random.choice(known)
                    burst.append(bm.Ack(tag, subscription))
                elif kind == "poll":
                    burst.append(bm.Poll(number + 1, subscription))
                else:
                    burst.append(bm.Ping(number))
            for found in twins.ask(client, *burst):
                if isinstance(found, bm.Publish):
                    tags[subscription].append(found.correlation_id)
            if random.random() < 0.3:
                seconds = random.choice((0.01, 0.15, 3))
                for house in twins.houses:
                    house.pass_time(seconds)
    one, other = twins.houses
    for subscription, topic in zip(subscriptions, "tttu", strict=True):
        assert lag(one, subscription, topic) == lag(other, subscription, topic)
        assert letters(one, subscription, topic) == letters(other, subscription, topic)


def test_a_run_of_polls_is_one_step() -> None:
    """Each POLL of a run gets one message, and every ACK settles its own."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(*[b"%d" % number for number in range(8)])
    steps: list[int] = []
    handle_run = client.protocol.handle_run
    client.protocol.handle_run = lambda frames: steps.append(handle_run(frames)) or steps[-1]
    found = client.ask(*[bm.Poll(6, one), bm.Ping(7)] * 4)
    assert [type(answer) for answer in found] == [bm.Publish, bm.Pong] * 4
    acks = [
        bm.Ack(answer.correlation_id, one) for answer in found if isinstance(answer, bm.Publish)
    ]
    assert client.ask(*acks) == []
    assert (steps, lag(house, one)) == ([8, 4], 4)
    house = house.again()
    assert lag(house, one) == 4


def test_a_single_client_waits_for_its_lease_in_one_turn() -> None:
    """The start of a lease's duration is no other client that waits for the commit."""
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(b"a")
    waits: list[bool] = []
    house.broker.group_commit._wal.wait_if_quick = lambda: waits.append(True)
    assert client.poll(one) is not None
    assert waits == [True]


def test_a_long_run_of_polls_gets_all_messages() -> None:
    house = BlipmqHouse()
    client = house.client()
    one = client.subscribe()
    client.publish(*[b"%d" % number for number in range(RUN_LEASES_MAX + 50)])
    found = client.ask(*[bm.Poll(6, one)] * (RUN_LEASES_MAX + 50))
    assert len(found) == RUN_LEASES_MAX + 50


def test_a_run_settles_also_when_the_group_becomes_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The POLLs of the run give the leases another table, which a run does not settle."""
    monkeypatch.setattr("brokerd.groups.store.LARGE", 4)
    twins = Twins()
    twins.ask(0, bm.Subscribe(1, "t", 1))
    twins.ask(0, *[bm.Publish(n, 1, "t", b"%d" % n) for n in range(30)], bm.Ping(1))
    found = twins.ask(0, *[bm.Poll(n + 1, 1) for n in range(6)])
    tags = [one.correlation_id for one in found if isinstance(one, bm.Publish)]
    answers = twins.ask(
        0, *[bm.Poll(n + 1, 1) for n in range(5)], *[bm.Ack(tag, 1) for tag in tags], bm.Ping(9)
    )
    assert [type(one) for one in answers] == [bm.Publish] * 5 + [bm.Pong]
    assert lag(twins.houses[0], 1) == lag(twins.houses[1], 1) == 24


@pytest.mark.parametrize("memory_bytes", [6_000, 9_000, 24_000, 57_000])
def test_a_run_near_the_limit_of_group_memory_delivers_what_single_polls_do(
    memory_bytes: int,
) -> None:
    twins = Twins(max_group_state_bytes=memory_bytes)
    twins.ask(0, bm.Subscribe(1, "t", 1))
    twins.ask(0, *[bm.Publish(n, 1, "t", b"%d" % n) for n in range(200)], bm.Ping(1))
    for _ in range(2):
        twins.ask(0, *[bm.Poll(n + 1, 1) for n in range(60)])
