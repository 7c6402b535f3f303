"""Mamamia served by a whole broker: docs/protocols/mamamia.rst, row by row."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import capturedLogs, formatEvent

from brokerd.broker import BrokerSettings, TopicSettings
from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia import frame
from brokerd.codecs.mamamia import requests as decoding
from brokerd.errors import NoSpace
from brokerd.groups import GroupSettings
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import SimDisk
from tests.codecs.test_mamamia_golden import BYTES
from tests.house import Client, House, ask
from tests.strategies import mamamia as strategies

KIB = 1024
MIB = 1024 * KIB
SECOND = 1 << 48
"""The first message id of partition 1."""


def acquire(
    client_id: str = "c", duration: float = 30.0, wait: float = 0.0, log_id: str = "orders"
) -> mm.Acquire:
    return mm.Acquire(log_id, "g", client_id, duration, wait)


def acquire_batch(most: int, **rest: Any) -> mm.AcquireBatch:
    return mm.AcquireBatch("orders", "g", "c", most, **rest)


def settle(message_id: int, success: bool = True, client_id: str = "c") -> mm.Settle:
    return mm.Settle("orders", "g", message_id, client_id, success)


def produce(house: House, *values: bytes) -> None:
    answers = ask(house, *[mm.Produce("orders", value) for value in values])
    assert all(isinstance(answer, mm.Produced) for answer in answers)


def info(house: House) -> mm.GroupState:
    (state,) = ask(house, mm.GroupInfo("orders", "g"))
    assert isinstance(state, mm.GroupState)
    return state


def only(house: House, request: Any) -> Any:
    (answer,) = ask(house, request)
    return answer


def ids(answers: list[Any]) -> list[int | None]:
    return [answer.message.id if answer.message else None for answer in answers]


# -- the reference server's bytes -------------------------------------------------------------


SEED = [name for name, way in BYTES if name.startswith("seed-") and way == ">"]


def test_the_reference_conversation_is_answered_byte_for_byte() -> None:
    """What was captured from the reference server is what this broker sends."""
    house = House()
    client = house.connect()
    for name in SEED:
        expected = BYTES.get((name, "<"), b"")
        client.send_bytes(BYTES[name, ">"])
        house.run()
        assert client.received_bytes() == expected, name
        assert client.is_open is bool(expected), name
        if not client.is_open:
            client = house.connect()


def test_the_pipelined_reference_conversation_is_one_write_each_way() -> None:
    house = House()
    client = house.connect()
    names = [name for name in SEED if "pipelined" in name]
    client.send_bytes(b"".join(BYTES[name, ">"] for name in names))
    house.run()
    assert client.received_bytes() == b"".join(BYTES[name, "<"] for name in names)
    assert client.transport.writes == 1


# -- bad input --------------------------------------------------------------------------------


def packed(command: int, **body: Any) -> bytes:
    return frame(command, msgpack.packb(body))


PRODUCE = {"log_id": "orders", "payload": 1}
ACQUIRE = {"log_id": "orders", "group_id": "g", "client_id": "c"}
SETTLE = {**ACQUIRE, "message_id": 0, "success": True}

CLOSES = {
    "length above the limit": b"\x00\xa0\x00\x01",
    "length 0": b"\x00\x00\x00\x00",
    "length 1": b"\x00\x00\x00\x01\x01",
    "empty body": frame(1, b""),
    "truncated object": frame(1, b"\x82\xa1a\x01"),
    "bytes after the object": frame(1, msgpack.packb(PRODUCE) + b"\x00"),
    "two objects": frame(2, msgpack.packb(ACQUIRE) * 2),
    "str that is not UTF-8": frame(1, b"\x81\xa6log_id\xa1\xff"),
    "integer map key": frame(1, b"\x81\x00\x01"),
    "nil map key": frame(3, b"\x81\xc0\x01"),
    "byte 0xc1": frame(1, b"\xc1"),
    "broken timestamp": frame(1, b"\x81\xa7payload\xc7\x05\xff12345"),
    "nesting too deep": frame(1, b"\x81\xa7payload" + b"\x91" * 3000 + b"\xc0"),
    "unknown command, undecodable": frame(0x7F, b"\xc1"),
    "extension, undecodable": frame(0x82, b"\x81\x00\x01"),
}

REFUSALS: dict[str, tuple[bytes, str]] = {
    "unknown command": (packed(9), "Unknown command: 9"),
    "unknown extension": (packed(0xFF), "Unknown command: 255"),
    "not a map": (frame(1, b"\x91\x01"), "the body must be a map, not an array"),
    "payload missing": (packed(1, log_id="orders"), "'payload'"),
    "log_id missing": (packed(2, group_id="g", client_id="c"), "'log_id'"),
    "name not a str": (packed(1, log_id=5, payload=1), "log_id must be a str, not an int"),
    "name bin": (packed(1, log_id=b"o", payload=1), "log_id must be a str, not a bin"),
    "name too long": (packed(1, log_id="é" * 128, payload=1), "log_id must be at most 255 bytes"),
    "control character": (
        packed(2, **{**ACQUIRE, "group_id": "a\nb"}),
        "group_id must not hold control characters",
    ),
    "metadata": (packed(1, **PRODUCE, metadata="x"), "metadata must be a map or nil, not a str"),
    "key": (packed(1, **PRODUCE, key=5), "key must be a str, bin or nil, not an int"),
    "partition": (packed(1, **PRODUCE, partition=32_767), "partition must be from 0 to 32766"),
    "duration type": (packed(2, **ACQUIRE, duration="x"), "duration must be a number, not a str"),
    "duration NaN": (packed(2, **ACQUIRE, duration=float("nan")), "duration must be finite"),
    "duration infinite": (packed(2, **ACQUIRE, duration=float("inf")), "duration must be finite"),
    "wait below 0": (packed(2, **ACQUIRE, wait=-1), "wait must not be negative"),
    "delay below 0": (packed(3, **SETTLE, delay=-0.5), "delay must not be negative"),
    "message_id type": (
        packed(3, **{**SETTLE, "message_id": True}),
        "message_id must be an int, not a bool",
    ),
    "message_id below 0": (
        packed(3, **{**SETTLE, "message_id": -1}),
        "message_id must be from 0 to 2^63 - 1",
    ),
    "message_id not assigned": (
        packed(3, **{**SETTLE, "message_id": 7}),
        "topic 'orders' has no record 7 in partition 0: it was never produced",
    ),
    "message_id of no partition": (
        packed(3, **{**SETTLE, "message_id": SECOND + 7}),
        "topic 'orders' has no record 7 in partition 1: it was never produced",
    ),
    "extend not assigned": (
        packed(0x81, **ACQUIRE, message_id=7),
        "topic 'orders' has no record 7 in partition 0: it was never produced",
    ),
    "max below 1": (packed(0x83, **ACQUIRE, max=0), "max must be at least 1"),
    "messages not an array": (
        packed(0x82, log_id="orders", messages={}),
        "messages must be an array, not a map",
    ),
    "empty array": (
        packed(0x84, **ACQUIRE, settles=[]),
        "settles must have 1 to 10000 items",
    ),
    "a wrong item": (
        packed(0x82, log_id="orders", messages=[{"payload": 1}] * 3 + [{}]),
        "messages[3]: 'payload'",
    ),
}


@pytest.mark.parametrize("name", CLOSES)
def test_what_cannot_be_followed_closes_after_earlier_answers(name: str) -> None:
    """Requests before the bad bytes are carried out and answered, those behind it are not."""
    house = House()
    client = house.connect()
    before = mm.encode_request(mm.Produce("orders", b"before"))
    behind = mm.encode_request(mm.Produce("orders", b"behind"))
    client.send_bytes(before + mm.encode_request(acquire(wait=60, log_id="none")))
    client.send_bytes(before + CLOSES[name] + behind)
    house.run()
    assert client.answers() == [mm.Produced(0), mm.Acquired(None), mm.Produced(1)]
    assert not client.transport.connected
    assert info(house).next == 2


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_changes_nothing_and_the_connection_lives(name: str) -> None:
    """Each refusal has the text of the page, in its place among the answers."""
    house = House()
    client = house.connect()
    sent, text = REFUSALS[name]
    client.send_bytes(sent + mm.encode_request(mm.Produce("after", b"x")))
    house.run()
    refused, produced = client.answers()
    assert refused == mm.Failed(text)
    assert produced == mm.Produced(0)
    assert client.is_open
    assert [topic.name for topic in house.broker.topics.all()] == ["after"]


def test_any_version_and_extra_keys_are_ignored() -> None:
    house = House()
    client = house.connect()
    one, other = packed(1, **PRODUCE, color="red"), bytearray(packed(1, **PRODUCE))
    other[4] = 77
    client.send_bytes(one + other)
    house.run()
    assert client.answers() == [mm.Produced(0), mm.Produced(1)]


@pytest.mark.parametrize("size", [1, 6, 7, 100])
def test_the_end_of_the_stream_inside_a_frame_is_silent(size: int) -> None:
    house = House()
    client = house.connect()
    client.send_bytes(packed(1, log_id="orders", payload="x" * 200)[:size])
    client.send_no_more()
    house.run()
    assert client.received_bytes() == b""
    assert not client.transport.connected


@pytest.mark.parametrize("batch", [False, True])
def test_a_partition_that_a_new_log_would_not_have_creates_no_log(batch: bool) -> None:
    """A refused PRODUCE leaves nothing behind."""
    house = House()
    answer = only(
        house,
        mm.ProduceBatch("new", (mm.BatchMessage(b"x"), mm.BatchMessage(b"x", partition=1)))
        if batch
        else mm.Produce("new", b"x", partition=1),
    )
    assert "no partition 1" in answer.text
    assert list(house.broker.topics.all()) == []


# -- records that cannot be delivered ---------------------------------------------------------


def test_a_message_whose_delivery_would_not_fit_is_refused_when_produced() -> None:
    """The limit is the answer's, to the byte."""
    house = House()
    fits = mm.MAX_LENGTH - 61
    refused, produced, taken = ask(
        house,
        mm.Produce("orders", b"x" * (fits + 1)),
        mm.Produce("orders", b"x" * fits),
        acquire(),
    )
    assert "too large" in refused.text
    assert str(mm.MAX_LENGTH + 1) in refused.text
    assert produced == mm.Produced(0)
    assert len(taken.message.payload) == fits


def test_a_batch_with_one_message_too_large_stores_none() -> None:
    """A batch carries its messages with less around them than a delivery does."""
    house = House()
    client = house.connect()
    messages = [{"payload": 1}, {"payload": b"x" * (mm.MAX_LENGTH - 55)}]
    client.send_bytes(packed(0x82, log_id="o", messages=messages))
    house.run()
    (refused,) = client.answers()
    assert "too large" in refused.text
    assert list(house.broker.topics.all()) == []


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("request_of", [acquire, lambda: acquire_batch(1)])
def test_a_record_too_large_for_the_format_becomes_a_dead_letter(
    cold: bool, request_of: Callable[[], Any]
) -> None:
    """The acquire goes on with the next, and the record stays for formats that can read it."""
    house = House()
    for value in (b"x" * mm.MAX_LENGTH, b"small", b"x" * (mm.MAX_LENGTH - 60), b"last"):
        house.append("orders", value, producer_format=Format.FLYMQ)
    if cold:
        house.stop()
        house = house.again()
    first, second = ask(house, request_of(), request_of())
    message = [
        (answer.message if isinstance(answer, mm.Acquired) else answer.messages[0]).payload
        for answer in (first, second)
    ]
    assert message == [b"small", b"last"]
    letters = [letter for _, letter in house.broker.leases.dead_letters("orders", "g")]
    assert [(letter.offset, letter.reason) for letter in letters] == [
        (0, "too_large"),
        (2, "too_large"),
    ]
    assert info(house).dead == 2


def test_a_long_poll_passes_over_a_record_that_is_too_large() -> None:
    house = House()
    client = house.connect()
    client.send(acquire(wait=60))
    house.append("orders", b"x" * mm.MAX_LENGTH, producer_format=Format.FLYMQ)
    assert client.answers() == []
    house.append("orders", b"small", producer_format=Format.FLYMQ)
    (taken,) = client.answers()
    assert taken.message.payload == b"small"


def test_a_damaged_record_becomes_a_dead_letter() -> None:
    """Bytes that fail their checksum are never served; the acquire goes on with the next."""
    house = House(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    for value in (b"first-first", b"spoil-spoil", b"third-third"):
        produce(house, value)
    for name in house.disk.list(WAL_DIR):
        content = house.disk.content(f"{WAL_DIR}/{name}")
        at = content.find(b"spoil-spoil")
        if at >= 0:
            content[at] ^= 1
    with capturedLogs() as captured:
        answers = ask(house, acquire(), acquire(), acquire())
    assert ids(answers) == [0, 2, None]
    ((_, letter),) = house.broker.leases.dead_letters("orders", "g")
    assert (letter.offset, letter.reason) == (1, "damaged")
    (told,) = [event for event in captured if event.get("event_id") == "record-damaged"]
    place = [told[name] for name in ("topic", "partition", "first", "last", "group")]
    assert place == ["orders", 0, 1, 1, "g"]


def test_a_damaged_range_has_one_line_for_each_group() -> None:
    """It names topic, partition, offsets, group and place; each record is a dead letter."""
    house = House(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    messages = tuple(mm.BatchMessage(b"spoil-%d" % at) for at in range(3))
    ask(house, mm.ProduceBatch("orders", messages))
    for name in house.disk.list(WAL_DIR):
        content = house.disk.content(f"{WAL_DIR}/{name}")
        at = content.find(b"spoil-0")
        if at >= 0:
            content[at] ^= 1
    with capturedLogs() as captured:
        assert ids(ask(house, acquire(), mm.Acquire("orders", "other", "c", 30.0, 0.0))) == [
            None,
            None,
        ]
    events = [event for event in captured if event.get("event_id") == "record-damaged"]
    for group, event in zip(("g", "other"), events, strict=True):
        line = formatEvent(event)
        assert "topic 'orders' partition 0 offsets 0 to 2 are damaged" in line
        assert f"each becomes a dead letter when group {group!r} reaches it" in line
        assert "00000000000000000000.wal at " in line
        letters = [letter.offset for _, letter in house.broker.leases.dead_letters("orders", group)]
        assert letters == [0, 1, 2]


def test_a_failing_disk_is_told_and_can_be_asked_again() -> None:
    """A read that fails for another reason than damage changes nothing."""
    house = House(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    produce(house, b"x")
    house.disk.fail("pread", error=errno.ENOMEM)
    refused = only(house, acquire())
    assert "the record cannot be read now" in refused.text
    assert ids(ask(house, acquire())) == [0]


# -- payloads ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(strategies.values(), strategies.metadata_maps), min_size=1, max_size=8))
def test_payloads_come_back_as_they_went_in(
    messages: list[tuple[tuple[bytes, int], bytes | None]],
) -> None:
    """From memory and from disk, one by one and in batches, to the byte."""
    house = House()
    values = [(value, encoding, metadata) for (value, encoding), metadata in messages]
    ask(house, *[mm.Produce("orders", *value) for value in values])
    expected = [mm.acquired(at, "orders", *value) for at, value in enumerate(values)]
    assert raw(house, *[acquire()] * len(values)) == b"".join(expected)
    house.stop()
    house = house.again()
    again = [mm.Acquire("orders", "h", "c")] * len(values)
    assert raw(house, *again) == b"".join(expected)
    batch = mm.acquired_batch(
        [mm.batch_item(at, *value, None, at + 1, 1, 30.0) for at, value in enumerate(values)]
    )
    assert raw(house, mm.AcquireBatch("orders", "i", "c", 100)) == batch


def raw(house: House, *requests: Any) -> bytes:
    client = house.connect()
    client.send(*requests)
    house.run()
    return client.received_bytes()


# -- leases -----------------------------------------------------------------------------------


def test_a_lease_belongs_to_its_client_id_not_to_its_connection() -> None:
    """After a reconnect the same client_id settles, and a resent settle changes nothing."""
    house = House()
    produce(house, b"x")
    client = house.connect()
    client.send(acquire())
    house.run()
    client.disconnect()
    assert only(house, acquire("other")) == mm.Acquired(None)
    refused = only(house, settle(0, client_id="other"))
    assert refused == mm.Failed("Client does not own the lease for this message")
    assert ask(house, settle(0), settle(0), settle(0, False)) == [mm.Settled()] * 3
    assert info(house).lag == 0


def test_a_message_is_dead_after_three_failures_and_failures_count_once_a_grant() -> None:
    house = House()
    produce(house, b"x")
    for _ in range(3):
        assert ids(ask(house, acquire())) == [0]
        assert ask(house, settle(0, False), settle(0, False)) == [mm.Settled()] * 2
    assert only(house, acquire()) == mm.Acquired(None)
    assert info(house).dead == 1


def test_a_lapsed_lease_gives_the_message_to_the_next() -> None:
    house = House()
    produce(house, b"x")
    ask(house, acquire(duration=1))
    house.pass_time(1.1)
    assert ids(ask(house, acquire("other"))) == [0]
    assert isinstance(only(house, settle(0)), mm.Failed)


@pytest.mark.parametrize("duration", [0, -5.0])
def test_a_duration_of_nothing_lapses_at_once(duration: float) -> None:
    house = House()
    produce(house, b"x")
    ask(house, acquire(duration=duration))
    house.pass_time(0.1)
    assert ids(ask(house, acquire("other"))) == [0]


def test_a_failed_message_comes_back_after_its_delay() -> None:
    house = House()
    produce(house, b"x", b"y")
    ask(house, acquire(), mm.Settle("orders", "g", 0, "c", False, 2.0))
    assert ids(ask(house, acquire(), acquire())) == [1, None]
    house.pass_time(2.1)
    assert ids(ask(house, acquire())) == [0]


def test_extend_gives_a_live_lease_its_new_duration_from_now() -> None:
    house = House()
    produce(house, b"x")
    ask(house, acquire(duration=2))
    house.pass_time(1.5)
    assert only(house, mm.Extend("orders", "g", "c", 0, 5.0)) == mm.Extended(5.0)
    house.pass_time(4.5)
    assert only(house, acquire("other")) == mm.Acquired(None)
    house.pass_time(1)
    assert isinstance(only(house, mm.Extend("orders", "g", "c", 0, 5.0)), mm.Failed)
    assert ids(ask(house, acquire("other"))) == [0]
    refused = only(house, mm.Extend("orders", "g", "c", 0, 5.0))
    assert refused == mm.Failed("Client does not own the lease for this message")


# -- long polls -------------------------------------------------------------------------------


def polling(house: House, request: Any) -> Client:
    client = house.connect()
    client.send(request)
    house.run()
    assert client.answers() == []
    return client


@pytest.mark.parametrize(
    ("request_", "nothing"),
    [
        (acquire(wait=3), mm.Acquired(None)),
        (acquire_batch(10, wait=3.0), mm.AcquiredBatch(())),
    ],
)
def test_a_long_poll_that_finds_nothing_says_so_when_its_wait_is_over(
    request_: Any, nothing: Any
) -> None:
    house = House()
    client = polling(house, request_)
    house.pass_time(2.9)
    assert client.answers() == []
    house.pass_time(0.2)
    assert client.answers() == [nothing]
    produce(house, b"x")
    assert info(house).leased == 0
    assert client.answers() == []


EVENTS: dict[str, Callable[[House], Any]] = {
    "a produce": lambda house: produce(house, b"late"),
    "a failed settle": lambda house: ask(house, settle(0, False, "holder")),
    "a lapsed lease": lambda house: house.pass_time(11),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("batch", [False, True])
def test_a_long_poll_is_answered_by(event: str, batch: bool) -> None:
    house = House()
    produce(house, b"x")
    ask(house, acquire("holder", duration=10))
    client = polling(house, acquire_batch(5, wait=60.0) if batch else acquire(wait=60))
    EVENTS[event](house)
    (answer,) = client.answers()
    message = answer.messages[0] if batch else answer.message
    assert message.payload == (b"late" if event == "a produce" else b"x")


def test_a_long_poll_is_answered_when_a_delay_is_over() -> None:
    house = House()
    produce(house, b"x")
    ask(house, acquire(), mm.Settle("orders", "g", 0, "c", False, 5.0))
    client = polling(house, acquire(wait=60))
    house.pass_time(5.1)
    assert ids(client.answers()) == [0]


def test_a_long_poll_may_wait_for_a_log_that_does_not_exist() -> None:
    house = House()
    client = polling(house, acquire(wait=60))
    produce(house, b"x")
    assert ids(client.answers()) == [0]


def test_long_polls_of_a_group_are_served_first_come_first_served() -> None:
    house = House()
    clients = [polling(house, acquire(f"c{number}", wait=60)) for number in range(3)]
    produce(house, b"x", b"y")
    assert [ids(client.answers()) for client in clients] == [[0], [1], []]


def test_a_message_and_its_delivery_to_a_long_poll_share_one_commit() -> None:
    house = House()
    client = polling(house, acquire(wait=60))
    frames_before = house.broker.group_commit.frames
    produce(house, b"x")
    assert house.broker.group_commit.frames == frames_before + 1
    assert ids(client.answers()) == [0]


# -- batches ----------------------------------------------------------------------------------


def test_a_batch_is_produced_as_one() -> None:
    """Ids stand in the order of the messages; one commit carries them all."""
    house = House()
    produce(house, b"x")
    messages = tuple(mm.BatchMessage(b"%d" % number, key=b"k") for number in range(10_000))
    frames_before = house.broker.group_commit.frames
    assert only(house, mm.ProduceBatch("orders", messages)) == mm.ProducedBatch(
        tuple(range(1, 10_001))
    )
    assert house.broker.group_commit.frames == frames_before + 1


RUN = [mm.Produce("orders", b"%d" % number) for number in range(40)]


@pytest.mark.parametrize(
    "between",
    [
        mm.Produce("orders", b"text", Encoding.TEXT),
        mm.Produce("orders", b"x" * 300),
        mm.Produce("orders", b"x", metadata=msgpack.packb({"a": 1})),
        mm.Produce("other", b"x"),
        mm.Produce("orders", b"x", key=b"key"),
        mm.Produce("orders", b"x", partition=7),
        mm.GroupInfo("orders", "g"),
    ],
    ids=["text", "long", "metadata", "other", "key", "partition", "command"],
)
@pytest.mark.parametrize("place", [0, 3, 25, 40])
def test_produces_in_one_read_are_stored_and_answered_as_one_by_one(
    between: Any, place: int
) -> None:
    """Those of bytes alone for one topic are carried out together."""
    requests = [*RUN[:place], between, *RUN[place:]]
    together, alone = House(), House()
    for house in (together, alone):
        produce(house, b"first")
    client = together.connect()
    client.send(*requests)
    together.run()
    one = alone.connect()
    for request in requests:
        one.send(request)
        alone.run()
    assert client.answers() == one.answers()
    found = []
    for house in (together, alone):
        topic = house.broker.topics.find("orders")
        assert topic is not None
        chunk = topic.partition(0).find(0)
        assert chunk is not None
        found.append(
            [
                chunk.record(index)._replace(append_time_us=0)
                for index in range(topic.partition(0).next_offset)
            ]
        )
    assert found[0] == found[1] and len(found[0]) >= 41


def test_a_run_is_appended_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would hold without it; not on a topic with several partitions."""
    for partitions, expected in ((1, [40]), (2, [])):
        house = House()
        house.broker.topics.create("orders", partitions)
        produce(house, b"first")
        runs: list[int] = []
        append = house.broker.appender.append_values

        def appended(
            partition: Any, values: Any, *rest: Any, runs: Any = runs, append: Any = append
        ) -> int:
            runs.append(len(values))
            return append(partition, values, *rest)

        monkeypatch.setattr(house.broker.appender, "append_values", appended)
        client = house.connect()
        client.send(RUN[0])
        client.send(*RUN)
        house.run()
        assert runs == expected and len(client.answers()) == 41


def test_a_run_that_finds_no_room_waits_as_single_requests_do() -> None:
    house = House(options=WalOptions(segment_bytes=64 * KIB, free_bytes_min=0))
    produce(house, b"first")
    client = house.connect()
    requests = [mm.Produce("orders", b"x" * 200) for _ in range(2000)]
    client.send(*requests)
    house.run()
    ids = [answer.message_id for answer in client.answers()]
    assert ids == list(range(1, 2001))


STORED = (
    *[mm.Produce("orders", b"%d" % number) for number in range(12)],
    mm.Produce("orders", b"text", Encoding.TEXT),
    mm.Produce("orders", b"", metadata=msgpack.packb({"a": 1})),
    mm.Produce("orders", b"long" * 40_000),
    *[mm.Produce("orders", b"%d" % number, ttl=1.0) for number in range(6)],
    *[mm.Produce("orders", b"%d" % number) for number in range(30)],
)
"""Records of all kinds; those with a time to live have expired when they are acquired."""
CLIENTS = st.sampled_from(["c", "c", "c", "d"])
GROUPS = st.sampled_from(["g", "g", "g", "h"])


def like_settles(
    first: int, count: int, success: bool, client_id: str, group_id: str
) -> list[mm.Request]:
    return [
        mm.Settle("orders", group_id, number, client_id, success)
        for number in range(first, first + count)
    ]


RUNS = st.lists(
    st.one_of(
        st.builds(lambda count, client: [acquire(client)] * count, st.integers(1, 20), CLIENTS),
        st.builds(
            like_settles,
            *[st.integers(0, 15), st.integers(1, 12), st.booleans(), CLIENTS, GROUPS],
        ),
        st.builds(
            lambda first, count, success: [
                *[acquire()] * (first + count),
                *like_settles(first, count, success, "c", "g"),
            ],
            *[st.integers(1, 3), st.integers(4, 9), st.booleans()],
        ),
        st.just([mm.Produce("orders", b"more")]),
    ),
    max_size=8,
).map(lambda runs: [one for run in runs for one in run])


@settings(max_examples=max(100, settings().max_examples))
@given(st.booleans(), RUNS)
def test_leases_and_settles_in_one_read_are_answered_as_one_by_one(
    key_ordered: bool, requests: list[mm.Request]
) -> None:
    """Repeated ACQUIRE_NEXT and SETTLE requests are carried out together."""
    found = []
    for together in (True, False):
        house = House()
        ask(house, *STORED)
        house.pass_time(2, step=1)
        house.broker.groups.configure("orders", "g", GroupSettings(key_ordered=key_ordered))
        house.run()
        client = house.connect()
        for request in (acquire(), settle(0), settle(0, success=False)):
            client.send(request)
            house.run()
        if together:
            client.send(*requests)
            house.run()
        for request in () if together else requests:
            client.send(request)
            house.run()
        position = info(house)
        house = house.crash()
        found.append((client.answers(), position, info(house)))
    assert found[0] == found[1]


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_run_of_leases_and_a_run_of_settles_is_one_step(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Otherwise the test above would hold without it."""
    house = House()
    house.broker.topics.create("orders", partitions)
    ask(house, *[mm.Produce("orders", b"%d" % number, partition=0) for number in range(60)])
    client, leases = house.connect(), house.broker.leases
    client.send(acquire())
    house.run()
    client.send(settle(0))
    house.run()
    limits: list[int] = []
    settles: list[int] = []
    lease_records, settle_records = leases.acquire, leases.settle_run

    def acquired(*arguments: Any) -> Any:
        limits.append(arguments[4])
        return lease_records(*arguments)

    def settled(group_partition: Any, offsets: Any, *rest: Any) -> int:
        settles.append(len(offsets))
        return settle_records(group_partition, offsets, *rest)

    monkeypatch.setattr(leases, "acquire", acquired)
    monkeypatch.setattr(leases, "settle_run", settled)
    client.send(*[acquire()] * 40, *map(settle, range(1, 41)))
    house.run()
    assert len(client.answers()) == 82
    assert limits == ([40] if partitions == 1 else [1] * 40)
    assert settles == ([40] if partitions == 1 else [])


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("last", [mm.BatchMessage(b"c"), mm.BatchMessage(b"c", key=b"k")])
def test_a_batch_of_bytes_alone_is_stored_as_any_other(
    partitions: int, last: mm.BatchMessage
) -> None:
    """It is appended in one step if all messages are bytes alone, for one partition."""
    house = House()
    topic = house.broker.topics.create("orders", partitions)
    messages = (mm.BatchMessage(b"a"), mm.BatchMessage(b""), last)
    for _ in range(2):
        ids = only(house, mm.ProduceBatch("orders", messages)).message_ids
        records = []
        for index, offset in map(mm.split_message_id, ids):
            chunk = topic.partition(index).find(offset)
            assert chunk is not None
            records.append(chunk.record(offset - chunk.base))
        assert [(r.value, r.key, r.encoding, r.producer_format) for r in records] == [
            (m.value, m.key, Encoding.BYTES, Format.MAMAMIA) for m in messages
        ]
    if partitions == 1:
        assert ids == (3, 4, 5)


def test_later_batches_of_bytes_alone_are_cut_out_of_their_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the first batch for a topic is decoded."""
    house = House()
    decoded: list[bytes] = []
    decode_batch = decoding._PLAIN[mm.Command.PRODUCE_BATCH]

    def decode(body: bytes) -> Any:
        decoded.append(body)
        return decode_batch(body)

    monkeypatch.setitem(decoding._PLAIN, mm.Command.PRODUCE_BATCH, decode)
    topic = house.broker.topics.create("orders")
    client = house.connect()
    values = [b"%d" % number * (number % 90) for number in range(100)]
    batch = mm.ProduceBatch("orders", tuple(map(mm.BatchMessage, values)))
    for number in range(3):
        client.send(batch)
        house.run()
        [answer] = client.answers()
        assert answer.message_ids == tuple(range(100 * number, 100 * number + 100))
    assert len(decoded) == 1
    chunk = topic.partition(0).find(0)
    assert chunk is not None
    records = chunk.records(0, 300)
    assert [(one.value, one.encoding, one.producer_format) for one in records] == [
        (value, Encoding.BYTES, Format.MAMAMIA) for value in values * 3
    ]
    house.broker.topics.delete("orders")
    client.send(batch)
    house.run()
    [answer] = client.answers()
    assert answer.message_ids == tuple(range(100)), "the topic is created again"


@pytest.mark.parametrize("size", [300, 1_000, 3_000])
def test_a_batch_that_waits_for_room_is_stored_once_in_all_partitions(size: int) -> None:
    """The log has room for all of its records before the first is appended."""
    house = House(options=WalOptions(segment_bytes=64 * KIB, free_bytes_min=0))
    topic = house.broker.topics.create("orders", 2)
    house.run()
    messages = tuple(mm.BatchMessage(b"x" * size, partition=index) for index in (0, 0, 1, 1))
    client = house.connect()
    client.send(*[mm.ProduceBatch("orders", messages)] * 60)
    house.run()
    answers = client.answers()
    assert len(answers) == 60 and all(isinstance(one, mm.ProducedBatch) for one in answers)
    assert [partition.next_offset for partition in topic.partitions] == [120, 120]


@pytest.mark.parametrize("commits", [0, 1])
def test_a_batch_is_whole_or_absent_after_a_crash(commits: int) -> None:
    """Whatever was synced when the power went, no part of a batch is there alone."""
    house = House()
    produce(house, b"x")
    client = house.connect()
    client.send(mm.ProduceBatch("orders", tuple([mm.BatchMessage(b"y")] * 500)))
    house.turn()
    for _ in range(commits):
        house.writer.step()
    house = house.crash()
    assert info(house).next == (501 if commits else 1)


def test_a_batch_with_an_unknown_partition_stores_none() -> None:
    house = House()
    produce(house, b"x")
    refused = only(
        house,
        mm.ProduceBatch("orders", (mm.BatchMessage(b"a"), mm.BatchMessage(b"b", partition=1))),
    )
    assert "no partition 1" in refused.text
    assert info(house).next == 1


def test_acquire_batch_tells_all_about_its_leases() -> None:
    house = House()
    metadata = mm.pack_metadata({"n": 1})
    ask(house, mm.Produce("orders", b"a", 0, metadata, b"k"), mm.Produce("orders", b"b"))
    ask(house, acquire(), settle(0, False))
    answer = only(house, acquire_batch(10, duration=12.0))
    assert answer.messages == (
        mm.LeasedMessage(0, b"a", {"n": 1}, b"k", 2, 2, 12.0),
        mm.LeasedMessage(1, b"b", None, None, 3, 1, 12.0),
    )
    assert only(house, acquire_batch(10)) == mm.AcquiredBatch(())


def test_acquire_batch_ends_when_the_answer_is_full_to_the_byte() -> None:
    """No byte left is not the same as no limit."""
    house = House()
    first = bytes(5 << 20)
    left = mm.BATCH_ROOM - mm.batch_item_length(first, 0, None, None)
    second = bytes(left - (mm.batch_item_length(bytes(left - 100), 0, None, None) - left + 100))
    assert mm.batch_item_length(second, 0, None, None) == left
    produce(house, first, second, first)
    messages = only(house, acquire_batch(10)).messages
    assert [len(message.payload) for message in messages] == [len(first), len(second)]


def test_acquire_batch_ends_where_the_next_message_would_not_fit() -> None:
    """No answer is longer than 10 MiB, and what did not fit is not leased."""
    house = House()
    produce(house, *[b"x" * 4 * MIB] * 3)
    client = house.connect()
    client.send(acquire_batch(10))
    house.run()
    data = client.received_bytes()
    assert len(data) <= mm.MAX_LENGTH + 4
    (one,) = mm.FrameReader().feed(data)
    answer = mm.decode_response(*one)
    assert isinstance(answer, mm.AcquiredBatch)
    assert [message.id for message in answer.messages] == [0, 1]
    assert info(house).leased == 2


def test_the_largest_message_is_delivered_in_a_batch_too() -> None:
    house = House()
    produce(house, b"x" * (mm.MAX_LENGTH - 61))
    (message,) = only(house, acquire_batch(10)).messages
    assert len(message.payload) == mm.MAX_LENGTH - 61
    assert message.token is None


def test_settle_batch_answers_each_settle_by_itself() -> None:
    """A token is good for its own grant only; without one the rules of SETTLE hold."""
    house = House()
    produce(house, b"a", b"b", b"c")
    tokens = [message.token for message in only(house, acquire_batch(3, duration=1.0)).messages]
    house.pass_time(1.1)
    later = only(house, mm.AcquireBatch("orders", "g", "d", 1)).messages[0]
    assert (later.id, later.grants) == (0, 2)
    assert later.token > max(tokens)
    results = only(
        house,
        mm.SettleBatch(
            "orders",
            "g",
            "c",
            (
                mm.BatchSettle(0, True, tokens[0]),
                mm.BatchSettle(0, True),
                mm.BatchSettle(0, True, later.token),
                mm.BatchSettle(1, False, tokens[1], 60.0),
                mm.BatchSettle(2, True),
                mm.BatchSettle(9, True),
            ),
        ),
    ).results
    assert "lease of offset 0 is over" in results[0]
    assert results[1] == "Client does not own the lease for this message"
    assert results[2:5] == ("settled", "settled", "settled")
    assert "no record 9" in results[5]
    state = info(house)
    assert (state.lag, state.delayed) == (1, 1)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("lost", [None, 0, 50, 99])
def test_later_batches_of_settles_are_cut_out_of_their_bodies(
    monkeypatch: pytest.MonkeyPatch, partitions: int, lost: int | None
) -> None:
    """A settle under a lost lease is refused, and all others are carried out."""
    house = House()
    house.broker.topics.create("orders", partitions)
    ask(
        house,
        *[
            mm.Produce("orders", b"x", partition=number % partitions)
            for number in range(101 * partitions)
        ],
    )
    house.pass_time(1)
    client = house.connect()

    def asked(request: Any) -> Any:
        client.send(request)
        house.run()
        (answer,) = client.answers()
        return answer

    leases = [one for _ in range(partitions) for one in asked(acquire_batch(101)).messages]
    settles = [mm.BatchSettle(one.id, True, one.token) for one in leases[:101]]
    decoded: list[bytes] = []
    decode_batch = decoding._PLAIN[mm.Command.SETTLE_BATCH]

    def decode(body: bytes) -> Any:
        decoded.append(body)
        return decode_batch(body)

    monkeypatch.setitem(decoding._PLAIN, mm.Command.SETTLE_BATCH, decode)
    asked(mm.SettleBatch("orders", "g", "c", tuple(settles[100:])))
    del settles[100], decoded[:]
    if lost is not None:
        settles[lost] = settles[lost]._replace(token=(settles[lost].token or 0) + 20)
    answer = asked(mm.SettleBatch("orders", "g", "c", tuple(settles)))
    for at, result in enumerate(answer.results):
        if at == lost:
            assert "is over" in result
        else:
            assert result == "settled"
    assert info(house).leased == 101 * (partitions - 1) + (lost is not None)
    assert len(decoded) == (lost is not None)


def test_the_longest_refusals_of_a_settle_batch_fit_a_frame() -> None:
    house = House()
    name = "\U0010fffe" * 63
    settles = tuple(mm.BatchSettle((1 << 63) - 1, True) for _ in range(10_000))
    answer = only(house, mm.SettleBatch(name, name, "c", settles))
    assert len(answer.results) == 10_000


@pytest.mark.slow
def test_acquires_and_settles_of_ten_thousand_pass_on_a_full_disk() -> None:
    """The reserve is never overdrawn: a batch is carried out or refused, not half lost."""
    house = House(SimDisk(capacity=5 * MIB), options=WalOptions(MIB, free_bytes_min=0))
    messages = tuple([mm.BatchMessage(b"x" * 20)] * 10_000)
    while isinstance(only(house, mm.ProduceBatch("orders", messages)), mm.ProducedBatch):
        pass
    for size in (100 * KIB, 10 * KIB, KIB):
        while isinstance(only(house, mm.Produce("other", b"x" * size)), mm.Produced):
            pass
    with capturedLogs() as captured:
        for _ in range(6):
            for name in ("g", "h" * 250):
                taken = only(house, mm.AcquireBatch("orders", name, "c" * 250, 10_000))
                if isinstance(taken, mm.AcquiredBatch) and taken.messages:
                    done = tuple(mm.BatchSettle(item.id, True) for item in taken.messages)
                    only(house, mm.SettleBatch("orders", name, "c", done))
    assert [event for event in captured if "log_failure" in event] == []
    assert house.failures == []


# -- partitions -------------------------------------------------------------------------------


def with_partitions(partitions: int) -> House:
    house = House(settings=BrokerSettings(max_partitions=partitions))
    house.broker.topics.create("orders", partitions)
    house.run()
    return house


def test_ids_name_partition_and_offset() -> None:
    house = with_partitions(3)
    answers = ask(
        house,
        mm.Produce("orders", b"a", partition=2),
        mm.Produce("orders", b"b", partition=2),
        mm.Produce("orders", b"c", partition=0),
    )
    assert [answer.message_id for answer in answers] == [2 * SECOND, 2 * SECOND + 1, 0]
    found = ids(ask(house, acquire(), acquire(), acquire(), acquire()))
    assert sorted(found[:3]) == [0, 2 * SECOND, 2 * SECOND + 1]
    assert found[3] is None
    assert ask(house, settle(2 * SECOND + 1), settle(0)) == [mm.Settled()] * 2
    state = info(house)
    assert (state.lag, state.leased, state.partitions) == (1, 1, 3)
    assert only(house, mm.Extend("orders", "g", "c", 2 * SECOND, 9.0)) == mm.Extended(9.0)
    assert isinstance(only(house, settle(3 * SECOND)), mm.Failed)
    assert isinstance(only(house, mm.Produce("orders", b"x", partition=3)), mm.Failed)


def test_a_key_chooses_its_partition_and_batches_cross_partitions() -> None:
    house = with_partitions(5)
    messages = tuple(mm.BatchMessage(b"%d" % n, key=b"key-%d" % (n % 7)) for n in range(70))
    produced = only(house, mm.ProduceBatch("orders", messages)).message_ids
    partitions: dict[int, set[int]] = {}
    for number, message_id in enumerate(produced):
        partitions.setdefault(number % 7, set()).add(message_id >> 48)
    assert all(len(chosen) == 1 for chosen in partitions.values())
    assert len(set().union(*partitions.values())) > 1
    taken = only(house, acquire_batch(100)).messages
    assert sorted(message.id for message in taken) == sorted(produced)
    settles = tuple(mm.BatchSettle(message.id, True, message.token) for message in taken)
    results = only(house, mm.SettleBatch("orders", "g", "c", settles)).results
    assert results == ("settled",) * 70
    assert info(house).lag == 0


def test_a_batch_over_very_many_partitions_finds_its_room_first() -> None:
    """What each partition adds to a frame is asked for before anything is stored."""
    house = with_partitions(10_000)
    messages = tuple(mm.BatchMessage(b"x", partition=number) for number in range(10_000))
    with capturedLogs() as captured:
        answer = only(house, mm.ProduceBatch("orders", messages))
    assert answer.message_ids == tuple(number << 48 for number in range(10_000))
    assert [event for event in captured if "log_failure" in event] == []


# -- group information ------------------------------------------------------------------------


def test_group_info_of_nothing_is_empty() -> None:
    house = House()
    assert info(house) == mm.GroupState(0, 0, 0, 0, 0, 0, 0, None, None, 3, 0)
    produce(house, b"x")
    state = info(house)
    assert (state.next, state.lag, state.ready, state.partitions) == (1, 1, 1, 1)


def test_group_info_counts_every_record_once() -> None:
    house = House()
    produce(house, *[b"x"] * 10)
    house.pass_time(4)
    ask(
        house,
        *[acquire()] * 5,
        settle(0),
        settle(3),
        mm.Settle("orders", "g", 1, "c", False, 60.0),
        settle(2, False),
    )
    for _ in range(2):
        ask(house, acquire(), settle(2, False))
    state = info(house)
    assert state == mm.GroupState(1, 10, 7, 1, 5, 1, 1, None, state.oldest_age, 3, 1)
    assert state.leased + state.ready + state.delayed == state.lag
    assert state.oldest_age == pytest.approx(4.0, abs=0.1)


# -- a client that errs -----------------------------------------------------------------------


small_names = st.sampled_from(["orders", "other", "", "é" * 10])
conversations = st.lists(
    st.one_of(
        strategies.requests,
        st.builds(
            lambda name, fields: mm.Produce(name, *fields[0]),
            small_names,
            strategies.message_fields,
        ),
        st.builds(
            mm.Acquire,
            small_names,
            st.just("g"),
            st.just("c"),
            st.just(30.0),
            st.sampled_from([0.0, 0.01]),
        ),
        st.builds(
            mm.Settle, small_names, st.just("g"), st.integers(0, 5), st.just("c"), st.booleans()
        ),
        st.builds(mm.AcquireBatch, small_names, st.just("g"), st.just("c"), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A conversation with bytes changed, put in, or taken out."""
    data = bytearray(b"".join(map(mm.encode_request, draw(conversations))))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data) - 1)) if data else 0
        kind = draw(st.integers(0, 2))
        if kind == 0 and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == 1:
            data[at:at] = draw(st.binary(max_size=5))
        else:
            del data[at : at + draw(st.integers(0, 5))]
    return bytes(data)


@settings(max_examples=max(60, settings().max_examples))
@given(mutated(), st.integers(1, 400), st.booleans())
def test_a_faulty_client_gets_refusals_and_the_log_no_traceback(
    data: bytes, piece: int, stays: bool
) -> None:
    """Whatever is sent: well-formed answers, or the end; and the broker goes on."""
    house = House()
    client = house.connect()
    with capturedLogs() as captured:
        for at in range(0, len(data), piece):
            client.send_bytes(data[at : at + piece])
        house.run()
        house.pass_time(0.1)
        if not stays:
            client.send_no_more()
            house.run()
        reader = mm.FrameReader()
        for command, body in reader.feed(client.received_bytes()):
            answer = msgpack.unpackb(body, strict_map_key=False)
            assert isinstance(answer, dict), command
        assert reader.error is None
        assert reader.partial_bytes == 0
        assert ask(house, mm.Produce("sound", b"x")) == [mm.Produced(0)] or "sound" in str(data)
    assert [event for event in captured if event.get("log_failure")] == []
    assert house.failures == []


@given(st.integers(0, 255), st.binary(max_size=200))
def test_noise_is_refused_or_closed(command: int, noise: bytes) -> None:
    """A frame of anything is answered once, or it is the end."""
    house = House()
    client = house.connect()
    with capturedLogs() as captured:
        client.send_bytes(frame(command, noise))
        house.run()
    assert len(mm.FrameReader().feed(client.received_bytes())) == client.is_open
    assert [event for event in captured if event.get("log_failure")] == []


def test_encodings_are_those_of_the_values() -> None:
    """The stored encoding says whether bytes, text or an object came in."""
    house = House()
    numbers = count()
    ask(
        house,
        *[
            mm.Produce("orders", value, encoding)
            for value, encoding in ((b"b", 0), (b"t", 1), (b"\x07", 2))
        ],
    )
    partition = house.broker.topics.existing("orders").partitions[0]
    stored = [partition.find(next(numbers)) for _ in range(3)]
    assert all(chunk is not None for chunk in stored)
    assert list(stored[0].encodings) == [Encoding.BYTES, Encoding.TEXT, Encoding.MSGPACK]


# -- messages that expire, that come later, and batches sent again ---------------------------------


def later(value: bytes, seconds: float, **rest: Any) -> mm.Produce:
    return mm.Produce("orders", value, delay=seconds, **rest)


class TestTtlAndDelay:
    def test_a_message_is_not_delivered_once_it_has_expired(self) -> None:
        house = House()
        ask(house, mm.Produce("orders", b"short", ttl=5.0), mm.Produce("orders", b"long", ttl=60.0))
        house.pass_time(6.0)
        assert only(house, acquire()).message.payload == b"long"
        assert only(house, acquire()).message is None

    def test_a_message_of_a_batch_expires_alone(self) -> None:
        house = House()
        messages = (mm.BatchMessage(b"short", ttl=5.0), mm.BatchMessage(b"ever"))
        assert only(house, mm.ProduceBatch("orders", messages)) == mm.ProducedBatch((0, 1))
        house.pass_time(6.0)
        (left,) = only(house, acquire_batch(9)).messages
        assert left.payload == b"ever"

    def test_a_ttl_may_be_as_short_and_as_long_as_the_wire_allows(self) -> None:
        house = House()
        for ttl in (1e-9, 1e300):
            assert isinstance(only(house, mm.Produce("orders", b"x", ttl=ttl)), mm.Produced)

    def test_a_delayed_message_is_acknowledged_at_once_and_delivered_later(self) -> None:
        house = House()
        metadata = mm.pack_metadata({"n": 1})
        assert only(house, later(b"x", 5.0, metadata=metadata, key=b"k")) == mm.Scheduled(0)
        assert only(house, acquire()).message is None
        house = house.crash()
        house.pass_time(6.0)
        assert only(house, acquire()).message == mm.Message(0, "orders", b"x", {"n": 1})

    @pytest.mark.parametrize(
        "request_",
        [
            mm.Produce("new", b"x" * 60_000, delay=5.0),
            mm.ProduceBatch("new", (mm.BatchMessage(b"x" * 60_000, delay=5.0),)),
        ],
        ids=["alone", "batch"],
    )
    def test_a_delayed_message_that_is_refused_leaves_no_log_behind(self, request_: Any) -> None:
        house = House(options=WalOptions(64 * KIB, free_bytes_min=0))
        house.run()
        house.disk.capacity = house.disk.used_bytes
        house.wal.retry_allocation()
        house.run()
        produce(house, b"x" * 30_000)
        (answer,) = ask(house, request_)
        assert isinstance(answer, mm.Failed) and "no room" in answer.text
        assert house.broker.topics.find("new") is None

    def test_a_long_poll_gets_a_delayed_message_when_it_is_due(self) -> None:
        house = House()
        client = house.connect()
        client.send(acquire(wait=10.0))
        ask(house, later(b"x", 5.0))
        house.pass_time(4.5)
        assert client.answers() == []
        house.pass_time(1.0)
        assert client.answers()[0].message.payload == b"x"

    def test_payloads_come_back_as_they_went_in(self) -> None:
        house = House()
        for payload in ("text", {"a": [1]}, None):
            value, encoding = mm.pack_payload(payload)
            ask(house, mm.Produce("orders", value, encoding, delay=1.0))
        house.pass_time(2.0)
        found = [only(house, acquire()).message.payload for _ in range(3)]
        assert found == ["text", {"a": [1]}, None]

    def test_a_delay_of_nothing_is_none(self) -> None:
        assert only(House(), later(b"x", 0.0)) == mm.Produced(0)

    def test_a_delay_of_more_than_ten_years_is_refused_and_makes_no_log(self) -> None:
        house = House()
        assert "ten years" in only(house, later(b"x", 4e8)).text
        batch = mm.ProduceBatch("orders", (mm.BatchMessage(b"x", delay=4e8),))
        assert "ten years" in only(house, batch).text
        assert house.broker.topics.find("orders") is None

    def test_a_partition_that_is_not_there_is_refused(self) -> None:
        house = House()
        produce(house, b"x")
        messages = (mm.BatchMessage(b"a"), mm.BatchMessage(b"b", partition=5, delay=1.0))
        for request in (later(b"x", 1.0, partition=5), mm.ProduceBatch("orders", messages)):
            assert "no partition 5" in only(house, request).text
        assert info(house).next == 1

    def test_a_batch_may_hold_both(self) -> None:
        house = House()
        messages = tuple(
            mm.BatchMessage(b"%d" % number, delay=2.0 if number % 2 else None)
            for number in range(5)
        )
        answer = only(house, mm.ProduceBatch("orders", messages))
        assert answer == mm.ProducedBatch((0, None, 1, None, 2), (None, 0, None, 1, None))
        house.pass_time(3.0)
        found = [one.payload for one in only(house, acquire_batch(9)).messages]
        assert found == [b"0", b"2", b"4", b"1", b"3"]

    def test_a_batch_that_is_delayed_as_a_whole(self) -> None:
        house = House()
        messages = (mm.BatchMessage(b"a", delay=2.0, ttl=1.0), mm.BatchMessage(b"b", delay=2.0))
        answer = only(house, mm.ProduceBatch("orders", messages))
        assert answer == mm.ProducedBatch((None, None), (0, 1))
        house.pass_time(3.0)
        assert [one.payload for one in only(house, acquire_batch(9)).messages] == [b"b"]

    def test_a_batch_with_delays_waits_for_room_and_is_stored_once(self) -> None:
        options = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
        house = House(options=options)
        client = house.connect()
        messages = tuple(
            mm.BatchMessage(bytes(900), delay=1.0 if number % 2 else None) for number in range(10)
        )
        client.send(*[mm.ProduceBatch("orders", messages)] * 40)
        house.run()
        assert len(client.answers()) == 40
        house.pass_time(3.0)
        assert info(house).next == 400

    def test_a_delayed_message_can_be_cancelled(self) -> None:
        house = House()
        ask(house, later(b"x", 5.0), later(b"y", 5.0))
        assert ask(house, *[mm.Cancel("orders", 0)] * 2, mm.Cancel("nowhere", 0)) == [
            mm.Cancelled(True),
            mm.Cancelled(False),
            mm.Cancelled(False),
        ]
        house = house.crash()
        house.pass_time(6.0)
        assert only(house, mm.Cancel("orders", 1)) == mm.Cancelled(False)
        assert only(house, acquire()).message.payload == b"y"


class TestSendingAgain:
    def batch(self, sequence: int, *values: bytes) -> mm.ProduceBatch:
        return mm.ProduceBatch("orders", tuple(map(mm.BatchMessage, values)), "p", sequence)

    def test_a_batch_sent_again_is_answered_with_the_first_ids(self) -> None:
        house = House()
        request = self.batch(1, b"a", b"b")
        assert ask(house, request, request) == [mm.ProducedBatch((0, 1))] * 2
        house = house.crash()
        assert only(house, request) == mm.ProducedBatch((0, 1))
        assert info(house).next == 2

    def test_another_content_under_the_same_sequence_is_not_noticed(self) -> None:
        house = House()
        ask(house, self.batch(1, b"a"))
        assert only(house, self.batch(1, b"x", b"y")) == mm.ProducedBatch((0,))

    def test_a_sequence_that_is_not_remembered_any_more_is_refused(self) -> None:
        house = House()
        ask(house, *[self.batch(sequence, b"x") for sequence in range(6)])
        assert "sequence 0 of producer 'p' is older" in only(house, self.batch(0, b"x")).text
        assert info(house).next == 6

    def test_ids_of_several_partitions_come_back_too(self) -> None:
        house = House()
        house.broker.topics.create("orders", 5)
        messages = tuple(mm.BatchMessage(b"x", key=b"%d" % number) for number in range(50))
        request = mm.ProduceBatch("orders", messages, "p", 1)
        first = only(house, request)
        assert len({one >> 48 for one in first.message_ids}) == 5
        assert only(house.crash(), request) == first

    def test_delays_are_refused_in_such_a_batch(self) -> None:
        messages = (mm.BatchMessage(b"x", delay=1.0),)
        answer = only(House(), mm.ProduceBatch("orders", messages, "p", 1))
        assert "another batch" in answer.text

    def test_a_batch_that_was_refused_may_be_sent_again(self) -> None:
        house = House()
        bad = mm.ProduceBatch("orders", (mm.BatchMessage(b"x", partition=7),), "p", 1)
        assert isinstance(only(house, bad), mm.Failed)
        assert only(house, self.batch(1, b"x")) == mm.ProducedBatch((0,))


class TestReleasing:
    def test_released_messages_are_there_at_once_without_a_failure(self) -> None:
        house = House()
        produce(house, *[b"%d" % number for number in range(4)])
        ask(house, acquire_batch(3))
        assert only(house, mm.Release("orders", "g", "c", (0, 2))) == mm.Released(2)
        again = only(house, acquire_batch(9, duration=5.0)).messages
        assert [(one.id, one.grants) for one in again] == [(0, 2), (2, 2), (3, 1)]

    def test_what_the_client_has_not_leased_is_passed_over(self) -> None:
        house = House()
        produce(house, b"0", b"1")
        ask(house, acquire("ann"), acquire("bob"))
        everything = (*range(5), SECOND)
        assert only(house, mm.Release("orders", "g", "ann", everything)) == mm.Released(1)
        assert only(house, mm.Release("orders", "g", "ann", everything)) == mm.Released(0)
        assert info(house).leased == 1

    @pytest.mark.parametrize("released", [0, 1])
    def test_an_error_says_that_no_message_was_given_back(self, released: int) -> None:
        """The disk fills up after so many of several messages. The next request is whole."""
        house = House()
        produce(house, *[b"%d" % number for number in range(4)])
        ask(house, acquire_batch(4))
        release, calls = house.broker.leases.release, iter([False] * released + [True])

        def refuses_one(*arguments: object) -> None:
            if next(calls, False):
                raise NoSpace("the disk is full")
            release(*arguments)

        house.broker.leases.release = refuses_one
        client = house.connect()
        client.send(mm.Release("orders", "g", "c", (0, 1, 2)))
        client.send(mm.Release("orders", "g", "c", (2, 3)))
        house.run()
        first = mm.Released(released) if released else mm.Failed("the disk is full")
        assert client.answers() == [first, mm.Released(2)]
        assert info(house).leased == 2 - released

    def test_a_client_gives_back_all_it_has(self) -> None:
        house = House()
        produce(house, *[b""] * 500)
        ask(house, acquire_batch(499), acquire("other"))
        assert only(house, mm.Release("orders", "g", "c")) == mm.Released(499)
        assert (info(house).leased, info(house).ready) == (1, 499)
        assert only(house, mm.Release("orders", "g", "c")) == mm.Released(0)

    def test_more_than_a_frame_takes_is_given_back_in_parts(self) -> None:
        options = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
        house = House(options=options)
        for _ in range(10):
            produce(house, *[b""] * 50)
        for _ in range(10):
            ask(house, acquire_batch(50))
        client = house.connect()
        client.send(mm.Release("orders", "g", "c"), acquire_batch(9))
        house.run()
        given_back, leased = client.answers()
        assert given_back == mm.Released(500)
        assert len(leased.messages) == 9, "its next request waits, so it keeps what that leases"
        assert info(house).leased == 9

    def test_an_unknown_log_or_group_has_no_leases(self) -> None:
        house = House()
        produce(house, b"x")
        for log_id, group_id in (("nowhere", "g"), ("orders", "nobody")):
            for ids in (None, (0,)):
                released = only(house, mm.Release(log_id, group_id, "c", ids))
                assert released == mm.Released(0)

    def test_a_lease_without_a_duration_is_as_long_as_the_group_says(self) -> None:
        house = House()
        produce(house, b"x")
        house.broker.groups.configure("orders", "g", GroupSettings(default_duration_us=7_000_000))
        (message,) = only(house, acquire_batch(1, duration=None)).messages
        assert message.remaining == 7.0
        extended = only(house, mm.Extend("orders", "g", "c", 0, None))
        assert extended.remaining == 7.0
        house.pass_time(8.0)
        assert only(house, acquire("d", duration=None)).message.id == 0


def letters(house: House) -> list[tuple[int, str, int]]:
    found = house.broker.leases.dead_letters("orders", "g")
    return [(letter.offset, letter.reason, letter.failures) for _, letter in found]


def test_a_dead_letter_tells_the_reason_of_its_last_failure() -> None:
    house = House()
    produce(house, b"a")
    for reason in ("first", "second", "timed out"):
        only(house, acquire())
        settle = mm.Settle("orders", "g", 0, "c", False, reason=reason)
        assert only(house, settle) == mm.Settled()
    assert letters(house) == [(0, "timed out", 3)]
    assert letters(house.crash()) == [(0, "timed out", 3)]


def test_a_worker_gives_messages_up() -> None:
    """One by one or in a batch, by the rules of any settle; also across a restart."""
    house = House()
    produce(house, b"a", b"b", b"c")
    taken = only(house, acquire_batch(3)).messages
    give_up = mm.Settle("orders", "g", 0, "c", False, reason="no such customer", dead=True)
    assert only(house, give_up._replace(client_id="d")) == mm.Failed(
        "Client does not own the lease for this message"
    )
    assert only(house, give_up) == mm.Settled()
    settles = (
        mm.BatchSettle(1, False, taken[1].token, reason="broken", dead=True),
        mm.BatchSettle(2, False, taken[2].token + 1, dead=True),
    )
    results = only(house, mm.SettleBatch("orders", "g", "c", settles)).results
    assert results[0] == "settled"
    assert "lease of offset 2 is over" in results[1]
    assert letters(house) == [(0, "no such customer", 1), (1, "broken", 1)]
    assert letters(house.crash()) == letters(house)


def test_a_message_with_a_ttl_of_zero_never_expires() -> None:
    """Whatever the settings of its log say."""
    house = House()
    house.broker.topics.create("orders", settings=TopicSettings(ttl_us=1_000_000))
    messages = (mm.BatchMessage(b"b", ttl=0.0), mm.BatchMessage(b"c"))
    only(house, mm.Produce("orders", b"a", ttl=0.0))
    only(house, mm.ProduceBatch("orders", messages))
    house.pass_time(90, 1)
    taken = only(house, acquire_batch(9)).messages
    assert [message.payload for message in taken] == [b"a", b"b"]


def test_committed_offsets_that_are_absurd_break_no_group_info() -> None:
    """Clients of other formats may commit what they like; their sum is cut at the last offset."""
    house = with_partitions(3)
    for number in range(3):
        house.broker.groups.commit_offset("orders", "g", number, (1 << 63) - 1)
    (state,) = ask(house, mm.GroupInfo("orders", "g"))
    assert state.committed == (1 << 63) - 1
    assert state.lag == 0
