"""Permissions that come and go while a request waits, and keys that log in.

What each single request needs is tests/cross/test_permissions.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import Congested
from brokerd.broker.leases.service import LeaseService
from brokerd.codecs import blipmq as bm
from brokerd.codecs import flymq, mega
from brokerd.codecs import mamamia as mm
from brokerd.codecs import rustlog as rl
from brokerd.protocols.base.connection import Hold
from brokerd.protocols.blipmq.connection import BlipmqSettings
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from brokerd.protocols.mega.connection import MegaFactory
from brokerd.protocols.rustlog.connection import RustlogFactory
from brokerd.security import ADMIN, ANY, OPEN_GUARD, READ, WRITE
from brokerd.wal import WalOptions
from tests.guards import Given, GuardOf
from tests.house import Client, House
from tests.protocols.blipmq_desk import KEY, BlipmqClient, BlipmqHouse

UNAUTHORIZED = "unauthorized"


def mamamia(house: House, access: Given) -> Client:
    """A connection of somebody."""
    house.factory.guard = GuardOf(access)
    return house.connect()


def produce(house: House, count: int) -> None:
    for number in range(count):
        house.append("orders", b"%d" % number)


class TestMamamia:
    def test_a_long_poll_is_asked_again_before_it_leases(self) -> None:
        """Nobody is leased what came after the permission went, and the client is told."""
        house = House()
        access = Given("olga", 0, {"orders": READ})
        client = mamamia(house, access)
        client.send(mm.Acquire("orders", "g", "c", wait=60))
        house.run()
        access.revoke()
        assert client.answers() == []
        produce(house, 1)
        assert client.answers() == [mm.Failed(UNAUTHORIZED)]
        assert house.broker.overview.group_info("orders", "g").leased == 0

    def test_a_long_poll_that_finds_nothing_is_answered_at_its_end(self) -> None:
        house = House()
        client = mamamia(house, Given("olga", 0, {"orders": READ}))
        client.send(mm.Acquire("orders", "g", "c", wait=1))
        house.pass_time(1.1)
        assert client.answers() == [mm.Acquired(None)]

    def test_a_batch_that_repeats_the_last_needs_the_permission_again(self) -> None:
        house = House()
        access = Given("olga", 0, {"orders": WRITE})
        client = mamamia(house, access)
        batch = mm.ProduceBatch("orders", (mm.BatchMessage(b"x" * 100),) * 100)
        for _ in range(2):
            client.send(batch)
            house.run()
            assert client.answers() != [mm.Failed(UNAUTHORIZED)]
        access.revoke()
        client.send(batch)
        house.run()
        assert client.answers() == [mm.Failed(UNAUTHORIZED)]
        topic = house.broker.topics.find("orders")
        assert topic is not None and topic.partitions[0].next_offset == 200

    @pytest.mark.parametrize("request_made", ["settle", "release"])
    def test_what_is_half_carried_out_goes_on(
        self, request_made: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The permission goes while it waits for room; the request behind it is refused whole."""
        house = House()
        produce(house, 2)
        access = Given("olga", 0, {"orders": READ})
        client = mamamia(house, access)
        client.send(mm.AcquireBatch("orders", "g", "c", max_messages=2))
        house.run()
        client.answers()
        settles = (mm.BatchSettle(0, True), mm.BatchSettle(1, False))  # not settled in one step
        made, done = {
            "settle": (
                mm.SettleBatch("orders", "g", "c", settles),
                mm.SettledBatch(("settled", "settled")),
            ),
            "release": (mm.Release("orders", "g", "c", (0, 1)), mm.Released(2)),
        }[request_made]
        congest_second(house.broker.leases, request_made, monkeypatch, access.revoke)
        client.send(made, made)
        house.run()
        first, second = client.answers()
        assert first == done
        assert second.text == UNAUTHORIZED


def congest_second(
    leases: LeaseService, method: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Any
) -> None:
    """Let the second call of a method find the log busy."""
    really, calls = getattr(leases, method), []

    def busy(*arguments: Any, **rest: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            meanwhile()
            raise Congested("too much work waits for the disk; try again")
        return really(*arguments, **rest)

    monkeypatch.setattr(leases, method, busy)


class TestRustlog:
    RECORDS = (b"\xff" * 600_000, b"x" * 600_000)

    def connect(self, house: House, access: Given) -> Any:
        factory = RustlogFactory(house.broker, house.clock, house.limits)
        factory.guard = GuardOf(access)
        return house.connect_to(factory)

    def produce(self) -> bytes:
        request = rl.Produce("orders", 0, list(self.RECORDS))
        return rl.CODECS[rl.Dialect.JSON].encode_request(request)

    def test_a_long_produce_is_refused_before_it_is_parsed(self) -> None:
        """In the turn in which it came."""
        house = House(options=WalOptions(segment_bytes=64 << 20, free_bytes_min=0))
        wire = self.connect(house, Given("sue"))
        wire.send_bytes(self.produce())
        assert b'{"Error":{"message":"unauthorized"}}' in wire.received_bytes()

    def test_a_long_produce_whose_permission_goes_meanwhile_stores_nothing(self) -> None:
        house = House(options=WalOptions(segment_bytes=64 << 20, free_bytes_min=0))
        house.broker.topics.create("orders")
        access = Given("olga", 0, {"orders": WRITE})
        wire = self.connect(house, access)
        wire.send_bytes(self.produce())
        assert wire.protocol.holds & Hold.IN_PROGRESS
        access.revoke()
        house.run()
        assert b'{"Error":{"message":"unauthorized"}}' in wire.received_bytes()
        assert house.broker.topics.existing("orders").partition(0).next_offset == 0


READS: dict[str, tuple[Any, bytes, bytes]] = {
    "flymq": (
        lambda house: FlymqFactory(house.broker, house.clock, house.limits, FlymqSettings()),
        flymq.encode_request(flymq.Fetch("orders", 0, 0, 10)),
        UNAUTHORIZED.encode(),
    ),
    "mega": (
        lambda house: MegaFactory(house.broker, house.clock, house.limits),
        mega.encode_request(mega.Consume(7, "orders", 0, 0)),
        mega.refused(7, mega.Code.INVALID_REQUEST),
    ),
    "rustlog": (
        lambda house: RustlogFactory(house.broker, house.clock, house.limits),
        rl.CODECS[rl.Dialect.JSON].encode_request(rl.Fetch("orders", 0, 0, 1000)),
        b'{"Error":{"message":"unauthorized"}}',
    ),
}


@pytest.mark.parametrize("form", READS)
def test_what_is_read_while_the_permission_goes_is_not_shown(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk takes its time: the answer is that of anybody who may not read."""
    make_factory, request, refusal = READS[form]
    house = House()
    produce(house, 1)
    factory, access = make_factory(house), Given("olga", 0, {"orders": READ})
    factory.guard = GuardOf(access)
    wire = house.connect_to(factory)
    really, waiting = house.broker.reader.fetch, []
    monkeypatch.setattr(
        house.broker.reader, "fetch", lambda *one: waiting.append(lambda: really(*one))
    )
    for permitted in (True, False):
        wire.send_bytes(request)
        assert wire.received_bytes() == b""
        if not permitted:
            access.revoke()
        waiting.pop()()
        assert (refusal not in wire.received_bytes()) is permitted


class TestBlipmqKeys:
    def house(self, **keys: Given) -> BlipmqHouse:
        house = BlipmqHouse()
        house.factory.guard = GuardOf(Given(), keys)
        return house

    def test_a_key_is_its_account(self) -> None:
        house = self.house(first=Given("olga", 0, {"t": WRITE}), second=Given("rita", READ))
        writer, reader = house.stranger(), house.stranger()
        assert writer.ask(bm.Hello(1), bm.Auth(2, "first")) == [bm.Ack(1), bm.Ack(2)]
        assert reader.ask(bm.Hello(1), bm.Auth(2, "second")) == [bm.Ack(1), bm.Ack(2)]
        assert writer.ask(bm.Publish(3, 1, "t", b"x"), bm.Ping(4)) == [bm.Pong(4)]
        assert reader.ask(bm.Publish(3, 1, "t", b"x")) == [bm.Nack(3, 401, UNAUTHORIZED)]
        assert reader.subscribe() == 1

    @pytest.mark.parametrize("key", ["wrong", "", KEY])
    def test_no_other_key_lets_anybody_in(self, key: str) -> None:
        """The configured keys are the guard's to know while security is on."""
        client = self.house(first=Given("olga", ANY)).stranger()
        answers = client.ask(bm.Hello(1), bm.Auth(2, key), bm.Ping(3))
        assert answers == [
            bm.Ack(1),
            bm.Nack(2, 401, "invalid API key"),
            bm.Nack(3, 401, "unauthenticated"),
        ]
        assert client.ask(bm.Auth(4, "first")) == [bm.Ack(4)]

    def test_after_many_wrong_keys_it_is_said_when_to_try_again(self) -> None:
        house = self.house(first=Given("olga", ANY))
        guard = house.factory.guard
        assert isinstance(guard, GuardOf)
        guard.throttled = True
        client = house.stranger()
        told = "too many logins failed; try again in 7 seconds"
        assert client.ask(bm.Hello(1), bm.Auth(2, "first")) == [bm.Ack(1), bm.Nack(2, 401, told)]
        guard.throttled = False
        assert client.ask(bm.Auth(3, "first")) == [bm.Ack(3)]

    def test_who_shows_a_certificate_needs_no_key(self) -> None:
        """The empty key leaves the client what it was, a key makes it somebody else."""
        house = BlipmqHouse()
        house.factory.guard = GuardOf(Given("cert", READ), {"key": Given("olga", WRITE)})
        client = house.stranger()
        assert client.ask(bm.Hello(1), bm.Auth(2, "")) == [bm.Ack(1), bm.Ack(2)]
        assert client.ask(bm.Publish(3, 1, "t", b"x")) == [bm.Nack(3, 401, UNAUTHORIZED)]
        other = house.stranger()
        assert other.ask(bm.Hello(1), bm.Auth(2, "key")) == [bm.Ack(1), bm.Ack(2)]
        assert other.ask(bm.Publish(3, 1, "t", b"x"), bm.Ping(4)) == [bm.Pong(4)]


class TestBlipmqPermissions:
    def client(self, house: BlipmqHouse, access: Given) -> BlipmqClient:
        house.factory.guard = GuardOf(Given(), {KEY: access})
        return house.client()

    def test_a_message_of_qos_0_is_refused_aloud(self) -> None:
        client = self.client(BlipmqHouse(), Given("sue"))
        assert client.ask(bm.Publish(3, 0, "t", b"x")) == [bm.Nack(3, 401, UNAUTHORIZED)]

    def test_another_ones_subscription_is_as_none(self) -> None:
        """It is not kept alive either, and what is in flight stays so."""
        house = BlipmqHouse(BlipmqSettings(grace_us=3_000_000, retry_base_us=600_000_000))
        house.factory.guard = OPEN_GUARD
        owner = house.client()
        subscription = owner.subscribe()
        owner.publish(b"x")
        delivery, _ = owner.ask(bm.Poll(6, subscription), bm.Ping(7))
        stranger = self.client(house, Given("sue", WRITE))
        for _ in range(2):
            house.pass_time(1.0)
            assert stranger.ask(bm.Poll(8, subscription), bm.Ping(9)) == [bm.Pong(9)]
            assert stranger.ask(bm.Ack(delivery.correlation_id, subscription)) == [
                bm.Nack(delivery.correlation_id, 404, bm.UNKNOWN_DELIVERY)
            ]
        assert house.broker.overview.group_info("t", f"__blipmq.{subscription}").leased == 1
        house.pass_time(3.0)
        assert house.broker.subscriptions.count == 0

    def test_who_may_only_read_subscribes_to_topics_that_there_are(self) -> None:
        house = BlipmqHouse()
        client = self.client(house, Given("rita", READ))
        (refusal,) = client.ask(bm.Subscribe(3, "t", 1))
        assert isinstance(refusal, bm.Nack) and refusal.code == 500
        assert house.broker.topics.find("t") is None
        (refusal,) = client.ask(bm.Subscribe(3, "bell\a", 1))
        assert isinstance(refusal, bm.Nack) and refusal.code == 400
        house.append("t", b"x")
        assert client.subscribe() == 1

    @pytest.mark.parametrize("more", [WRITE, ADMIN])
    def test_who_may_write_to_a_topic_or_make_it_makes_it_by_a_subscription(
        self, more: int
    ) -> None:
        house = BlipmqHouse()
        client = self.client(house, Given("olga", 0, {"t": READ | more}))
        assert client.subscribe() == 1
        assert house.broker.topics.find("t") is not None

    def test_a_subscription_that_looks_back_is_asked_again(self) -> None:
        """And what it found is not the next one's beginning."""
        house = BlipmqHouse(BlipmqSettings(look_back_us=500_000))
        house.append("u", b"long ago")
        house.pass_time(1.0)
        house.append("t", b"now")
        access = Given("rita", 0, {"t": READ, "u": READ})
        client = self.client(house, access)
        client.send(bm.Subscribe(3, "t", 1))
        access.by_topic.pop("t")
        assert client.ask(bm.Subscribe(4, "u", 1)) == [
            bm.Nack(3, 401, UNAUTHORIZED),
            bm.Ack(4, 1),
        ]
        assert client.poll_all(1) == []

    def test_a_pong_does_not_hide_refusals_that_a_peer_did_not_read(self) -> None:
        house = BlipmqHouse()
        access = Given("olga", WRITE)
        client = self.client(house, access)
        client.stop_reading()
        while not house.factory.nacks_dropped:
            client.send_bytes(bm.encode(bm.Publish(4, 1, "", b"x")) * 1_000)
            house.run()
        access.revoke()
        client.send(bm.Publish(5, 1, "t", b"x"), bm.Ping(6))
        house.run()
        client.read_on()
        house.run()
        refusal, pong = client.answers()[-2:]
        assert isinstance(refusal, bm.Nack)
        assert refusal.text.startswith("durable publish failed: 1 refusals were not sent")
        assert pong == bm.Pong(6)


RUN = 20
"""Requests of a run, which a connection carries out in one step."""
RUNS: dict[str, tuple[Any, bytes]] = {
    "mamamia": (lambda house: house.factory, mm.encode_request(mm.Produce("orders", b"x"))),
    "flymq": (READS["flymq"][0], flymq.encode_request(flymq.Produce("orders", None, b"x", -1))),
    "mega": (READS["mega"][0], mega.encode_request(mega.Produce(7, "orders", 1, b"x"))),
}


class TestRuns:
    @pytest.mark.parametrize("form", RUNS)
    @pytest.mark.parametrize("permission", [READ, WRITE])
    def test_a_run_of_produces_is_stored_only_with_the_permission(
        self, form: str, permission: int
    ) -> None:
        make_factory, request = RUNS[form]
        house = House()
        produce(house, 1)
        factory = make_factory(house)
        factory.guard = GuardOf(Given("sue", 0, {"orders": permission}))
        wire = house.connect_to(factory)
        wire.send_bytes(request)  # the connection remembers how it begins
        wire.send_bytes(request * RUN)
        house.run()
        stored = house.broker.topics.existing("orders").partition(0).next_offset
        assert stored == 1 + (1 + RUN) * (permission == WRITE)

    @pytest.mark.parametrize("permission", [READ, WRITE])
    def test_a_run_of_publishes_is_stored_only_with_the_permission(self, permission: int) -> None:
        house = BlipmqHouse()
        produce(house, 1)
        house.factory.guard = GuardOf(Given(), {KEY: Given("sue", 0, {"orders": permission})})
        asked = [bm.Publish(number, 1, "orders", b"x") for number in range(3, 3 + RUN)]
        answers = house.client().ask(*asked)
        stored = house.broker.topics.existing("orders").partition(0).next_offset
        assert (stored - 1, len(answers)) == ((RUN, 0) if permission == WRITE else (0, RUN))

    @pytest.mark.parametrize("permission", [READ, WRITE])
    def test_a_run_of_consumes_shows_records_only_with_the_permission(
        self, permission: int
    ) -> None:
        make_factory, request, refusal = READS["mega"]
        house = House()
        produce(house, 1)
        factory = make_factory(house)
        factory.guard = GuardOf(Given("sue", 0, {"orders": permission}))
        wire = house.connect_to(factory)
        wire.send_bytes(request * RUN)
        house.run()
        assert (wire.received_bytes() == refusal * RUN) is (permission == WRITE)


def test_a_transaction_whose_permission_went_is_not_committed() -> None:
    house = House()
    produce(house, 1)
    factory, access = READS["flymq"][0](house), Given("sue", 0, {"orders": WRITE})
    factory.guard = GuardOf(access)
    wire = house.connect_to(factory)

    def ask(request: Any) -> Any:
        wire.send_bytes(flymq.encode_request(request))
        house.run()
        ((opcode, _, payload),) = flymq.FrameReader().feed(wire.received_bytes())
        return flymq.decode_answer(request, opcode, payload)

    name = ask(flymq.BeginTransaction()).transaction
    ask(flymq.ProduceInTransaction(name, "orders", b"x"))
    access.revoke()
    assert ask(flymq.CommitTransaction(name)) == flymq.Failed(UNAUTHORIZED)
    assert house.broker.topics.existing("orders").partition(0).next_offset == 1
