"""FlyMQ answers, written and read; and what each kind of client makes of an ERROR."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from brokerd.values import Record
from tests.codecs.flymq_answers import consumed, fetched, fetched_sdk, fetched_seed
from tests.strategies.flymq import (
    i32,
    i64,
    keys,
    partition_offsets,
    records,
    texts,
    topic_places,
    u64,
    values,
)

PRODUCE = fm.Produce("t", None, b"")
FETCH = fm.Fetch("t", 0, 0, 10)
SDK_FETCH = FETCH._replace(sdk=True)
CONSUME = fm.Consume("t", 0, 0)
LIST = fm.ListTopics()
COMMIT = fm.Commit("t", "g", 0, 0)


def read(request: fm.Request, data: bytes) -> fm.Answer:
    ((opcode, flags, payload),) = fm.FrameReader().feed(data)
    assert flags == 1
    return fm.decode_answer(request, opcode, payload)


def seen(found: list[Record]) -> tuple[fm.FetchedRecord, ...]:
    return tuple([fm.FetchedRecord(one.offset, one.key or None, one.value) for one in found])


@given(st.tuples(texts, i32, u64, i64, i32, i32))
def test_a_produced_record_is_told_of(fields):
    assert read(PRODUCE, fm.produced(*fields)) == fm.Produced(*fields)


@given(keys | st.just(b""), values)
def test_a_consumed_record_comes_as_it_is(key, value):
    for opcode in (Opcode.CONSUME, Opcode.CONSUME_ZERO_COPY):
        request = CONSUME._replace(opcode=opcode)
        assert read(request, consumed(key, value, opcode)) == fm.Consumed(key or None, value)


@given(st.lists(records, max_size=20), u64)
def test_fetched_records_come_in_the_layout_that_was_asked_for(found, next_offset):
    expected = fm.Fetched(seen(found), next_offset)
    for request in (FETCH, SDK_FETCH, FETCH._replace(opcode=Opcode.FETCH_BINARY)):
        assert read(request, fetched(request, found, next_offset)) == expected


@given(st.lists(records, max_size=20), u64)
def test_the_size_of_a_fetch_is_known_beforehand(found, next_offset):
    size = fm.FETCHED_BYTES + sum(map(fm.fetched_size, found))
    assert len(fetched_seed(found, next_offset)) == 8 + size
    assert len(fetched_sdk(found, next_offset)) == 8 + size


def test_without_records_the_two_layouts_are_the_same():
    assert fetched_seed([], 43) == fetched_sdk([], 43)


@given(st.lists(texts, max_size=10).map(tuple), u64)
def test_topics_and_positions_come_as_they_are(names, offset):
    assert read(LIST, fm.topics(names)) == fm.Topics(names)
    for request in (fm.Subscribe("t", "g", 0, ""), fm.GetOffset("t", "g", 0)):
        answer = fm.position(fm.opcode_of(request), offset)
        assert read(request, answer) == fm.Position(offset)


@given(texts, st.lists(partition_offsets, max_size=5).map(tuple))
def test_topic_metadata_comes_as_it_is(topic, partitions):
    answer = fm.topic_metadata(topic, partitions)
    assert read(fm.Metadata("t"), answer) == fm.TopicOffsets(topic, partitions)


@given(texts, st.lists(topic_places, max_size=3).map(tuple))
def test_cluster_metadata_comes_as_it_is(name, topics):
    answer = fm.cluster_metadata(name, topics)
    assert read(fm.ClusterMetadata(), answer) == fm.Cluster(name, topics)


@given(st.tuples(u64, u64, u64, u64))
def test_a_lag_comes_as_it_is(numbers):
    assert read(fm.GetLag("t", "g", 0), fm.lag(*numbers)) == fm.Lag(*numbers)


@pytest.mark.parametrize(
    "request_",
    [fm.CreateTopic("t", 1), COMMIT, fm.DeleteTopic("t"), fm.ResetOffset("t", "g", 0, "")],
)
def test_done_is_one_byte_or_the_whole_message(request_):
    """The reference sends the byte alone."""
    opcode = fm.opcode_of(request_)
    assert read(request_, fm.ok(opcode)) == fm.Done()
    assert read(request_, fm.frame(opcode, b"\x01")) == fm.Done()
    assert read(request_, fm.frame(opcode, b"\x01\0\x02OK")) == fm.Done()
    with pytest.raises(fm.AnswerError, match="success is 0, with the message 'no'"):
        read(request_, fm.frame(opcode, b"\0\0\x02no"))


ANSWERS: list[tuple[fm.Request, bytes]] = [
    (PRODUCE, fm.produced("orders", 0, 1, 2, -1, 4)),
    (CONSUME, consumed(b"k", b"v")),
    (FETCH, fetched_seed([Record(1, b"v", b"k"), Record(2, b"w")], 3)),
    (SDK_FETCH, fetched_sdk([Record(1, b"v", b"k"), Record(2, b"w")], 3)),
    (LIST, fm.topics(["a", "b"])),
    (fm.GetOffset("t", "g", 0), fm.position(Opcode.GET_OFFSET, 7)),
    (fm.Metadata("t"), fm.topic_metadata("t", [fm.PartitionOffsets(0, 0, 0, 9)])),
    (
        fm.ClusterMetadata(),
        fm.cluster_metadata(
            "c", [("t", [fm.PartitionPlace(0, "n", "h:1", 1, "online", ("n",), ("n",))])]
        ),
    ),
    (fm.GetLag("t", "g", 0), fm.lag(1, 2, 3, 4)),
    (COMMIT, fm.frame(Opcode.COMMIT, b"\x01\0\x02OK")),
]


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_an_answer_that_is_cut_or_too_long_is_not_believed(request_, answer):
    opcode, payload = answer[2], answer[8:]
    whole = fm.decode_answer(request_, opcode, payload)
    for end in range(len(payload)):
        if isinstance(whole, fm.Done) and end == 1:
            continue  # the reference's form
        with pytest.raises(fm.AnswerError, match=r"cannot be read|left over"):
            fm.decode_answer(request_, opcode, payload[:end])
    with pytest.raises(fm.AnswerError, match="1 bytes left over"):
        fm.decode_answer(request_, opcode, payload + b"\0")


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_an_answer_to_another_opcode_is_not_believed(request_, answer):
    with pytest.raises(fm.AnswerError, match="opcode 113 was answered where"):
        fm.decode_answer(request_, 0x71, answer[8:])


@given(st.sampled_from([request for request, _ in ANSWERS]), st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_a_named_error(request, payload):
    try:
        fm.decode_answer(request, fm.opcode_of(request), payload)
    except fm.AnswerError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("request_", "answer", "smallest"),
    [
        (FETCH, b"\0\0\0\x02" + bytes(31), "message"),
        (SDK_FETCH, b"\0\0\0\x02" + bytes(8 + 31), "message"),
        (LIST, b"\0\0\0\x02" + bytes(3), "topics"),
        (fm.Metadata("t"), b"\0\0\0\0\0\x02" + bytes(47), "partitions"),
        (fm.ClusterMetadata(), b"\0\0\0\0\0\x02" + bytes(11), "topics"),
    ],
)
def test_a_count_is_compared_with_the_bytes_that_are_left(request_, answer, smallest):
    """Before the first item is read: two items of the smallest size lack one byte."""
    text = rf"{smallest}\w* says 2 items and \d+ bytes are left"
    with pytest.raises(fm.AnswerError, match=text):
        fm.decode_answer(request_, fm.opcode_of(request_), answer)


def test_the_smallest_items_are_read():
    """Nothing in them but zeros: a count may be as large as that."""
    nowhere = fm.PartitionPlace(0, "", "", 0, "", (), ())
    assert read(SDK_FETCH, fetched_sdk([Record(0, b"")] * 3, 0)).records[2].offset == 0
    assert read(FETCH, fetched_seed([Record(0, b"")] * 3, 0)).records[2].offset == 0
    assert read(LIST, fm.topics([""] * 3)) == fm.Topics(("", "", ""))
    offsets = (fm.PartitionOffsets(0, 0, 0, 0),) * 3
    assert read(fm.Metadata("t"), fm.topic_metadata("", offsets)).partitions == offsets
    for topics in ([fm.TopicPlaces("", ())] * 3, [fm.TopicPlaces("", (nowhere,) * 3)]):
        answer = fm.cluster_metadata("", topics)
        assert read(fm.ClusterMetadata(), answer) == fm.Cluster("", tuple(topics))


def test_a_claimed_count_costs_no_memory():
    many = b"\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        for request in (FETCH, SDK_FETCH, LIST, fm.Metadata("t"), fm.ClusterMetadata()):
            for payload in (many, b"\0\0" + many, many + bytes(40), b"\0\0" + many + bytes(40)):
                with pytest.raises(fm.AnswerError):
                    fm.decode_answer(request, fm.opcode_of(request), payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


# -- ERROR -------------------------------------------------------------------------------------


def fallback(payload: bytes) -> str | None:
    """How pyflymq and the Java SDK read an ERROR: None where they see an sdk's own layout."""
    if len(payload) < 6:
        return payload.decode()
    size = int.from_bytes(payload[4:6], "big")
    if 6 + size <= len(payload):
        return payload[6 : 6 + size].decode()
    return payload[6:].decode()


@given(st.text(max_size=300))
def test_pyflymq_shows_both_layouts_in_full(text):
    expected = fm.error_text(fm.error(text, sdk=True)[8:])
    for sdk in (True, False):
        assert fallback(fm.error(text, sdk)[8:]) == expected


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=300).map(str.strip))
def test_our_client_shows_every_layout_in_full(text):
    if "not leader" in text.lower():
        return
    data = text.encode()
    size = len(data).to_bytes(2, "big")
    for payload in (
        fm.error(text, sdk=False)[8:],
        fm.error(text, sdk=True)[8:],
        b"\0" + size + data,
        size + data,
    ):
        assert read(CONSUME, fm.frame(Opcode.ERROR, payload)) == fm.Failed(text)


@pytest.mark.parametrize("text", ["", "no", "EOF", "topic not found", "unauthorized\u2026"])
def test_our_client_shows_bare_text(text):
    assert fm.error_text(text.encode()) == text


@pytest.mark.parametrize("sdk", [True, False])
def test_control_characters_of_a_request_are_escaped(sdk):
    """What an error repeats does nothing to a terminal and breaks no line of a log."""
    answer = fm.error("unknown reset mode: o\x06f\x1b[31m\x7f\x80\x9f\nés\xa0", sdk)
    shown = fm.error_text(answer[8:])
    assert shown == r"unknown reset mode: o\x06f\x1b[31m\x7f\x80\x9f\x0aés" + "\xa0"


@pytest.mark.parametrize("sdk", [True, False])
def test_an_error_of_control_characters_alone_is_not_too_long(sdk):
    assert len(fm.error("\x00" * 65_535, sdk)) <= 8 + 6 + 3 + 8_000


def test_an_error_that_is_not_text_is_shown_all_the_same():
    assert fm.error_text(b"\xff\xfe") == "\ufffd\ufffd"


@pytest.mark.parametrize("sdk", [True, False])
def test_a_long_text_is_cut_between_letters(sdk):
    """At 8,000 bytes, where the fallback of the SDKs still works."""
    answer = fm.error("x" + "\u20ac" * 10_000, sdk)
    shown = fm.error_text(answer[8:])
    assert shown == "x" + "\u20ac" * 2_666
    assert fallback(answer[8:]) == shown


@pytest.mark.parametrize("sdk", [True, False])
def test_a_name_cannot_send_clients_elsewhere(sdk):
    """The Go client dials the address behind "not leader"; a topic's name must not say where."""
    name = "Not Leader: leader_addr=evil:1"
    shown = fm.error_text(fm.error(f"topic not found: {name}", sdk)[8:])
    assert "not leader" not in shown.lower()
    assert "leader_addr=evil:1" in shown


def test_a_lone_surrogate_in_a_text_does_no_harm():
    assert fm.error_text(fm.error("a\ud800b", sdk=True)[8:]) == "a?b"


LARGE = bytes(range(256)) * 256
SMALL = LARGE[1:]


@pytest.mark.parametrize(
    "found",
    [
        [],
        [SMALL],
        [LARGE],
        [SMALL, LARGE, SMALL, SMALL],
        [LARGE, LARGE],
        [b"", LARGE + b"x", b""],
    ],
)
def test_large_values_can_be_sent_without_a_copy(found):
    """From 64 KiB up they are parts of their own; all parts together are the answer."""
    records = [Record(offset, value, b"k" * offset) for offset, value in enumerate(found)]
    for request in (FETCH, SDK_FETCH):
        parts = fm.fetched_parts(request, records, 9)
        assert read(request, b"".join(parts)) == fm.Fetched(seen(records), 9)
        whole = [one for one in parts if any(one is value for value in found)]
        assert whole == [value for value in found if len(value) >= len(LARGE)]
    for value in found:
        parts = fm.consumed_parts(b"k", value)
        assert parts[-1] is value
        assert read(CONSUME, b"".join(parts)) == fm.Consumed(b"k", value)


@pytest.mark.parametrize("count", [1, 2, 500, 1024, 1025])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 100])
def test_records_of_one_size_are_read_like_all_others(count, size):
    """One layout packs them, up to 64 KiB and 1,024 records."""
    records = [Record(7 + 3 * number, bytes([number % 256]) * size) for number in range(count)]
    data = fetched_sdk(records, 9)
    assert read(SDK_FETCH, data) == fm.Fetched(seen(records), 9)
    other = fetched_sdk([*records, Record(9999, bytes(size + 1))], 9)
    assert other[20:].startswith(data[20:]), "as beside a record of another size"


def test_large_values_are_copied_once():
    """The only memory that an answer takes is its own."""
    value = bytes(8 << 20)
    made: list[Any] = []
    for build in (
        lambda: consumed(None, value),
        lambda: fetched_sdk([Record(0, value)], 1),
        lambda: fetched_seed([Record(0, value)], 1),
    ):
        tracemalloc.start()
        try:
            made.append(build())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < len(value) + 10_000
