# Tests: tests/broker/test_append.py, tests/broker/test_broker.py
"""Appends records: checks space in the log first, then gives each record its offset."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.broker.context import Context
from brokerd.broker.model.chunks import ChunkCache, MutableChunk
from brokerd.broker.model.topics import Partition, Topic
from brokerd.broker.records.size import (
    RECORD_FRAME_BYTES,
    record_frame_bytes,
    values_frame_bytes,
)
from brokerd.errors import InvalidRequest
from brokerd.values import Encoding, Format

TTL_MAX_US = 36_525 * 86_400 * 1_000_000
"""Longest time to live: a hundred years."""


class Rows:
    """Records for one partition, as columns, ready to be appended in one step."""

    __slots__ = ("encodings", "expires_at_us", "keys", "metadata", "size", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.metadata: list[bytes | None] = []
        self.encodings = bytearray()
        self.expires_at_us: list[int | None] = []
        self.size = 0
        """The sum of `record_frame_bytes`."""

    def add(
        self,
        value: bytes,
        encoding: int,
        key: bytes | None,
        metadata: bytes | None,
        expires_at_us: int | None,
    ) -> None:
        """Add a record; ``expires_at_us`` as in `RecordAppender.produce`."""
        self.values.append(value)
        self.encodings.append(encoding)
        self.keys.append(key)
        self.metadata.append(metadata)
        self.expires_at_us.append(expires_at_us)
        self.size += record_frame_bytes(value, key, metadata)


class RecordAppender:
    """Appends records to partitions and to the frame that gathers.

    ``ttl_us`` is the time to live in topics without a setting; 0: records do not expire.
    """

    def __init__(self, context: Context, tail: ChunkCache, ttl_us: int = 0) -> None:
        self._group_commit = context.group_commit
        self._time = context.time
        self._tail = tail
        self._counters = context.counters
        self._ttl_us = ttl_us

    def produce(
        self,
        partition: Partition,
        value: bytes,
        encoding: int = Encoding.BYTES,
        key: bytes | None = None,
        metadata: bytes | None = None,
        producer_format: int = Format.UNKNOWN,
        producer_time: int | None = None,
        expires_at_us: int | None = None,
    ) -> int:
        """Append one record and return its offset.

        It expires at broker time ``expires_at_us``; 0: never; None: after the topic's time to live.
        Raises `NoSpace` or `Congested` before it changes anything.
        """
        size = record_frame_bytes(value, key, metadata)
        self._group_commit.admit(size)
        return self.append(
            partition,
            value,
            encoding,
            key,
            metadata,
            producer_format,
            producer_time,
            expires_at_us,
            size,
        )

    def append(
        self,
        partition: Partition,
        value: bytes,
        encoding: int = Encoding.BYTES,
        key: bytes | None = None,
        metadata: bytes | None = None,
        producer_format: int = Format.UNKNOWN,
        producer_time: int | None = None,
        expires_at_us: int | None = None,
        size: int | None = None,
    ) -> int:
        """Append one admitted record, and return its offset.

        ``expires_at_us`` is as in `produce`. ``size`` is the record's `record_frame_bytes`, if the
        caller knows it.
        """
        topic = partition.topic
        if expires_at_us is None:
            may_expire = topic.settings.ttl_us or self._ttl_us
            expires_at_us = self._default_expiry_us(topic) if may_expire else 0
        offset = partition.next_offset
        chunk = partition.chunks.open
        if chunk is None or offset == partition.framed_end:
            chunk = self._open_chunk(partition)
        chunk.values.append(value)
        chunk.keys.append(key)
        chunk.metadata.append(metadata)
        chunk.encodings.append(encoding)
        chunk.formats.append(producer_format)
        if (
            producer_time is not None
            or expires_at_us
            or chunk.producer_times is not None
            or chunk.expires_at_us is not None
        ):
            chunk.optional_columns(producer_time, expires_at_us)
        partition.next_offset = offset + 1
        self._group_commit.gathered_bytes += size or record_frame_bytes(value, key, metadata)
        if not topic.internal_of:
            self._counters.records_produced[producer_format] += 1
            self._counters.bytes_produced += len(value)
        return offset

    def produce_values(
        self, partition: Partition, values: Sequence[bytes], producer_format: int
    ) -> int:
        """Append records without keys, all or none; return the first offset.

        Raises `NoSpace` or `Congested` before it changes anything.
        """
        size = values_frame_bytes(values)
        self._group_commit.admit(size)
        return self._append_values(partition, values, producer_format, size)

    def append_values(
        self,
        partition: Partition,
        values: Sequence[bytes],
        producer_format: int,
        producer_times: Sequence[int] | None = None,
    ) -> int:
        """Append admitted records without key and metadata; return the first offset.

        It has the effect of `append` for each record, in a fraction of the time.
        """
        size = values_frame_bytes(values)
        return self._append_values(partition, values, producer_format, size, producer_times)

    def append_each(
        self,
        partitions: Sequence[Partition],
        values: Sequence[bytes],
        producer_format: int,
        producer_times: Sequence[int],
    ) -> list[int]:
        """Append an admitted record without key and metadata to each partition.

        No topic of them is internal. Return the offsets. It has the effect of `append` for each
        record, in half of the time.
        """
        offsets: list[int] = []
        gathered: list[Partition] = []
        size, broker_ttl_us = values_frame_bytes(values), self._ttl_us
        for partition, value, producer_time in zip(partitions, values, producer_times, strict=True):
            topic, chunks, offset = partition.topic, partition.chunks, partition.next_offset
            chunk = chunks.open
            if offset == partition.framed_end:
                gathered.append(partition)
                if chunk is None:
                    chunk = chunks.open = MutableChunk(offset)
                    self._tail.add(chunks, chunk)
            assert chunk is not None
            chunk.values.append(value)
            chunk.keys.append(None)
            chunk.metadata.append(None)
            chunk.encodings.append(0)
            chunk.formats.append(producer_format)
            may_expire = topic.settings.ttl_us or broker_ttl_us
            if may_expire or chunk.producer_times is None or chunk.expires_at_us is not None:
                expires_at_us = self._default_expiry_us(topic) if may_expire else 0
                chunk.optional_columns(producer_time, expires_at_us)
            else:
                chunk.producer_times.append(producer_time)
            partition.next_offset = offset + 1
            offsets.append(offset)
        self._group_commit.add_partitions(gathered)
        self._group_commit.gathered_bytes += size
        self._counters.records_produced[producer_format] += len(offsets)
        self._counters.bytes_produced += size - len(offsets) * RECORD_FRAME_BYTES
        return offsets

    def append_rows(self, partition: Partition, rows: Rows, producer_format: int) -> int:
        """Append admitted records; return the first offset.

        It has the effect of `append` for each record, in a fraction of the time.
        """
        topic, count = partition.topic, len(rows.values)
        base_offset = partition.next_offset
        if not count:
            return base_offset
        expiries = rows.expires_at_us
        if None in expiries:
            default_us = self._default_expiry_us(topic)
            expiries = [default_us if one is None else one for one in expiries]
        self._open_chunk(partition).append_rows(
            rows.values,
            rows.keys,
            rows.metadata,
            rows.encodings,
            producer_format,
            expiries if any(expiries) else None,  # type: ignore[arg-type]  # None is replaced
        )
        partition.next_offset = base_offset + count
        self._group_commit.gathered_bytes += rows.size
        if not topic.internal_of:
            self._counters.records_produced[producer_format] += count
            self._counters.bytes_produced += sum(map(len, rows.values))
        return base_offset

    def _append_values(
        self,
        partition: Partition,
        values: Sequence[bytes],
        producer_format: int,
        size: int,
        producer_times: Sequence[int] | None = None,
    ) -> int:
        topic, count = partition.topic, len(values)
        base_offset = partition.next_offset
        if not count:
            return base_offset
        expires_at_us = self._default_expiry_us(topic)
        chunk = self._open_chunk(partition)
        chunk.append_values(values, producer_format, expires_at_us, producer_times)
        partition.next_offset = base_offset + count
        self._group_commit.gathered_bytes += size
        if not topic.internal_of:
            self._counters.records_produced[producer_format] += count
            self._counters.bytes_produced += size - count * RECORD_FRAME_BYTES
        return base_offset

    def _open_chunk(self, partition: Partition) -> MutableChunk:
        """Return the chunk for the next record, and add the partition to the frame."""
        chunks = partition.chunks
        if partition.next_offset == partition.framed_end:
            self._group_commit.add_partition(partition)
            if chunks.open is None:
                chunks.open = MutableChunk(partition.next_offset)
                self._tail.add(chunks, chunks.open)
        assert chunks.open is not None
        return chunks.open

    def _default_expiry_us(self, topic: Topic) -> int:
        """Return the expiry of a record without one, in broker time; 0: none."""
        ttl_us = topic.settings.ttl_us
        if ttl_us is None:
            ttl_us = self._ttl_us
        return self.expiry_us(ttl_us) if ttl_us else 0

    def expiry_us(self, ttl_us: int) -> int:
        """Return the broker time in ``ttl_us`` microseconds. Raises `InvalidRequest`."""
        if not 0 < ttl_us <= TTL_MAX_US:
            raise InvalidRequest(
                f"a time to live is a microsecond up to {TTL_MAX_US // 1_000_000} seconds (a "
                f"hundred years), not {ttl_us / 1e6}; leave it out for records that do not expire"
            )
        return self._time.time_us() + ttl_us
