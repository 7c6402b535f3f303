"""FlyMQ's transactions on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import i64, texts, transaction_requests

TOLD = [fm.BeginTransaction(), fm.CommitTransaction("txn"), fm.RollBackTransaction("txn")]
PRODUCE = fm.ProduceInTransaction("txn", "topic", b"value")


def payload(request: fm.Request) -> bytes:
    return fm.encode_request(request)[8:]


@given(transaction_requests)
def test_a_request_comes_as_it_was_sent(request_):
    assert fm.decode_request(fm.opcode_of(request_), 1, payload(request_)) == request_


@given(st.sampled_from(TOLD), texts, st.booleans())
def test_what_became_of_it_is_told(request_, name, success):
    answer = fm.transaction_answer(fm.opcode_of(request_), name, success)
    assert read(request_, answer) == fm.TransactionAnswer(name, success)


@given(texts, i64)
def test_a_record_in_it_is_answered_as_one_produced(topic, time_ms):
    answer = fm.produced(topic, 0, 0, time_ms, -1, 5, Opcode.TXN_PRODUCE)
    assert answer[2] == 0x43
    assert read(PRODUCE, answer) == fm.Produced(topic, 0, 0, time_ms, -1, 5)


@pytest.mark.parametrize("request_", [*TOLD[1:], PRODUCE])
def test_a_request_that_is_cut_is_refused_and_more_bytes_are_ignored(request_):
    opcode, sent = fm.opcode_of(request_), payload(request_)
    for end in range(len(sent)):
        with pytest.raises(fm.RequestError, match="buffer too small"):
            fm.decode_request(opcode, 1, sent[:end])
    assert fm.decode_request(opcode, 1, sent + b"more") == request_


def test_begin_asks_for_nothing_and_ignores_what_comes():
    assert fm.decode_request(Opcode.TXN_BEGIN, 1, b"more") == fm.BeginTransaction()


@pytest.mark.parametrize("request_", TOLD)
def test_an_answer_that_is_cut_or_too_long_is_not_believed(request_):
    answer = fm.transaction_answer(fm.opcode_of(request_), "txn")
    opcode, sent = answer[2], answer[8:]
    for end in range(len(sent)):
        with pytest.raises(fm.AnswerError, match="cannot be read"):
            fm.decode_answer(request_, opcode, sent[:end])
    with pytest.raises(fm.AnswerError, match="1 bytes left over"):
        fm.decode_answer(request_, opcode, sent + b"\0")


@pytest.mark.parametrize("opcode", [Opcode.TXN_COMMIT, Opcode.TXN_ROLLBACK, Opcode.TXN_PRODUCE])
def test_text_that_is_not_utf_8_is_refused(opcode):
    with pytest.raises(fm.RequestError, match="transaction is not UTF-8"):
        fm.decode_request(opcode, 1, b"\x00\x01\xff\x00\x00\x00\x00\x00\x00")
