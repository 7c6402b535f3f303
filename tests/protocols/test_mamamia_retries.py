"""Mamamia requests that meet a busy log half-way, and permissions that go between slices.

Also: what a run of requests leases for a client that does not read.
"""

from __future__ import annotations

import msgpack
import pytest

from brokerd.broker import Congested
from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.frames import frame
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.mamamia.connection import SMALL_BODY_BYTES
from brokerd.security import READ, WRITE
from tests.guards import Given, GuardOf
from tests.house import House
from tests.protocols.test_denials import congest_second
from tests.protocols.test_mamamia_steps import SteppedHouse


def nothing() -> None:
    """Do nothing."""


def leased(house: House, count: int) -> list[int]:
    for number in range(count):
        house.append("orders", b"%d" % number)
    client = house.connect()
    client.send(mm.AcquireBatch("orders", "g", "c", count))
    house.run()
    return [message.id for message in client.answers()[0].messages]


@pytest.mark.parametrize("count", [10, 200])
def test_a_batch_of_settles_goes_on_after_the_one_that_met_a_busy_log(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any size: no settle is carried out twice, and the next batch is carried out whole."""
    house = House()
    ids = leased(house, count + 10)
    congest_second(house.broker.leases, "settle", monkeypatch, nothing)
    client = house.connect()
    failed = tuple(mm.BatchSettle(one, False, None, 60.0) for one in ids[:count])
    others = tuple(mm.BatchSettle(one, one % 2 == 0, None, 60.0) for one in ids[count:])
    client.send(
        mm.SettleBatch("orders", "g", "c", failed), mm.SettleBatch("orders", "g", "c", others)
    )
    house.run()
    first, second = client.answers()
    assert first.results == ("settled",) * count
    assert second.results == ("settled",) * 10
    info = house.broker.overview.group_info("orders", "g")
    assert (info.leased, info.delayed) == (0, count + 5)


def test_a_run_after_a_busy_log_leaves_no_request_for_the_next_large_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    ids = leased(house, 300)[200:]  # ids of two bytes
    client = house.connect()

    def settle(message_id: int, pad: int) -> bytes:
        """Return a request with a field that the broker ignores."""
        fields = {
            "log_id": "orders",
            "group_id": "g",
            "message_id": message_id,
            "client_id": "c",
            "success": True,
        }
        return frame(3, msgpack.packb({**fields, "pad": b"x" * pad}))

    around = len(settle(ids[0], 300)) - len(frame(3, b"")) - 300
    pad = SMALL_BODY_BYTES + 2 - around  # large, and the decoder remembers it without the id
    client.send_bytes(settle(ids[0], pad))
    house.run()
    assert client.answers() == [mm.Settled()]
    group_commit = house.broker.group_commit
    really, said = group_commit.admit_events, []

    def busy(size: int) -> None:
        if not said:
            said.append(size)
            house.factory.slices.is_full = True  # so it is tried again in a turn of its own
            raise Congested("log space is being allocated; try again")
        really(size)

    monkeypatch.setattr(group_commit, "admit_events", busy)
    first = mm.encode_request(mm.Produce("other", b"x"))  # its commit lets others try again
    run = b"".join(settle(one, pad) for one in ids[1:6])
    client.send_bytes(first + run + settle(ids[6], pad + 50))  # the run ends before another map
    house.run()
    assert client.answers() == [mm.Produced(0)] + [mm.Settled()] * 6
    assert said
    assert house.broker.overview.group_info("orders", "g").leased == 300 - 7


def test_a_batch_whose_permission_goes_between_its_slices_stores_nothing() -> None:
    house = SteppedHouse()
    house.broker.topics.create("orders")
    house.run()
    access = Given("olga", 0, {"orders": WRITE | READ})
    house.factory.guard = GuardOf(access)
    client = house.connect()
    messages = tuple(mm.BatchMessage(b"x" * 10, key=b"k") for _ in range(5_000))
    house.begin(client, mm.ProduceBatch("orders", messages))
    turns = 0
    partition = house.broker.topics.existing("orders").partitions[0]
    while house.steps.waiting:
        house.steps.step()
        house.run()
        turns += 1
        if client.protocol._queue:  # carried out in slices now
            access.revoke()
            break
    assert turns and partition.next_offset == 0
    house.finish()
    assert client.answers() == [mm.Failed("unauthorized")]
    assert partition.next_offset == 0


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_client_that_does_not_read_leases_no_more_by_a_run(one_by_one: bool) -> None:
    house = House(limits=Limits(in_flight_bytes=20_000))
    for _ in range(300):
        house.append("orders", b"x" * 900)
    client = house.connect()
    if one_by_one:
        client.protocol.handle_run = lambda frames: 0
    client.send(mm.Acquire("orders", "g", "c"))
    house.run()
    client.stop_reading()
    client.send(*[mm.Acquire("orders", "g", "c")] * 300)
    house.run()
    assert house.broker.overview.group_info("orders", "g").leased == 85
