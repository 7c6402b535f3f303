# Tests: tests/protocols/test_mamamia.py
"""Mamamia (MAB) on the wire: docs/protocols/mamamia.rst.

Frames and MessagePack are the codec's work, order and durability the connection's; here each
request becomes calls of the broker, and what it says becomes an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from brokerd.broker import Broker, Chunk, Clock, Congested, Lane, Waiter
from brokerd.broker.journal import RECORD_FRAME_BYTES
from brokerd.codecs.mamamia import (
    BATCH_ROOM,
    MAX_LENGTH,
    SETTLED,
    Acquire,
    AcquireBatch,
    BodyError,
    Command,
    Decoder,
    Extend,
    FrameReader,
    GroupInfo,
    GroupState,
    Produce,
    ProduceBatch,
    RequestError,
    Settle,
    SettleBatch,
    acquired,
    acquired_batch,
    acquired_nothing,
    answer_length,
    batch_item,
    batch_item_length,
    error,
    extended,
    group_info,
    message_id_of,
    produced,
    produced_batch,
    settled,
    settled_batch,
    split_message_id,
)
from brokerd.errors import BrokerdError, DamagedData, RecordTooLarge, StorageFailed
from brokerd.protocols.connection import Answers, Connection, ConnectionFactory, Limits
from brokerd.values import Format, Grant

SURELY_FITS_BYTES = MAX_LENGTH - 1024
"""A value and metadata of this size fit any answer, whatever the names."""

Leased = tuple[Lane, Grant]


class TakingInMemory:
    """Lets an acquire lease records that are in memory and fit the answer.

    Afterwards ``taken`` holds where the leased records are, in the order of the grants, and
    ``cold`` or ``too_large`` why it stopped before its limit, if it did.
    """

    __slots__ = ("_broker", "_log_id", "_room", "cold", "lane", "stopped", "taken", "too_large")

    lane: Lane

    def __init__(self, broker: Broker, log_id: str, room: int) -> None:
        self._broker = broker
        self._log_id = log_id
        self._room = room
        """Bytes left in a batch answer; 0 for the answer to ACQUIRE_NEXT."""
        self.taken: list[tuple[Chunk, int]] = []
        self.cold: tuple[Lane, int] | None = None
        self.too_large: tuple[Lane, int] | None = None
        self.stopped = False

    def takes(self, offset: int) -> bool:
        """Whether the record at ``offset`` of the lane may be leased."""
        chunk = self._broker.find(self.lane.partition, offset)
        if chunk is None:
            self.cold = (self.lane, offset)
            self.stopped = True
            return False
        index = offset - chunk.base
        value = chunk.values[index]
        metadata = chunk.metadata[index]
        size = len(value) + (len(metadata) if metadata is not None else 0)
        if size > SURELY_FITS_BYTES and (
            answer_length(self._log_id, value, chunk.encodings[index], metadata) > MAX_LENGTH
        ):
            self.too_large = (self.lane, offset)
            self.stopped = True
            return False
        if self._room:
            room = batch_item_length(value, chunk.encodings[index], metadata, chunk.keys[index])
            if room > self._room:
                self.stopped = True
                return False
            self._room -= room
        self.taken.append((chunk, index))
        return True


Cold = tuple[Lane, int]
"""A record that must be read from disk before it can be leased: lane and offset."""

LeaseRequest = Acquire | AcquireBatch


class Attempt:
    """One kind of acquire: how to try it, and what to answer when there is nothing."""

    def __init__(
        self,
        command: int,
        nothing: bytes,
        room: int,
        answer: Callable[[LeaseRequest, list[Leased], TakingInMemory], bytes],
    ) -> None:
        self.command = command
        self.nothing = nothing
        self._room = room
        self._answer = answer

    def __call__(self, broker: Broker, request: LeaseRequest) -> bytes | Cold | None:
        """Lease what can be leased now and answer with it; else a cold record, or None."""
        limit = request.max_messages if isinstance(request, AcquireBatch) else 1
        log_id = request.log_id
        duration_us = microseconds(request.duration)
        while True:
            taking = TakingInMemory(broker, log_id, self._room)
            leased = broker.acquire(
                log_id, request.group_id, request.client_id, duration_us, limit, taking
            )
            if leased:
                return self._answer(request, leased, taking)
            if taking.too_large is None:
                return taking.cold
            broker.dead_letter(*taking.too_large, "too_large")


def answer_one(request: LeaseRequest, leased: list[Leased], taking: TakingInMemory) -> bytes:
    """The answer to ACQUIRE_NEXT."""
    lane, grant = leased[0]
    chunk, index = taking.taken[0]
    return acquired(
        message_id_of(lane.partition.index, grant.offset),
        request.log_id,
        chunk.values[index],
        chunk.encodings[index],
        chunk.metadata[index],
    )


def answer_many(request: LeaseRequest, leased: list[Leased], taking: TakingInMemory) -> bytes:
    """The answer to ACQUIRE_BATCH."""
    return acquired_batch(
        [
            batch_item(
                message_id_of(lane.partition.index, grant.offset),
                chunk.values[index],
                chunk.encodings[index],
                chunk.metadata[index],
                chunk.keys[index],
                grant.token,
                grant.grants,
                grant.duration_us / 1e6,
            )
            for (lane, grant), (chunk, index) in zip(leased, taking.taken, strict=True)
        ]
    )


ACQUIRE_NEXT = Attempt(Command.ACQUIRE_NEXT, acquired_nothing(), 0, answer_one)
ACQUIRE_BATCH = Attempt(Command.ACQUIRE_BATCH, acquired_batch([]), BATCH_ROOM, answer_many)


class MamamiaConnection(Connection):
    """One client's connection."""

    def __init__(self, broker: Broker, frame_bytes: int) -> None:
        super().__init__(broker)
        self._reader = FrameReader(min(frame_bytes, MAX_LENGTH))
        self._decoder = Decoder()
        self._frames: list[tuple[int, bytes]] = []
        self._waiters: set[Waiter] = set()

    # -- frames -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take frames in; see `FrameReader`."""
        self._frames += self._reader.feed(data)
        self.unfinished = self._reader.partial_bytes > 0

    def run(self) -> None:
        """Handle the frames taken in, until one has to wait."""
        frames = self._frames
        decode = self._decoder.decode
        dispatch = self._DISPATCH
        handled = 0
        for command, body in frames:
            if self.holds:
                break
            try:
                dispatch[command](self, decode(command, body))
            except Congested:
                self.congested()
                break
            except BodyError:
                self.close_after_answers()
                handled = len(frames)
                break
            except (RequestError, BrokerdError) as refusal:
                self.answers.append(error(command, str(refusal)))
            handled += 1
        del frames[:handled]
        if self._reader.error is not None and not frames:
            self.close_after_answers()

    def stopped(self) -> None:
        """Long polls of a connection that is gone wait no longer."""
        self._frames.clear()
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def stopping(self) -> None:
        """Long polls of a broker that stops found nothing."""
        for waiter in list(self._waiters):
            waiter.give_up()

    # -- producing ----------------------------------------------------------------------------

    def _produce(self, request: Produce) -> None:
        log_id, value, encoding, metadata, key, partition_index = request
        size = len(value)
        if metadata is not None:
            size += len(metadata)
        if size > SURELY_FITS_BYTES:
            check_size(log_id, value, encoding, metadata)
        if key is not None:
            size += len(key)
        broker = self.broker
        broker.admit(size + RECORD_FRAME_BYTES)
        topic = broker.topic(log_id) or broker.create_topic(log_id)
        partition = topic.choose(key, partition_index)
        offset = broker.append(partition, value, encoding, key, metadata, Format.MAMAMIA)
        self.answers.append(produced(message_id_of(partition.index, offset)))

    def _produce_batch(self, request: ProduceBatch) -> None:
        log_id, messages = request
        size = 0
        for message in messages:
            value, encoding, metadata, key, _ = message
            if len(value) + len(metadata or b"") > SURELY_FITS_BYTES:
                check_size(log_id, value, encoding, metadata)
            size += len(value) + len(metadata or b"") + len(key or b"") + RECORD_FRAME_BYTES
        broker = self.broker
        broker.admit(size)
        topic = broker.topic(log_id) or broker.create_topic(log_id)
        partitions = [topic.choose(message.key, message.partition) for message in messages]
        self.answers.append(
            produced_batch(
                [
                    message_id_of(
                        partition.index,
                        broker.append(partition, value, encoding, key, metadata, Format.MAMAMIA),
                    )
                    for partition, (value, encoding, metadata, key, _) in zip(
                        partitions, messages, strict=True
                    )
                ]
            )
        )

    # -- leasing ------------------------------------------------------------------------------

    def _acquire(self, request: Acquire) -> None:
        self._lease(request, ACQUIRE_NEXT)

    def _acquire_batch(self, request: AcquireBatch) -> None:
        self._lease(request, ACQUIRE_BATCH)

    def _lease(self, request: LeaseRequest, attempt: Attempt) -> None:
        """Answer an acquire now, once its record is read from disk, or after a long poll."""
        outcome = attempt(self.broker, request)
        if isinstance(outcome, bytes):
            self.answers.append(outcome)
            self.backlog(len(outcome))
        elif outcome is not None:
            self._load(outcome, self.pending(), request, attempt)
        elif request.wait > 0:
            self._wait(self.pending(), request, attempt)
        else:
            self.answers.append(attempt.nothing)

    def _load(
        self, cold: tuple[Lane, int], place: Answers, request: LeaseRequest, attempt: Attempt
    ) -> None:
        lane, offset = cold
        self.broker.load(
            lane.partition, offset, partial(self._loaded, cold, place, request, attempt)
        )

    def _loaded(
        self,
        cold: tuple[Lane, int],
        place: Answers,
        request: LeaseRequest,
        attempt: Attempt,
        _chunk: Chunk | None,
        failure: Exception | None,
    ) -> None:
        """The record to be leased was read, or cannot be: try again without it."""
        if self.gone:
            return
        try:
            if isinstance(failure, DamagedData):
                self.broker.dead_letter(*cold, "damaged")
            elif failure is not None:
                raise StorageFailed(f"cannot read the log: {failure}; try again")
            outcome = attempt(self.broker, request)
        except BrokerdError as refusal:
            outcome = error(attempt.command, str(refusal))
        if isinstance(outcome, tuple):
            self._load(outcome, place, request, attempt)
        else:
            self.resolve(place, attempt.nothing if outcome is None else outcome)

    def _wait(self, place: Answers, request: LeaseRequest, attempt: Attempt) -> None:
        """Try again whenever something may have come, until the wait is over."""

        def again() -> bool:
            try:
                outcome = attempt(self.broker, request)
            except BrokerdError as refusal:
                outcome = error(attempt.command, str(refusal))
            if outcome is None:
                return False
            self._waiters.discard(waiter)
            if isinstance(outcome, tuple):
                self._load(outcome, place, request, attempt)
            else:
                self.resolve(place, outcome)
            return True

        def timed_out() -> None:
            self._waiters.discard(waiter)
            self.resolve(place, attempt.nothing)

        waiter = self.broker.wait(
            request.log_id, request.group_id, microseconds(request.wait), again, timed_out
        )
        self._waiters.add(waiter)

    # -- leases -------------------------------------------------------------------------------

    def _settle(self, request: Settle) -> None:
        log_id, group_id, message_id, client_id, success, delay = request
        index, offset = split_message_id(message_id)
        broker = self.broker
        broker.settle(
            broker.lane(log_id, group_id, index, offset),
            offset,
            success,
            owner=client_id,
            delay_us=None if delay is None else microseconds(delay),
        )
        self.answers.append(settled())

    def _settle_batch(self, request: SettleBatch) -> None:
        log_id, group_id, client_id, settles = request
        broker = self.broker
        results = []
        for message_id, success, token, delay in settles:
            index, offset = split_message_id(message_id)
            try:
                broker.settle(
                    broker.lane(log_id, group_id, index, offset),
                    offset,
                    success,
                    owner=client_id if token is None else None,
                    token=token,
                    delay_us=None if delay is None else microseconds(delay),
                )
                results.append(SETTLED)
            except BrokerdError as refusal:
                results.append(str(refusal))
        self.answers.append(settled_batch(results))

    def _extend(self, request: Extend) -> None:
        log_id, group_id, client_id, message_id, duration = request
        index, offset = split_message_id(message_id)
        lane = self.broker.lane(log_id, group_id, index, offset)
        remaining_us = self.broker.extend(
            lane, offset, microseconds(duration), owner=client_id
        )
        self.answers.append(extended(remaining_us / 1e6))

    def _group_info(self, request: GroupInfo) -> None:
        info = self.broker.group_info(request.log_id, request.group_id)
        age_us = info.oldest_age_us
        self.answers.append(
            group_info(
                GroupState(
                    floor=info.floor,
                    next=info.next,
                    lag=info.lag,
                    leased=info.leased,
                    ready=info.ready,
                    delayed=info.delayed,
                    dead=info.dead,
                    committed=info.committed,
                    oldest_age=None if age_us is None else age_us / 1e6,
                    max_attempts=info.max_attempts,
                    partitions=info.partitions,
                )
            )
        )

    _DISPATCH: ClassVar[dict[int, Callable[[MamamiaConnection, Any], None]]] = {
        Command.PRODUCE: _produce,
        Command.ACQUIRE_NEXT: _acquire,
        Command.SETTLE: _settle,
        Command.PRODUCE_BATCH: _produce_batch,
        Command.ACQUIRE_BATCH: _acquire_batch,
        Command.SETTLE_BATCH: _settle_batch,
        Command.EXTEND: _extend,
        Command.GROUP_INFO: _group_info,
    }


def microseconds(seconds: float) -> int:
    """Seconds of the wire as microseconds."""
    return int(seconds * 1_000_000)


def check_size(log_id: str, value: bytes, encoding: int, metadata: bytes | None) -> None:
    """Raise `RecordTooLarge` for a record that no ACQUIRE_NEXT answer could carry."""
    length = answer_length(log_id, value, encoding, metadata)
    if length > MAX_LENGTH:
        raise RecordTooLarge(
            f"the message is too large: its delivery would take a frame of {length} bytes, "
            f"and the limit is {MAX_LENGTH}; send less than {MAX_LENGTH - 1024} bytes"
        )


class MamamiaFactory(ConnectionFactory):
    """Connections of one Mamamia listener."""

    def __init__(self, broker: Broker, clock: Clock, limits: Limits) -> None:
        super().__init__("mamamia", broker, clock, limits)

    def new_connection(self) -> MamamiaConnection:
        return MamamiaConnection(self.broker, self.limits.frame_bytes)
