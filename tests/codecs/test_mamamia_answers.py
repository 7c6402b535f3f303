"""Answers are as long as the broker was told they would be, and fit their frame."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.values import MAX_MESSAGE_ID
from tests.strategies import mamamia as some

SIZES = st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536]) | st.integers(0, 70_000)


def length_of(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big")


@given(some.message_ids)
def test_ids_are_written_in_their_shortest_form(message_id):
    assert mm.produced(message_id)[6:] == msgpack.packb({"message_id": message_id})


@given(some.message_ids, some.names, some.values(), some.metadata_maps)
def test_the_announced_length_is_that_of_the_largest_id(message_id, log_id, value, metadata):
    announced = mm.answer_length(log_id, *value, metadata)
    assert length_of(mm.acquired(MAX_MESSAGE_ID, log_id, *value, metadata)) == announced
    assert length_of(mm.acquired(message_id, log_id, *value, metadata)) <= announced


@given(SIZES, st.sampled_from([0, 1]))
def test_the_announced_length_counts_every_header(size, encoding):
    value = b"x" * size
    frame = mm.acquired(MAX_MESSAGE_ID, "log", value, encoding, None)
    assert length_of(frame) == mm.answer_length("log", value, encoding, None)
    payload = value if encoding == 0 else value.decode()
    for name in ("", "n" * 31, "n" * 32, "é" * 16, "n" * 255):
        named = mm.acquired(MAX_MESSAGE_ID, name, value, encoding, None)
        assert length_of(named) == mm.answer_length(name, value, encoding, None)
    assert frame[6:] == msgpack.packb(
        {
            "message": {
                "id": MAX_MESSAGE_ID,
                "log_id": "log",
                "payload": payload,
                "metadata": None,
            }
        }
    )


@given(
    some.message_ids,
    some.values(),
    some.metadata_maps,
    st.none() | st.binary(max_size=300),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 32)),
    st.floats(0, 1e9),
)
def test_no_batch_item_is_longer_than_announced(mid, value, metadata, key, token, grants, left):
    item = mm.batch_item(mid, *value, metadata, key, token, grants, left)
    assert len(item) <= mm.batch_item_length(*value, metadata, key)
    read = msgpack.unpackb(item)
    assert list(read) == ["id", "payload", "metadata", "key", "token", "grants", "remaining"]
    assert (read["id"], read["key"], read["token"], read["grants"], read["remaining"]) == (
        mid,
        key,
        token,
        grants,
        left,
    )


@given(
    st.lists(
        st.tuples(
            some.message_ids,
            st.binary(max_size=300) | st.integers(0, 70_000).map(bytes),
            st.none() | st.binary(max_size=300),
            st.integers(0, (1 << 64) - 1),
            st.integers(0, 1 << 32),
            st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_items_of_bytes_are_written_in_one_call_as_one_by_one(rows):
    """And none is longer than the sum of its value, its key and the bound of the rest."""
    items = [
        mm.batch_item(mid, value, 0, None, key, token, grants, left)
        for mid, value, key, token, grants, left in rows
    ]
    assert mm.acquired_bytes(*zip(*rows, strict=True)) == mm.acquired_batch(items)
    for item, row in zip(items, rows, strict=True):
        assert len(item) <= len(row[1]) + len(row[2] or b"") + mm.ITEM_BYTES_MAX


_EDGES = [0, 0x7D, 0x80, 0xFD, 0x100, 0xFFFD, 0x10000, (1 << 32) - 3, 1 << 32]


@given(
    count=st.sampled_from([1, 7, 8, 20]),
    mid=st.sampled_from(_EDGES),
    token=st.sampled_from(_EDGES),
    sizes=st.lists(st.integers(0, 260), min_size=1, max_size=9)
    | st.lists(st.integers(0xFFFE, 0x10001), min_size=1, max_size=2),
    grants=st.integers(0, 300),
    left=st.floats(0, 1e9),
    odd=st.sampled_from(["", "", "key", "grants", "left"]),
)
def test_items_that_are_alike_are_written_as_one_by_one(
    count, mid, token, sizes, grants, left, odd
):
    """Ids, tokens and sizes may pass the limit of a shorter form within the batch."""
    rows = [
        [mid + at, bytes(sizes[at % len(sizes)]), None, token + at, grants, left]
        for at in range(count)
    ]
    if odd:
        column, other = {"key": (2, b"k"), "grants": (4, grants + 1), "left": (5, left + 1)}[odd]
        rows[-1][column] = other
    items = [mm.batch_item(*row[:2], 0, None, *row[2:]) for row in rows]
    assert mm.acquired_bytes(*zip(*rows, strict=True)) == mm.acquired_batch(items)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 10_000])
def test_a_batch_holds_its_items(count):
    item = mm.batch_item(0, b"x", 0, None, None, 1, 1, 1.0)
    frame = mm.acquired_batch([item] * count)
    assert len(msgpack.unpackb(frame[6:])["messages"]) == count


def largest_value(log_id: str) -> bytes:
    """The largest bytes a PRODUCE to this log may carry."""
    return bytes(mm.MAX_LENGTH - mm.answer_length(log_id, b"", 0, None) - 3)


def test_what_fits_an_acquire_fits_a_batch_alone():
    """The largest message comes without token and the like, in a frame within the limit."""
    value = largest_value("")
    assert mm.answer_length("", value, 0, None) == mm.MAX_LENGTH
    item = mm.batch_item(MAX_MESSAGE_ID, value, 0, None, b"key", 1 << 62, 9, 30.0)
    assert len(item) == mm.batch_item_length(value, 0, None, b"key") <= mm.BATCH_ROOM
    frame = mm.acquired_batch([item])
    assert length_of(frame) <= mm.MAX_LENGTH
    (one,) = mm.FrameReader().feed(frame)
    answer = mm.decode_response(*one)
    assert isinstance(answer, mm.AcquiredBatch)
    assert answer.messages == (
        mm.LeasedMessage(MAX_MESSAGE_ID, value, None, None, None, None, None),
    )


def test_a_batch_gathered_to_its_room_fits_its_frame():
    items, room = [], mm.BATCH_ROOM
    value = bytes(1_100)
    while (length := mm.batch_item_length(value, 0, None, b"k")) <= room:
        items.append(mm.batch_item(MAX_MESSAGE_ID, value, 0, None, b"k", 1 << 63, 1 << 33, 1.0))
        room -= length
    assert mm.MAX_LENGTH - 1_300 < length_of(mm.acquired_batch(items)) <= mm.MAX_LENGTH
