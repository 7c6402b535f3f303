# Tests: tests/protocols/test_mamamia.py
"""Mamamia (MAB) on the wire: docs/protocols/mamamia.rst.

The codec parses frames and MessagePack. The base class keeps order and durability. This module
turns each request into calls of the broker and their results into an answer. The format calls a
topic a log: ``log_id`` of a request is the name of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from brokerd.broker import Broker, Clock, Congested, Partition
from brokerd.broker.delayed.schedule import check_delay, delays_frame_bytes
from brokerd.broker.records.size import record_frame_bytes, values_frame_bytes
from brokerd.codecs.mamamia import (
    MAX_LENGTH,
    SETTLED,
    Acquire,
    AcquireBatch,
    BatchSettle,
    BodyError,
    Cancel,
    Command,
    Decoder,
    Extend,
    Frame,
    FrameLengthError,
    FrameReader,
    GroupInfo,
    GroupState,
    Produce,
    ProduceBatch,
    Release,
    Request,
    Settle,
    SettleBatch,
    cancelled,
    error,
    extended,
    group_info,
    message_id_of,
    produced,
    produced_batch,
    produced_run,
    released,
    scheduled,
    settled,
    settled_batch,
    split_message_id,
)
from brokerd.errors import (
    BrokerdError,
    LeaseLost,
    NotLeaseOwner,
    UnknownGroup,
    UnknownOffset,
    UnknownTopic,
    without_traceback,
)
from brokerd.protocols.base.connection import Hold, Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.framing import RUN_FRAMES_MIN, FrameConnection, FrameOnHold
from brokerd.protocols.base.leasing import NoLease
from brokerd.protocols.base.request_times import OPERATION
from brokerd.protocols.base.steps import Steps, StepsRun
from brokerd.protocols.mamamia.acquire import (
    ACQUIRE_BATCH,
    ACQUIRE_NEXT,
    SURELY_FITS_BYTES,
    AcquireKind,
    LeaseRequest,
    PendingAcquire,
    acquire_run,
    microseconds,
)
from brokerd.protocols.mamamia.produce_batch import (
    BatchProduce,
    bare_values,
    check_size,
    expiry_us,
)
from brokerd.security import READ, WRITE
from brokerd.security.quotas import Use
from brokerd.values import Format

SMALL_BODY_BYTES = 2_048
"""A request with a body of this size is decoded and carried out at once."""

_PRODUCES = frozenset((Command.PRODUCE, Command.PRODUCE_BATCH))
_FREE = frozenset(
    (
        *(Command.SETTLE, Command.SETTLE_BATCH, Command.EXTEND, Command.RELEASE),
        Command.CANCEL,
    )
)
"""Commands that no quota holds back."""

STEP_ITEMS = 32
"""Records that one step of a slice releases."""

STEP_SETTLES = 128
"""Records that one step of a slice settles."""
_OPERATIONS: dict[int, str] = {one: one.name.lower() for one in Command}
"""Names of operations in the metrics."""


HUGE_BODY_BYTES = 1 << 20
"""Of the bodies above this size, one at a time is decoded in slices: it may take ten times its size
in memory."""


class DecodeQueue:
    """Lets one connection of a listener after the other decode a huge body."""

    def __init__(self) -> None:
        self._waiting: dict[MamamiaConnection, Callable[[], None]] = {}

    def add(self, connection: MamamiaConnection, start: Callable[[], None]) -> None:
        """Call ``start`` when the connections before this one have left."""
        self._waiting[connection] = start
        if len(self._waiting) == 1:
            start()

    def leave(self, connection: MamamiaConnection) -> None:
        """Remove a connection that is done, or closed."""
        if connection not in self._waiting:
            return
        was_first = next(iter(self._waiting)) is connection
        del self._waiting[connection]
        if was_first and self._waiting:
            next(iter(self._waiting.values()))()


class MamamiaConnection(FrameConnection[Frame, FrameLengthError]):
    """One client's connection."""

    factory: MamamiaFactory

    def __init__(self, broker: Broker, frame_bytes: int) -> None:
        super().__init__(broker, FrameReader(min(frame_bytes, MAX_LENGTH)))
        self._decoder = Decoder()
        self._decode = self._decoder.decode
        self._decoded: Request | BrokerdError | None = None
        """The request of the first frame, or its refusal, if it was decoded in slices."""
        self._pending_acquires: dict[PendingAcquire, None] = {}
        self._settled_so_far: list[str] = []
        """Results of a SETTLE_BATCH that met `Congested`. The retry begins after them."""
        self._released_so_far: list[bool] = []
        """Results of a RELEASE that met `Congested`. The retry begins after them."""

    # -- frames -------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """Carry out a request."""
        command, body = frame
        if len(body) > SMALL_BODY_BYTES:
            self._handle_large(frame)
            return
        request = self._decode(command, body)
        permission, carry_out = self._DISPATCH[command]
        if not (self._settled_so_far or self._released_so_far):  # a retry was permitted before
            self.access.require(permission, request.log_id)
        carry_out(self, request)

    def quota_use(self, frame: Frame) -> tuple[int, int]:
        """Return how a request counts against quotas."""
        command, body = frame
        if command in _PRODUCES:
            return Use.PRODUCE, len(body)
        return (Use.FREE if command in _FREE else Use.READ), len(body)

    def handle_run(self, frames: list[Frame]) -> int:
        """Carry out like requests in one step."""
        if self._decoded is not None:  # the request of the first frame
            return 0
        run = self._RUNS.get(frames[0][0])
        return 0 if run is None else run(self, frames)

    def _produce_run(self, frames: list[Frame]) -> int:
        """Append the records of PRODUCE requests for one topic, of bytes alone."""
        topic_name, values = self._decoder.produce_run(frames)
        broker = self.broker
        topic = broker.topics.find(topic_name) if len(values) >= RUN_FRAMES_MIN else None
        if (
            topic is None
            or len(topic.partitions) != 1
            or not self.access.may(WRITE, topic_name)
            or not broker.group_commit.has_room(values_frame_bytes(values))
        ):
            return 0
        offset = broker.appender.append_values(topic.partitions[0], values, Format.MAMAMIA)
        self.answer_run(produced_run(offset, len(values)), len(values))
        return len(values)

    def _acquire_run(self, frames: list[Frame]) -> int:
        """Lease a record for each of equal ACQUIRE_NEXT requests."""
        request, count = self._decoder.acquire_run(frames)
        if count < RUN_FRAMES_MIN or not self.access.may(READ, request.log_id):
            return 0
        with suppress(BrokerdError):  # the first request raises the error again
            self.await_memory()
            answers, count = acquire_run(self.broker, request, count, self.in_flight_room)
            if count:
                self.answer_run(answers, count)
            return count
        return 0

    def _settle_run(self, frames: list[Frame]) -> int:
        """Settle the records of like SETTLE requests that report success."""
        settle, message_ids = self._decoder.settle_run(frames)
        count = len(message_ids)
        if settle is None or count < RUN_FRAMES_MIN:
            return 0
        topic_name, group_id, _, client_id, success, *_ = settle
        if not success or not self.access.may(READ, topic_name):
            return 0
        count = self._settle_ids(topic_name, group_id, client_id, message_ids, [None] * count)
        if count:
            self.answer_run(settled() * count, count)
        return count

    def refuse(self, frame: Frame, refusal: BrokerdError) -> None:
        """Answer with the error text, or close if the body is not MessagePack."""
        if isinstance(refusal, BodyError):
            self.close_here()
        else:
            self.answers.append(error(frame[0], str(refusal)))

    # -- requests that may take long ----------------------------------------------------------

    def _handle_large(self, frame: Frame) -> None:
        """Carry out a request that may take long to decode: in slices, while later ones wait."""
        command, body = frame
        request, self._decoded = self._decoded, None
        if isinstance(request, BrokerdError):
            raise request
        in_steps = self._IN_STEPS.get(command)
        if request is None:
            if command == Command.PRODUCE_BATCH and self._append_plain_batch(body):
                return
            if command == Command.SETTLE_BATCH and self._settle_plain_batch(body):
                return
            in_steps = None
            if self._decoder.takes_steps(command, body):
                self.hold(Hold.IN_PROGRESS)
                run = StepsRun(self, self._decoder.decode_steps(command, body), self._on_decoded)
                if len(body) > HUGE_BODY_BYTES:
                    self.factory.decodes.add(self, run.start)
                else:
                    run.start()
                raise FrameOnHold
            request = self._decode(command, body)
        permission, carry_out = self._DISPATCH[command]
        if self._settled_so_far:  # a retry: it was permitted before, and goes on where it stopped
            in_steps = None
        else:
            self.access.require(permission, request.log_id)
        if in_steps is not None:
            self._answer_in_steps(command, in_steps(self, request))
            return
        try:
            carry_out(self, request)
        except Congested:
            self._decoded = request
            raise

    def _on_decoded(self, request: Request | None, refusal: Exception | None) -> None:
        """Handle the first frame again, whose body is decoded."""
        self.factory.decodes.leave(self)
        if isinstance(refusal, BrokerdError):
            self._decoded = without_traceback(refusal)
        else:
            self._decoded = request
        self.unhold(Hold.IN_PROGRESS)

    def _answer_in_steps(self, command: int, steps: Steps[bytes]) -> None:
        """Answer with the result of ``steps``, or with their refusal. Later requests wait."""
        place = self.pending()
        self.hold(Hold.IN_PROGRESS)

        def done(answer: bytes | None, refusal: Exception | None) -> None:
            if refusal is not None:
                self.count_refusal(refusal)
            self.resolve(place, error(command, str(refusal)) if answer is None else answer)
            self.unhold(Hold.IN_PROGRESS)

        StepsRun(self, steps, done).start()

    def operation_of(self, frame: Frame) -> str:
        """Return the name of the command."""
        return _OPERATIONS.get(frame[0], OPERATION)

    def answer_long_polls(self) -> None:
        """Answer all long polls with nothing found."""
        for pending in list(self._pending_acquires):
            pending.give_up()

    def forget(self) -> None:
        """Drop the frames and long polls of a closed connection."""
        super().forget()
        for pending in self._pending_acquires:
            pending.cancel()
        self._pending_acquires.clear()
        self._decoded = None
        self.factory.decodes.leave(self)

    # -- producing ----------------------------------------------------------------------------

    def _produce(self, request: Produce) -> None:
        topic_name, value, encoding, metadata, key, partition_index, ttl, delay = request
        if len(value) + len(metadata or b"") > SURELY_FITS_BYTES:
            check_size(topic_name, value, encoding, metadata)
        expires_at_us = None if ttl is None else expiry_us(self.broker, ttl)
        if delay:
            self._produce_later(request, expires_at_us)
            return
        partition, offset = self.broker.topic_writer.produce(
            self.access,
            topic_name,
            partition_index,
            value,
            encoding,
            key,
            metadata,
            Format.MAMAMIA,
            expires_at_us,
        )
        self.answers.append(produced(message_id_of(partition.index, offset)))

    def _produce_later(self, request: Produce, expires_at_us: int | None) -> None:
        topic_name, value, encoding, metadata, key, partition_index, _, delay = request
        delay_us = microseconds(delay or 0)
        check_delay(delay_us)
        broker = self.broker
        size = record_frame_bytes(value, key, metadata) + delays_frame_bytes(1)
        topic = broker.topic_writer.topic(
            self.access, topic_name, size, highest_partition=partition_index or 0
        )
        schedule_id = broker.delayed.produce(
            topic,
            value,
            encoding,
            key,
            metadata,
            Format.MAMAMIA,
            partition_index,
            delay_us,
            expires_at_us,
        )
        self.answers.append(scheduled(schedule_id))

    def _produce_batch(self, request: ProduceBatch) -> None:
        topic_name, messages, producer_id, _ = request
        broker = self.broker
        values = bare_values(messages)
        topic = broker.topics.find(topic_name)
        if values is None or topic is None or len(topic.partitions) != 1 or producer_id is not None:
            self.answers.append(BatchProduce(broker, self.access, request).answer())
            return
        self._append_values(topic.partitions[0], values)

    def _append_plain_batch(self, body: bytes) -> bool:
        """Carry out a PRODUCE_BATCH of values alone; return False if it has to be decoded."""
        topic_name, values = self._decoder.plain_batch(body)
        topic = None if values is None else self.broker.topics.find(topic_name)
        if values is None or topic is None or len(topic.partitions) != 1:
            return False
        self.access.require(WRITE, topic_name)
        self._append_values(topic.partitions[0], values)
        return True

    def _append_values(self, partition: Partition, values: Sequence[bytes]) -> None:
        """Append values to the first partition, whose offsets are the ids."""
        offset = self.broker.appender.produce_values(partition, values, Format.MAMAMIA)
        self.answers.append(produced_batch(list(range(offset, offset + len(values)))))

    def _batch_steps(self, request: ProduceBatch) -> Steps[bytes]:
        """Append a large batch: everything but the last step is done in slices."""
        return BatchProduce(self.broker, self.access, request).steps(self)

    def _cancel(self, request: Cancel) -> None:
        try:
            was_cancelled = self.broker.delayed.cancel(request.log_id, request.schedule_id)
        except UnknownTopic:
            was_cancelled = False
        self.answers.append(cancelled(was_cancelled))

    # -- leasing ------------------------------------------------------------------------------

    def _acquire(self, request: Acquire) -> None:
        self._lease(request, ACQUIRE_NEXT)

    def _acquire_batch(self, request: AcquireBatch) -> None:
        self._lease(request, ACQUIRE_BATCH)

    def _lease(self, request: LeaseRequest, kind: AcquireKind) -> None:
        """Answer an acquire now, after a read from disk, or after a long poll."""
        self.await_memory()
        outcome = kind.acquire(self.broker, request)
        if isinstance(outcome, bytes):
            self.answer(outcome)
        elif outcome is NoLease.EMPTY and request.wait <= 0:
            self.answers.append(kind.nothing)
        else:
            PendingAcquire(self, request, kind, self._pending_acquires).begin(outcome)

    # -- leases -------------------------------------------------------------------------------

    def _settle(self, request: Settle) -> None:
        topic_name, group_id, message_id, client_id, success, delay, reason, dead = request
        index, offset = split_message_id(message_id)
        broker = self.broker
        broker.leases.settle(
            broker.leases.group_partition(topic_name, group_id, index, offset),
            offset,
            success,
            owner=client_id,
            delay_us=None if delay is None else microseconds(delay),
            reason=reason,
            dead=dead,
        )
        self.answers.append(settled())

    def _settle_batch(self, request: SettleBatch) -> None:
        results = self._settled_so_far
        if not results:
            results += [SETTLED] * self._settle_first(request)
        for settle in request.settles[len(results) :]:
            results.append(self._settle_one(request, settle))
        answer = settled_batch(results)
        self._settled_so_far = []
        self.answer(answer)

    def _settle_plain_batch(self, body: bytes) -> bool:
        """Carry out a SETTLE_BATCH of live leases; return False if it has to be decoded.

        Then `_settle_batch` goes on after the records that are settled.
        """
        (topic_name, group_id, _), settles = self._decoder.plain_settles(body)
        if settles is None or self._settled_so_far:
            return False
        self.access.require(READ, topic_name)
        message_ids, tokens = settles
        count = self._settle_ids(topic_name, group_id, None, message_ids, tokens)
        if count < len(message_ids):
            self._settled_so_far = [SETTLED] * count
            return False
        self.answer(settled_batch([SETTLED] * count))
        return True

    def _settle_first(self, request: SettleBatch) -> int:
        """Settle the first records of a batch in one step; return how many.

        Their settles report success.
        """
        topic_name, group_id, client_id, settles = request
        ids, successes, tokens, *_ = zip(*settles, strict=True)
        no_tokens = tokens.count(None)
        if not all(successes) or 0 < no_tokens < len(tokens):
            return 0
        owner = client_id if no_tokens else None
        return self._settle_ids(topic_name, group_id, owner, ids, tokens)

    def _settle_ids(
        self,
        topic_name: str,
        group_id: str,
        owner: str | None,
        ids: Sequence[int],
        tokens: Sequence[int | None],
    ) -> int:
        """Settle the first of these records, of one partition, as processed; return how many."""
        index, _ = split_message_id(ids[0])
        first_id, next_id = message_id_of(index, 0), message_id_of(index + 1, 0)
        offsets: Sequence[int]
        if type(ids) is range:  # it rises
            lowest, highest = ids[0], ids[-1]
            offsets = range(lowest - first_id, highest - first_id + 1)
        else:
            lowest, highest = min(ids), max(ids)
            offsets = [message_id - first_id for message_id in ids] if index else ids
        if lowest < first_id or highest >= next_id:
            return 0
        leases = self.broker.leases
        with suppress(BrokerdError):  # the first settle raises the error again
            last = highest - first_id
            group_partition = leases.group_partition(topic_name, group_id, index, last)
            return leases.settle_run(group_partition, offsets, owner, tokens)
        return 0

    def _settle_steps(self, request: SettleBatch) -> Steps[bytes]:
        """Settle some records in each step; the settles of a batch do not depend on each other."""
        results: list[str] = []
        for first in range(0, len(request.settles), STEP_SETTLES):
            yield None
            part = request._replace(settles=request.settles[first : first + STEP_SETTLES])
            results += [SETTLED] * self._settle_first(part)
            for settle in part.settles[len(results) - first :]:
                while True:
                    try:
                        results.append(self._settle_one(request, settle))
                        break
                    except Congested:
                        yield self.group_commit.when_uncongested
        return settled_batch(results)

    def _settle_one(self, request: SettleBatch, settle: BatchSettle) -> str:
        """Return ``settled`` or the text of the refusal. Raises `Congested`."""
        topic_name, group_id, client_id, _ = request
        message_id, success, token, delay, reason, dead = settle
        index, offset = split_message_id(message_id)
        leases = self.broker.leases
        try:
            leases.settle(
                leases.group_partition(topic_name, group_id, index, offset),
                offset,
                success,
                owner=client_id if token is None else None,
                token=token,
                delay_us=None if delay is None else microseconds(delay),
                reason=reason,
                dead=dead,
            )
        except Congested:
            raise
        except BrokerdError as refusal:
            return str(refusal)
        return SETTLED

    def _extend(self, request: Extend) -> None:
        topic_name, group_id, client_id, message_id, duration = request
        index, offset = split_message_id(message_id)
        group_partition = self.broker.leases.group_partition(topic_name, group_id, index, offset)
        if duration is None:
            duration_us = group_partition.settings.default_duration_us
        else:
            duration_us = microseconds(duration)
        remaining_us = self.broker.leases.extend(
            group_partition, offset, duration_us, owner=client_id
        )
        self.answers.append(extended(remaining_us / 1e6))

    def _release(self, request: Release) -> None:
        message_ids = request.message_ids
        if message_ids is None:
            count, more = self._release_some(request)
            if more:
                self._answer_in_steps(Command.RELEASE, self._release_steps(request, count))
            else:
                self.answers.append(released(count))
            return
        results = self._released_so_far
        try:
            for message_id in message_ids[len(results) :]:
                results.append(self._release_one(request, message_id))
        except Congested:
            raise
        except BrokerdError:  # an error says that nothing was changed
            self._released_so_far = []
            if not any(results):
                raise
        self._released_so_far = []
        self.answers.append(released(sum(results)))

    def _release_steps(self, request: Release, count: int = 0) -> Steps[bytes]:
        """Release some of the leases in each step, and count them with ``count`` earlier ones."""
        more = request.message_ids is None
        try:
            while more:
                yield None
                try:
                    released_now, more = self._release_some(request)
                    count += released_now
                except Congested:
                    yield self.group_commit.when_uncongested
            for number, message_id in enumerate(request.message_ids or ()):
                if number % STEP_ITEMS == 0:
                    yield None
                while True:
                    try:
                        count += self._release_one(request, message_id)
                        break
                    except Congested:
                        yield self.group_commit.when_uncongested
        except BrokerdError:  # an error says that nothing was changed
            if not count:
                raise
        return released(count)

    def _release_one(self, request: Release, message_id: int) -> bool:
        """Return whether the client had the lease, which ends. Raises `Congested`."""
        topic_name, group_id, client_id, _ = request
        index, offset = split_message_id(message_id)
        leases = self.broker.leases
        try:
            leases.release(
                leases.group_partition(topic_name, group_id, index, offset), offset, client_id
            )
        except (UnknownOffset, NotLeaseOwner, LeaseLost):
            return False
        return True

    def _release_some(self, request: Release) -> tuple[int, bool]:
        """Release some leases of a client; return their number and whether more remain."""
        topic_name, group_id, client_id, _ = request
        try:
            return self.broker.groups.release_owner(topic_name, group_id, client_id)
        except (UnknownTopic, UnknownGroup):
            return 0, False

    def _group_info(self, request: GroupInfo) -> None:
        info = self.broker.overview.group_info(request.log_id, request.group_id)
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

    _DISPATCH: ClassVar[dict[int, tuple[int, Callable[[MamamiaConnection, Any], None]]]] = {
        Command.PRODUCE: (WRITE, _produce),
        Command.ACQUIRE_NEXT: (READ, _acquire),
        Command.SETTLE: (READ, _settle),
        Command.PRODUCE_BATCH: (WRITE, _produce_batch),
        Command.ACQUIRE_BATCH: (READ, _acquire_batch),
        Command.SETTLE_BATCH: (READ, _settle_batch),
        Command.EXTEND: (READ, _extend),
        Command.GROUP_INFO: (READ, _group_info),
        Command.RELEASE: (READ, _release),
        Command.CANCEL: (WRITE, _cancel),
    }
    """The permission on the topic that each command needs, and its method."""
    _IN_STEPS: ClassVar[dict[int, Callable[[MamamiaConnection, Any], Steps[bytes]]]] = {
        Command.PRODUCE_BATCH: _batch_steps,
        Command.SETTLE_BATCH: _settle_steps,
        Command.RELEASE: _release_steps,
    }
    """Commands that are carried out in slices if their body is large."""
    _RUNS: ClassVar[dict[int, Callable[[MamamiaConnection, list[Frame]], int]]] = {
        Command.PRODUCE: _produce_run,
        Command.ACQUIRE_NEXT: _acquire_run,
        Command.SETTLE: _settle_run,
    }
    """Commands whose repetitions are carried out in one step, as `handle_run` says."""


class MamamiaFactory(ConnectionFactory):
    """Connections of one Mamamia listener."""

    def __init__(self, broker: Broker, clock: Clock, limits: Limits) -> None:
        super().__init__("mamamia", broker, clock, limits)
        self.decodes = DecodeQueue()

    def new_connection(self) -> MamamiaConnection:
        return MamamiaConnection(self.broker, self.limits.frame_bytes)
