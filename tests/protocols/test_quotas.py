"""Quotas on the wire: requests wait, nothing is dropped, and settles are never held back."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.codecs import blipmq as bm
from brokerd.codecs import flymq, mega
from brokerd.codecs import mamamia as mm
from brokerd.codecs import rustlog as rl
from brokerd.codecs.rustlog import Dialect
from brokerd.protocols.blipmq.connection import BlipmqConnection
from brokerd.protocols.flymq.connection import FlymqConnection
from brokerd.protocols.mega.connection import MegaConnection
from brokerd.protocols.rustlog.connection import RustlogConnection
from brokerd.security import OPEN, READ, WRITE
from brokerd.security.quotas import Quota, Use
from tests.guards import Given, GuardOf
from tests.house import Client, House, ask


def limited(kind: str, name: str, **limits: int) -> House:
    house = House()
    house.broker.quotas.put(OPEN, Quota(kind, name, **limits))
    house.run()
    return house


def as_account(house: House, name: str) -> Client:
    house.factory.guard = GuardOf(Given(name, 0, {"orders": READ | WRITE}))
    return house.connect()


def produced(client: Client) -> int:
    return sum(isinstance(one, mm.Produced) for one in client.answers())


ADDRESS = "unix"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("default", "*"), ("listener", "mamamia"), ("address", ADDRESS), ("account", "ann")],
)
def test_requests_come_at_the_rate_of_the_quota_and_none_is_lost(kind: str, name: str) -> None:
    house = limited(kind, name, requests=10)
    client = as_account(house, "ann")
    client.send(*[mm.Produce("orders", b"%d" % n) for n in range(60)])
    house.run()
    total = produced(client)
    assert 10 <= total <= 12
    for _ in range(3):
        house.pass_time(1)
        total += produced(client)
    assert 38 <= total <= 42
    for _ in range(3):
        house.pass_time(1)
        total += produced(client)
    assert total == 60
    assert house.broker.topics.existing("orders").partitions[0].next_offset == 60


def test_other_clients_have_no_part_in_it() -> None:
    house = limited("account", "ann", requests=10)
    client, other = as_account(house, "ann"), as_account(house, "bob")
    client.send(*[mm.Produce("orders", b"x")] * 60)
    other.send(*[mm.Produce("orders", b"x")] * 60)
    house.run()
    assert produced(client) <= 12
    assert produced(other) == 60


def test_all_connections_of_an_account_share_its_quota() -> None:
    house = limited("account", "ann", requests=10)
    clients = [as_account(house, "ann") for _ in range(4)]
    for client in clients:
        client.send(*[mm.Produce("orders", b"x")] * 20)
    house.run()
    assert sum(map(produced, clients)) <= 12


def test_the_default_is_for_each_account_by_itself_and_not_for_those_with_their_own() -> None:
    house = limited("default", "*", requests=10)
    house.broker.quotas.put(OPEN, Quota("account", "ann", requests=40))
    ann, bob, carl = (as_account(house, name) for name in ("ann", "bob", "carl"))
    for client in (ann, bob, carl):
        client.send(*[mm.Produce("orders", b"x")] * 60)
    house.run()
    assert 40 <= produced(ann) <= 42
    assert 10 <= produced(bob) <= 12
    assert 10 <= produced(carl) <= 12


def test_bytes_in_hold_back_produces_and_no_settle() -> None:
    """The lease could lapse otherwise."""
    house = limited("account", "ann", bytes_in=1_000)
    producer, consumer = as_account(house, "ann"), as_account(house, "ann")
    producer.send(*[mm.Produce("orders", bytes(900))] * 9)
    house.run()
    count = produced(producer)
    assert 1 <= count <= 3
    consumer.send(mm.Acquire("orders", "g", "c"))
    house.run()
    (acquired,) = consumer.answers()
    consumer.send(
        mm.Extend("orders", "g", "c", acquired.message.id, 60.0),
        mm.Settle("orders", "g", acquired.message.id, "c", True),
    )
    house.run()
    assert [type(one) for one in consumer.answers()] == [mm.Extended, mm.Settled]
    assert produced(producer) == 0, "it still waits"


def test_settles_of_a_client_without_requests_left_are_carried_out() -> None:
    house = limited("account", "ann", requests=2)
    client = as_account(house, "ann")
    client.send(mm.Produce("orders", b"x"), mm.Acquire("orders", "g", "c"))
    house.run()
    acquired = client.answers()[1]
    client.send(mm.Produce("orders", b"y"))
    house.run()
    client.answers()
    other = as_account(house, "ann")
    other.send(mm.Settle("orders", "g", acquired.message.id, "c", True), mm.Produce("orders", b"z"))
    house.run()
    assert other.answers() == [mm.Settled()]
    house.pass_time(2)
    assert produced(other) == 1


def test_bytes_out_hold_back_reads() -> None:
    house = limited("account", "ann", bytes_out=10_000)
    for _ in range(9):
        house.append("orders", bytes(9_000))
    house.run()
    client = as_account(house, "ann")
    client.send(*[mm.Acquire("orders", "g", "c")] * 9)
    house.run()
    total = len(client.answers())
    assert total <= 3 or total == 9  # all that came in one go were asked for before any was sent
    client.send(mm.Acquire("orders", "g", "c"), mm.Produce("orders", b"x"))
    house.run()
    assert len(client.answers()) == 0


def test_a_paused_client_is_not_read() -> None:
    house = limited("account", "ann", requests=1)
    client = as_account(house, "ann")
    client.send(*[mm.Produce("orders", b"x")] * 9)
    house.run()
    assert client.transport.paused


def test_a_quota_that_goes_lets_requests_go_on() -> None:
    house = limited("account", "ann", requests=1)
    client = as_account(house, "ann")
    client.send(*[mm.Produce("orders", b"x")] * 50)
    house.run()
    count = produced(client)
    assert house.broker.quotas.delete(OPEN, "account", "ann")
    house.pass_time(1.1)
    assert count + produced(client) == 50


def test_connections_of_an_account_go_on_in_turn() -> None:
    """Each had 6 to 198 requests in 15 seconds when all of them woke for each request."""
    house = limited("account", "ann", requests=10)
    clients = [as_account(house, "ann") for _ in range(20)]
    for client in clients:
        client.send(*[mm.Produce("orders", b"x")] * 60)
    house.pass_time(40, step=0.1)
    counts = [produced(client) for client in clients]
    assert 390 <= sum(counts) <= 430
    # the first second's requests belong to the first connection
    assert max(counts[1:]) - min(counts[1:]) <= 1
    assert counts[0] <= max(counts[1:]) + 12


def test_waiting_connections_share_a_timer_and_each_request_counts_as_one_wait() -> None:
    house = limited("account", "ann", requests=10)
    clients = [as_account(house, "ann") for _ in range(40)]
    house.run()
    before = len(house.clock.getDelayedCalls())
    for client in clients:
        client.send(mm.Produce("orders", b"x"))
    house.run()
    (quota,) = house.broker.quotas.status()
    assert (quota["requests"], quota["waits"], quota["waiting"]) == (10, 30, 30)
    assert len(house.clock.getDelayedCalls()) <= before + 1
    house.pass_time(4)
    (quota,) = house.broker.quotas.status()
    assert (quota["requests"], quota["waits"], quota["waiting"]) == (40, 30, 0)


def test_a_connection_that_closes_leaves_its_turn_to_the_next() -> None:
    house = limited("account", "ann", requests=1)
    first, second, third = (as_account(house, "ann") for _ in range(3))
    first.send(*[mm.Produce("orders", b"x")] * 2)
    house.run()
    for client in (second, third):
        client.send(mm.Produce("orders", b"x"))
    house.run()
    assert house.broker.quotas.status()[0]["waiting"] == 2
    second.disconnect()
    assert house.broker.quotas.status()[0]["waiting"] == 1
    house.pass_time(1.1)
    assert produced(third) == 1


def test_reads_and_produces_share_the_requests_of_a_quota() -> None:
    house = limited("account", "ann", requests=10)
    for _ in range(200):
        house.append("orders", b"x")
    house.run()
    producer, reader = as_account(house, "ann"), as_account(house, "ann")
    producer.send(*[mm.Produce("more", b"x")] * 200)
    reader.send(*[mm.Acquire("orders", "g", "c")] * 200)
    house.pass_time(11, step=0.1)
    first, second = len(producer.answers()), len(reader.answers())
    assert 110 <= first + second <= 132
    assert min(first, second) >= 50


def test_a_request_waits_for_all_of_its_quotas_and_comes_to_its_turn() -> None:
    house = limited("account", "ann", requests=5)
    house.broker.quotas.put(OPEN, Quota("listener", "mamamia", requests=10))
    ann, *others = (as_account(house, name) for name in ("ann", *("bob", "carl", "dora") * 4))
    for client in (ann, *others):
        client.send(*[mm.Produce("orders", b"x")] * 90)
    house.pass_time(60, step=0.1)
    counts = [produced(client) for client in (ann, *others)]
    assert 600 <= sum(counts) <= 625
    assert min(counts) >= 40


@pytest.mark.parametrize("requests", [2, 100])
def test_a_change_of_the_quota_counts_for_those_that_wait_and_keeps_their_order(
    requests: int,
) -> None:
    house = limited("account", "ann", requests=1)
    clients = [as_account(house, "ann") for _ in range(30)]
    for client in clients:
        client.send(mm.Produce("orders", b"x"))
        house.run()
    house.broker.quotas.put(OPEN, Quota("account", "ann", requests=requests))
    house.pass_time(1)
    house.pass_time(0.1)
    counts = [produced(client) for client in clients]
    assert sum(counts) >= min(30, requests + 2)
    assert counts == sorted(counts, reverse=True)
    house.pass_time(15, step=0.1)
    assert sum(counts) + sum(map(produced, clients)) == 30


def test_connections_beyond_the_quota_are_refused() -> None:
    house = limited("account", "ann", connections=2)
    first, second, third = (as_account(house, "ann") for _ in range(3))
    house.run()
    assert first.is_open and second.is_open and not third.is_open
    (quota,) = house.broker.quotas.status()
    assert (quota["connections"], quota["refused"]) == (2, 1)
    first.disconnect()
    others = as_account(house, "ann"), as_account(house, "bob")
    house.run()
    assert all(one.is_open for one in others)


@pytest.mark.parametrize("logs_in", [False, True])
def test_a_quota_of_connections_closes_none_that_were_open_before(logs_in: bool) -> None:
    house = House()
    clients = [as_account(house, "ann") for _ in range(3)]
    if logs_in:
        for client in clients:
            client.protocol.logged_in(Given("bob", 0, {"orders": READ | WRITE}))
    house.broker.quotas.put(OPEN, Quota("listener", "mamamia", connections=1))
    house.run()
    for client in clients:
        client.send(mm.Produce("orders", b"x"))
    house.run()
    assert [produced(client) for client in clients] == [1, 1, 1]
    later = as_account(house, "ann")
    house.run()
    assert not later.is_open


@pytest.mark.parametrize(
    ("kind", "name"), [("default", "*"), ("account", "ann"), ("address", ADDRESS)]
)
@pytest.mark.parametrize("account", ["ann", ""])
def test_a_debt_stays_when_a_client_connects_again(kind: str, name: str, account: str) -> None:
    if kind == "account" and not account:
        return
    house = limited(kind, name, requests=10)
    total = 0
    for _ in range(10):
        client = as_account(house, account) if account else house.connect()
        client.send(*[mm.Produce("orders", b"x")] * 12)
        house.run()
        total += produced(client)
        client.disconnect()
        house.run()
        del client
    assert 10 <= total <= 12


def test_a_default_quota_keeps_a_bounded_number_of_debts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.broker.security.quotas.KEPT_METERS", 4)
    house = limited("default", "*", requests=1)
    for number in range(20):
        client = as_account(house, f"client-{number}")
        client.send(mm.Produce("orders", b"x"), mm.Produce("orders", b"x"))
        house.run()
        client.disconnect()
        house.run()
        del client
    (quota,) = house.broker.quotas.status()
    assert quota["requests"] == 4 * 2 and quota["connections"] == 0


def test_addresses_of_one_network_of_ipv6_share_the_default() -> None:
    house = limited("default", "*", requests=10)
    quotas = house.broker.quotas
    one, other, third = (
        quotas.meters_of("mamamia", address, "")
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
    )
    assert one == other != third


def test_a_login_needs_a_place_of_its_account_at_once() -> None:
    """Settles alone would never ask for it."""
    house = limited("account", "ann", connections=1)
    first, second = house.connect(), house.connect()
    for client in (first, second):
        client.protocol.logged_in(Given("ann", 0, {"orders": READ | WRITE}))
    house.run()
    assert first.is_open and not second.is_open
    first.send(mm.Settle("orders", "g", 0, "c", True))
    house.run()
    assert first.is_open


def test_a_quota_counts_what_was_used() -> None:
    house = limited("account", "ann", requests=5, bytes_in=1 << 20)
    client = as_account(house, "ann")
    client.send(*[mm.Produce("orders", bytes(100))] * 3, mm.Settle("orders", "g", 0, "c", True))
    house.run()
    (quota,) = house.broker.quotas.status()
    assert (quota["requests"], quota["connections"], quota["waits"]) == (3, 1, 0)
    assert 300 < quota["bytes_in"] < 600
    assert quota["bytes_out"] == len(client.received_bytes())


def test_quotas_survive_a_crash_and_a_clean_stop() -> None:
    house = limited("account", "ann", requests=5)
    house.broker.quotas.put(OPEN, Quota("default", "*", bytes_out=7, connections=9))
    house.broker.quotas.put(OPEN, Quota("account", "gone", requests=1))
    house.broker.quotas.delete(OPEN, "account", "gone")
    house.run()
    kept = house.broker.quotas.quotas()
    assert kept == [Quota("account", "ann", 5), Quota("default", "*", 0, 0, 7, 9)]
    house = house.crash()
    assert house.broker.quotas.quotas() == kept
    house.stop()
    assert house.again().broker.quotas.quotas() == kept


@pytest.mark.parametrize(
    ("form", "frame", "use"),
    [
        (BlipmqConnection, bytes([bm.FrameType.PUBLISH]), Use.PRODUCE),
        (BlipmqConnection, bytes([bm.FrameType.POLL]), Use.READ),
        (BlipmqConnection, bytes([bm.FrameType.ACK]), Use.FREE),
        (BlipmqConnection, bytes([99]), Use.FREE),
        (FlymqConnection, (flymq.Opcode.PRODUCE, 0, b""), Use.PRODUCE),
        (FlymqConnection, (flymq.Opcode.TXN_PRODUCE, 0, b""), Use.PRODUCE),
        (FlymqConnection, (flymq.Opcode.FETCH, 0, b""), Use.READ),
        (FlymqConnection, (flymq.Opcode.COMMIT, 0, b""), Use.FREE),
        (FlymqConnection, (flymq.Opcode.DELETE_TOPIC, 0, b""), Use.FREE),
        (MegaConnection, mega.Produce(1, "t", 0, b"x"), Use.PRODUCE),
        (MegaConnection, mega.Consume(1, "t", 0, 0), Use.READ),
    ],
)
def test_requests_of_every_format_count_by_what_they_do(form: Any, frame: Any, use: int) -> None:
    assert form.quota_use(None, frame)[0] == use


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(
    ("request_", "use"),
    [
        (rl.Produce("t", 0, [b"x"]), Use.PRODUCE),
        (rl.Fetch("t", 0, 0, 100, None), Use.READ),
        (rl.OffsetCommit("t", 0, "g", 1), Use.FREE),
        (rl.ListTopics(), Use.READ),
    ],
)
def test_requests_of_both_dialects_of_rustlog(dialect: Dialect, request_: Any, use: int) -> None:
    payload = rl.CODECS[dialect].encode_request(request_)[4:]
    assert RustlogConnection.quota_use(None, payload)[0] == use  # type: ignore[arg-type]


def test_a_produce_with_an_escaped_name_is_a_produce() -> None:
    payload = b'{"Pro\\u0064uce":{}}'
    assert RustlogConnection.quota_use(None, payload)[0] == Use.PRODUCE  # type: ignore[arg-type]


def test_without_quotas_nothing_is_metered() -> None:
    house = House()
    client = house.connect()
    client.send(mm.Produce("orders", b"x"))
    house.run()
    connection = next(iter(house.factory.connections))
    assert connection._meters == ()
    assert ask(house, mm.Produce("orders", b"x")) == [mm.Produced(1)]
