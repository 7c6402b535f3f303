"""The binary dialect: what is read, what is written, and what is said of what is wrong."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import rustlog as rl
from tests.codecs.test_rustlog_golden import same
from tests.strategies import rustlog as strategies

CODEC = rl.CODECS[rl.Dialect.BINARY]
DEMO = b"\x00\x04demo"
ZERO = bytes(4)


def test_a_name_may_be_as_long_as_its_length_can_say():
    """The broker has its own rule; the error that says so names what was sent."""
    for size in (255, 256, 65_535):
        request = rl.DescribeTopic("x" * size)
        assert CODEC.decode_request(payload_of(CODEC.encode_request(request))) == request


def payload_of(data: bytes) -> bytes:
    (one,) = rl.FrameReader().feed(data)
    return one


def refusal(payload: bytes) -> str:
    with pytest.raises(rl.RequestError) as refused:
        CODEC.decode_request(payload)
    return str(refused.value)


@given(strategies.requests)
def test_a_request_that_is_written_is_read_as_it_was(request):
    assert same(CODEC.decode_request(payload_of(CODEC.encode_request(request))), request)


@given(strategies.answers | strategies.failures)
def test_an_answer_that_is_written_is_read_as_it_was(answer):
    assert same(CODEC.decode_answer(payload_of(CODEC.encode_answer(answer))), answer)


@given(strategies.requests, st.binary(max_size=9))
def test_bytes_after_the_last_field_are_ignored(request, more):
    payload = payload_of(CODEC.encode_request(request))
    assert same(CODEC.decode_request(payload + more), request)


@given(strategies.requests, st.data())
def test_a_request_cut_anywhere_is_refused_with_a_text(request, data):
    payload = payload_of(CODEC.encode_request(request))
    cut = data.draw(st.integers(1, len(payload)))
    if cut < len(payload):
        assert refusal(payload[:cut]).startswith("Decode error: decode error: ")


@given(strategies.payloads)
def test_any_bytes_are_a_request_or_refused(payload):
    try:
        CODEC.decode_request(payload)
    except rl.RequestError as problem:
        assert str(problem)


@given(strategies.payloads)
def test_any_bytes_are_an_answer_or_refused(payload):
    try:
        CODEC.decode_answer(payload)
    except rl.AnswerError as problem:
        assert str(problem)


@given(strategies.answers, st.data())
def test_an_answer_cut_anywhere_is_refused(answer, data):
    payload = payload_of(CODEC.encode_answer(answer))
    cut = data.draw(st.integers(1, len(payload)))
    if cut < len(payload):
        with pytest.raises(rl.AnswerError):
            CODEC.decode_answer(payload[:cut])


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\x0a", "unknown request type: 10"),
        (b"\xfe", "unknown request type: 254"),
        (b"\x00", "unknown request type: 0"),
        (b"\x01", "decode error: missing topic length"),
        (b"\x01\x00\x04dem", "decode error: truncated topic"),
        (b"\x01" + DEMO + b"\x00\x00\x00", "decode error: missing partition"),
        (b"\x01" + DEMO + ZERO + b"\x00", "decode error: missing record count"),
        (b"\x01" + DEMO + ZERO + b"\x00\x00\x00\x01\x00", "decode error: truncated record length"),
        (
            b"\x01" + DEMO + ZERO + b"\x00\x00\x00\x01\x00\x00\x00\x02a",
            "decode error: truncated record",
        ),
        (
            b"\x01" + DEMO + ZERO + b"\x00\x00\x00\x02\x00\x00\x00\x03abc\x00",
            "decode error: truncated record length",
        ),
        (
            b"\x01" + DEMO + ZERO + b"\x00\x00\x00\x02\x00\x00\x00\xffabcdefg",
            "decode error: truncated record",
        ),
        (b"\x01" + DEMO + ZERO + b"\xff\xff\xff\xff", "decode error: truncated record length"),
        (b"\x02\x00", "decode error: missing group_id length"),
        (b"\x02\x00\x02g", "decode error: truncated group_id"),
        (b"\x02\x00\x00", "decode error: missing topic length"),
        (b"\x02\x00\x00" + DEMO + ZERO + bytes(7), "decode error: missing offset"),
        (b"\x02\x00\x00" + DEMO + ZERO + bytes(11), "decode error: missing max_bytes"),
        (b"\x03\x00", "decode error: missing group length"),
        (b"\x03\x00\x01", "decode error: truncated group"),
        (b"\x03\x00\x01g" + DEMO + ZERO, "decode error: missing offset"),
        (b"\x04\x00\x01g" + DEMO, "decode error: missing partition"),
        (b"\x05" + DEMO, "decode error: missing partition count"),
        (b"\x07\x00", "decode error: missing topic length"),
        (b"\x08" + DEMO + b"\x00", "decode error: missing partition"),
        (
            b"\x07\x00\x02a\xff",
            "decode error: invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 1",
        ),
        (
            b"\x07\x00\x02a\xc3",
            "decode error: invalid utf8 topic: incomplete utf-8 byte sequence from index 1",
        ),
        (
            b"\x04\x00\x01\xff" + DEMO + ZERO,
            "decode error: invalid utf8 group: invalid utf-8 sequence of 1 bytes from index 0",
        ),
    ],
)
def test_what_is_wrong_is_said_as_the_reference_says_it(payload, text):
    assert refusal(payload) == f"Decode error: {text}"


def test_the_tag_alone_names_requests_without_fields():
    assert CODEC.decode_request(b"\x06") == rl.ListTopics()
    assert CODEC.decode_request(b"\x09\x00") == rl.MetricsFetch()
    assert CODEC.decode_request(b"\xff") == rl.Ping()


def test_a_fetch_without_a_group_has_none():
    """On the wire it is the empty name."""
    found = CODEC.decode_request(payload_of(CODEC.encode_request(rl.Fetch("demo", 0, 5, 9))))
    assert found == rl.Fetch("demo", 0, 5, 9, None)


def produce_payload(records: list[bytes], count: int | None = None) -> bytes:
    body = b"".join(len(one).to_bytes(4, "big") + one for one in records)
    count = len(records) if count is None else count
    return b"\x01" + DEMO + struct.pack(">II", 0, count) + body


@pytest.mark.parametrize("odd", [0, 1, 50, 98, 99])
def test_one_record_of_another_length_among_many_alike_is_found(odd):
    """Batches of one length take a shorter way, which must not be taken then."""
    records = [bytes([index]) * 20 for index in range(100)]
    records[odd] = b"another length altogether"
    request = CODEC.decode_request(produce_payload(records))
    assert list(request.records) == records


def test_a_length_field_that_only_looks_right_at_both_ends_is_not_believed():
    """The second record is 8 bytes shorter, the third 8 longer: all lengths are looked at."""
    records = [b"a" * 20, b"b" * 12, b"c" * 28, b"d" * 20]
    assert list(CODEC.decode_request(produce_payload(records)).records) == records


def test_as_many_records_as_the_page_says_are_read_and_no_more():
    assert len(CODEC.decode_request(produce_payload([b""] * rl.MAX_RECORDS)).records) == 65_536
    with pytest.raises(rl.TooManyRecords, match="65536"):
        CODEC.decode_request(produce_payload([b""] * 65_537))


@pytest.mark.parametrize("count", [0xFFFFFFFF, 1_000_000, 65_536])
def test_a_claimed_count_allocates_nothing(count):
    payload = produce_payload([b"x"] * 10, count)
    tracemalloc.start()
    try:
        with pytest.raises(rl.RequestError):
            CODEC.decode_request(payload)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "payload",
    [
        b"\x02\xff\xff\xff\xff" + bytes(20),
        b"\x06\xff\xff\xff\xff" + bytes(20),
        b"\x07" + DEMO + ZERO + b"\xff\xff\xff\xff" + bytes(20),
    ],
)
def test_a_count_claimed_by_an_answer_is_not_believed_either(payload):
    with pytest.raises(rl.AnswerError, match="4294967295"):
        CODEC.decode_answer(payload)


def test_a_message_too_long_for_its_length_is_cut_at_a_whole_character():
    answer = CODEC.decode_answer(payload_of(CODEC.encode_answer(rl.Failed(10, "é" * 40_000))))
    assert answer == rl.Failed(10, "é" * 32_767)


def test_records_that_fill_a_frame_fit_it():
    record = bytes(rl.MAX_RECORD_BYTES)
    data = CODEC.encode_answer(rl.Fetched(range(1), [record], 1))
    assert len(data) - 4 == rl.MAX_PAYLOAD
