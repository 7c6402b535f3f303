"""gzip payloads: what is read, what is refused, and that neither takes memory without end."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from tests.strategies.flymq import requests

GZIP = 0x02
LIST_TOPICS = 0x08


def refusal(payload: bytes, flags: int = GZIP, **limits: int) -> str:
    with pytest.raises(fm.RequestError) as error:
        fm.decode_request(LIST_TOPICS, flags, payload, **limits)
    return str(error.value)


@given(requests)
def test_every_request_may_be_compressed(request):
    (one,) = fm.FrameReader().feed(fm.encode_request(request, gzip=True))
    assert one[1] & GZIP
    assert fm.decode_request(*one) == request


@pytest.mark.parametrize("size", [0, 1, 262_143, 262_144, 262_145, 1 << 20, 3_000_001])
@pytest.mark.parametrize("letters", [b"\0", bytes(range(256))], ids=["zeros", "all"])
def test_values_of_any_size_come_as_they_were(size, letters):
    """Also those whose last step is exactly full."""
    value = (letters * (size // len(letters) + 1))[:size]
    (one,) = fm.FrameReader().feed(fm.encode_request(fm.Produce("t", None, value), gzip=True))
    request = fm.decode_request(*one)
    assert isinstance(request, fm.Produce)
    assert request.value == value


@pytest.mark.parametrize("flags", [0x00, 0x01, 0x80, 0xF1, 0x10])
def test_flags_without_compression_are_ignored(flags):
    assert fm.decode_request(LIST_TOPICS, flags, b"") == fm.ListTopics()


@pytest.mark.parametrize("flags", [0x04, 0x06, 0x08, 0x0A, 0x0C, 0x0E, 0x05])
def test_other_compressions_are_refused_by_name(flags):
    text = refusal(b"x", flags)
    assert f"compression 0x{flags & 0x0E:02X} is not supported" in text
    assert "send gzip" in text


def test_gzip_of_nothing_at_all_is_refused():
    assert refusal(b"") == "the payload is not gzip: it is empty"


GOOD = gzip.compress(b"hello " * 100, mtime=0)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"hello", "the payload is not gzip"),
        (zlib.compress(b"hello"), "the payload is not gzip"),
        (GOOD[:-4] + b"\1\2\0\0", "the payload is not gzip"),
        (GOOD[:-9] + bytes([GOOD[-9] ^ 1]) + GOOD[-8:], "the payload is not gzip"),
        (b"\x1f\x8b\x08\x00\x00", "it is cut short"),
        (GOOD[:-1], "it is cut short"),
        (GOOD + b"\0\0\0\0", "one gzip member and nothing else: 4 bytes follow it"),
        (GOOD + GOOD, f"one gzip member and nothing else: {len(GOOD)} bytes follow it"),
        (gzip.compress(bytes(40_000)) + bytes(40_000), "nothing else: 40000 bytes follow it"),
    ],
)
def test_what_is_not_one_whole_gzip_member_is_refused(payload, text):
    assert text in refusal(payload)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_decode_or_refuse(payload):
    for data in (payload, GOOD[:10] + payload):
        try:
            fm.decode_request(LIST_TOPICS, GZIP, data)
        except fm.RequestError as error:
            assert str(error).startswith("the payload")


def test_the_limit_itself_is_legal_and_one_byte_more_is_not():
    assert fm.decode_request(LIST_TOPICS, GZIP, gzip.compress(bytes(100)), 100) == fm.ListTopics()
    packed = gzip.compress(bytes(101))
    text = refusal(packed, max_length=100)
    assert text == (
        "the payload says in its last 4 bytes that it has 101 bytes when it is decompressed; "
        "it may have 100"
    )
    text = refusal(packed[:-8] + bytes(8), max_length=100)
    assert text.startswith("the payload")


def bomb(megabytes: int) -> bytes:
    """A member that is shorter than its trailer says."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return packed.getvalue()[:-4] + (5).to_bytes(4, "little")


def test_a_bomb_stops_at_the_limit():
    """200 MB in 200 KB, whose trailer lies: no more is held than the limit and a step."""
    payload = bomb(200)
    limit = 4 << 20
    tracemalloc.start()
    try:
        assert "more than" in refusal(payload, max_length=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * limit


def test_an_honest_bomb_is_not_begun():
    payload = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        assert "4 bytes that it has 67108864 bytes" in refusal(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
