"""What clients of any wire format observe: order, durability, back-pressure, limits, endings.

Spoken in Mamamia, because a connection needs a language.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain, pairwise
from pkgutil import walk_packages
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd import protocols
from brokerd.broker import BrokerSettings, Congested
from brokerd.codecs import mamamia as mm
from brokerd.protocols.base.connection import CLOSING_US, Connection, Limits, account_of
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.first_byte import FirstByteConnection
from brokerd.protocols.base.leasing import BaseLeaseFilter
from brokerd.wal import WalOptions
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import SimDisk
from tests.guards import Given, GuardOf
from tests.house import Client, House, ask

KIB = 1024
MIB = 1024 * KIB
TINY = b"\x00\x00\x00\x03\x01\x09\x80"
"""The smallest request there is: an unknown command."""
TINY_ANSWER = mm.error(9, "Unknown command: 9")


def fill(house: House, log_id: str, *values: bytes) -> None:
    """Produce, each message in a commit of its own."""
    for value in values:
        assert isinstance(ask(house, mm.Produce(log_id, value))[0], mm.Produced)


def leased(house: House, log_id: str = "orders") -> int:
    return house.broker.overview.group_info(log_id, "g").leased


def acquire(wait: float = 0.0, log_id: str = "orders", client_id: str = "c") -> mm.Acquire:
    return mm.Acquire(log_id, "g", client_id, 30.0, wait)


def ids(answers: list[Any]) -> list[int | None]:
    """The message ids that ACQUIRE_NEXT answers deliver."""
    return [answer.message.id if answer.message else None for answer in answers]


def chilled(house: House) -> House:
    """The same broker with nothing in memory: every record must be read from disk."""
    house.stop()
    return house.again()


# -- order and durability ---------------------------------------------------------------------


def test_no_answer_leaves_before_its_commit_is_durable() -> None:
    """A produce and a settle are answered after the sync, not after the write or the turn."""
    house = House()
    client = house.connect()
    synced: list[str] = []
    client.send(mm.Produce("orders", b"x"))
    house.turn()
    assert client.received_bytes() == b""
    house.disk.enter = lambda call: synced.append(call.name)
    while not client.transport.received:
        assert house.writer.step()
    assert synced[-1] == "sync" or "sync" in synced
    assert client.answers() == [mm.Produced(0)]


@pytest.mark.parametrize(
    "change",
    [
        mm.Produce("orders", b"x", delay=5.0),
        mm.ProduceBatch("orders", (mm.BatchMessage(b"x"), mm.BatchMessage(b"y", delay=5.0))),
        mm.Acquire("orders", "g", "c"),
        mm.AcquireBatch("orders", "g", "c", 9),
        mm.Settle("orders", "g", 0, "c", True),
        mm.Settle("orders", "g", 0, "c", False),
        mm.SettleBatch("orders", "g", "c", (mm.BatchSettle(0, True),)),
        mm.Extend("orders", "g", "c", 0),
        mm.Release("orders", "g", "c"),
        mm.Cancel("orders", 0),
    ],
    ids=lambda change: type(change).__name__,
)
def test_no_change_is_answered_before_it_is_durable(change: Any) -> None:
    house = House()
    ask(house, mm.Produce("orders", b"later", delay=60.0), mm.Produce("orders", b"a"))
    ask(house, mm.Produce("orders", b"b"), acquire())
    client = house.connect()
    client.send(change)
    house.turn()
    assert client.received_bytes() == b""
    house.run()
    [answer] = client.answers()
    assert isinstance(answer, tuple), "no error"


def subclasses(base: type) -> Iterator[type]:
    """Yield a class of `brokerd.protocols` and all of its subclasses there."""
    yield base
    for subclass in base.__subclasses__():
        if subclass.__module__.startswith("brokerd."):
            yield from subclasses(subclass)


for module in walk_packages(protocols.__path__, "brokerd.protocols."):
    import_module(module.name)


@pytest.mark.parametrize(
    "form",
    dict.fromkeys(
        form
        for base in (Connection, ConnectionFactory, BaseLeaseFilter)
        for form in subclasses(base)
    ),
)
def test_no_private_method_of_a_base_class_is_overridden(form: type) -> None:
    """A subclass, or an attribute, with the name of a method would replace it by accident."""
    classes = [one for one in form.__mro__ if one.__module__.startswith("brokerd.")]
    for place, one in enumerate(classes):
        above = {name for base in classes[place + 1 :] for name in vars(base)}
        private = {name for name in vars(one) if name.startswith("_") and name[1] != "_"}
        assert not private & above, f"{one.__name__} replaces a private name of its base class"
    methods = [f for one in classes for f in vars(one).values() if isinstance(f, FunctionType)]
    stored = {
        step.argval
        for method in methods
        for step in dis.get_instructions(method)
        if step.opname == "STORE_ATTR"
    }
    assert not stored & {method.__name__ for method in methods}


def test_many_requests_in_one_write_are_answered_in_one_write() -> None:
    """Pipelining costs one commit and one packet, not one each."""
    house = House()
    client = house.connect()
    frames_before = house.broker.group_commit.frames
    client.send(*[mm.Produce("orders", b"x")] * 50)
    house.turn()
    house.writer.run()
    assert house.broker.group_commit.frames == frames_before + 1
    assert client.transport.writes == 1
    assert client.answers() == [mm.Produced(number) for number in range(50)]


def test_requests_see_what_earlier_requests_of_the_connection_did() -> None:
    """PRODUCE, PRODUCE, ACQUIRE in one write deliver the first message."""
    house = House()
    answers = ask(house, mm.Produce("p", b"a"), mm.Produce("p", b"b"), acquire(log_id="p"))
    assert ids(answers[2:]) == [0]


def test_a_read_does_not_overtake_the_commit_it_has_seen() -> None:
    """GROUP_INFO that counts a record leaves only when that record is durable."""
    house = House()
    writer, reader = house.connect(), house.connect()
    writer.send(mm.Produce("orders", b"x"))
    reader.send(mm.GroupInfo("orders", "g"))
    house.turn()
    assert reader.received_bytes() == b""
    house.run()
    assert reader.answers()[0].next == 1


def test_answers_wait_behind_a_long_poll() -> None:
    """Order is the only pairing, so nothing overtakes; but later requests do run."""
    house = House()
    client = house.connect()
    client.send(acquire(wait=5), mm.Produce("other", b"x"), mm.GroupInfo("other", "g"))
    house.run()
    assert client.answers() == []
    assert house.broker.overview.group_info("other", "g").next == 1
    fill(house, "orders", b"y")
    waited, produced, info = client.answers()
    assert (waited.message.payload, produced, info.next) == (b"y", mm.Produced(0), 1)


def test_answers_wait_behind_a_read_from_disk() -> None:
    """A record that is not in memory holds the place of its answer."""
    house = House()
    fill(house, "orders", b"x")
    house = chilled(house)
    client = house.connect()
    client.send(mm.GroupInfo("orders", "g"), acquire(), mm.GroupInfo("orders", "g"))
    house.turn()
    assert len(client.answers()) == 1
    house.run()
    acquired, info = client.answers()
    assert acquired.message.payload == b"x"
    assert info.leased == 0, "it ran before the record was there"


CONVERSATION = (
    b"".join(
        mm.encode_request(request)
        for request in (
            mm.Produce("orders", b"a"),
            mm.Produce("orders", "é".encode(), 1, mm.pack_metadata({"n": 1}), b"key"),
            acquire(),
            mm.ProduceBatch("orders", (mm.BatchMessage(b"b"), mm.BatchMessage(b"c"))),
            mm.AcquireBatch("orders", "g", "c", 2),
            mm.Settle("orders", "g", 0, "c", True),
            mm.Settle("orders", "g", 77, "c", True),
            mm.Settle("orders", "g", 1, "d", True),
            acquire(),
            acquire(),
            mm.Extend("orders", "g", "c", 3, 60.0),
            mm.Produce("other", b"z" * 3000),
            acquire(log_id="other"),
        )
    )
    + TINY
    + mm.encode_request(mm.GroupInfo("none", "g"))
)


def converse(pieces: list[bytes], commits: list[bool]) -> bytes:
    house = House()
    client = house.connect()
    for index, piece in enumerate(pieces):
        client.send_bytes(piece)
        if commits and commits[index % len(commits)]:
            house.run()
    house.run()
    return client.received_bytes()


@given(
    cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=30).map(sorted),
    commits=st.lists(st.booleans(), max_size=7),
)
def test_any_chunking_gives_the_same_answers(cuts: list[int], commits: list[bool]) -> None:
    """However TCP cuts the stream, and whenever commits end, the bytes sent back are the same."""
    bounds = [0, *cuts, len(CONVERSATION)]
    pieces = [CONVERSATION[a:b] for a, b in pairwise(bounds) if a < b]
    assert converse(pieces, commits) == converse([CONVERSATION], [])


def test_one_byte_at_a_time_gives_the_same_answers() -> None:
    pieces = [CONVERSATION[at : at + 1] for at in range(len(CONVERSATION))]
    assert converse(pieces, []) == converse([CONVERSATION], [])


# -- back-pressure ----------------------------------------------------------------------------


def test_a_peer_that_does_not_read_is_not_read() -> None:
    """Its answers fill the send buffer once, then its requests stay in its own kernel."""
    house = House(limits=Limits(in_flight_bytes=64 * KIB))
    fill(house, "orders", *[b"x" * 20 * KIB] * 30)
    client = house.connect()
    client.stop_reading()
    for _ in range(30):
        client.send(acquire())
        house.run()
    assert client.transport.paused
    assert client.unread_bytes
    assert len(client.transport.buffered) < 3 * 64 * KIB
    assert leased(house) < 10
    client.read_on()
    house.run()
    assert ids(client.answers()) == list(range(30))
    assert not client.transport.paused


def test_large_answers_of_a_pipeline_are_made_a_few_at_a_time() -> None:
    """Ten large messages asked for at once are leased as their answers leave."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    fill(house, "orders", *[b"x" * 600 * KIB] * 10)
    client = house.connect()
    client.send(*[acquire()] * 10)
    assert leased(house) == 2
    assert client.transport.paused
    house.run()
    assert ids(client.answers()) == list(range(10))
    assert not client.transport.paused


def test_one_message_may_be_larger_than_the_budget() -> None:
    """The budget never makes a message undeliverable."""
    house = House(limits=Limits(in_flight_bytes=64 * KIB))
    fill(house, "orders", b"x" * 300 * KIB, b"y" * 300 * KIB)
    client = house.connect()
    client.send(*[acquire()] * 2)
    house.run()
    assert ids(client.answers()) == [0, 1]


def test_large_messages_read_from_disk_are_leased_a_few_at_a_time() -> None:
    """Cold records do not get around the budget, whether the peer reads or not."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    fill(house, "orders", *[b"x" * 600 * KIB] * 10)
    house = chilled(house)
    client = house.connect()
    client.stop_reading()
    client.send(*[acquire()] * 10)
    house.run()
    assert leased(house) <= 4
    assert len(client.transport.buffered) < 3 * MIB
    client.read_on()
    house.run()
    assert ids(client.answers()) == list(range(10))


def test_long_polls_of_a_peer_that_does_not_read_lease_no_more_than_the_budget() -> None:
    """What cannot be sent is left to other consumers; the rest comes when the peer reads."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    client = house.connect()
    client.stop_reading()
    client.send(*[acquire(wait=60)] * 10)
    house.run()
    fill(house, "orders", *[b"x" * 600 * KIB] * 12)
    assert leased(house) <= 4
    assert len(client.transport.buffered) < 3 * MIB
    others = ask(house, *[acquire(client_id="other")] * 2)
    assert all(answer.message for answer in others)
    client.read_on()
    house.run()
    found = ids(client.answers())
    assert len(found) == 10
    assert sorted([*found, *ids(others)]) == list(range(12))


def test_a_long_poll_put_off_ends_when_its_wait_is_over() -> None:
    """A slow reader whose message went elsewhere is told that there is none."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    client = house.connect()
    client.stop_reading()
    client.send(*[acquire(wait=2)] * 5)
    house.run()
    fill(house, "orders", *[b"x" * 600 * KIB] * 5)
    assert 1 <= leased(house) < 5
    while ids(ask(house, acquire(client_id="other"))) != [None]:
        pass
    house.pass_time(3)
    client.read_on()
    house.run()
    answers = client.answers()
    assert len(answers) == 5
    assert ids(answers)[-1] is None


def test_the_first_owed_answer_is_made_however_much_waits_behind_it() -> None:
    """Answers that wait behind a long poll cannot keep it from being answered."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    fill(house, "big", *[b"x" * 600 * KIB] * 4)
    client = house.connect()
    client.send(acquire(wait=60), *[acquire(log_id="big")] * 4)
    house.run()
    assert client.answers() == []
    assert client.transport.paused
    fill(house, "orders", b"y")
    assert len(client.answers()) == 5


def test_messages_behind_an_answer_that_is_not_there_yet_are_leased_within_the_budget() -> None:
    """Late answers that cannot leave, because an earlier one is owed, are not piled up."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    client = house.connect()
    client.send(acquire(wait=60, log_id="none"), *[acquire(wait=60)] * 10)
    fill(house, "orders", *[b"x" * 600 * KIB] * 10)
    assert leased(house) == 2
    fill(house, "none", b"y")
    assert len(client.answers()) == 11
    assert leased(house) == 10


def test_large_answers_that_need_no_commit_all_leave() -> None:
    """Answers over the budget that leave at once make room for those behind them."""
    house = House(limits=Limits(in_flight_bytes=64 * KIB))
    refused = mm.SettleBatch(
        "n" * 250, "g", "c", tuple(mm.BatchSettle(n, True) for n in range(300))
    )
    answers = ask(house, *[refused] * 5)
    assert [len(answer.results) for answer in answers] == [300] * 5


def test_answers_behind_a_long_poll_are_bounded() -> None:
    """Endless cheap requests behind a long poll are not answered into memory."""
    house = House(limits=Limits(in_flight_requests=100))
    client = house.connect()
    client.send(acquire(wait=60))
    sent = 20 * Client.READ_BYTES // len(TINY)
    client.send_bytes(TINY * sent)
    house.run()
    assert client.transport.paused
    assert client.unread_bytes > 18 * Client.READ_BYTES
    fill(house, "orders", b"y")
    assert client.received_bytes().count(TINY_ANSWER) == sent
    assert not client.transport.paused


def test_refusals_behind_a_commit_are_bounded_in_bytes() -> None:
    """A large batch of settles that are all refused counts with what its answer takes."""
    house = House(limits=Limits(in_flight_bytes=256 * KIB))
    client = house.connect()
    name = "n" * 250
    refused = mm.SettleBatch(name, "g", "c", tuple(mm.BatchSettle(n, True) for n in range(500)))
    client.send(acquire(wait=60), *[refused] * 50)
    house.run()
    assert client.transport.paused
    assert client.protocol.queued_bytes < MIB


def test_produces_of_one_connection_wait_when_too_much_of_it_is_uncommitted() -> None:
    """One client cannot fill what all clients may have uncommitted."""
    house = House(
        limits=Limits(in_flight_bytes=256 * KIB), options=WalOptions(segment_bytes=8 * MIB)
    )
    client = house.connect()
    client.send(*[mm.Produce("orders", b"x" * 60 * KIB)] * 100)
    assert client.transport.paused
    assert house.broker.group_commit.uncommitted_bytes < 512 * KIB
    house.run()
    assert client.answers() == [mm.Produced(number) for number in range(100)]


def test_congested_connections_go_on_in_order_and_lose_or_double_nothing() -> None:
    """When the log lags behind, producers wait; every request is carried out once."""
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    clients = [house.connect() for _ in range(8)]
    for round_number in range(4):
        for name, client in enumerate(clients):
            client.send(
                *[
                    mm.Produce("orders", b"%d:%d:" % (name, round_number * 3 + part) + b"x" * 9000)
                    for part in range(3)
                ]
            )
    assert any(client.transport.paused for client in clients)
    house.run()
    assert not any(client.transport.paused for client in clients)
    produced = [[answer.message_id for answer in client.answers()] for client in clients]
    assert [sorted(own) for own in produced] == produced
    assert sorted(chain.from_iterable(produced)) == list(range(8 * 12))
    consumed = ask(house, *[acquire()] * 96)
    by_client: dict[bytes, list[int]] = {}
    for answer in consumed:
        name, number, _ = answer.message.payload.split(b":")
        by_client.setdefault(name, []).append(int(number))
    assert by_client == {b"%d" % name: list(range(12)) for name in range(8)}


def test_a_congested_connection_may_leave() -> None:
    """Nobody waits for a client that is gone, and its requests are not carried out."""
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    first, gone, last = house.connect(), house.connect(), house.connect()
    first.send(*[mm.Produce("orders", b"x" * 30_000)] * 3)
    gone.send(mm.Produce("orders", b"gone" + b"x" * 30_000))
    last.send(mm.Produce("orders", b"x" * 30_000))
    assert gone.transport.paused
    gone.disconnect()
    house.run()
    assert len(first.answers()) == 3
    assert len(last.answers()) == 1
    assert house.broker.overview.group_info("orders", "g").next == 4


def test_settles_pass_while_produces_are_refused() -> None:
    """On a full disk work can be finished, and the refusal says what to do."""
    house = House(SimDisk(capacity=5 * MIB), options=WalOptions(MIB, free_bytes_min=0))
    for size in (100 * KIB, 10 * KIB, KIB, 1):
        while isinstance(ask(house, mm.Produce("orders", b"x" * size))[0], mm.Produced):
            pass
    produced = house.broker.overview.group_info("orders", "g").next
    refused, taken, settled = ask(
        house, mm.Produce("orders", b"x"), acquire(), mm.Settle("orders", "g", 0, "c", True)
    )
    assert "free some space" in refused.text
    assert ids([taken]) == [0]
    assert settled == mm.Settled()
    house.disk.capacity = None
    house.wal.retry_allocation()
    house.run()
    assert ask(house, mm.Produce("orders", b"y")) == [mm.Produced(produced)]


SMALL_RESERVE = WalOptions(MIB, free_bytes_min=0, reserve_bytes=8 * KIB)


class Filler:
    """Uses up the log's space, the reserve included, while no more is being allocated."""

    def __init__(self, house: House) -> None:
        self._house = house
        ask(house, mm.Produce("filler", b"x"), acquire(log_id="filler"))

    def fill(self, left_bytes: int = 0) -> None:
        """Until nothing has room, or only events that take no more than ``left_bytes``."""
        for size in (100 * KIB, 10 * KIB, KIB, 1):
            self._until_paused(mm.Produce("filler", b"x" * size))
        extend = mm.Extend("filler", "g", "c", 0)
        while self._house.wal.reserve_room > left_bytes > 0:
            self._commit(self._house.connect(), extend)
        if not left_bytes:
            self._until_paused(*[extend] * 1000)
            self._until_paused(extend)

    def _until_paused(self, *requests: Any) -> None:
        client = self._house.connect()
        while not client.transport.paused:
            self._commit(client, *requests)

    def _commit(self, client: Client, *requests: Any) -> None:
        client.send(*requests)
        self._house.turn()
        self._house.writer.run()


def test_leases_and_settles_wait_while_log_space_is_allocated() -> None:
    """Nothing is refused that is possible a moment later, and nothing is done twice."""
    house = House(options=SMALL_RESERVE)
    filler = Filler(house)
    ask(house, mm.ProduceBatch("orders", (mm.BatchMessage(b"x"),) * 600))
    tokens = ask(house, mm.AcquireBatch("orders", "g", "c", 600))[0].messages
    polling, settling, acquiring = house.connect(), house.connect(), house.connect()
    polling.send(acquire(wait=60, client_id="polling"))
    filler.fill()
    failed = mm.BatchSettle(0, False, tokens[0].token)
    settles = [mm.BatchSettle(number, True, tokens[number].token) for number in range(1, 600)]
    settling.send(mm.SettleBatch("orders", "g", "c", (failed, *settles)))
    acquiring.send(mm.Acquire("orders", "other", "c"))
    house.turn()
    house.writer.run()
    assert polling.answers() == settling.answers() == acquiring.answers() == []
    house.run()
    (settled,) = settling.answers()
    assert settled.results == ("settled",) * 600
    assert ids(acquiring.answers()) == [0]
    assert ids(polling.answers()) == [0]
    assert house.broker.overview.group_info("orders", "g")[:5] == (0, 600, 1, 1, 0)


def test_a_batch_of_settles_that_has_to_wait_goes_on_where_it_was() -> None:
    """Each settle is carried out once and has one result."""
    house = House(options=SMALL_RESERVE)
    filler = Filler(house)
    ask(house, mm.ProduceBatch("orders", (mm.BatchMessage(b"x"),) * 600))
    ask(house, mm.AcquireBatch("orders", "g", "c", 600))
    filler.fill(left_bytes=4 * KIB)
    settling = house.connect()
    settling.send(
        mm.SettleBatch("orders", "g", "c", tuple(mm.BatchSettle(n, True) for n in range(600)))
    )
    assert settling.transport.paused
    assert 0 < leased(house) < 600
    house.run()
    (settled,) = settling.answers()
    assert settled.results == ("settled",) * 600
    assert leased(house) == 0


def test_a_long_poll_woken_while_log_space_is_allocated_is_answered_then() -> None:
    house = House(options=SMALL_RESERVE)
    filler = Filler(house)
    ask(house, mm.ProduceBatch("orders", (mm.BatchMessage(b"x"),) * 600))
    ask(house, mm.AcquireBatch("orders", "g", "holder", 600, 1.0))
    polling, leaving, ending = (house.connect() for _ in range(3))
    for client in (leaving, polling, ending):
        client.send(acquire(wait=60))
    filler.fill()
    house.clock.advance(2)
    assert polling.answers() == []
    leaving.disconnect()
    ending.send_no_more()
    house.pass_time(2)
    (found,) = ids(polling.answers())
    assert found is not None
    assert len(ending.answers()) == 1
    assert not ending.is_open


@pytest.mark.parametrize("damage", [False, True])
def test_a_record_read_while_log_space_is_allocated_is_leased_then(damage: bool) -> None:
    house = House(
        settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0), options=SMALL_RESERVE
    )
    filler = Filler(house)
    fill(house, "cold", b"spoil-spoil", b"whole-whole")
    if damage:
        for name in house.disk.list(WAL_DIR):
            content = house.disk.content(f"{WAL_DIR}/{name}")
            content[content.find(b"spoil-spoil")] ^= 1
    leaving, client, ending = (house.connect() for _ in range(3))
    leaving.send(acquire(log_id="cold"))
    client.send(acquire(log_id="cold"))
    ending.send(acquire(log_id="cold", wait=60), mm.GroupInfo("cold", "g"))
    filler.fill()
    house.readers.run()
    house.turn()
    house.writer.run()
    assert client.answers() == ending.answers() == []
    leaving.disconnect()
    ending.send_no_more()
    with capturedLogs() as captured:
        house.run()
    assert ids(client.answers()) == [1 if damage else 0]
    assert len(ending.answers()) == 2
    assert not ending.is_open
    assert faults(captured) == []


def test_a_large_request_is_not_passed_for_ever_by_small_ones() -> None:
    """Who waits for room in the log gets it before those who come later."""
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    small, large = [house.connect() for _ in range(8)], house.connect()
    for client in small:
        client.send(mm.Produce("small", b"x" * 20 * KIB))
    large.send(mm.Produce("large", b"x" * 55 * KIB))
    for _ in range(40):
        house.turn()
        house.writer.step()
        house.background.step()
        for client in small:
            if client.answers():
                client.send(mm.Produce("small", b"x" * 20 * KIB))
    assert large.answers() == [mm.Produced(0)]


# -- endings ----------------------------------------------------------------------------------


def test_a_peer_that_sends_no_more_is_answered_before_it_is_left() -> None:
    """Half-closing clients (a pipe into netcat) get all their answers, then the end."""
    house = House()
    client = house.connect()
    client.send(mm.Produce("orders", b"x"), acquire())
    client.send_no_more()
    assert client.is_open
    house.run()
    assert len(client.answers()) == 2
    assert not client.is_open


def test_a_peer_that_sends_no_more_and_is_owed_nothing_is_left_at_once() -> None:
    house = House()
    client = house.connect()
    client.send_no_more()
    house.run()
    assert not client.transport.connected


def test_a_half_frame_at_the_end_of_the_stream_is_nothing() -> None:
    house = House()
    client = house.connect()
    client.send_bytes(mm.encode_request(mm.Produce("orders", b"x"))[:-1])
    client.send_no_more()
    house.run()
    assert client.received_bytes() == b""
    assert not client.transport.connected
    assert house.broker.topics.find("orders") is None


def test_a_long_poll_ends_when_its_peer_sends_no_more() -> None:
    """A process that dies closes its socket: it must not be given a message it cannot settle."""
    house = House()
    client = house.connect()
    client.send(acquire(wait=60), mm.Produce("other", b"x"))
    client.send_no_more()
    house.run()
    assert client.answers() == [mm.Acquired(None), mm.Produced(0)]
    assert not client.is_open
    fill(house, "orders", b"y")
    assert leased(house) == 0


def test_a_read_from_disk_that_comes_to_nothing_does_not_wait_for_a_peer_that_left() -> None:
    """Another consumer had the record first, and this one's peer sends no more."""
    house = House()
    fill(house, "orders", b"x")
    house = chilled(house)
    first, client = house.connect(), house.connect()
    first.send(acquire(client_id="first"))
    client.send(acquire(wait=60))
    client.send_no_more()
    house.run()
    assert ids(first.answers()) == [0]
    assert client.answers() == [mm.Acquired(None)]
    assert not client.transport.connected


def test_a_read_from_disk_that_comes_to_nothing_waits_on_if_it_may() -> None:
    house = House()
    fill(house, "orders", b"x")
    house = chilled(house)
    first, client = house.connect(), house.connect()
    first.send(acquire(client_id="first"))
    client.send(acquire(wait=60))
    house.run()
    assert client.answers() == []
    fill(house, "orders", b"y")
    assert ids(client.answers()) == [1]


def test_a_long_poll_put_off_is_given_up_when_the_broker_stops() -> None:
    """A slow reader is not given new messages after the stop began."""
    house = House(limits=Limits(in_flight_bytes=MIB))
    client = house.connect()
    client.stop_reading()
    client.send(*[acquire(wait=60)] * 10)
    house.run()
    fill(house, "orders", *[b"x" * 600 * KIB] * 10)
    before = leased(house)
    house.factory.close_all()
    house.run()
    client.read_on()
    house.run()
    assert ids(client.answers()) == [*range(before), *[None] * (10 - before)]
    assert leased(house) == before
    assert not client.transport.connected


def test_a_congested_peer_that_sends_no_more_is_answered() -> None:
    """Requests taken in before the end of the stream are carried out, however late."""
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    client = house.connect()
    client.send(*[mm.Produce("orders", b"x" * 30_000)] * 5, acquire(wait=60, log_id="none"))
    client.send_no_more()
    house.run()
    assert client.answers() == [*map(mm.Produced, range(5)), mm.Acquired(None)]
    assert not client.is_open


STATES: dict[str, Callable[[House, Client], None]] = {
    "idle": lambda house, client: None,
    "inside a frame": lambda house, client: client.send_bytes(b"\x00\x00"),
    "before its commit": lambda house, client: client.send(mm.Produce("orders", b"z")),
    "holding a lease": lambda house, client: (client.send(acquire()), house.run())[0],
    "in a long poll": lambda house, client: client.send(acquire(wait=9, log_id="none")),
    "reading from disk": lambda house, client: client.send(acquire(log_id="cold")),
    "not reading": lambda house, client: (
        client.stop_reading(),
        client.send(*[acquire(log_id="cold"), acquire(wait=9, log_id="cold")] * 9),
        house.run(),
    )[0],
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ending", ["disconnect", "abort", "close_all"])
def test_a_connection_may_end_in_every_state(state: str, ending: str) -> None:
    """Nothing is logged as a fault, nobody else notices, leases stay with their client id."""
    house = House(limits=Limits(in_flight_bytes=64 * KIB))
    fill(house, "cold", *[b"x" * 40 * KIB] * 20)
    house = chilled(house)
    fill(house, "orders", b"x")
    client = house.connect()
    with capturedLogs() as captured:
        STATES[state](house, client)
        before = leased(house)
        if ending == "disconnect":
            client.disconnect()
        elif ending == "abort":
            house.factory.abort_all()
        else:
            house.factory.close_all()
            house.run()
            client.read_on()
        house.run()
        after = leased(house, "cold")
        fill(house, "none", b"x")
    assert [event for event in captured if "log_failure" in event] == []
    assert not client.transport.connected
    assert client.protocol not in house.factory.connections
    assert leased(house) == before
    assert leased(house, "none") == 0
    assert leased(house, "cold") == after
    assert len(ask(house, mm.Produce("orders", b"y"))) == 1


def test_close_all_answers_what_was_asked_and_closes() -> None:
    """A stop ends long polls, lets pipelines finish, and waits for slow readers only."""
    house = House(limits=Limits(in_flight_bytes=64 * KIB))
    fill(house, "orders", *[b"x" * 80 * KIB] * 3)
    idle, polling, busy, slow = (house.connect() for _ in range(4))
    slow.stop_reading()
    slow.send(acquire(), acquire())
    house.run()
    polling.send(acquire(wait=60, log_id="none"))
    busy.send(*[mm.Produce("other", b"x")] * 10)
    empty: list[None] = []
    house.factory.when_empty().addCallback(empty.append)
    house.factory.close_all()
    house.turn()
    assert not idle.is_open
    assert busy.answers() == []
    house.run()
    assert polling.answers() == [mm.Acquired(None)]
    assert len(busy.answers()) == 10
    assert not busy.is_open
    assert empty == []
    slow.read_on()
    house.run()
    assert empty == [None]
    assert ids(slow.answers())[0] == 0


def test_when_empty_fires_at_once_without_connections() -> None:
    fired: list[None] = []
    House().factory.when_empty().addCallback(fired.append)
    assert fired == [None]


def test_connections_are_closed_in_the_order_in_which_they_came() -> None:
    """A stop does the same things in the same order each time."""
    house = House()
    clients = [house.connect() for _ in range(50)]
    ended: list[Any] = []
    closed = house.factory.closed

    def note(connection: Any) -> None:
        ended.append(connection)
        closed(connection)

    house.factory.closed = note  # type: ignore[method-assign]
    house.factory.close_all()
    house.run()
    assert ended == [client.protocol for client in clients]


def test_after_close_all_no_request_is_taken() -> None:
    house = House()
    client = house.connect()
    client.send(mm.Produce("orders", b"x"))
    house.factory.close_all()
    client.protocol.dataReceived(mm.encode_request(mm.Produce("orders", b"late"))[:-1])
    assert not client.protocol.unfinished, "it is not even kept"
    house.run()
    assert client.answers() == [mm.Produced(0)]
    assert house.broker.overview.group_info("orders", "g").next == 1


def test_after_a_failed_sync_no_answer_leaves() -> None:
    """What was not synced is never acknowledged, and nothing else is said either."""
    house = House()
    fill(house, "orders", b"x")
    house.wal.on_fatal = lambda error: house.factory.abort_all()
    clients = [house.connect() for _ in range(3)]
    clients[2].send(acquire(wait=0.2, log_id="none"))
    clients[0].send(mm.Produce("orders", b"y"))
    house.turn()
    clients[1].send(mm.GroupInfo("orders", "g"), mm.Produce("orders", b"z"))
    house.disk.fail("sync")
    with capturedLogs() as captured:
        house.writer.step()
        house.factory.close_all()
        house.pass_time(1)
    assert [client.received_bytes() for client in clients] == [b""] * 3
    assert not any(client.transport.connected for client in clients)
    assert [event for event in captured if "log_failure" in event] == []


def test_a_log_that_fails_while_a_request_finds_no_room_is_no_fault() -> None:
    """The connection is gone then, with the frames that it had received."""
    house = House()
    house.wal.on_fatal = lambda error: house.factory.abort_all()
    client = house.connect()

    def fail(frame: object) -> None:
        house.wal.fail("a test", MemoryError())
        raise Congested("no room")

    client.protocol.handle = fail
    with capturedLogs() as captured:
        client.send(mm.Produce("orders", b"x"), mm.Produce("orders", b"x"))
        house.run()
    assert not client.transport.connected
    assert faults(captured) == []


# -- faults of our own ------------------------------------------------------------------------


def faults(captured: list[Any]) -> list[str]:
    return [event["event_id"] for event in captured if "log_failure" in event]


def test_a_fault_in_a_request_closes_its_connection_and_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug is neither swallowed nor everybody's: the log has its traceback, once."""
    house = House()
    monkeypatch.setattr(house.broker.overview, "group_info", lambda *names: 1 // 0)
    unlucky, other = house.connect(), house.connect()
    with capturedLogs() as captured:
        unlucky.send(mm.Produce("orders", b"x"), mm.GroupInfo("orders", "g"))
        other.send(mm.Produce("orders", b"y"))
        house.run()
    assert faults(captured) == ["connection-fault"]
    assert not unlucky.transport.connected
    assert other.answers() == [mm.Produced(1)]


def test_a_fault_while_congested_does_not_strand_those_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    first, unlucky, last = house.connect(), house.connect(), house.connect()
    first.send(*[mm.Produce("orders", b"x" * 30_000)] * 3)
    unlucky.send(mm.Produce("orders", b"x" * 40_000), mm.GroupInfo("orders", "g"))
    last.send(mm.Produce("orders", b"x" * 40_000))
    monkeypatch.setattr(house.broker.overview, "group_info", lambda *names: 1 // 0)
    with capturedLogs() as captured:
        house.run()
    assert faults(captured) == ["connection-fault"]
    assert not unlucky.transport.connected
    assert len(first.answers()) == 3
    assert len(last.answers()) == 1


@pytest.mark.parametrize("log_id", ["none", "cold"])
def test_a_fault_in_a_late_answer_does_not_strand_others(
    log_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long polls and reads from disk of other connections go on."""
    house = House()
    fill(house, "cold", b"x", b"y")
    house = chilled(house)
    unlucky, other = house.connect(), house.connect()
    unlucky.send(acquire(wait=9, log_id=log_id, client_id="unlucky"))
    other.send(acquire(wait=9, log_id=log_id, client_id="other"))
    whole = house.broker.leases.acquire

    def faulty(topic: str, group: str, owner: str, *rest: Any) -> Any:
        return 1 // 0 if owner == "unlucky" else whole(topic, group, owner, *rest)

    monkeypatch.setattr(house.broker.leases, "acquire", faulty)
    with capturedLogs() as captured:
        house.run()
        fill(house, "none", b"z")
    assert faults(captured) == ["connection-fault"]
    assert not unlucky.transport.connected
    assert other.answers()[0].message is not None


# -- limits -----------------------------------------------------------------------------------


def listening(limits: Limits) -> House:
    house = House(limits=limits)
    house.factory.doStart()
    return house


def test_connections_beyond_the_limit_are_closed_and_told_about_once_in_a_while() -> None:
    """A flood of connections is not a flood of log lines."""
    house = listening(Limits(connections=2, sweep_seconds=5))
    first, _ = house.connect(), house.connect()
    with capturedLogs() as captured:
        assert [house.factory.buildProtocol(None) for _ in range(100)] == [None] * 100
        house.pass_time(12, step=1)
    (event,) = [event for event in captured if event.get("event_id") == "connections-refused"]
    assert (event["count"], event["limit"]) == (100, 2)
    assert house.factory.refused == 100
    first.disconnect()
    assert ask(house, mm.Produce("orders", b"x")) == [mm.Produced(0)]


def test_a_frame_longer_than_the_limit_closes_the_connection() -> None:
    house = House(limits=Limits(frame_bytes=1000))
    client = house.connect()
    client.send(mm.Produce("orders", b"x" * 800), mm.Produce("orders", b"x" * 1000))
    house.run()
    assert client.answers() == [mm.Produced(0)]
    assert not client.is_open


def test_a_silent_connection_is_closed_when_the_operator_wants_that() -> None:
    house = listening(Limits(idle_us=60_000_000, sweep_seconds=5))
    silent, busy = house.connect(), house.connect()
    for _ in range(14):
        house.pass_time(5, step=5)
        busy.send(mm.GroupInfo("orders", "g"))
    assert not silent.transport.connected
    assert busy.is_open


def test_a_connection_that_falls_silent_lives_by_default() -> None:
    house = listening(Limits())
    silent = house.connect()
    silent.send(mm.GroupInfo("orders", "g"))
    house.pass_time(7200, step=600)
    assert silent.is_open


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_connection_has_a_deadline_for_its_first_byte(seconds: int) -> None:
    house = listening(Limits(first_byte_us=seconds * 1_000_000, sweep_seconds=5))
    silent, slow = house.connect(), house.connect()
    slow.send(mm.GroupInfo("orders", "g"))
    house.pass_time(50, step=5)
    assert silent.is_open
    house.pass_time(20, step=5)
    assert silent.transport.connected == (seconds == 0)
    assert slow.is_open


def test_a_long_poll_is_not_silence() -> None:
    """Who waits for an answer is not idle; the silence counts from the answer on."""
    house = listening(Limits(idle_us=60_000_000, sweep_seconds=5))
    client = house.connect()
    client.send(acquire(wait=300))
    house.pass_time(302, step=5)
    assert client.answers() == [mm.Acquired(None)]
    assert client.is_open
    house.pass_time(70, step=5)
    assert not client.transport.connected


def test_silence_counts_from_an_answer_between_two_checks() -> None:
    """Also if no check saw that the client waited."""
    house = listening(Limits(idle_us=3_000_000, sweep_seconds=5))
    client = house.connect()
    client.send(acquire(wait=4))
    house.pass_time(4.5)
    assert client.answers() == [mm.Acquired(None)]
    house.pass_time(1)
    assert client.is_open
    house.pass_time(5)
    assert not client.transport.connected


def test_a_frame_that_trickles_in_is_not_waited_for() -> None:
    """A byte now and then does not keep a connection that never finishes its frame."""
    house = listening(Limits(unfinished_frame_us=60_000_000, sweep_seconds=5))
    client = house.connect()
    frame = mm.encode_request(mm.Produce("orders", b"x" * 100))
    for at in range(14):
        client.send_bytes(frame[at : at + 1])
        house.pass_time(5, step=5)
    assert not client.transport.connected


def test_a_busy_stream_is_not_an_unfinished_frame() -> None:
    """Reads that always end inside a frame, but of another one each time, are progress."""
    house = listening(Limits(unfinished_frame_us=60_000_000, sweep_seconds=5))
    client = house.connect()
    frame = mm.encode_request(mm.Produce("orders", b"x" * 100))
    client.send_bytes(frame[:10])
    for _ in range(30):
        client.send_bytes(frame[10:] + frame[:10])
        house.pass_time(5, step=5)
    assert client.is_open
    assert len(client.answers()) == 30


def test_time_in_which_we_did_not_read_is_not_counted_against_a_frame() -> None:
    """A connection held by the broker for a minute gets its time to finish afterwards."""
    house = listening(Limits(unfinished_frame_us=60_000_000, in_flight_requests=1))
    client = house.connect()
    frame = mm.encode_request(mm.Produce("orders", b"x"))
    waiting = mm.encode_request(acquire(wait=100, log_id="none"))
    client.send_bytes(waiting + frame + frame + frame[:5])
    house.pass_time(130, step=5)
    assert client.is_open
    client.send_bytes(frame[5:])
    house.run()
    assert len(client.answers()) == 4
    client.send_bytes(frame[:5])
    house.pass_time(70, step=5)
    assert not client.transport.connected


def test_a_peer_that_never_reads_its_last_answers_is_cut_off() -> None:
    """A connection that is closing does not stay for ever because its peer does nothing."""
    house = listening(Limits())
    client = house.connect()
    client.stop_reading()
    client.send_bytes(TINY + b"\xff\xff\xff\xff")
    house.run()
    assert client.transport.connected
    house.pass_time(CLOSING_US / 1e6 + 10, step=5)
    assert not client.transport.connected


def test_a_factory_that_stopped_has_no_timer_left() -> None:
    house = listening(Limits())
    house.factory.doStop()
    house.pass_time(1)
    calls = house.clock.getDelayedCalls()
    # A function within a compiled one has no name of its own.
    waiting = {getattr(call.func, "__qualname__", repr(call.func)) for call in calls}
    assert not any(name.startswith("ConnectionFactory") for name in waiting)


def test_who_asks_for_much_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes 4 ms: after a few of them it is another connection's turn."""
    house = House()
    busy, other = house.connect(), house.connect()
    group_info = house.broker.overview.group_info
    groups: list[str] = []

    def slow(*names: str) -> Any:
        house.clock.rightNow += 0.004
        groups.append(names[1])
        return group_info(*names)

    monkeypatch.setattr(house.broker.overview, "group_info", slow)
    busy.send(*[mm.GroupInfo("orders", "g")] * 30)
    first = len(busy.answers())
    assert 0 < first < 10
    other.send(mm.GroupInfo("orders", "light"))
    house.run()
    assert groups.index("light") <= first + 1, "it goes before the requests that wait"
    assert len(other.answers()) == 1
    assert first + len(busy.answers()) == 30
    busy.send(mm.Produce("orders", b"x"))
    house.run()
    assert busy.answers() == [mm.Produced(0)]


def test_the_account_of_a_transport_is_that_of_its_connection() -> None:
    """Also over TLS, on a shared endpoint, and none for other protocols."""
    house = House()
    house.factory.guard = GuardOf(Given("ann", 0, {}))
    connection = house.connect().protocol
    shared = FirstByteConnection(house.broker)
    shared.chosen = connection
    for protocol in (connection, shared, SimpleNamespace(wrappedProtocol=shared)):
        assert account_of(SimpleNamespace(protocol=protocol)) == "ann"
    assert account_of(SimpleNamespace(protocol=object())) == ""
