"""What a reader of length-prefixed frames observes, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.length_prefixed import LengthPrefixedReader, length_prefixed
from tests.strategies.chunks import CUTS, chunkings

MIN, MAX = 2, 500
LISTS = st.lists(st.binary(min_size=MIN, max_size=MAX), max_size=8)


@given(LISTS, CUTS)
def test_any_chunking_yields_the_same_frames(sent, cuts):
    for pieces in chunkings(b"".join(map(length_prefixed, sent)), cuts):
        reader = LengthPrefixedReader(MIN, MAX)
        assert [frame for piece in pieces for frame in reader.feed(piece)] == sent
        assert reader.error is None
        assert reader.partial_bytes == 0


@given(LISTS, st.integers(0, MIN - 1) | st.integers(MAX + 1, (1 << 32) - 1), st.binary(), CUTS)
def test_frames_before_a_wrong_length_are_returned_and_none_after(sent, length, tail, cuts):
    data = b"".join(map(length_prefixed, sent)) + length.to_bytes(4, "big") + tail
    for pieces in chunkings(data, cuts):
        reader = LengthPrefixedReader(MIN, MAX)
        assert [frame for piece in pieces for frame in reader.feed(piece)] == sent
        assert str(length) in str(reader.error)
        assert reader.partial_bytes == 0
        assert reader.feed(length_prefixed(b"xx")) == []


def test_a_wrong_length_is_known_from_its_four_bytes():
    reader = LengthPrefixedReader(MIN, MAX)
    assert reader.feed((MAX + 1).to_bytes(4, "big")) == []
    assert reader.error is not None


def test_an_empty_frame_may_be_legal():
    reader = LengthPrefixedReader(0, MAX)
    assert [*reader.feed(bytes(6)), *reader.feed(bytes(2))] == [b"", b""]
    assert reader.partial_bytes == 0


@pytest.mark.pure_only("reads a private field")
def test_a_claimed_length_takes_no_memory():
    """Only what has come is held."""
    reader = LengthPrefixedReader(MIN, 1 << 31)
    reader.feed((1 << 31).to_bytes(4, "big") + b"x" * 1_000)
    assert reader.partial_bytes == 1_004
    assert reader.__getstate__()[1]["_partial"].__sizeof__() < 4_000


def test_only_the_unfinished_frame_is_held():
    reader = LengthPrefixedReader(MIN, MAX)
    whole = length_prefixed(b"x" * MAX)
    assert len(reader.feed(whole * 50 + whole[:7])) == 50
    assert reader.partial_bytes == 7
