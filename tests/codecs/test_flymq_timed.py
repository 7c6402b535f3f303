"""FlyMQ's delayed records and those with a time to live, on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import i32, i64, texts, timed_requests, u64

DELAYED = fm.ProduceDelayed("topic", b"value", 5_000)
WITH_TTL = fm.ProduceWithTtl("topic", b"value", 5_000)


def payload(request: fm.Request) -> bytes:
    return fm.encode_request(request)[8:]


@given(timed_requests)
def test_a_request_comes_as_it_was_sent(request_):
    assert fm.decode_request(fm.opcode_of(request_), 1, payload(request_)) == request_


@given(st.sampled_from([DELAYED, WITH_TTL]), texts, i32, u64, i64)
def test_an_answer_tells_where_the_record_is(request_, topic, partition, offset, time_ms):
    numbers = (topic, partition, offset, time_ms, -1, 2)
    answer = fm.produced(*numbers, fm.opcode_of(request_))
    assert read(request_, answer) == fm.Produced(*numbers)


@pytest.mark.parametrize(
    "request_",
    [DELAYED, WITH_TTL],
)
def test_a_request_that_is_cut_is_refused_and_more_bytes_are_ignored(request_):
    opcode, sent = fm.opcode_of(request_), payload(request_)
    for end in range(len(sent)):
        with pytest.raises(fm.RequestError, match="buffer too small"):
            fm.decode_request(opcode, 1, sent[:end])
    assert fm.decode_request(opcode, 1, sent + b"more") == request_


@pytest.mark.parametrize(
    ("sent", "request_"),
    [
        ("0001 37", fm.CancelDelayed("7")),
        ("0001 74 0000000000000007", fm.CancelDelayed(7, "t")),
        ("0001 74 0001 37", fm.CancelDelayed("7", "t")),
        ("0001 74 0006 303030303037", fm.CancelDelayed("000007", "t")),
        ("0001 74 0006 000000000007", fm.CancelDelayed(0x0006000000000007, "t")),
        ("0001 74 0006 747874747874", fm.CancelDelayed(0x0006747874747874, "t")),
        ("0001 74 0005 303030303037", fm.CancelDelayed(0x0005303030303037, "t")),
        ("0001 74 0000", fm.CancelDelayed("", "t")),
        ("0000", fm.CancelDelayed("")),
    ],
)
def test_the_three_forms_of_cancel_are_told_apart(sent, request_):
    assert fm.decode_request(Opcode.CANCEL_DELAYED, 1, bytes.fromhex(sent)) == request_


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("", "buffer too small: topic or number needs 2 bytes"),
        ("0005 37", "buffer too small: topic or number says 5 bytes"),
        ("0001 ff", "topic or number is not UTF-8"),
        ("0001 74 00", "1 bytes follow the topic"),
        ("0001 74 00000000000000", "7 bytes follow the topic"),
        ("0001 74 000000000000000700", "9 bytes follow the topic"),
        ("0001 74 0002 37", "3 bytes follow the topic"),
        ("0001 74 0001 ff", "number is not UTF-8"),
    ],
)
def test_a_cancel_of_other_fields_is_refused(sent, text):
    with pytest.raises(fm.RequestError, match=text):
        fm.decode_request(Opcode.CANCEL_DELAYED, 1, bytes.fromhex(sent))


def test_a_number_without_a_topic_cannot_be_sent():
    with pytest.raises(ValueError, match="goes with its topic"):
        fm.encode_request(fm.CancelDelayed(7))


@given(st.binary(max_size=60))
def test_whatever_comes_is_read_or_refused(sent):
    for opcode in (Opcode.PRODUCE_DELAYED, Opcode.CANCEL_DELAYED, Opcode.PRODUCE_WITH_TTL):
        try:
            request = fm.decode_request(opcode, 1, sent)
        except fm.RequestError:
            continue
        assert fm.opcode_of(request) == opcode
