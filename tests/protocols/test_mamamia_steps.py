"""Large Mamamia requests: decoded and carried out in slices, with the answers of small ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack
import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.slices import CHARGED_SECONDS, SLICE_SECONDS, SliceOwner
from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.frames import frame
from brokerd.errors import NoSpace
from brokerd.protocols.base.connection import LONG_RUNS_MAX, PASS_SECONDS
from brokerd.protocols.mamamia import connection
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.security import WRITE
from brokerd.wal import WalOptions
from tests.guards import Given
from tests.house import Client, House, ask
from tests.protocols.flymq_desk import Steps

ROOMY = WalOptions(segment_bytes=16 << 20, free_bytes_min=0)
COUNT = 2_000


class SteppedHouse(House):
    """One whose listener's slices are run by hand; each look at the clock takes half a slice."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(**{"options": ROOMY, **rest})
        self.steps: Any = Steps()
        self.factory = MamamiaFactory(self.broker, self.steps, self.limits)

    def begin(self, client: Client, *requests: Any) -> None:
        """Send requests; from now on slices are short."""
        client.send(*requests)
        self.steps.look_seconds = SLICE_SECONDS * 0.4

    def finish(self) -> int:
        """Run all slices; return how many turns they took."""
        turns = 0
        while self.steps.waiting:
            self.steps.step()
            self.run()
            turns += 1
        self.steps.look_seconds = 0.0
        self.run()
        return turns


def filled(house: House) -> House:
    messages = tuple(mm.BatchMessage(b"x") for _ in range(COUNT))
    client = house.connect()
    client.send(mm.ProduceBatch("orders", messages))
    if isinstance(house, SteppedHouse):
        house.finish()
    house.run()
    assert client.answers() == [mm.ProducedBatch(tuple(range(COUNT)))]
    return house


def test_a_large_batch_of_settles_takes_many_turns_and_gives_every_result() -> None:
    house = SteppedHouse()
    filled(house)
    client, other = house.connect(), house.connect()
    settles = tuple(mm.BatchSettle(n, True) for n in range(COUNT))
    unknown = mm.BatchSettle(COUNT, True)
    house.begin(client, mm.SettleBatch("orders", "g", "c", (*settles, unknown)))
    client.send(mm.Produce("orders", b"later"))
    turns = 0
    while not client.answers():
        other.send(mm.Produce("other", b"x"))
        house.steps.step()
        house.run()
        turns += 1
        if turns > 5 and other.answers():
            break
    assert turns > 5, "others are answered between the slices"
    assert house.broker.topics.existing("orders").partitions[0].next_offset == COUNT, "order"
    assert house.finish() > COUNT // 200
    batch, produced = client.answers()
    assert batch.results[:COUNT] == ("settled",) * COUNT
    assert "settled" not in batch.results[COUNT]
    assert produced == mm.Produced(COUNT)


def lease_all(house: SteppedHouse, client: Client) -> tuple[int, ...]:
    """Fill a topic, lease its messages for the client, and return their ids."""
    filled(house)
    client.send(mm.AcquireBatch("orders", "g", "c", 10_000))
    house.finish()
    (leased,) = client.answers()
    return tuple(message.id for message in leased.messages)


def test_a_large_release_takes_many_turns() -> None:
    house = SteppedHouse()
    client = house.connect()
    ids = lease_all(house, client) * 4
    house.begin(client, mm.Release("orders", "g", "c", ids))
    assert house.finish() > 5
    assert client.answers() == [mm.Released(len(ids) // 4)]


@pytest.mark.parametrize("released", [0, 100])
def test_an_error_in_a_large_release_says_that_no_lease_ended(
    released: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after so many leases."""
    house = SteppedHouse()
    client = house.connect()
    ids = lease_all(house, client)
    release, calls = house.broker.leases.release, iter([False] * released + [True])

    def refuses_one(*arguments: object) -> None:
        if next(calls, False):
            raise NoSpace("the disk is full")
        release(*arguments)

    monkeypatch.setattr(house.broker.leases, "release", refuses_one)
    house.begin(client, mm.Release("orders", "g", "c", ids))
    house.finish()
    expected = mm.Released(released) if released else mm.Failed("the disk is full")
    assert client.answers() == [expected]
    assert len(ids) - released == house.broker.overview.group_info("orders", "g").leased


def test_a_value_of_many_objects_comes_back_as_it_was_sent() -> None:
    house = SteppedHouse()
    client = house.connect()
    value = msgpack.packb([{} for _ in range(200_000)])
    produce = mm.Produce("maps", value, 2, None, b"key")
    house.begin(client, produce, mm.Acquire("maps", "g", "c"))
    assert house.finish() > 5
    produced, acquired = client.answers()
    assert produced == mm.Produced(0)
    assert acquired.message.payload == [{}] * 200_000


def test_a_large_body_that_is_not_messagepack_closes_behind_the_answers_before() -> None:
    house = SteppedHouse()
    client = house.connect()
    client.send(mm.Produce("orders", b"x"))
    client.send_bytes(
        frame(1, b"\x82\xa6log_id\xa1l\xa7payload\xdd\x00\x01\x00\x00" + b"\xc1" * 65_536)
    )
    client.send(mm.Produce("orders", b"y"))
    house.finish()
    assert client.answers() == [mm.Produced(0)]
    assert not client.is_open


def test_a_refused_large_body_is_answered_and_the_connection_stays() -> None:
    house = SteppedHouse()
    client = house.connect()
    body = {"log_id": 5, "payload": [[]] * 40_000, "metadata": None}
    client.send_bytes(frame(1, msgpack.packb(body)))
    client.send(mm.Produce("orders", b"x"))
    house.finish()
    refused, produced = client.answers()
    assert refused.text == "log_id must be a str, not an int"
    assert produced == mm.Produced(0)


@pytest.mark.parametrize("turns", [0, 1, 8])
def test_a_client_that_leaves_ends_its_work(turns: int) -> None:
    house = SteppedHouse()
    filled(house)
    client = house.connect()
    settles = tuple(mm.BatchSettle(n, True) for n in range(COUNT))
    house.begin(client, mm.SettleBatch("orders", "g", "c", settles))
    for _ in range(turns):
        house.steps.step()
    client.disconnect()
    assert house.finish() <= 2
    assert ask(house, mm.Produce("orders", b"x")) == [mm.Produced(COUNT)]


def test_a_large_batch_waits_for_room_and_is_decoded_once() -> None:
    house = SteppedHouse(
        settings=BrokerSettings(max_uncommitted_bytes=1 << 20, frame_bytes=1 << 20)
    )
    first, second = house.connect(), house.connect()
    messages = tuple(mm.BatchMessage(bytes(400)) for _ in range(COUNT))
    decoded: list[int] = []
    for client in (first, second):
        client.send(mm.ProduceBatch("orders", messages))
    for one in house.factory.connections:
        decode = one._decoder.decode_steps  # type: ignore[attr-defined]
        one._decoder = Counted(decode, decoded)  # type: ignore[attr-defined]
    while house.steps.waiting:
        house.steps.step()
    house.run()
    house.finish()
    assert first.answers() == [mm.ProducedBatch(tuple(range(COUNT)))]
    assert second.answers() == [mm.ProducedBatch(tuple(range(COUNT, 2 * COUNT)))]
    assert decoded == []


MIXED = tuple(
    mm.BatchMessage(
        bytes(12),
        metadata=None if n % 3 else b"\x81\xa1n\x01",
        key=b"%d" % n if n % 2 else None,
        delay=60.0 + n % 7 if n % 5 == 0 else None,
        ttl=3600.0 if n % 4 == 0 else None,
    )
    for n in range(COUNT)
)
"""Some messages of a batch have a delay."""
PLAIN = tuple(message._replace(delay=None) for message in MIXED)


def contents(house: House) -> list[Any]:
    """All records of a topic and of its delayed messages."""
    topic = house.broker.topics.existing("orders")
    partitions = [*topic.partitions, *(topic.internal.partitions if topic.internal else ())]
    found: list[Any] = []
    for partition in partitions:
        for offset in range(partition.next_offset):
            chunk = partition.find(offset)
            assert chunk is not None
            found.append(chunk.record(offset - chunk.base)._replace(append_time_us=0))
    return found


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("messages", [MIXED, PLAIN])
def test_a_large_batch_takes_many_turns_and_has_the_records_of_small_ones(
    messages: tuple[mm.BatchMessage, ...], partitions: int
) -> None:
    """No consumer sees a part of it, and other clients are answered meanwhile."""
    house, small = SteppedHouse(), House(options=ROOMY)
    for one in (house, small):
        one.broker.topics.create("orders", partitions)
    client, other = house.connect(), house.connect()
    house.begin(client, mm.ProduceBatch("orders", messages))
    client.send(mm.Produce("other", b"later"))
    turns = answered = 0
    partition = house.broker.topics.existing("orders").partitions[0]
    while house.steps.waiting:
        other.send(mm.Produce("other", b"x"))
        house.steps.step()
        house.run()
        turns += 1
        answered += len(other.answers())
        assert partition.next_offset == 0 or house.finish() <= 3, "all at once, and at the end"
    assert turns > 20
    assert answered > 10
    house.run()
    batch, _ = client.answers()
    ids: list[int | None] = []
    later: list[int | None] = []
    for first in range(0, COUNT, 50):
        (answer,) = ask(small, mm.ProduceBatch("orders", messages[first : first + 50]))
        ids += answer.message_ids
        later += answer.schedule_ids or ()
    assert batch == mm.ProducedBatch(tuple(ids), tuple(later) or None)
    assert contents(house) == contents(small)
    if messages is MIXED:
        house.pass_time(70.0, step=10.0)
        small.pass_time(70.0, step=10.0)
        assert sum(one.next_offset for one in house.broker.topics.existing("orders").partitions)
        assert len(contents(house)) == len(contents(small)) == COUNT + len(later) // 5


def test_a_large_batch_to_a_topic_that_is_deleted_meanwhile_makes_it_again() -> None:
    house = SteppedHouse()
    old = house.broker.topics.create("orders", 3)
    client = house.connect()
    house.begin(client, mm.ProduceBatch("orders", PLAIN))
    while house.steps.waiting:
        house.steps.step()
        if not old.deleted and old._next_partition:  # the batch is being split
            house.broker.topics.delete("orders")
    house.run()
    assert old.deleted
    (answer,) = client.answers()
    assert answer == mm.ProducedBatch(tuple(range(COUNT)))


def test_two_large_batches_with_one_sequence_are_appended_once() -> None:
    """A producer sends it again over another connection while the first is in slices."""
    house = SteppedHouse()
    clients = [house.connect() for _ in range(2)]
    batch = mm.ProduceBatch("orders", PLAIN, "p", 1)
    for client in clients:
        client.send(batch)
    house.steps.look_seconds = SLICE_SECONDS * 0.4
    house.finish()
    answers = [client.answers() for client in clients]
    assert answers[0] == answers[1] == [mm.ProducedBatch(tuple(range(COUNT)))]
    assert house.broker.topics.existing("orders").partitions[0].next_offset == COUNT


@pytest.mark.parametrize("leaves", [False, True])
def test_a_large_batch_without_room_waits_before_later_requests(leaves: bool) -> None:
    """Later requests of more than 64 KiB do not pass; a client that leaves appends nothing."""
    house = SteppedHouse(
        settings=BrokerSettings(max_uncommitted_bytes=1 << 20, frame_bytes=1 << 20)
    )
    house.broker.topics.create("orders")
    house.run()
    client, other = house.connect(), house.connect()
    large = tuple(message._replace(value=bytes(300)) for message in PLAIN)
    other.send(mm.Produce("other", bytes(600_000)))
    while house.steps.waiting:
        house.steps.step()
    house.broker.group_commit.append_frame()
    house.begin(client, mm.ProduceBatch("orders", large))
    while house.steps.waiting:
        house.steps.step()
    assert house.broker.topics.existing("orders").partitions[0].next_offset == 0
    late = house.connect()
    late.send(mm.Produce("orders", bytes(70_000)))  # small ones pass
    if leaves:
        client.disconnect()
    house.run()
    house.finish()
    assert late.answers() == [mm.Produced(0 if leaves else COUNT)]
    if not leaves:
        assert client.answers() == [mm.ProducedBatch(tuple(range(COUNT)))]


class Counted:
    """A decoder that counts its uses."""

    def __init__(self, decode_steps: Any, decoded: list[int]) -> None:
        self._decode_steps = decode_steps
        self._decoded = decoded

    def takes_steps(self, command: int, body: bytes) -> bool:
        return True

    def decode_steps(self, command: int, body: bytes) -> Any:
        self._decoded.append(command)
        return self._decode_steps(command, body)


def test_an_acquire_of_many_takes_a_thousand() -> None:
    house = filled(House(options=ROOMY))
    (leased,) = ask(house, mm.AcquireBatch("orders", "g", "c", 10_000))
    assert len(leased.messages) == 1_000


@pytest.mark.parametrize("leaves", [True, False])
def test_huge_bodies_are_decoded_one_after_the_other(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of their arrival; one whose client leaves holds up no other."""
    monkeypatch.setattr(connection, "HUGE_BODY_BYTES", 60_000)
    house = SteppedHouse()
    clients = [house.connect() for _ in range(3)]
    value = msgpack.packb([[]] * 60_001)
    for number, client in enumerate(clients):
        client.send(mm.Produce(f"huge-{number}", value, 2))
    house.steps.look_seconds = SLICE_SECONDS * 0.4
    for _ in range(3):
        house.steps.step()
    assert list(house.factory.decodes._waiting) == list(house.factory.connections)
    if leaves:
        clients[0].disconnect()
        clients[1].disconnect()
    done: list[int] = []
    while house.steps.waiting:
        house.steps.step()
        house.run()
        done += [
            n for n, client in enumerate(clients) if client.transport.received and n not in done
        ]
    house.run()
    done += [n for n, client in enumerate(clients) if client.transport.received and n not in done]
    assert done == ([2] if leaves else [0, 1, 2])
    assert not house.factory.decodes._waiting


def test_a_client_whose_last_run_was_short_does_not_wait_for_the_turn_of_others() -> None:
    house = SteppedHouse()
    client, new = house.connect(), house.connect()
    client.send(mm.Produce("orders", b"x"))
    house.run()
    house.factory.slices.is_full = True
    client.send(mm.Produce("orders", b"y"))
    new.send(mm.Produce("orders", b"z"))
    house.run()
    assert client.answers() == [mm.Produced(0), mm.Produced(1)]
    assert new.answers() == []
    house.finish()
    assert new.answers() == [mm.Produced(2)]


def after_long_runs(count: int) -> tuple[SteppedHouse, Client]:
    """Return a house and a client that had a short run of one produce, then long ones of one."""
    house = SteppedHouse()
    client = house.connect()
    client.send(mm.Produce("orders", b"x"))
    house.steps.look_seconds = 2 * CHARGED_SECONDS
    for _ in range(count):
        client.send(mm.Produce("orders", b"x"))
    house.steps.look_seconds = 0.0
    return house, client


@pytest.mark.parametrize("long_runs", [LONG_RUNS_MAX - 1, LONG_RUNS_MAX])
def test_a_client_waits_for_the_turn_of_others_after_some_long_runs(long_runs: int) -> None:
    """One long run may be that of a busy machine."""
    house, client = after_long_runs(long_runs)
    house.finish()
    client.answers()
    house.factory.slices.is_full = True
    client.send(mm.Produce("orders", b"y"))
    house.run()
    last = mm.Produced(1 + long_runs)
    if long_runs < LONG_RUNS_MAX:
        assert client.answers() == [last]
    else:
        assert client.answers() == []
        house.finish()
        assert client.answers() == [last]


@pytest.mark.parametrize("long_runs", [0, LONG_RUNS_MAX - 1])
def test_a_client_waits_for_a_round_of_others_after_some_long_runs_only(long_runs: int) -> None:
    """It sends more requests than one pass handles, beside fifty others with long work."""
    house, client = after_long_runs(long_runs)
    house.steps.look_seconds = SLICE_SECONDS * 0.3
    others: list[int] = []
    for number in range(50):
        house.factory.slices.add(partial(others.append, number), SliceOwner())
    client.send(*[mm.Produce("orders", b"y"), mm.Produce("returns", b"y")] * 3)
    left = 1 + long_runs + 6
    while left:
        house.steps.step()
        house.run()
        left -= len(client.answers())
    if long_runs < LONG_RUNS_MAX - 1:
        assert len(others) <= 3
    else:
        assert len(others) > 10


def test_long_runs_fill_a_turn() -> None:
    """A new client then waits for the next one."""
    house, _ = after_long_runs(2)
    new = house.connect()
    new.send(mm.Produce("orders", b"y"))
    house.run()
    assert new.answers() == []
    house.finish()
    assert new.answers() == [mm.Produced(3)]


@pytest.mark.parametrize("is_new", [True, False])
def test_an_account_with_many_clients_does_not_delay_another(is_new: bool) -> None:
    """All of them have further requests. New clients wait for a turn, and others for a run."""
    house = SteppedHouse()
    *crowd, other = clients = [house.connect() for _ in range(4)]
    for client in clients:
        client.protocol.access = Given("other" if client is other else "crowd", WRITE)
        if not is_new:
            client.send(mm.Produce("orders", b"x"))
    house.steps.look_seconds = SLICE_SECONDS * 0.3
    for client in clients:
        house.factory.slices.is_full = False
        client.send(*[mm.Produce("orders", b"y"), mm.Produce("returns", b"y")] * 5)
    house.run()
    for client in clients:
        assert client.answers()
    for _ in range(2):
        house.steps.step()
        house.run()
    assert other.answers()
    assert sum(bool(client.answers()) for client in crowd) <= 1


def test_the_work_of_a_connection_is_that_of_its_account_from_the_login_on() -> None:
    house = SteppedHouse()
    client = house.connect().protocol
    anonymous = client.slice_owner()
    assert client.slice_owner() is anonymous is not house.connect().protocol.slice_owner()
    client.access = Given("ann")
    assert client.slice_owner() is house.factory.slices.account("ann")


def test_in_a_full_turn_a_client_has_a_short_run() -> None:
    """Else a turn takes as many milliseconds as clients begin at once."""
    house, client = after_long_runs(0)
    house.run()
    client.answers()
    house.steps.look_seconds = PASS_SECONDS / 20
    house.factory.slices.is_full = True
    client.send(*[mm.Produce("orders", b"y"), mm.Produce("returns", b"y")] * 5)
    house.run()
    assert len(client.answers()) == 2
    house.finish()
    assert len(client.answers()) == 8
