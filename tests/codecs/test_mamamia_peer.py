"""A client's bytes are read by a server as they were meant, and the other way round."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import mamamia as mm
from tests.strategies import mamamia as some


@given(st.lists(some.requests, max_size=6), st.integers(1, 3))
def test_every_request_is_read_as_it_was_written(requests, times):
    """Also when a connection repeats itself, so that shortcuts are taken."""
    decoder, reader = mm.Decoder(), mm.FrameReader()
    requests = [request for request in requests for _ in range(times)]
    frames = reader.feed(b"".join(mm.encode_request(request) for request in requests))
    assert [decoder.decode(*one) for one in frames] == requests


def answer_of(frame: bytes) -> mm.Answer:
    (one,) = mm.FrameReader().feed(frame)
    return mm.decode_response(*one)


@given(some.message_ids, some.names, some.payloads, some.metadata_maps)
def test_a_message_arrives_as_it_was_produced(message_id, log_id, payload, metadata):
    value, encoding = mm.pack_payload(payload)
    answer = answer_of(mm.acquired(message_id, log_id, value, encoding, metadata))
    assert isinstance(answer, mm.Acquired)
    assert answer.message is not None
    assert answer.message[:2] == (message_id, log_id)
    # Compared as bytes: NaN is not equal to itself.
    assert msgpack.packb(answer.message.payload) == msgpack.packb(payload)
    arrived = answer.message.metadata
    assert (None if arrived is None else msgpack.packb(arrived)) == metadata


@given(st.lists(some.message_ids, min_size=1))
def test_ids_of_a_batch_arrive_in_order(ids):
    assert answer_of(mm.produced_batch(ids)) == mm.ProducedBatch(tuple(ids))
    assert answer_of(mm.produced(ids[0])) == mm.Produced(ids[0])


@given(st.integers(0, 255), st.text(st.characters(exclude_categories=["Cs"])))
def test_an_error_text_arrives_for_any_command(command, text):
    assert answer_of(mm.error(command, text)) == mm.Failed(text)


@pytest.mark.parametrize(
    ("command", "body"),
    [
        (1, b""),
        (1, b"\xc1"),
        (1, b"\x01"),
        (1, b"\x80"),
        (1, b"\x81\xaamessage_id\xc0"),
        (2, b"\x81\xa7message\x01"),
        (2, b"\x81\xa7message\x81\xa2id\x01"),
        (3, b"\x81\xa6status\xa2no"),
        (9, b"\x80"),
        (0x82, b"\x81\xabmessage_ids\x01"),
        (0x83, b"\x81\xa8messages\x91\x01"),
        (0x85, b"\x80"),
    ],
)
def test_an_answer_of_a_wrong_shape_is_named_as_such(command, body):
    with pytest.raises(mm.BodyError):
        mm.decode_response(command, body)


@given(st.sampled_from(list(mm.Command)), st.binary(max_size=60) | some.payloads.map(msgpack.packb))
def test_no_answer_raises_anything_unnamed(command, body):
    with contextlib.suppress(mm.BodyError):
        mm.decode_response(command, body)


@given(st.integers(0, 32_766), st.integers(0, (1 << 48) - 1))
def test_message_ids_are_split_as_they_were_made(partition, offset):
    assert mm.split_message_id(mm.message_id_of(partition, offset)) == (partition, offset)
    assert mm.message_id_of(0, offset) == offset


@pytest.mark.parametrize(("count", "header"), [(15, b"\x9f"), (16, b"\xdc\x00\x10")])
def test_arrays_have_the_shortest_header_as_msgpack_writes_them(count, header):
    batch = mm.ProduceBatch("orders", (mm.BatchMessage(b"x"),) * count)
    assert b"\xa8messages" + header + b"\x82\xa7payload" in mm.encode_request(batch)
