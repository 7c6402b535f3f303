"""FlyMQ's reads on the wire: CONSUME, FETCH, their binary kin, and what cannot be read."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.protocols.flymq import fetch
from brokerd.protocols.flymq.fetch import FETCH_RECORDS, FETCH_RECORDS_MAX
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from simulator.machine.bare import FORGETFUL
from tests.broker.test_state import entries, is_records, rot
from tests.protocols.flymq_desk import LIMITS, MIB, FlymqHouse

MEMORIES = pytest.mark.parametrize("settings", [BrokerSettings(), FORGETFUL], ids=["hot", "cold"])
FORMS = pytest.mark.parametrize(
    "form",
    [
        {},
        {"sdk": True},
        {"sdk": True, "filter": "x"},
        {"opcode": flymq.Opcode.FETCH_BINARY},
    ],
    ids=["document", "sdk", "filter", "binary"],
)


def filled(count: int, settings: BrokerSettings | None = None) -> FlymqHouse:
    house = FlymqHouse(
        settings=settings, options=WalOptions(segment_bytes=64 * 1024, free_bytes_min=0)
    )
    for first in range(0, count, 10):
        house.produce(*[b"x%d" % offset for offset in range(first, min(first + 10, count))])
    return house


def expiring(house: FlymqHouse, count: int, ttl_us: int = 5_000_000, topic: str = "t") -> None:
    """Records that are gone soon."""
    partition = house.broker.topics.create(topic).partitions[0]
    for _ in range(count):
        until_us = house.broker.time.time_us() + ttl_us
        house.broker.appender.produce(partition, b"x soon gone", expires_at_us=until_us)
    house.run()


# -- CONSUME ----------------------------------------------------------------------------------


@MEMORIES
@pytest.mark.parametrize("opcode", [flymq.Opcode.CONSUME, flymq.Opcode.CONSUME_ZERO_COPY])
def test_consume_gives_the_record_at_an_offset(
    settings: BrokerSettings, opcode: flymq.Opcode
) -> None:
    house = filled(30, settings)
    for offset in (0, 17, 29):
        assert house.only(flymq.Consume("t", 0, offset, opcode)) == flymq.Consumed(
            None, b"x%d" % offset
        )


@pytest.mark.parametrize("offset", [30, 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_consume_past_the_end_is_an_error(offset: int) -> None:
    assert filled(30).only(flymq.Consume("t", 0, offset)) == flymq.Failed(
        f"offset {offset} out of range"
    )


def test_consume_of_what_was_removed_names_the_offset() -> None:
    house = filled(30)
    house.broker.topics.trim("t", 0, 20)
    house.run()
    assert house.only(flymq.Consume("t", 0, 19)) == flymq.Failed(
        "offset 19 is removed; the records begin at 20"
    )
    assert house.only(flymq.Consume("t", 0, 20)) == flymq.Consumed(None, b"x20")


def test_consume_of_what_has_expired_names_the_offset() -> None:
    """It answers with no other record."""
    house = filled(1)
    expiring(house, 2)
    house.produce(b"last")
    assert house.only(flymq.Consume("t", 0, 1)) == flymq.Consumed(None, b"x soon gone")
    house.pass_time(6)
    for offset in (1, 2):
        answer = house.only(flymq.Consume("t", 0, offset))
        assert answer.text.startswith(f"offset {offset} has no record")
    expiring(house, 1, topic="u")
    house.pass_time(6)
    assert house.only(flymq.Consume("u", 0, 0)).text.startswith("offset 0 has no record")


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (flymq.Consume("none", 0, 0), "topic not found: none"),
        (flymq.Consume("t", 1, 0), "partition 1 out of range"),
        (flymq.Consume("t", -1, 0), "partition -1 out of range"),
        (flymq.Fetch("none", 0, 0, 1), "topic not found: none"),
        (flymq.Fetch("t", 1, 0, 1), "partition 1 not found"),
        (flymq.Fetch("t", -1, 0, 1), "partition -1 not found"),
        (flymq.Fetch("t", -(1 << 31), 0, 1, "x", sdk=True), "partition -2147483648 not found"),
    ],
)
def test_what_is_not_there_cannot_be_read(request_: Any, text: str) -> None:
    assert filled(1).only(request_) == flymq.Failed(text)


# -- FETCH ------------------------------------------------------------------------------------


@MEMORIES
@FORMS
def test_fetches_go_on_where_next_says_until_the_end(
    settings: BrokerSettings, form: dict[str, Any]
) -> None:
    house = filled(50, settings)
    client = house.client()
    offset, found = 0, []
    while True:
        (answer,) = client.ask(flymq.Fetch("t", 0, offset, 7, **form))
        if not answer.records:
            break
        assert answer.next_offset == answer.records[-1].offset + 1
        offset = answer.next_offset
        found += answer.records
    assert found == [(number, None, b"x%d" % number) for number in range(50)]
    assert answer.next_offset == 50


@FORMS
@pytest.mark.parametrize("offset", [3, 4, 1 << 63, (1 << 64) - 1])
def test_at_the_end_and_past_it_there_is_nothing_and_next_is_what_was_asked(
    offset: int, form: dict[str, Any]
) -> None:
    assert filled(3).only(flymq.Fetch("t", 0, offset, 7, **form)) == flymq.Fetched((), offset)


@FORMS
@pytest.mark.parametrize("most", [0, -1, -(1 << 31)])
def test_a_max_that_is_not_positive_means_ten(most: int, form: dict[str, Any]) -> None:
    house = filled(30)
    assert len(house.records("t", 0, 0, most, **form)) == FETCH_RECORDS == 10


@FORMS
def test_below_the_first_record_a_fetch_begins_at_it(form: dict[str, Any]) -> None:
    house = filled(30)
    house.broker.topics.trim("t", 0, 20)
    house.run()
    assert house.only(flymq.Fetch("t", 0, 3, 2, **form)) == flymq.Fetched(
        ((20, None, b"x20"), (21, None, b"x21")), 22
    )
    house.broker.topics.trim("t", 0, 30)
    house.run()
    assert house.only(flymq.Fetch("t", 0, 3, 2, **form)) == flymq.Fetched((), 30)


@FORMS
def test_expired_records_are_passed_over_however_many_there_are(form: dict[str, Any]) -> None:
    """An empty answer would hold up for ever clients that ignore its ``next``."""
    house = filled(1)
    expiring(house, 3000)
    house.produce(b"x last")
    house.pass_time(6)
    assert house.only(flymq.Fetch("t", 0, 1, 5, **form)) == flymq.Fetched(
        ((3001, None, b"x last"),), 3002
    )


@FORMS
def test_a_fetch_sees_what_its_connection_produced_before(form: dict[str, Any]) -> None:
    house = FlymqHouse()
    client = house.client()
    produce = flymq.Produce("t", b"k", b"x")
    answers = client.ask(
        produce, flymq.Fetch("t", 0, 0, 9, **form), produce, flymq.Consume("t", 0, 1)
    )
    assert answers[1] == flymq.Fetched(((0, b"k", b"x"),), 1)
    assert answers[3] == flymq.Consumed(b"k", b"x")


def test_a_fetch_never_shows_what_is_not_durable_and_does_not_wait_for_others() -> None:
    house = filled(1)
    writer, reader = house.client(), house.client()
    writer.send(flymq.Produce("t", None, b"x1"))
    reader.send(flymq.Fetch("t", 0, 0, 9), flymq.Fetch("t", 0, 1, 9, sdk=True))
    assert reader.answers() == [flymq.Fetched(((0, None, b"x0"),), 1), flymq.Fetched((), 1)]
    house.run()
    assert reader.ask(flymq.Fetch("t", 0, 1, 9)) == [flymq.Fetched(((1, None, b"x1"),), 2)]


def test_requests_behind_a_read_from_disk_are_answered_in_order() -> None:
    house = filled(30, FORGETFUL)
    client = house.client()
    client.send(
        flymq.Produce("t", None, b"x30"),
        flymq.Fetch("t", 0, 0, 2),
        flymq.ListTopics(),
        flymq.Fetch("t", 0, 0, 2, "x1", sdk=True),
        flymq.Consume("t", 0, 29),
        flymq.Produce("t", None, b"x31"),
    )
    house.run()
    answers = client.answers()
    assert [type(answer) for answer in answers] == [
        flymq.Produced,
        flymq.Fetched,
        flymq.Topics,
        flymq.Fetched,
        flymq.Consumed,
        flymq.Produced,
    ]
    assert [record.offset for record in answers[3].records] == [1, 10]


# -- sizes ------------------------------------------------------------------------------------


@FORMS
def test_an_answer_stays_within_32_mib_and_the_next_goes_on(form: dict[str, Any]) -> None:
    house = FlymqHouse()
    for _ in range(5):
        house.produce(b"x" * (8 * MIB))
    first = house.only(flymq.Fetch("t", 0, 0, 10, **form))
    assert [record.offset for record in first.records] == [0, 1, 2]
    assert first.next_offset == 3
    assert [offset for offset, _, _ in house.records("t", 0, 3, 10, **form)] == [3, 4]


def test_records_that_exactly_fill_an_answer_come_together() -> None:
    """With keys and values of as many bytes as a frame can carry, and with one byte more."""
    room = flymq.MAX_LENGTH - flymq.FETCHED_BYTES - 2 * flymq.RECORD_BYTES
    for more, count in ((0, 2), (1, 1)):
        house = FlymqHouse()
        house.ask(flymq.Produce("t", b"k", b"v"), flymq.Produce("t", b"k", bytes(room - 3 + more)))
        client = house.client()
        client.send(flymq.Fetch("t", 0, 0, 2))
        house.run()
        size = len(client.transport.received)
        assert len(client.answers()[0].records) == count
        assert size <= flymq.MAX_LENGTH + 8
        assert more or size == flymq.MAX_LENGTH + 8


def test_no_answer_has_more_records_than_the_page_says() -> None:
    house = FlymqHouse()
    partition = house.broker.topics.create("t").partitions[0]
    for _ in range(FETCH_RECORDS_MAX + 5):
        house.broker.appender.produce(partition, b"")
    house.run()
    answer = house.only(flymq.Fetch("t", 0, 0, (1 << 31) - 1))
    assert len(answer.records) == answer.next_offset == FETCH_RECORDS_MAX
    assert len(house.records("t", 0, answer.next_offset, (1 << 31) - 1)) == 5


@FORMS
def test_a_record_that_no_answer_can_carry_is_refused_by_its_offset(form: dict[str, Any]) -> None:
    """Another format may have stored it; what is before it and behind it can be read."""
    house = FlymqHouse(options=WalOptions(segment_bytes=64 * MIB, free_bytes_min=0))
    house.produce(b"x before")
    partition = house.broker.topics.create("t").partitions[0]
    house.broker.appender.produce(partition, b"x" * (flymq.MAX_LENGTH - 27))
    house.run()
    house.produce(b"x behind")
    assert house.records("t", 0, 0, 10, **form) == [(0, None, b"x before")]
    for request in (flymq.Fetch("t", 0, 1, 10, **form), flymq.Consume("t", 0, 1)):
        text = house.only(request).text
        assert text.startswith("the record at offset 1 is too large for this format")
        assert text.endswith("go on at 2")
    assert house.records("t", 0, 2, 10, **form) == [(2, None, b"x behind")]


def test_a_client_that_does_not_read_has_few_answers_made() -> None:
    """However many it asks for at once: what may be in flight, and one."""
    house = FlymqHouse()
    house.produce(b"x" * MIB)
    client = house.client()
    client.stop_reading()
    client.send(*[flymq.Fetch("t", 0, 0, 1)] * 50)
    house.run()
    assert len(client.transport.buffered) <= LIMITS.in_flight_bytes + MIB + 100
    client.read_on()
    house.run()
    assert len(client.answers()) == 50


# -- other formats' records -------------------------------------------------------------------


def test_records_of_other_formats_are_the_bytes_of_their_values() -> None:
    house = FlymqHouse()
    partition = house.broker.topics.create("t").partitions[0]
    house.broker.appender.produce(partition, b"text", Encoding.TEXT, b"k", b"\x80", Format.MAMAMIA)
    house.broker.appender.produce(partition, b"\x81\xa1a\x01", Encoding.MSGPACK)
    house.broker.appender.produce(partition, b"", key=b"")
    house.run()
    records = [(0, b"k", b"text"), (1, None, b"\x81\xa1a\x01"), (2, None, b"")]
    assert house.records("t", 0, 0, 9) == records
    assert house.records("t", 0, 0, 9, sdk=True) == records
    assert house.only(flymq.Consume("t", 0, 1)) == flymq.Consumed(None, b"\x81\xa1a\x01")


# -- trouble ----------------------------------------------------------------------------------


def damaged() -> FlymqHouse:
    """Records 20 to 29 of fifty cannot be read."""
    house = filled(50, FORGETFUL)
    house.pass_time(0.5)
    house.disk.crash()
    hit = is_records(1, 20)
    [(name, _, entry)] = [place for place in entries(house) if hit(place[2].entry)]
    rot(house, name, entry.position + 48)
    return house.again()


@FORMS
def test_damage_is_an_error_that_says_where_to_go_on_and_is_never_skipped(
    form: dict[str, Any],
) -> None:
    house = damaged()
    answer = house.only(flymq.Fetch("t", 0, 5, 100, **form))
    assert [record.offset for record in answer.records] == list(range(5, 20))
    assert answer.next_offset == 20
    text = house.only(flymq.Fetch("t", 0, 20, 100, **form)).text
    assert text.startswith("offsets 20 to 29 are damaged and cannot be read")
    assert text.endswith("go on at 30")
    assert len(house.records("t", 0, 30, 100, **form)) == 20


def test_consume_of_a_damaged_record_is_an_error() -> None:
    assert "damaged" in damaged().only(flymq.Consume("t", 0, 25)).text


@FORMS
def test_a_read_that_fails_otherwise_may_be_tried_again(form: dict[str, Any]) -> None:
    house = filled(0, FORGETFUL)
    for _ in range(5):
        house.produce(*[b"x" * 1000] * 50)  # in segments that are sealed
    house.disk.fail("open", error=errno.EMFILE)
    text = house.only(flymq.Fetch("t", 0, 0, 100, **form)).text
    assert text.startswith("the record cannot be read now")
    assert text.endswith("try again")
    assert len(house.records("t", 0, 0, 100, **form)) == 100


def test_a_topic_deleted_while_it_is_read_is_an_error_and_no_fault() -> None:
    house = filled(50, FORGETFUL)
    client = house.client()
    client.send(flymq.Fetch("t", 0, 0, 5), flymq.ListTopics())
    house.ask(flymq.DeleteTopic("t"))
    house.run()
    answers = client.answers()
    assert answers[1] == flymq.Topics(())
    assert isinstance(answers[0], flymq.Failed)
    assert answers[0].text == "topic 't' was deleted while it was read"
    assert client.is_open


def test_the_limits_of_an_answer_are_those_of_the_page() -> None:
    assert (fetch.FETCH_RECORDS, fetch.FETCH_RECORDS_MAX) == (10, 10_000)
