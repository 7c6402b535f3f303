# Tests: tests/spark/test_sink_blocks.py
"""Blocks of records: one batch for the broker each, bounded in bytes and records. No pyspark.

A staged file is `MAGIC` and blocks. A block is its length and its CRC-32, 4 bytes each, little
endian, and a MessagePack array: the topic, and for each record an array of value, encoding,
metadata, key and partition.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import msgpack

from brokerd.codecs.mamamia import BatchMessage
from brokerd.errors import DamagedData
from brokerd.spark.sink.columns import Message

MAGIC = b"brokerd staged rows 1\n"
HELD_BATCHES = 8
"""Batches' worth of bytes that all topics of a task may hold together."""
BLOCK_BYTES_MAX = 32 << 20
"""More than any block has: a record fits a frame of 10 MiB."""

_HEADER = struct.Struct("<II")


class Block(NamedTuple):
    """The records of one batch."""

    topic: str
    messages: tuple[BatchMessage, ...]


class _Held(NamedTuple):
    messages: list[BatchMessage]
    size: int = 0


def blocks_of(messages: Iterable[Message], batch_bytes: int, batch_records: int) -> Iterator[Block]:
    """Pack messages into blocks of one topic each; in a topic they keep their order.

    :param batch_bytes: the most bytes of a block, unless it has a single larger record.
    :param batch_records: the most records of a block.
    """
    held: dict[str, _Held] = {}
    total = 0
    for topic, message, size in messages:
        before = held.get(topic)
        if before is not None and before.size + size > batch_bytes:
            yield Block(topic, tuple(held.pop(topic).messages))
            total -= before.size
            before = None
        messages_held, size_held = before or _Held([])
        messages_held.append(message)
        held[topic] = _Held(messages_held, size_held + size)
        total += size
        if len(messages_held) == batch_records:
            total -= held[topic].size
            yield Block(topic, tuple(held.pop(topic).messages))
        while total > HELD_BATCHES * batch_bytes:
            largest = max(held, key=lambda one: held[one].size)
            total -= held[largest].size
            yield Block(largest, tuple(held.pop(largest).messages))
    for topic, (messages_held, _) in held.items():
        yield Block(topic, tuple(messages_held))


def encode_block(block: Block) -> bytes:
    """Return the bytes of a block in a staged file."""
    body: bytes = msgpack.packb((block.topic, [message[:5] for message in block.messages]))
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


class Source(Protocol):
    """A staged file."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


def read_blocks(file: Source, path: str, skipped: int = 0) -> Iterator[Block]:
    """Yield the blocks of a staged file, one in memory at a time.

    :param path: its name, for errors.
    :param skipped: the number of first blocks to leave out.
    :raises DamagedData: the file is not as it was written.
    """
    if file.read(0, len(MAGIC)) != MAGIC:
        raise DamagedData(f"{path} does not begin as staged rows do")
    position = len(MAGIC)
    while position < file.size:
        header = file.read(position, _HEADER.size)
        if len(header) < _HEADER.size:
            raise _damaged(path, position)
        length, checksum = _HEADER.unpack(header)
        if length > BLOCK_BYTES_MAX:
            raise _damaged(path, position)
        if skipped:
            skipped -= 1
        else:
            body = file.read(position + _HEADER.size, length)
            if len(body) < length or zlib.crc32(body) != checksum:
                raise _damaged(path, position)
            topic, rows = msgpack.unpackb(body)
            yield Block(topic, tuple(BatchMessage(*row) for row in rows))
        position += _HEADER.size + length


def _damaged(path: str, position: int) -> DamagedData:
    return DamagedData(
        f"{path} is damaged at byte {position}: restore the file; without it the rows of the "
        "micro-batch cannot be sent"
    )
