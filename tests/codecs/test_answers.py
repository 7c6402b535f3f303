"""Answers are those of the requests in order, and a stream that is out of step is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.answers import AnswerReader, NotAnAnswer
from brokerd.codecs.length_prefixed import LengthPrefixedReader, length_prefixed


def echo(request: bytes, frame: bytes) -> bytes:
    """An answer repeats its request."""
    if request != frame:
        raise NotAnAnswer(f"{frame!r} was answered to {request!r}")
    return frame


def reader_of(*requests: bytes) -> AnswerReader[bytes, bytes, bytes]:
    reader = AnswerReader(LengthPrefixedReader(1, 100), echo)
    for request in requests:
        reader.expect(request)
    return reader


@given(st.lists(st.binary(min_size=1, max_size=9)), st.integers(1, 20))
def test_any_pieces_give_the_same_answers(requests: list[bytes], size: int) -> None:
    data = b"".join(map(length_prefixed, requests))
    reader = reader_of(*requests)
    answers = [
        answer
        for start in range(0, len(data), size)
        for answer in reader.feed(data[start : start + size])
    ]
    assert answers == requests
    assert (reader.error, reader.partial_bytes) == (None, 0)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (length_prefixed(b"x"), "b'x' was answered to b'b'"),
        (length_prefixed(b"b") * 2, "an answer without a request"),
        (b"\0\0\0\0", "length is 0"),
    ],
)
def test_the_answers_before_a_wrong_one_are_given_and_none_behind_it(
    wrong: bytes, text: str
) -> None:
    reader = reader_of(b"a", b"b")
    answers = reader.feed(length_prefixed(b"a") + wrong)
    assert answers[0] == b"a" and b"x" not in answers
    assert text in str(reader.error)
    reader.expect(b"c")
    assert reader.feed(length_prefixed(b"c")) == []


def test_a_part_of_an_answer_is_counted() -> None:
    reader = reader_of(b"abc")
    assert reader.feed(length_prefixed(b"abc")[:-1]) == []
    assert reader.partial_bytes == 6
