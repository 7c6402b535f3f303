# Tests: tests/codecs/test_flymq_answers.py
"""Encodes answers as complete frames (page, sections Operations and Refusals)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct

from brokerd.codecs.flymq.fields import pack_text, pack_texts
from brokerd.codecs.flymq.frames import frame, header
from brokerd.codecs.flymq.values import Fetch, Opcode, PartitionOffsets, PartitionPlace
from brokerd.errors import escaped
from brokerd.values import Columns, PackedBytes, Record, columns_of, runs_of

FETCHED_BYTES = 12
"""Size of an answer to FETCH without records."""
RECORD_BYTES = 16
"""Size of a record in an answer to FETCH without its key and value."""
LARGE_BYTES = 64 * 1024
"""A value of this size or more is a part of its own in `fetched_parts`."""
RUN_RECORDS_MAX = 1024
"""The most records that one layout packs. The layout takes about 100 bytes a record."""
ERROR_BYTES_MAX = 8_000
"""Longest text of an ERROR frame; clients misread 8,224 bytes and more (page, Refusals)."""
SPACES = "   "
"""Padding with which SDKs show the text of the document's layout in full."""
_NOT_LEADER = re.compile("not leader", re.IGNORECASE)

_U32 = Struct(">I")
_U64 = Struct(">Q")
_I32 = Struct(">i")
_STORED = Struct(">iQqii")
_COUNT_NEXT = Struct(">IQ")
_OFFSET_LENGTH = Struct(">QI")
_OFFSET_LENGTHS = Struct(">QII")
_LENGTHS = Struct(">II")
_PARTITION_OFFSETS = Struct(">iiQQ")
_LAG = Struct(">4Q")


def produced(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    key_size: int,
    value_size: int,
    opcode: int = Opcode.PRODUCE,
) -> bytes:
    """The answer to PRODUCE or a variant. A `key_size` of -1 means a record without a key."""
    return _produced_head(topic, opcode) + _STORED.pack(
        partition, offset, timestamp_ms, key_size, value_size
    )


def produced_run(
    topic: str, first_offset: int, timestamp_ms: int, value_sizes: Sequence[int]
) -> bytes:
    """Return the answers to PRODUCEs of consecutive records without keys, in partition 0."""
    head, pack = _produced_head(topic, Opcode.PRODUCE), _STORED.pack
    count = len(value_sizes)
    if count == value_sizes.count(value_sizes[0]):  # only the offsets differ
        whole = head + pack(0, 0, timestamp_ms, -1, value_sizes[0])
        offset_at = len(head) + _I32.size
        before, after = whole[:offset_at], whole[offset_at + _U64.size :]
        offsets = map(_U64.pack, range(first_offset, first_offset + count))
        return before + (after + before).join(offsets) + after
    return b"".join(
        [
            head + pack(0, offset, timestamp_ms, -1, size)
            for offset, size in enumerate(value_sizes, first_offset)
        ]
    )


@lru_cache(maxsize=1024)
def _produced_head(topic: str, opcode: int) -> bytes:
    """Return the common beginning of all answers to PRODUCE, or a variant, of a topic."""
    name = pack_text(topic)
    return header(opcode, len(name) + _STORED.size) + name


def consumed_parts(
    key: bytes | None, value: bytes, opcode: int = Opcode.CONSUME
) -> tuple[bytes, bytes]:
    """The answer to CONSUME or CONSUME_ZERO_COPY; the value is a part of its own, not copied."""
    key = key or b""
    length = _LENGTHS.size + len(key) + len(value)
    sizes = (header(opcode, length), _U32.pack(len(key)), key, _U32.pack(len(value)))
    return b"".join(sizes), value


def fetched_size(record: Record) -> int:
    """Return the size of a record in an answer to FETCH."""
    return RECORD_BYTES + len(record.value) + (len(record.key) if record.key else 0)


def fetched_parts(request: Fetch, records: Sequence[Record], next_offset: int) -> tuple[bytes, ...]:
    """The answer to FETCH or FETCH_BINARY, in the layout of the request.

    Values of `LARGE_BYTES` or more are parts of their own, not copied.
    """
    if request.answer_is_sdk:
        return _in_parts(request.opcode, _sdk_parts(runs_of(records), len(records), next_offset))
    return _in_parts(request.opcode, _seed_parts(columns_of(records), next_offset))


def _seed_parts(records: Columns, next_offset: int) -> list[bytes]:
    offsets, keys, values, _ = records
    first, last = _U32.pack(len(values)), _U64.pack(next_offset)
    if keys is None and values:
        lengths = list(map(len, values))
        parts = [b""] * (2 * len(values) + 2)
        parts[1] = first + _LENGTHS.pack(0, lengths[0])
        parts[2::2] = values
        parts[3:-1:2] = list(map(_OFFSET_LENGTHS.pack, offsets, repeat(0), lengths[1:]))
        parts[-1] = _U64.pack(offsets[-1]) + last
        return parts
    parts = [b"", first]
    for offset, key, value in zip(offsets, keys or (), values, strict=True):
        key = key or b""
        parts += _U32.pack(len(key)), key, _U32.pack(len(value)), value, _U64.pack(offset)
    parts.append(last)
    return parts


def _sdk_parts(runs: Sequence[Columns], count: int, next_offset: int) -> list[bytes]:
    return [b"", _COUNT_NEXT.pack(count, next_offset), *chain.from_iterable(map(_sdk_run, runs))]


def _sdk_run(records: Columns) -> Sequence[bytes]:
    offsets, keys, values, size = records
    if keys is None:
        if isinstance(values, PackedBytes):
            # The key length 0 is the upper half of the value's 64-bit length.
            return (values.packed_after(offsets),)
        count = len(values)
        if size is None:
            size = _common_size(values)
        if size is not None and 0 < count <= RUN_RECORDS_MAX and size < LARGE_BYTES // count:
            return (_packed_run(offsets, size, values),)
        lengths = map(len, values)
        parts = [b""] * (2 * count)
        parts[::2] = map(_OFFSET_LENGTHS.pack, offsets, repeat(0), lengths)
        parts[1::2] = values
        return parts
    parts = []
    for offset, key, value in zip(offsets, keys, values, strict=True):
        key = key or b""
        parts += _OFFSET_LENGTH.pack(offset, len(key)), key, _U32.pack(len(value)), value
    return parts


def _common_size(values: Sequence[bytes]) -> int | None:
    """Return the size of each value if all have the same."""
    sizes = list(map(len, values))
    return sizes[0] if sizes and sizes.count(sizes[0]) == len(sizes) else None


def _packed_run(offsets: Sequence[int], size: int, values: Sequence[bytes]) -> bytes:
    """Return records without keys whose values have the same size, packed by one layout.

    It takes a third of the time of a header for each.
    """
    fields: list[int | bytes] = [_LENGTHS.pack(0, size)] * (3 * len(values))
    fields[::3] = offsets
    fields[2::3] = values
    return _run_layout(len(values), size).pack(*fields)


@lru_cache(maxsize=16)
def _run_layout(count: int, size: int) -> Struct:
    """Return the layout of a run: offset, the two lengths, and value of each record."""
    return Struct(">" + f"Q8s{size}s" * count)


def ok(opcode: int, message: str = "") -> bytes:
    """The answer OKMSG of CREATE_TOPIC and others; some name the user or topic."""
    return frame(opcode, b"\x01" + pack_text(message))


def position(opcode: int, offset: int) -> bytes:
    """The answer to SUBSCRIBE or GET_OFFSET."""
    return frame(opcode, _U64.pack(offset))


def topics(names: Sequence[str]) -> bytes:
    """The answer to LIST_TOPICS, in the order given."""
    return frame(Opcode.LIST_TOPICS, pack_texts(names))


def some_topics(names: Sequence[str]) -> bytes:
    """A part of the answer to LIST_TOPICS, for `all_topics`."""
    return b"".join(map(pack_text, names))


def all_topics(count: int, parts: Sequence[bytes]) -> bytes:
    """The answer to LIST_TOPICS of these parts, which have ``count`` names together."""
    return frame(Opcode.LIST_TOPICS, b"".join((_U32.pack(count), *parts)))


def topic_metadata(topic: str, partitions: Sequence[PartitionOffsets]) -> bytes:
    """The answer to METADATA, in the layout of the Go client's codec (page, METADATA)."""
    parts = [pack_text(topic), _U32.pack(len(partitions))]
    parts += [_PARTITION_OFFSETS.pack(*one) for one in partitions]
    return frame(Opcode.METADATA, b"".join(parts))


def cluster_metadata(
    cluster_id: str, topics: Iterable[tuple[str, Sequence[PartitionPlace]]]
) -> bytes:
    """The answer to CLUSTER_METADATA, from (topic, partitions) pairs like `TopicPlaces`."""
    named = [
        b"".join((pack_text(topic), _U32.pack(len(places)), *map(_place, places)))
        for topic, places in topics
    ]
    payload = b"".join((pack_text(cluster_id), _U32.pack(len(named)), *named))
    return frame(Opcode.CLUSTER_METADATA, payload)


def lag(current: int, committed: int, latest: int, lag: int) -> bytes:
    """The answer to GET_LAG."""
    return frame(Opcode.GET_LAG, _LAG.pack(current, committed, latest, lag))


def error(text: str, sdk: bool) -> bytes:
    """Return an ERROR frame in the SDKs' layout or the document's.

    Clients act on the words "not leader", so these are changed. Control characters are `escaped`.
    """
    data = _NOT_LEADER.sub("not-leader", escaped(text)).encode("utf-8", "replace")[:ERROR_BYTES_MAX]
    text = data.decode("utf-8", "ignore")
    if sdk:
        return frame(Opcode.ERROR, _U32.pack(1) + pack_text(text))
    return frame(Opcode.ERROR, b"\x00" + pack_text(SPACES + text))


def _in_parts(opcode: int, parts: list[bytes]) -> tuple[bytes, ...]:
    """Return the frame of these parts. The first one is empty and becomes the header.

    Large parts stay as they are; the parts between them are joined.
    """
    sizes = list(map(len, parts))
    parts[0] = header(opcode, sum(sizes))
    if max(sizes) < LARGE_BYTES:
        return (b"".join(parts),)
    joined: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < LARGE_BYTES:
            small.append(part)
        else:
            joined += b"".join(small), part
            small = []
    joined.append(b"".join(small))
    return tuple(joined)


def _place(place: PartitionPlace) -> bytes:
    return b"".join(
        (
            _I32.pack(place.partition),
            pack_text(place.leader_id),
            pack_text(place.leader_address),
            _U64.pack(place.epoch),
            pack_text(place.state),
            pack_texts(place.replicas),
            pack_texts(place.in_sync),
        )
    )
