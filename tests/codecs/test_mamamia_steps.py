"""Large bodies: read in steps with the result of a walk at once, and each step is small."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.mamamia import BodyError, Decoder, RequestError, walk_steps
from tests.codecs.test_mamamia_batches import produce_bodies, settle_bodies
from tests.codecs.test_mamamia_requests import CLOSING, GOOD_BODIES, REFUSED, produce_of
from tests.strategies.mamamia import payloads

PIECES = (1, 3, 16_384)
"""Bytes of a piece: small ones end inside of objects and headers."""


def outcome(command: int, body: bytes, piece: int = 0) -> Any:
    """Return what a decoder makes of a body, in steps if ``piece`` is not 0."""
    try:
        if not piece:
            return Decoder().decode(command, body)
        with (
            patch.object(walk_steps, "PIECE_BYTES", piece),
            patch.object(walk_steps, "_LONG_ITEMS", piece),
        ):
            return walk_steps.finish(Decoder().decode_steps(command, body))
    except RequestError as error:
        return str(error)
    except BodyError:
        return BodyError


def packed(body: Any) -> bytes:
    return body if isinstance(body, bytes) else msgpack.packb(body)


@pytest.mark.parametrize("piece", PIECES)
def test_every_refused_body_is_refused_with_the_same_text(piece: int) -> None:
    for command, body, text in REFUSED:
        assert outcome(command, packed(body), piece) == text


@pytest.mark.parametrize("piece", PIECES)
def test_every_good_body_is_read_as_at_once(piece: int) -> None:
    for command, body in GOOD_BODIES:
        assert outcome(command, packed(body), piece) == outcome(command, packed(body))


@pytest.mark.parametrize("piece", PIECES)
def test_every_body_that_is_not_messagepack_closes_the_connection(piece: int) -> None:
    for body in CLOSING.values():
        for command in (1, 2, 3, 9, 0x82):
            assert outcome(command, body, piece) is BodyError


commands = st.sampled_from([1, 3, 0x82, 0x84])
pieces = st.sampled_from(PIECES)


@given(settle_bodies | produce_bodies | payloads, commands, pieces, st.data())
def test_any_body_is_read_as_at_once(
    body: Any, command: int, piece: int, data: st.DataObject
) -> None:
    whole = bytearray(msgpack.packb(body))
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert outcome(command, bytes(whole), piece) == outcome(command, bytes(whole))


@given(payloads, pieces, st.data())
def test_any_payload_is_read_as_at_once(payload: Any, piece: int, data: st.DataObject) -> None:
    whole = bytearray(msgpack.packb([payload, {"k": payload}]))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    body = produce_of(bytes(whole))
    assert outcome(1, body, piece) == outcome(1, body)


def count_steps(command: int, body: bytes) -> int:
    steps, count = Decoder().decode_steps(command, body), 0
    while True:
        try:
            next(steps)
        except StopIteration:
            return count
        count += 1


@pytest.mark.parametrize(
    "value",
    [
        b"\xdd\x00\x03\x00\x00" + b"\x80" * 196_608,
        b"\x91" * 100 + b"\xdd\x00\x03\x00\x00" + b"\xc0" * 196_608,
        b"\xdf\x00\x01\x80\x00" + b"\xa0\xc0" * 98_304,
        b"\xdd\x00\x01\x80\x00" + b"\x91\xc0" * 98_304,
    ],
    ids=["maps", "deep", "pairs", "arrays"],
)
def test_a_value_of_many_objects_takes_a_step_for_each_piece(value: bytes) -> None:
    """Two passes of its bytes: where it ends, and what is in it."""
    pieces = len(value) // walk_steps.PIECE_BYTES
    assert count_steps(1, produce_of(value)) >= 2 * pieces


def test_a_batch_takes_a_step_for_some_items() -> None:
    items = [{"message_id": n, "success": True} for n in range(10_000)]
    body = {"log_id": "l", "group_id": "g", "client_id": "c", "settles": items}
    assert count_steps(0x84, packed(body)) >= 2 * (10_000 // walk_steps.ITEMS)


def test_values_at_unknown_keys_are_not_kept() -> None:
    """A body may hold millions of them."""
    body = packed({"log_id": "l", "payload": b"x", **{str(n): n for n in range(10_000)}})
    assert set(walk_steps.finish(walk_steps.walk_steps(body))) == {"log_id", "payload"}


def test_only_a_body_that_may_take_long_is_read_in_steps() -> None:
    decoder = Decoder()
    large = packed({"log_id": "l", "payload": b"x" * 100_000, "metadata": None})
    assert decoder.takes_steps(1, large)
    decoder.decode(1, large)
    assert not decoder.takes_steps(1, large), "a long bin costs no more than its copy"
    nested = packed({"log_id": "l", "payload": [[]] * 100_000, "metadata": None})
    assert decoder.takes_steps(1, nested)
    padded = packed({"log_id": "l", "payload": b"x" * 20_000, "metadata": {"k": [[]] * 9_000}})
    assert decoder.takes_steps(1, padded)
    assert not decoder.takes_steps(1, packed({"log_id": "l", "payload": [[]] * 9_000}))
    release = {"log_id": "l", "group_id": "g", "client_id": "c", "message_ids": [1] * 3_000}
    assert decoder.takes_steps(0x86, packed(release))
