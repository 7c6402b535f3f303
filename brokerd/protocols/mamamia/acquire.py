# Tests: tests/protocols/test_mamamia_acquire.py, tests/protocols/test_mamamia.py
"""Acquires of the Mamamia format: at once, after a read from disk, or after a long poll.

An `AcquireKind` leases the records that can be leased now and makes the answer. A `PendingAcquire`
holds the place of the answer and tries again when a record must be read from disk first, when many
records were passed over and the reactor turn has to end, or when the client waits for a record. It
does not try while the connection has too much to send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat

from brokerd.broker import (
    STOP,
    TAKE,
    Broker,
    Chunk,
    Congested,
    DenseChunk,
    GroupPartition,
    Waiter,
)
from brokerd.codecs.mamamia import (
    BATCH_ROOM,
    ITEM_BYTES_MAX,
    MAX_LENGTH,
    Acquire,
    AcquireBatch,
    Command,
    acquired,
    acquired_batch,
    acquired_bytes,
    acquired_nothing,
    acquired_run,
    answer_length,
    batch_item,
    batch_item_length,
    error,
    message_id_of,
)
from brokerd.errors import (
    BrokerdError,
    DamagedData,
    RecordRemoved,
    StorageFailed,
    UnknownGroup,
    UnknownTopic,
)
from brokerd.protocols.base.connection import Connection
from brokerd.protocols.base.leasing import (
    BaseLeaseFilter,
    NoLease,
    RecordPlace,
    dead_letter_damaged,
)
from brokerd.security import READ
from brokerd.values import Encoding, Grant, total_bytes

WAIT_MAX_US = 3_600_000_000
"""Longest wait. A dead peer whose backlog is full of long polls is noticed after this time."""

SURELY_FITS_BYTES = MAX_LENGTH - 1024
"""A value and metadata of this size fit any answer, whatever the names."""

LEASES_MAX = 1_000
"""Most messages that one ACQUIRE_BATCH leases: some milliseconds of the reactor."""

RUN_LEASES_MAX = 256
"""Most messages that one run of ACQUIRE_NEXT leases."""

RUN_BYTES_MAX = 256 << 10
"""Most bytes of these messages."""

Leased = tuple[GroupPartition, Grant]


class AnswerLeaseFilter(BaseLeaseFilter):
    """Accepts records that fit the answer."""

    is_bytes = True
    """Whether the records are bytes without metadata, and surely fit with all their fields."""
    _surely_left = 0
    """Bytes left in a batch answer if each item had its largest size; -1 when items are counted
    exactly."""

    def __init__(self, broker: Broker, topic_name: str, bytes_max: int | None) -> None:
        super().__init__(broker)
        self._topic_name = topic_name
        self._bytes_left = bytes_max
        """Bytes left in a batch answer; None for the answer to ACQUIRE_NEXT."""
        if bytes_max is not None:
            self._surely_left = bytes_max

    def decide(self, chunk: Chunk, index: int) -> int:
        value = chunk.values[index]
        metadata = chunk.metadata[index]
        size = len(value) + (len(metadata) if metadata is not None else 0)
        if size > SURELY_FITS_BYTES and (
            answer_length(self._topic_name, value, chunk.encodings[index], metadata) > MAX_LENGTH
        ):
            return self.stop_at_too_large(chunk, index)
        if self._bytes_left is not None:
            key = chunk.keys[index]
            if metadata is not None or chunk.encodings[index]:
                self.is_bytes = False
            size += ITEM_BYTES_MAX + (len(key) if key is not None else 0)
            if size <= self._surely_left:
                self._surely_left -= size
                return TAKE
            if self._surely_left >= 0:
                self._count_exactly()
            item_bytes = batch_item_length(
                value, chunk.encodings[index], metadata, chunk.keys[index]
            )
            if item_bytes > self._bytes_left:
                self.stopped = True
                return STOP
            self._bytes_left -= item_bytes
        return TAKE

    def accept_run(self, first: int, count: int) -> int:
        """Accept records of one chunk that surely fit the answer and do not expire."""
        chunk = self.group_partition.partition.find(first)
        if not isinstance(chunk, DenseChunk) or chunk.expires_at_us is not None:
            return 0
        start = first - chunk.base
        stop = min(start + count, len(chunk.values))
        count = stop - start
        metadata, encodings = chunk.metadata[start:stop], chunk.encodings[start:stop]
        size = count * ITEM_BYTES_MAX + total_bytes(chunk.values[start:stop])
        for column in (chunk.keys[start:stop], metadata):
            if column.count(None) < count:
                size += sum(map(len, filter(None, column)))
        if size > min(self._surely_left, SURELY_FITS_BYTES):
            return 0
        self._surely_left -= size
        if metadata.count(None) < count or encodings.count(Encoding.BYTES) < count:
            self.is_bytes = False
        self.taken += zip(repeat(chunk), range(start, stop), strict=False)
        return count

    def _count_exactly(self) -> None:
        """Subtract the items so far from the bytes left. Later items are subtracted one by one."""
        assert self._bytes_left is not None
        self._surely_left, self.is_bytes = -1, False
        for chunk, index in self.taken:
            self._bytes_left -= batch_item_length(
                chunk.values[index],
                chunk.encodings[index],
                chunk.metadata[index],
                chunk.keys[index],
            )


LeaseRequest = Acquire | AcquireBatch


class AcquireKind:
    """One acquire command: its encoder, its bytes for records, and its answer for no record."""

    def __init__(
        self,
        command: int,
        nothing: bytes,
        bytes_max: int | None,
        answer: Callable[[LeaseRequest, list[Leased], AnswerLeaseFilter], bytes],
    ) -> None:
        self.command = command
        self.nothing = nothing
        self._bytes_max = bytes_max
        self._answer = answer

    def acquire(self, broker: Broker, request: LeaseRequest) -> bytes | RecordPlace | NoLease:
        """Lease records; return the answer, a record to read first, or why there is no lease."""
        limit = min(request.max_messages, LEASES_MAX) if isinstance(request, AcquireBatch) else 1
        topic_name = request.log_id
        duration_us = None if request.duration is None else microseconds(request.duration)
        while True:
            lease_filter = AnswerLeaseFilter(broker, topic_name, self._bytes_max)
            leased = broker.leases.acquire(
                topic_name, request.group_id, request.client_id, duration_us, limit, lease_filter
            )
            if leased:
                topic = leased[0][0].partition.topic
                broker.counters.traffic.count_leased(topic, lease_filter.taken)
                return self._answer(request, leased, lease_filter)
            if lease_filter.cold_place is not None:
                return lease_filter.cold_place
            if lease_filter.too_large_place is None:
                return NoLease.CUT_SHORT if lease_filter.cut_short else NoLease.EMPTY
            broker.leases.dead_letter(*lease_filter.too_large_place, "too_large")


def answer_one(
    request: LeaseRequest, leased: list[Leased], lease_filter: AnswerLeaseFilter
) -> bytes:
    """Return the answer to ACQUIRE_NEXT."""
    group_partition, grant = leased[0]
    chunk, index = lease_filter.taken[0]
    return acquired(
        message_id_of(group_partition.partition.index, grant.offset),
        request.log_id,
        chunk.values[index],
        chunk.encodings[index],
        chunk.metadata[index],
    )


def answer_many(
    request: LeaseRequest, leased: list[Leased], lease_filter: AnswerLeaseFilter
) -> bytes:
    """Return the answer to ACQUIRE_BATCH."""
    if lease_filter.is_bytes:
        group_partitions, granted = zip(*leased, strict=True)
        offsets, tokens, grants, _, durations = zip(*granted, strict=True)
        ids: Sequence[int] = offsets  # the ids of partition 0 are its offsets
        # An acquire takes all records of a partition before it goes to the next one.
        if group_partitions[0] is not group_partitions[-1] or group_partitions[0].partition.index:
            indexes = [group_partition.partition.index for group_partition in group_partitions]
            ids = list(map(message_id_of, indexes, offsets))
        values, keys = _values_and_keys(lease_filter.taken)
        if durations.count(durations[0]) == len(durations):
            seconds = [durations[0] / 1e6] * len(durations)
        else:
            seconds = [duration_us / 1e6 for duration_us in durations]
        return acquired_bytes(ids, values, keys, tokens, grants, seconds)
    return acquired_batch(
        [
            batch_item(
                message_id_of(group_partition.partition.index, grant.offset),
                chunk.values[index],
                chunk.encodings[index],
                chunk.metadata[index],
                chunk.keys[index],
                grant.token,
                grant.grants,
                grant.duration_us / 1e6,
            )
            for (group_partition, grant), (chunk, index) in zip(
                leased, lease_filter.taken, strict=True
            )
        ]
    )


def _values_and_keys(
    taken: Sequence[tuple[Chunk, int]],
) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
    """Return the values and keys of the records of an acquire, at least one."""
    (chunk, first), (last_chunk, last) = taken[0], taken[-1]
    if chunk is last_chunk and last - first == len(taken) - 1 and isinstance(chunk, DenseChunk):
        return chunk.values[first : last + 1], chunk.keys[first : last + 1]
    return (
        [chunk.values[index] for chunk, index in taken],
        [chunk.keys[index] for chunk, index in taken],
    )


def acquire_run(broker: Broker, request: Acquire, count: int, bytes_max: int) -> tuple[bytes, int]:
    """Lease records for the first of ``count`` equal ACQUIRE_NEXT requests in one step.

    Their answers take ``bytes_max`` at most.

    Return their answers and their number. It is 0 for topics of several partitions, where each
    acquire begins at another partition. Raises as `LeaseService.acquire`.
    """
    topic_name = request.log_id
    topic = broker.topics.find(topic_name)
    if topic is None or len(topic.partitions) != 1:
        return b"", 0
    record_filter = AnswerLeaseFilter(broker, topic_name, min(bytes_max, RUN_BYTES_MAX))
    duration_us = None if request.duration is None else microseconds(request.duration)
    leased = broker.leases.acquire(
        topic_name,
        request.group_id,
        request.client_id,
        duration_us,
        min(count, RUN_LEASES_MAX),
        record_filter,
    )
    if not leased:
        return b"", 0
    taken = record_filter.taken
    broker.counters.traffic.count_leased(topic, taken)
    if record_filter.is_bytes:
        # The ids of partition 0 are its offsets.
        return acquired_run(
            topic_name,
            (
                (grant.offset, chunk.values[index])
                for (_, grant), (chunk, index) in zip(leased, taken, strict=True)
            ),
        ), len(leased)
    return b"".join(
        acquired(
            grant.offset,
            topic_name,
            chunk.values[index],
            chunk.encodings[index],
            chunk.metadata[index],
        )
        for (_, grant), (chunk, index) in zip(leased, taken, strict=True)
    ), len(leased)


ACQUIRE_NEXT = AcquireKind(Command.ACQUIRE_NEXT, acquired_nothing(), None, answer_one)
ACQUIRE_BATCH = AcquireKind(Command.ACQUIRE_BATCH, acquired_batch([]), BATCH_ROOM, answer_many)


class PendingAcquire:
    """An acquire whose answer comes later: after a read from disk, after a wait, or both."""

    __slots__ = (
        "_connection",
        "_deadline_us",
        "_kind",
        "_pending_acquires",
        "_place",
        "_request",
        "_waiter",
    )

    def __init__(
        self,
        connection: Connection,
        request: LeaseRequest,
        kind: AcquireKind,
        pending: dict[PendingAcquire, None],
    ) -> None:
        self._connection = connection
        self._request = request
        self._kind = kind
        self._pending_acquires = pending
        """Pending acquires of the connection. This one is a member until it is answered."""
        self._place = connection.pending()
        wait_us = min(microseconds(request.wait), WAIT_MAX_US)
        self._deadline_us = connection.broker.time.monotonic_us() + wait_us
        self._waiter: Waiter | None = None
        pending[self] = None

    def begin(self, outcome: RecordPlace | NoLease) -> None:
        """Begin a read, a retry in another reactor turn, or a wait, as ``outcome`` needs."""
        if outcome is NoLease.EMPTY:
            self._wait()
        else:
            self._read_or_retry(outcome)

    def _read_or_retry(self, outcome: RecordPlace | NoLease) -> None:
        """Start a read, or try again in another reactor turn."""
        if isinstance(outcome, NoLease):
            connection = self._connection
            connection.factory.clock.callLater(0, connection.close_on_fault, self._again)
        else:
            self._load(outcome)

    def _load(self, place: RecordPlace) -> None:
        """Read the record, and try again when the read succeeds or fails."""
        group_partition, offset = place

        def loaded(_chunk: Chunk | None, failure: Exception | None) -> None:
            self._connection.close_on_fault(self._loaded, place, failure)

        self._connection.broker.reader.load(group_partition.partition, offset, loaded)

    def _loaded(self, place: RecordPlace, failure: Exception | None) -> None:
        if self._connection.gone:
            return
        try:
            if isinstance(failure, DamagedData):
                dead_letter_damaged(self._connection.broker, place, failure)
            elif failure is not None and not isinstance(failure, RecordRemoved):
                raise StorageFailed(f"the record cannot be read now: {failure}; try again")
        except Congested:
            self._when_uncongested(self._loaded, place, failure)
        except (UnknownTopic, UnknownGroup):
            self._again()  # deleted while the record was read
        except BrokerdError as refusal:
            self._connection.count_refusal(refusal)
            self._answer(error(self._kind.command, str(refusal)))
        else:
            self._again()

    def _when_uncongested(self, call: Callable[..., None], *arguments: object) -> None:
        """Call when the log has room."""
        self._connection.group_commit.when_uncongested(
            partial(self._connection.close_on_fault, call, *arguments)
        )

    def _wait(self) -> None:
        """Try again whenever a record may have arrived, until the wait ends."""
        connection, request = self._connection, self._request
        self._place.timed = ()  # a wait is no measure of the broker
        self._waiter = connection.broker.leases.wait(
            request.log_id,
            request.group_id,
            max(0, self._deadline_us - connection.broker.time.monotonic_us()),
            self._woken,
            self._timed_out,
        )

    def _woken(self) -> bool:
        """Try again: a record may have arrived. Return True if the wait ends."""
        if self._connection.close_on_fault(self._try):
            return False
        self._waiter = None
        return True

    def _timed_out(self) -> None:
        self._waiter = None
        self._connection.close_on_fault(self._answer, self._kind.nothing)

    def _try(self) -> bool:
        """Answer, read or postpone. Return True if there is no record and the wait goes on."""
        connection = self._connection
        if not connection.may_resolve(self._place):
            connection.postpone(self._place, self._again)
            return False
        try:
            connection.access.require(READ, self._request.log_id)  # may have been revoked
            outcome = self._kind.acquire(connection.broker, self._request)
        except Congested:
            self._when_uncongested(self._again)
            return False
        except BrokerdError as refusal:
            self._connection.count_refusal(refusal)
            outcome = error(self._kind.command, str(refusal))
        if isinstance(outcome, bytes):
            self._answer(outcome)
        elif outcome is NoLease.EMPTY:
            return True
        else:
            self._read_or_retry(outcome)
        return False

    def _again(self) -> None:
        """Try now; wait on if time is left and the peer can still send."""
        connection = self._connection
        if not connection.gone and self._try():
            if connection.ending or connection.broker.time.monotonic_us() >= self._deadline_us:
                self._answer(self._kind.nothing)
            else:
                self._wait()

    def give_up(self) -> None:
        """End the wait. A record that is being read from disk is still delivered."""
        if self._connection.cancel_postponed(self._place):
            self._answer(self._kind.nothing)
        elif self._waiter is not None:
            self._waiter.give_up()

    def cancel(self) -> None:
        """Drop the acquire: the connection is closed."""
        if self._waiter is not None:
            self._waiter.cancel()

    def _answer(self, answer: bytes) -> None:
        self._pending_acquires.pop(self, None)
        self._connection.resolve(self._place, answer)


def microseconds(seconds: float) -> int:
    """Convert seconds of the wire to microseconds."""
    return int(seconds * 1_000_000)
