"""FETCH with a filter over many records: it goes on until it is done, and holds up nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.slices import SLICE_SECONDS
from brokerd.codecs import flymq
from brokerd.protocols.flymq.filtered_fetch import CONTENT_READS, READ_RECORDS
from brokerd.security import READ
from tests.guards import Given, GuardOf
from tests.protocols.flymq_desk import LIMITS, MIB, FlymqHouse, SteppedHouse
from tests.protocols.test_refused_freed import is_freed, no_collector

__all__ = ["no_collector"]


def scan(text: str = "hit", offset: int = 0, most: int = 10) -> flymq.Fetch:
    return flymq.Fetch("t", 0, offset, most, text, sdk=True)


def filled(count: int, **rest: Any) -> FlymqHouse:
    house = FlymqHouse(**rest)
    partition = house.broker.topics.create("t").partitions[0]
    for number in range(count):
        house.broker.appender.produce(partition, b"hit" if number % 1000 == 999 else b"miss")
    house.run()
    return house


def test_a_scan_goes_on_through_thousands_of_misses_to_the_first_hit() -> None:
    """The reference server gives up after 1,000, and some clients then never get on."""
    house = filled(5000)
    assert house.only(scan(offset=1000, most=1)) == flymq.Fetched(((1999, None, b"hit"),), 2000)


def test_next_is_one_past_the_last_record_examined() -> None:
    house = filled(5500)
    answer = house.only(scan())
    assert [record.offset for record in answer.records] == [999, 1999, 2999, 3999, 4999]
    assert answer.next_offset == 5500
    assert house.only(scan("none of them")) == flymq.Fetched((), 5500)


def test_all_that_passes_is_found_by_fetches_that_go_on_at_next() -> None:
    house = filled(25_000, settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    client = house.client()
    offset, found = 0, []
    while True:
        (answer,) = client.ask(scan(offset=offset, most=3))
        if not answer.records:
            break
        found += [record.offset for record in answer.records]
        offset = answer.next_offset
    assert found == list(range(999, 25_000, 1000))


def test_a_scan_that_found_something_answers_before_it_has_seen_everything() -> None:
    """Or a client that asks for many hits where there are few would wait for the whole log."""
    house = filled((CONTENT_READS + 5) * READ_RECORDS)
    answer = house.only(scan(most=1000))
    assert len(answer.records) == CONTENT_READS * READ_RECORDS // 1000
    assert answer.next_offset == CONTENT_READS * READ_RECORDS


def test_many_large_hits_fill_one_answer_and_no_more() -> None:
    house = FlymqHouse()
    for _ in range(5):
        house.produce(b"hit" * (3 * MIB))
    answer = house.only(scan())
    assert [record.offset for record in answer.records] == [0, 1, 2]
    assert answer.next_offset == 3
    assert len(house.records("t", 0, 3, 10, "hit", sdk=True)) == 2


def test_an_answer_that_is_full_goes_on_at_the_first_record_that_did_not_fit() -> None:
    """Wherever in a slice that is: no record is shown twice, none is left out."""
    house = FlymqHouse()
    for _ in range(10):
        house.produce(*[b"hit" * 150_000] * 8)
    offset, found = 0, []
    while (answer := house.only(scan(offset=offset, most=100))).records:
        found += [record.offset for record in answer.records]
        offset = answer.next_offset
    assert found == list(range(80))


def test_others_are_served_between_the_slices_of_a_scan() -> None:
    house = SteppedHouse()
    house.fill(10 * READ_RECORDS)
    scanning, other = house.client(), house.client()
    scanning.send(scan(), flymq.ListTopics())
    served = 0
    while house.steps.waiting:
        other.send(flymq.Fetch("t", 0, 0, 1))
        served += len(other.answers())
        assert not scanning.transport.received
        house.steps.step()
    assert served >= 10
    assert [type(answer) for answer in scanning.answers()] == [flymq.Fetched, flymq.Topics]


def test_a_slice_ends_when_its_time_is_over_however_few_records_it_saw() -> None:
    house = SteppedHouse()
    house.fill(99)
    house.steps.look_seconds = SLICE_SECONDS / 2
    client = house.client()
    client.send(scan())
    steps = 0
    while house.steps.waiting:
        house.steps.step()
        steps += 1
    assert 100 / 4 <= steps <= 100
    assert client.answers() == [flymq.Fetched(((99, None, b"hit"),), 100)]


def test_of_many_scans_one_slice_runs_at_a_time_and_all_in_turn() -> None:
    """So a hundred of them hold up the others no longer than one."""
    house = SteppedHouse()
    house.fill(4 * READ_RECORDS)
    clients = [house.client() for _ in range(10)]
    for client in clients:
        client.send(scan())
    assert len(house.steps.waiting) == 1
    house.steps.look_seconds = SLICE_SECONDS / 40
    done: list[int] = []
    while house.steps.waiting:
        house.steps.step()
        assert len(house.steps.waiting) <= 1
        done.append(sum(bool(client.transport.received) for client in clients))
    assert done[39] == 0
    assert [len(client.answers()[0].records) for client in clients] == [1] * 10


def test_a_scan_ends_with_its_connection() -> None:
    """At once, also between two records of a slice."""
    for look_seconds in (0.0, SLICE_SECONDS / 2):
        house = SteppedHouse()
        house.fill(100 * READ_RECORDS)
        house.steps.look_seconds = look_seconds
        client = house.client()
        client.send(scan("none of them"))
        house.steps.step()
        client.disconnect()
        house.steps.step()
        assert not house.steps.waiting


@pytest.mark.parametrize("steps", [0, 1, 3, 1_000])
@pytest.mark.parametrize("leaves", ["disconnect", "send_no_more"])
@pytest.mark.parametrize("text", ["hit", "none of them"])
def test_a_connection_that_leaves_a_scan_is_freed(
    text: str, leaves: str, steps: int, no_collector: None
) -> None:
    """At once, whenever that is."""
    house = SteppedHouse()
    house.fill(2 * READ_RECORDS)
    house.steps.look_seconds = SLICE_SECONDS / 100
    client = house.client()
    client.send(scan(text))
    for _ in range(steps):
        if house.steps.waiting:
            house.steps.step()
    getattr(client, leaves)()
    house.finish()
    assert not client.is_open
    assert is_freed(client)


def test_what_comes_during_a_scan_is_found_by_it() -> None:
    house = SteppedHouse()
    house.fill(3 * READ_RECORDS, last=b"miss")
    client = house.client()
    client.send(scan())
    house.steps.step()
    house.broker.appender.produce(house.broker.topics.create("t").partitions[0], b"hit at last")
    house.run()
    while house.steps.waiting:
        house.steps.step()
    assert client.answers() == [
        flymq.Fetched(((3 * READ_RECORDS + 1, None, b"hit at last"),), 3 * READ_RECORDS + 2)
    ]


def test_a_topic_deleted_during_a_scan_ends_it_with_an_answer() -> None:
    house = SteppedHouse()
    house.fill(3 * READ_RECORDS, last=b"miss")
    client = house.client()
    client.send(scan())
    house.steps.step()
    house.broker.topics.delete("t")
    for _ in range(20):
        house.run()
        while house.steps.waiting:
            house.steps.step()
    (answer,) = client.answers()
    assert isinstance(answer, flymq.Failed | flymq.Fetched)
    assert client.is_open


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_scan_ends_when_its_reader_may_not_read_any_more(steps: int) -> None:
    """At the next slice, with the answer that everybody gets who may not."""
    house = SteppedHouse()
    house.fill(100 * READ_RECORDS)
    access = Given("ann", 0, {"t": READ})
    house.flymq_factory.guard = GuardOf(access)
    client = house.client()
    client.send(scan(most=1))
    for _ in range(steps):
        house.steps.step()
    access.revoke()
    house.steps.step()
    assert client.answers() == [flymq.Failed("unauthorized")]
    assert not house.steps.waiting


# -- peers that leave -------------------------------------------------------------------------


def test_a_peer_that_leaves_during_a_scan_is_noticed_and_the_scan_ends() -> None:
    """A client whose patience is over asks again; what it asked before must not pile up."""
    house = SteppedHouse()
    house.fill(200 * READ_RECORDS)
    client = house.client()
    client.send(scan("none of them"))
    client.send_no_more()
    steps = 0
    while house.steps.waiting:
        house.steps.step()
        house.turn()
        steps += 1
    assert CONTENT_READS <= steps < 40
    (answer,) = client.answers()
    assert answer == flymq.Fetched((), steps * READ_RECORDS)
    assert not client.is_open


def test_a_short_scan_of_a_peer_that_sends_no_more_is_answered_in_full() -> None:
    house = filled(5000)
    client = house.client()
    client.send(scan())
    client.send_no_more()
    house.run()
    assert [record.offset for record in client.answers()[0].records] == list(range(999, 5000, 1000))


def test_a_broker_that_stops_waits_for_no_scan() -> None:
    house = SteppedHouse()
    house.fill(200 * READ_RECORDS)
    client = house.client()
    client.send(scan("none of them"))
    house.steps.step()
    house.flymq_factory.close_all()
    steps = 0
    while house.steps.waiting:
        house.steps.step()
        steps += 1
    assert steps <= CONTENT_READS
    assert len(client.answers()) == 1
    assert not client.is_open


def test_requests_that_come_during_a_scan_wait_and_are_bounded() -> None:
    """Listening takes some in; a flood of them stays in the network."""
    house = SteppedHouse()
    house.fill(200 * READ_RECORDS)
    client = house.client()
    client.send(scan("none of them"))
    client.send(*[flymq.Produce("u", None, bytes(50_000))] * 200)
    for _ in range(150):
        house.steps.step()
        house.turn()
    taken = 200 * 50_000 - client.unread_bytes
    assert 2 * client.READ_BYTES < taken <= LIMITS.in_flight_bytes + 2 * client.READ_BYTES
    assert not client.transport.received
    while house.steps.waiting:
        house.steps.step()
        house.run()
    house.run()
    assert len(client.answers()) == 201


def test_a_peer_that_does_not_read_is_not_listened_to() -> None:
    house = SteppedHouse()
    house.produce(b"x" * MIB, topic="large")
    house.fill(200 * READ_RECORDS)
    client = house.client()
    client.stop_reading()
    client.send(flymq.Consume("large", 0, 0), scan("none of them"))
    client.send(*[flymq.ListTopics()] * 1000)
    unread_bytes = client.unread_bytes
    for _ in range(20):
        house.steps.step()
        house.turn()
    assert client.unread_bytes == unread_bytes > 0
