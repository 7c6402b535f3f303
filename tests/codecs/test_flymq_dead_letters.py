"""FlyMQ's dead letters on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import dead_letters, texts, u64

BY_ID = fm.ReplayDlq("t", "m-1")
BY_OFFSET = fm.ReplayDlq("t", 5)


@given(st.lists(dead_letters, max_size=3).map(tuple))
def test_dead_letters_come_as_they_are(found):
    assert read(fm.FetchDlq("t"), fm.fetched_dlq(found)) == fm.DeadLetters(found)


@given(texts | u64)
def test_a_replay_is_answered_in_the_layout_of_its_request(message):
    request = fm.ReplayDlq("t", message)
    assert read(request, fm.replayed(request)) == fm.Done()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ("0000000000000005", 5),
        ("0005000000000000", 5 << 48),
        ("0006 6d2d31323334", "m-1234"),
        ("0007 6d2d3132333435", "m-12345"),
        ("0000", ""),
        ("0001 37", "7"),
        ("000000000000000500", ""),
    ],
)
def test_eight_bytes_are_an_offset_unless_they_are_an_id_of_six(sent, message):
    decoded = fm.decode_request(Opcode.REPLAY_DLQ, 1, b"\0\1t" + bytes.fromhex(sent))
    assert decoded == fm.ReplayDlq("t", message)


@pytest.mark.parametrize(
    ("request_", "payload"),
    [
        (BY_ID, b"\0\0\x14message not found..."[:3] + b"x" * 0x14),
        (BY_OFFSET, b"\0\0\0\0\4gone"),
    ],
)
def test_a_success_of_00_is_not_taken_for_one(request_, payload):
    """As the reference server answers in place of an error."""
    with pytest.raises(fm.AnswerError, match="success is 0, with the message"):
        fm.decode_answer(request_, Opcode.REPLAY_DLQ, payload)


def test_a_count_past_the_answer_is_not_believed():
    with pytest.raises(fm.AnswerError, match="dead letters says 4294967295 items"):
        fm.decode_answer(fm.FetchDlq("t"), Opcode.FETCH_DLQ, b"\xff" * 4)
