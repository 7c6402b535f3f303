"""FlyMQ served by a whole broker: frames, PRODUCE, refusals, order (docs/protocols/flymq.rst)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.errors import NoSpace
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.flymq.connection import CONTENT_BYTES_MAX, FlymqSettings
from brokerd.schemas.values import Mode
from brokerd.security import OPEN
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from simulator.machine.bare import WALL_SECONDS
from tests.codecs.test_flymq_golden import BYTES
from tests.protocols.flymq_desk import LIMITS, MIB, FlymqHouse
from tests.protocols.flymq_group_scenes import SCENES as GROUP_SCENES
from tests.strategies import flymq as strategies

SEED_SECONDS = 1706615843.840
NOW_MS = int(WALL_SECONDS * 1000)


# -- the golden bytes -------------------------------------------------------------------------


def with_records(house: FlymqHouse, count: int, topic: str = "orders", partition: int = 0) -> None:
    """So many records; those that the examples show are where they show them."""
    shown = {41: (None, b"a"), 42: (b"k1", b"hi")}
    for offset in range(count):
        key, value = shown.get(offset, (None, b"x"))
        house.ask(flymq.Produce(topic, key, value, partition))


def of_three(house: FlymqHouse) -> None:
    house.broker.topics.create("orders", 3)
    with_records(house, 7, partition=2)


def committed(house: FlymqHouse) -> None:
    with_records(house, 50)
    house.ask(flymq.Commit("orders", "g1", 0, 43))


def of_two(house: FlymqHouse) -> None:
    house.broker.topics.create("orders", 2)
    with_records(house, 43)
    with_records(house, 50, partition=1)
    house.broker.topics.trim("orders", 1, 7)
    house.run()


def with_schema(house: FlymqHouse) -> None:
    """The schema ``order``, and 44 records."""
    with_records(house, 44)
    house.ask(flymq.RegisterSchema("order", "json", b'{"required":["id"]}'))


def with_full_schema(house: FlymqHouse) -> None:
    with_schema(house)
    house.broker.schemas.set_mode(OPEN, "order", Mode.FULL)
    house.run()


def with_two_schemas(house: FlymqHouse) -> None:
    """Of ``audit`` the first version is deleted."""
    with_schema(house)
    house.ask(
        *[flymq.RegisterSchema("audit", "avro", b'"long"')] * 2, flymq.DeleteSchema("audit", 1)
    )


def scheduled(house: FlymqHouse) -> None:
    """Three delayed records wait, and where a fourth shall be cancelled a fourth."""
    house.broker.topics.create("orders")
    house.ask(*[flymq.ProduceDelayed("orders", b"x", 60_000)] * 3)


def with_a_fourth(house: FlymqHouse) -> None:
    scheduled(house)
    house.ask(flymq.ProduceDelayed("orders", b"x", 60_000))


def turn_of_the_third(house: FlymqHouse) -> None:
    house.broker.topics.create("orders", 3)
    with_records(house, 45, partition=2)
    house.produce(b"x", b"x", topic="orders")


SCENES: dict[str, Callable[[FlymqHouse], None]] = {
    "seed-produce": lambda house: with_records(house, 42, "test"),
    "seed-01-produce": lambda house: with_records(house, 42),
    "seed-02-produce-key": of_three,
    "seed-03-consume": lambda house: with_records(house, 43),
    "seed-04a-fetch-sdk": lambda house: with_records(house, 43),
    "seed-04b-fetch": lambda house: with_records(house, 43),
    "seed-05-fetch-filter": lambda house: with_records(house, 43),
    "seed-06-create-topic": lambda house: None,
    "seed-08a-subscribe-sdk": lambda house: with_records(house, 1),
    "seed-08b-subscribe": lambda house: with_records(house, 1),
    "seed-09-commit": lambda house: with_records(house, 1),
    "seed-10-get-offset": committed,
    "seed-11-reset-offset": committed,
    "seed-13-get-lag": committed,
    "seed-15-produce-with-schema": with_schema,
    "seed-16-register-schema": lambda house: None,
    "seed-17-get-schema": with_schema,
    "seed-18-validate-schema": with_schema,
    "seed-25-error": lambda house: None,
    "ours-produce-gzip": lambda house: with_records(house, 43),
    "ours-produce-empty-value": lambda house: with_records(house, 44),
    "ours-metadata": of_two,
    "ours-delete-topic": committed,
    "ours-consume-zero-copy": lambda house: with_records(house, 43),
    "ours-fetch-binary": lambda house: with_records(house, 43),
    "ours-fetch-binary-filter": lambda house: with_records(house, 43),
    "ours-cluster-metadata-all": lambda house: with_records(house, 1),
    "ours-subscribe-commit": committed,
    "ours-subscribe-latest-no-group": committed,
    "ours-reset-offset-earliest": committed,
    "ours-reset-offset-latest-sdk": committed,
    "ours-register-schema-str": lambda house: None,
    "ours-get-schema": with_full_schema,
    "ours-list-schemas": with_two_schemas,
    "ours-list-schemas-of-name": with_two_schemas,
    "ours-validate-schema": with_schema,
    "ours-produce-with-schema": with_schema,
    "ours-delete-schema": with_schema,
    "ours-delete-schema-all": with_schema,
    "ours-produce-delayed": scheduled,
    "ours-cancel-delayed": with_a_fourth,
    "ours-cancel-delayed-text": with_a_fourth,
    "ours-cancel-delayed-alone": with_a_fourth,
    "ours-cancel-delayed-six-digits": with_a_fourth,
    "ours-produce-with-ttl": turn_of_the_third,
    "ours-txn-begin": lambda house: None,
    "ours-txn-rollback-unknown": lambda house: None,
    **GROUP_SCENES,
    "ours-unknown-opcode": lambda house: None,
    "ours-value-too-long": lambda house: None,
    "ours-lz4": lambda house: None,
    "ours-empty-gzip": lambda house: None,
    "ours-version": lambda house: None,
    "ours-length": lambda house: None,
    "ours-magic": lambda house: None,
}
ACCOUNTS = (
    *("seed-22", "seed-23", "ours-whoami", "ours-user-", "ours-acl-", "ours-role-"),
    *("ours-password-", "ours-audit-"),
)
ELSEWHERE = {
    "seed-07-list-topics": "in the order of a stub; the broker's is sorted",
    "seed-14-produce-delayed": "of a broker that does not number what it delays",
    "seed-24-cluster-metadata": "of a cluster of several nodes",
    **dict.fromkeys(("seed-19a-txn-begin", "seed-19b-txn-produce"), "of a stub with its own ids"),
    "seed-19c-txn-commit": "the same",
    **dict.fromkeys(
        ("ours-txn-produce", "ours-txn-commit", "ours-txn-rollback"),
        "of one connection, which tests/protocols/test_flymq_transactions.py has",
    ),
    **dict.fromkeys(
        [name for name, _ in BYTES if name.startswith(ACCOUNTS)],
        "of accounts, which tests/protocols/test_flymq_accounts.py and test_flymq_audit.py have",
    ),
}


def test_every_golden_request_has_its_scene() -> None:
    """The rest are answers of other brokers and requests that other examples answer."""
    asked = {name for name, way in BYTES if way == ">" and ((name, "<") in BYTES)} | {"ours-magic"}
    assert asked == {*SCENES, *ELSEWHERE} - {"seed-23b-whoami", "ours-user-update-without-enabled"}


@pytest.mark.parametrize("name", SCENES)
def test_golden_requests_are_answered_byte_for_byte(name: str) -> None:
    """What unmodified clients and the protocol document show is what the broker sends."""
    house = FlymqHouse(wall_seconds=SEED_SECONDS if name == "seed-produce" else WALL_SECONDS)
    SCENES[name](house)
    client = house.client()
    client.send_bytes(BYTES[name, ">"])
    house.run()
    assert client.received_bytes() == BYTES.get((name, "<"), b"")
    assert client.is_open is (name not in ("ours-version", "ours-length", "ours-magic"))


def test_an_sdk_gets_its_errors_once_it_has_shown_itself() -> None:
    """Any of the SDKs' layouts will do; until then the document's layout is sent."""
    shows = [
        flymq.Fetch("t", 0, 0, 1, sdk=True),
        flymq.Subscribe("t", "g", 0, "latest", sdk=True),
        flymq.ResetOffset("t", "g", 0, "latest", sdk=True),
        flymq.RegisterSchema("s", "json", b"{}", sdk=True),
    ]
    for request in shows:
        house = FlymqHouse()
        house.produce(b"x")
        client = house.client()
        client.send_bytes(BYTES["seed-25-error", ">"])
        client.send_bytes(flymq.encode_request(request))
        client.send_bytes(BYTES["seed-25-error", ">"])
        house.run()
        received = client.received_bytes()
        assert received.startswith(BYTES["seed-25-error", "<"])
        assert received.endswith(BYTES["seed-25-error-sdk", "<"])


@pytest.mark.parametrize(("layout", "answer"), [("seed", ""), ("sdk", "-sdk")])
def test_an_operator_may_fix_the_layout_of_errors(layout: Any, answer: str) -> None:
    house = FlymqHouse(FlymqSettings(error_layout=layout))
    client = house.client()
    client.send_bytes(flymq.encode_request(flymq.Fetch("nope", 0, 0, 1, sdk=True)))
    house.run()
    client.received_bytes()
    client.send_bytes(BYTES["seed-25-error", ">"])
    house.run()
    assert client.received_bytes() == BYTES["seed-25-error" + answer, "<"]


# -- frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ours-version", "ours-length", "ours-magic"])
def test_bytes_that_cannot_be_followed_close_after_earlier_answers(name: str) -> None:
    """Requests before them are carried out and answered, those behind are not."""
    house = FlymqHouse()
    client = house.client()
    before = flymq.encode_request(flymq.Produce("t", None, b"before"))
    client.send_bytes(before + BYTES[name, ">"] + before)
    house.run()
    answers = flymq.FrameReader().feed(client.received_bytes())
    assert [opcode for opcode, _, _ in answers] == [1, *([255] if name != "ours-magic" else [])]
    assert not client.is_open
    assert house.records("t", 0, 0, 10) == [(0, None, b"before")]


def test_a_refused_request_leaves_the_connection_in_step() -> None:
    house = FlymqHouse()
    client = house.client()
    for opcode in (0, 0x16, 0x67, 0x71, 0x82, 0xFF):
        client.send_bytes(flymq.frame(opcode, b"whatever"))
    client.send_bytes(flymq.frame(1, b"\0"))
    client.send_bytes(flymq.encode_request(flymq.Produce("t", None, b"x")))
    house.run()
    frames = flymq.FrameReader().feed(client.received_bytes())
    texts = [flymq.error_text(payload) for opcode, _, payload in frames if opcode == 255]
    assert texts[:6] == [f"unknown opcode: {n}" for n in (0, 0x16, 0x67, 0x71, 0x82, 0xFF)]
    assert texts[6].startswith("buffer too small")
    assert [opcode for opcode, _, _ in frames] == [255] * 7 + [1]


def test_a_listener_may_allow_smaller_frames() -> None:
    """The limit holds for what gzip unpacks, too."""
    house = FlymqHouse(limits=Limits(frame_bytes=1000))
    client = house.client()
    client.send_bytes(flymq.encode_request(flymq.Produce("t", None, b"x" * 2000), gzip=True))
    client.send_bytes(flymq.encode_request(flymq.Produce("t", None, b"x" * 2000))[:8])
    house.run()
    unpacked, length = flymq.FrameReader().feed(client.received_bytes())
    assert "it may have 1000" in flymq.error_text(unpacked[2])
    assert "over the limit of 1000" in flymq.error_text(length[2])
    assert not client.is_open


@given(st.lists(strategies.requests, min_size=1, max_size=8), st.data())
def test_any_chunking_gives_the_same_answers(requests: list[Any], data: st.DataObject) -> None:
    """Every request has exactly one answer, in order, however the bytes arrive."""
    stream = b"".join(map(flymq.encode_request, requests))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    whole, pieces = FlymqHouse(), FlymqHouse()
    one, other = whole.client(), pieces.client()
    one.send_bytes(stream)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        other.send_bytes(stream[start:end])
    whole.run()
    pieces.run()
    received = one.received_bytes()
    assert other.received_bytes() == received
    opcodes = [opcode for opcode, _, _ in flymq.FrameReader().feed(received)]
    assert len(opcodes) == len(requests)
    for request, opcode in zip(requests, opcodes, strict=True):
        assert opcode in (flymq.opcode_of(request) + isinstance(request, flymq.Auth), 255)


# -- PRODUCE ----------------------------------------------------------------------------------


def produced(house: FlymqHouse, *requests: flymq.Produce) -> list[tuple[int, int]]:
    """Partition and offset of each."""
    return [(answer.partition, answer.offset) for answer in house.ask(*requests)]


def test_a_record_without_a_key_goes_to_each_partition_in_turn_from_0_on() -> None:
    """Over all connections; records with a key or a partition take no turn."""
    house = FlymqHouse(FlymqSettings(partitions=3))
    keyless = flymq.Produce("t", None, b"v")
    assert produced(house, keyless, flymq.Produce("t", b"k", b"v", 2), keyless) == [
        (0, 0),
        (2, 0),
        (1, 0),
    ]
    house.ask(flymq.Produce("t", b"k", b"v"))
    assert produced(house, keyless)[0][0] == 2
    assert produced(house, keyless)[0][0] == 0


def test_a_key_chooses_the_partition_that_the_sdks_expect() -> None:
    """FNV-1a-32 modulo the number of partitions; the numbers are the reference server's."""
    house = FlymqHouse(FlymqSettings(partitions=6))
    keys = (b"user-123", b"a", b"b", b"key", b"hello")
    places = produced(house, *[flymq.Produce("t", key, b"v") for key in keys])
    assert [partition for partition, _ in places] == [5, 4, 1, 4, 3]


def test_a_partition_that_is_named_is_honoured_whatever_the_key() -> None:
    house = FlymqHouse(FlymqSettings(partitions=6))
    assert produced(house, flymq.Produce("t", b"a", b"v", 2)) == [(2, 0)]
    assert produced(house, flymq.Produce("t", b"a", b"v", -7)) == [(4, 0)]
    assert house.only(flymq.Produce("t", b"a", b"v", 6)) == flymq.Failed("partition 6 not found")


def test_a_record_that_is_refused_makes_no_topic() -> None:
    house = FlymqHouse()
    assert house.only(flymq.Produce("new", None, b"v", 1)) == flymq.Failed("partition 1 not found")
    assert house.only(flymq.ListTopics()) == flymq.Topics(())


def test_the_time_in_an_answer_is_the_stored_record_s() -> None:
    """Not that of the request: what waits for a commit is stored when its frame is made."""
    house = FlymqHouse()
    client = house.client()
    client.send(flymq.Produce("t", None, b"first"))
    house.turn()
    house.wall_seconds += 5
    client.send(
        flymq.Produce("t", b"k", b"second"), flymq.ListTopics(), flymq.Produce("t", None, b"")
    )
    house.run()
    first, second, _, third = client.answers()
    house.run()
    partition = house.broker.topics.create("t").partitions[0]
    chunk = partition.find(0)
    assert chunk is not None
    stored = [time_us // 1000 for time_us in chunk.times_us]
    assert stored == [NOW_MS, NOW_MS + 5000, NOW_MS + 5000]
    assert [one.timestamp_ms for one in (first, second, third)] == stored
    assert second == flymq.Produced("t", 0, 1, NOW_MS + 5000, 1, 6)


def test_the_time_is_right_when_one_write_makes_several_frames() -> None:
    """More than a frame holds, in one piece; each record has the time of its own frame."""
    house = FlymqHouse(settings=BrokerSettings(frame_bytes=20_000))
    client = house.client()
    client.send(*[flymq.Produce("t", None, b"x" * 5000)] * 12)
    house.run()
    answers = client.answers()
    assert [answer.offset for answer in answers] == list(range(12))
    assert {answer.timestamp_ms for answer in answers} == {NOW_MS}


def test_an_answer_means_that_the_record_survives_a_power_cut() -> None:
    house = FlymqHouse()
    client = house.client()
    client.send(flymq.Produce("t", b"k", b"v"))
    house.turn()
    assert client.received_bytes() == b""
    house.run()
    assert len(client.answers()) == 1
    assert house.crash().records("t", 0, 0, 10) == [(0, b"k", b"v")]


def test_answers_come_in_request_order_in_one_write() -> None:
    house = FlymqHouse()
    client = house.client()
    produce = flymq.Produce("t", None, b"v")
    refused = flymq.Produce("t", None, b"v", 9)
    client.send(produce, produce, flymq.Consume("none", 0, 0), flymq.ListTopics(), produce, refused)
    house.run()
    assert client.transport.writes == 1
    assert client.answers() == [
        flymq.Produced("t", 0, 0, NOW_MS, -1, 1),
        flymq.Produced("t", 0, 1, NOW_MS, -1, 1),
        flymq.Failed("topic not found: none"),
        flymq.Topics(("t",)),
        flymq.Produced("t", 0, 2, NOW_MS, -1, 1),
        flymq.Failed("partition 9 not found"),
    ]


def test_records_are_stored_as_flymq_s_bytes() -> None:
    """So that other formats know how to show them."""
    house = FlymqHouse()
    house.ask(flymq.Produce("t", b"k", b"v"))
    (record,) = house.read_all(house.broker.topics.create("t").partitions[0]).values()
    assert (record.encoding, record.producer_format) == (Encoding.BYTES, Format.FLYMQ)  # type: ignore[union-attr]
    assert (record.metadata, record.producer_time) == (None, None)  # type: ignore[union-attr]


def test_a_name_that_another_format_made_is_served_whatever_its_levels() -> None:
    house = FlymqHouse()
    house.broker.topics.create("a/../b")
    assert house.only(flymq.ListTopics()) == flymq.Topics(("a/../b",))
    assert house.only(flymq.CreateTopic("a/../b", 1)) == flymq.Done()
    assert isinstance(house.only(flymq.Produce("a/../b", None, b"v")), flymq.Produced)
    assert isinstance(house.only(flymq.Consume("a/../b", 0, 0)), flymq.Consumed)
    assert house.only(flymq.DeleteTopic("a/../b")) == flymq.Done()
    assert house.only(flymq.ListTopics()) == flymq.Topics(())


def test_a_bad_name_or_partition_is_told_on_a_full_disk_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody should try it again and again."""
    house = FlymqHouse()
    house.broker.topics.create("t")

    def refuse(size: int, partitions: int = 1) -> None:
        raise NoSpace("the disk is full")

    monkeypatch.setattr(house.broker.group_commit, "admit", refuse)
    requests = [flymq.Produce("a\nb", None, b"v"), flymq.Produce("t", None, b"v", 5)]
    name, partition, full = house.ask(*requests, flymq.Produce("t", None, b"v"))
    assert "topic name" in name.text
    assert "partition 5 not found" in partition.text
    assert "the disk is full" in full.text


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/./b", "a/..", "a\nb", "\x7f", "x" * 256]
)
def test_names_that_break_the_rules_are_refused_everywhere(name: str) -> None:
    house = FlymqHouse()
    house.broker.topics.create("")
    requests = [
        flymq.Produce(name, None, b"v"),
        flymq.CreateTopic(name, 1),
        flymq.Consume(name, 0, 0),
        flymq.Fetch(name, 0, 0, 1),
        flymq.Metadata(name),
        flymq.Commit(name, "g", 0, 0),
    ]
    for request, answer in zip(requests, house.ask(*requests), strict=True):
        assert isinstance(answer, flymq.Failed), request
        assert "topic name" in answer.text
    assert house.only(flymq.ListTopics()) == flymq.Topics(())


def test_slashes_and_dots_in_a_name_are_letters() -> None:
    """Clients match patterns against the levels between slashes."""
    house = FlymqHouse()
    names = ("a/b", "/", "a//b", "...", "a.b", ".a", "a..", "\u00e9/+/#")
    for name in names:
        house.produce(name.encode(), topic=name)
        assert house.records(name, 0, 0, 1) == [(0, None, name.encode())]
    assert house.only(flymq.ListTopics()) == flymq.Topics(tuple(sorted(names)))


def test_the_broker_s_own_topics_cannot_be_made() -> None:
    house = FlymqHouse()
    for request in (flymq.Produce("__brokerd.1", None, b"v"), flymq.CreateTopic("__brokerd.1", 1)):
        assert "the broker's own" in house.only(request).text


def test_no_error_says_not_leader_but_for_a_leader() -> None:
    """Clients would go to another server, wherever a topic's name sends them."""
    house = FlymqHouse()
    answer = house.only(flymq.Consume("not leader: leader_addr=evil:1", 0, 0))
    assert answer == flymq.Failed("topic not found: not-leader: leader_addr=evil:1")


# -- sizes ------------------------------------------------------------------------------------

SIZES = [0, 1, 70 * 1024, MIB, 33_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("segment_bytes", [MIB, 64 * MIB])
def test_a_value_of_any_size_comes_back_by_every_read(size: int, segment_bytes: int) -> None:
    """From memory and from disk, through segments it does not fit."""
    house = FlymqHouse(options=WalOptions(segment_bytes=segment_bytes, free_bytes_min=0))
    value = bytes(range(256)) * (size // 256 + 1)
    value = value[:size]
    (stored,) = house.ask(flymq.Produce("t", b"key", value))
    assert stored == flymq.Produced("t", 0, 0, NOW_MS, 3, size)
    for _ in range(2):
        for opcode in (flymq.Opcode.CONSUME, flymq.Opcode.CONSUME_ZERO_COPY):
            assert house.only(flymq.Consume("t", 0, 0, opcode)) == flymq.Consumed(b"key", value)
        for sdk, opcode in ((False, 7), (True, 7), (True, 11)):
            request = flymq.Fetch("t", 0, 0, 10, sdk=sdk, opcode=flymq.Opcode(opcode))
            assert house.only(request) == flymq.Fetched(((0, b"key", value),), 1)
        house = house.crash()


@pytest.mark.parametrize(
    "request_",
    [
        flymq.Consume("t", 0, 0),
        flymq.Consume("t", 0, 0, flymq.Opcode.CONSUME_ZERO_COPY),
        flymq.Fetch("t", 0, 0, 9),
        flymq.Fetch("t", 0, 0, 9, opcode=flymq.Opcode.FETCH_BINARY),
    ],
)
@pytest.mark.parametrize("size", [64 * 1024 - 1, 64 * 1024, 5 * MIB])
def test_a_large_value_is_sent_as_it_is_in_memory(request_: Any, size: int) -> None:
    """No copy of megabytes is made to put a few bytes before it."""
    house = FlymqHouse()
    house.produce(b"small", bytes(size), b"small")
    request_ = request_._replace(offset=1 if isinstance(request_, flymq.Consume) else 0)
    chunk = house.broker.topics.create("t").partitions[0].find(1)
    assert chunk is not None
    value = chunk.values[1 - chunk.base]
    client = house.client()
    written: list[bytes] = []
    client.transport.write = written.append  # type: ignore[method-assign]
    client.send(request_)
    house.run()
    assert any(data is value for data in written) is (size >= 64 * 1024)
    client.transport.received += b"".join(written)
    (answer,) = client.answers()
    if isinstance(answer, flymq.Consumed):
        assert answer == flymq.Consumed(None, value)
    else:
        assert answer.records == ((0, None, b"small"), (1, None, value), (2, None, b"small"))


def test_the_largest_record_is_taken_and_comes_back_and_the_next_larger_is_refused() -> None:
    house = FlymqHouse()
    value = bytes(CONTENT_BYTES_MAX - 4)
    accepted, refused = house.ask(
        flymq.Produce("t", b"four", value), flymq.Produce("t", b"fives", value)
    )
    assert accepted == flymq.Produced("t", 0, 0, NOW_MS, 4, len(value))
    assert refused == flymq.Failed(
        f"key and value have {CONTENT_BYTES_MAX + 1} bytes together, and {CONTENT_BYTES_MAX} is "
        "the limit"
    )
    assert house.only(flymq.Fetch("t", 0, 0, 10)) == flymq.Fetched(((0, b"four", value),), 1)


def test_large_records_of_many_connections_wait_for_one_another_and_all_arrive() -> None:
    """More than the broker takes at a time: the rest is left where it is until there is room."""
    house = FlymqHouse()
    clients = [house.client() for _ in range(6)]
    for client in clients:
        client.send(*[flymq.Produce("t", None, bytes(8 * MIB))] * 2)
    house.run()
    offsets = [answer.offset for client in clients for answer in client.answers()]
    assert sorted(offsets) == list(range(12))
    assert LIMITS.frame_bytes == 32 * MIB


@pytest.mark.parametrize("place", [0, 3, 20, 40])
@pytest.mark.parametrize(
    "between",
    [
        flymq.Produce("other", None, b"x", -1),
        flymq.Produce("orders", b"k", b"x", -1),
        flymq.Produce("orders", None, b"x", 7),
        flymq.Produce("", None, b"x", -1),
        flymq.ProduceWithTtl("orders", b"x", 60_000),
        flymq.Fetch("orders", 0, 0, 5),
    ],
    ids=["other", "key", "partition", "no-name", "ttl", "fetch"],
)
def test_produces_in_one_read_are_stored_and_answered_as_one_by_one(
    between: Any, place: int
) -> None:
    """Those for one topic without keys are carried out together."""
    run = [flymq.Produce("orders", None, b"%d" % number, -1) for number in range(40)]
    run[5] = run[5]._replace(partition=0)
    requests = [*run[:place], between, *run[place:]]
    together, alone = FlymqHouse(), FlymqHouse()
    for house in (together, alone):
        house.produce(b"first", topic="orders")
    client = alone.client()
    assert together.ask(*requests) == [client.ask(request)[0] for request in requests]
    assert together.records("orders", 0, 0, 100) == alone.records("orders", 0, 0, 100)


def test_a_run_is_appended_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would hold without it; not on a topic with several partitions."""
    for partitions, expected in ((1, [40]), (2, [])):
        house = FlymqHouse()
        house.broker.topics.create("orders", partitions)
        runs: list[int] = []
        append = house.broker.appender.append_values

        def appended(
            partition: Any, values: Any, *rest: Any, runs: Any = runs, append: Any = append
        ) -> int:
            runs.append(len(values))
            return append(partition, values, *rest)

        monkeypatch.setattr(house.broker.appender, "append_values", appended)
        house.produce(*[b"x"] * 40, topic="orders")
        assert runs == expected
