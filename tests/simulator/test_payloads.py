"""A payload through a format that knows bytes alone."""

from __future__ import annotations

import msgpack
import pytest

from simulator.payloads import payload_of, value_of

SIZES = (0, 1, 31, 32, 255, 256, 65_535, 65_536)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_of_any_length_are_seen_as_they_are(size: int) -> None:
    value = b"\xc4" * size
    assert value_of(msgpack.packb(value)) == value


@pytest.mark.parametrize("size", SIZES)
def test_text_of_any_length_is_seen_as_utf_8(size: int) -> None:
    text = "Ω" * (size // 2) + "o" * (size % 2)
    assert value_of(msgpack.packb(text)) == text.encode()


@pytest.mark.parametrize("thing", [None, True, 7, -1, 1 << 40, 1.5, [b"a"], {}, {"a": 1}])
def test_anything_else_is_seen_as_the_messagepack_that_it_is(thing: object) -> None:
    packed = msgpack.packb(thing)
    assert value_of(packed) == packed


def test_an_extension_type_is_seen_whole() -> None:
    packed = msgpack.packb(msgpack.ExtType(42, b"x" * 300))
    assert value_of(packed) == packed


@pytest.mark.parametrize("size", SIZES)
def test_a_value_of_bytes_is_a_payload_of_bytes(size: int) -> None:
    assert payload_of(b"x" * size) == msgpack.packb(b"x" * size)


def test_a_value_that_no_payload_can_be_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(ValueError, match="more than a bin"):
        payload_of(Huge())
