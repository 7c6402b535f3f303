"""Blocks: bounded, in order within a topic, and read back as they were written."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.mamamia import BatchMessage
from brokerd.errors import DamagedData
from brokerd.spark.sink.blocks import (
    HELD_BATCHES,
    MAGIC,
    Block,
    blocks_of,
    encode_block,
    read_blocks,
)
from brokerd.spark.sink.columns import Message

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=60)


class Bytes:
    """A staged file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.size = len(content)

    def read(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]


@given(ROWS, st.integers(1, 5))
def test_blocks_have_every_message_once_and_are_bounded(
    rows: list[tuple[str, int]], records: int
) -> None:
    """In the order of its topic, and no topic waits while the others hold too much."""
    taken = 0
    left = 0

    def messages() -> list[Message]:
        return [
            Message(topic, BatchMessage(b"%d" % number, key=b"x" * size), size)
            for number, (topic, size) in enumerate(rows)
        ]

    def counted() -> object:
        nonlocal taken
        for message in messages():
            taken += message.size
            assert taken - left <= (HELD_BATCHES + 1) * 100
            yield message

    sizes = {one.message.value: one.size for one in messages()}
    found: dict[str, list[bytes]] = {}
    for topic, block in blocks_of(counted(), 100, records):  # type: ignore[arg-type]
        size = sum(sizes[one.value] for one in block)
        left += size
        assert 0 < len(block) <= records
        assert size <= 100
        found.setdefault(topic, []).extend(one.value for one in block)
    for topic in "abc":
        expected = [one.message.value for one in messages() if one.topic == topic]
        assert found.get(topic, []) == expected


def test_a_message_that_is_larger_than_a_batch_is_alone() -> None:
    messages = [Message("a", BatchMessage(b"%d" % size), size) for size in (5, 500, 5)]
    sizes = [[one.value for one in block.messages] for block in blocks_of(messages, 100, 10)]
    assert sizes == [[b"5"], [b"500"], [b"5"]]


def test_many_topics_together_hold_a_bounded_amount() -> None:
    """The largest goes when there is more: here the last one of 32, which take 816 bytes."""
    messages = [Message(f"t{n % 50}", BatchMessage(b""), 10 + n % 50) for n in range(1000)]
    blocks = list(blocks_of(messages, 100, 10_000))
    assert blocks[0].topic == "t31"
    assert Counter(block.topic for block in blocks).keys() == {f"t{n}" for n in range(50)}


BLOCKS = [
    Block(
        "one",
        (BatchMessage(b"a", 1, b"\x80", b"k", 3), BatchMessage(b"")),
    ),
    Block("two", (BatchMessage(b"\xff" * 300, 2),)),
]


def test_blocks_come_back_as_they_were() -> None:
    file = Bytes(MAGIC + b"".join(map(encode_block, BLOCKS)))
    assert list(read_blocks(file, "f")) == BLOCKS
    assert list(read_blocks(file, "f", 1)) == BLOCKS[1:]
    assert list(read_blocks(Bytes(MAGIC), "f")) == []


def test_each_damaged_byte_is_found() -> None:
    """A block with it is not returned."""
    content = MAGIC + b"".join(map(encode_block, BLOCKS))
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        with pytest.raises(DamagedData, match=r"^rows/f "):
            list(read_blocks(Bytes(bytes(damaged)), "rows/f"))
    with pytest.raises(DamagedData, match="damaged at byte"):
        list(read_blocks(Bytes(content[:-1]), "rows/f"))
