# Tests: tests/protocols/test_blipmq_poll.py
"""POLL and ACK of the BlipMQ format: docs/protocols/blipmq.rst, section Delivery."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import msgpack

from brokerd.broker import STOP, TAKE, Broker, Chunk, Congested, ConsumerGroup
from brokerd.broker.group_commit import EVENT_PAIR_BYTES
from brokerd.broker.leases.service import LAPSE_AND_CHANGE
from brokerd.broker.model.chunks import DenseChunk
from brokerd.broker.subscriptions import Subscription
from brokerd.codecs.blipmq import (
    DELIVERY_BYTES,
    MAX_LENGTH,
    UNKNOWN_DELIVERY,
    FrameType,
    delivery_head,
)
from brokerd.codecs.length_prefixed import FrameLengthError, LengthPrefixedReader
from brokerd.errors import (
    AuthenticationRequired,
    DamagedData,
    Denied,
    LeaseLost,
    RecordRemoved,
)
from brokerd.protocols.base.connection import Hold
from brokerd.protocols.base.framing import FrameConnection, FrameOnHold
from brokerd.protocols.base.leasing import (
    BaseLeaseFilter,
    NoLease,
    RecordPlace,
    dead_letter_damaged,
)
from brokerd.security import READ
from brokerd.values import Format, Grant, message_id_of, split_message_id, total_bytes

OWNER = "blipmq"
"""Owner of all leases of subscriptions, so that any connection may acknowledge."""

RUN_LEASES_MAX = 256
"""Most messages that one run of POLLs leases."""

RUN_BYTES_MAX = 256 << 10
"""Most bytes of their deliveries."""

QOS_0 = msgpack.packb({"qos": 0})
"""Metadata of a message published with QoS 0."""


def tag_of(partition: int, offset: int) -> int:
    """Return the delivery tag of a record: above 0, and the same for every delivery."""
    return message_id_of(partition, offset) + 1


def split_tag(tag: int) -> tuple[int, int]:
    """Return (partition, offset) of a delivery tag; (0, -1) for 0. The record may not exist."""
    if not tag:
        return 0, -1
    return split_message_id(tag - 1)


class Delivery(NamedTuple):
    """A message to deliver. The tag is 0 if the effective QoS is 0."""

    tag: int
    topic: bytes
    message: bytes


Deliveries = tuple[list[Delivery], list[Grant]]
"""Deliveries, and the leases of their messages."""

Request = tuple[int, int]
"""Frame type and correlation id of a POLL, ACK or PING."""


class LeaseRun(NamedTuple):
    """Result of a run of requests."""

    handled: int
    """Requests that were carried out."""
    deliveries: list[Delivery]
    """For the first POLLs. The others found no message."""
    settled: int
    """The first ACKs, which settled their messages. `PollConnection.settle` settles the others."""


NOTHING_DONE = LeaseRun(0, [], 0)


class DeliveryLeaseFilter(BaseLeaseFilter):
    """Accepts records that fit a delivery.

    Skips larger ones of QoS 0 and counts them in ``skipped``.
    """

    def __init__(self, broker: Broker, qos: int, room: int) -> None:
        super().__init__(broker)
        self._qos = qos
        self._room = room
        self.skipped = 0

    def effective_qos(self, chunk: Chunk, index: int) -> int:
        """Return 1 if message and subscription have QoS 1; messages of other formats have it."""
        if self._qos and not (
            chunk.metadata[index] == QOS_0 and chunk.formats[index] == Format.BLIPMQ
        ):
            return 1
        return 0

    def decide(self, chunk: Chunk, index: int) -> int:
        if len(chunk.values[index]) <= self._room:
            return TAKE
        if self.effective_qos(chunk, index):
            return self.stop_at_too_large(chunk, index)
        self.skipped += 1
        return self.passed_over()


class RunLeaseFilter(DeliveryLeaseFilter):
    """Accepts records for a run of POLLs: of effective QoS 1, and of ``bytes_left`` in total."""

    def __init__(self, broker: Broker, room: int, bytes_left: int) -> None:
        super().__init__(broker, 1, room)
        self._bytes_left = bytes_left

    def decide(self, chunk: Chunk, index: int) -> int:
        size = len(chunk.values[index])
        if size > min(self._room, self._bytes_left) or not self.effective_qos(chunk, index):
            self.stopped = True
            return STOP
        self._bytes_left -= size
        return TAKE

    def accept_run(self, first: int, count: int) -> int:
        """Accept records of one chunk that have QoS 1, fit and do not expire."""
        chunk = self.group_partition.partition.find(first)
        if not isinstance(chunk, DenseChunk) or chunk.expires_at_us is not None:
            return 0
        start = first - chunk.base
        stop = min(start + count, len(chunk.values))
        size = total_bytes(chunk.values[start:stop])
        if size > min(self._room, self._bytes_left) or QOS_0 in chunk.metadata[start:stop]:
            return 0
        self._bytes_left -= size
        self.taken += zip(repeat(chunk), range(start, stop), strict=False)
        return stop - start


class Polls:
    """Finds the next message to deliver; ``skipped`` counts too large messages of QoS 0."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.skipped = 0

    def next(
        self, subscription: Subscription, group: ConsumerGroup
    ) -> Delivery | RecordPlace | NoLease:
        """Lease the next message, or settle it if its effective QoS is 0.

        Return a `RecordPlace` that must be read first. Raises as `Broker.leases.acquire`.
        """
        broker = self._broker
        topic_name = group.topic.name
        topic = topic_name.encode("utf-8", "surrogatepass")
        while True:
            lease_filter = DeliveryLeaseFilter(
                broker, subscription.qos, MAX_LENGTH - DELIVERY_BYTES - len(topic)
            )
            leased = broker.leases.acquire(topic_name, group.name, OWNER, None, 1, lease_filter)
            self.skipped += lease_filter.skipped
            if leased:
                break
            if lease_filter.cold_place is not None:
                return lease_filter.cold_place
            if lease_filter.too_large_place is None:
                return NoLease.CUT_SHORT if lease_filter.cut_short else NoLease.EMPTY
            broker.leases.dead_letter(*lease_filter.too_large_place, "too_large")
        group_partition, grant = leased[0]
        chunk, index = lease_filter.taken[0]
        broker.counters.traffic.count_leased(group.topic, lease_filter.taken)
        tag = 0
        if lease_filter.effective_qos(chunk, index):
            tag = tag_of(group_partition.partition.index, grant.offset)
            broker.leases.time_from_durable(group_partition, (grant,))
        else:
            broker.leases.settle_leased(group_partition, grant.offset, token=grant.token)
        return Delivery(tag, topic, chunk.values[index])

    def next_run(
        self, group: ConsumerGroup, count: int, bytes_max: int, now_us: int
    ) -> tuple[Deliveries, bool]:
        """Lease the next messages of effective QoS 1 for ``count`` POLLs in one step.

        The subscription has QoS 1 and its topic one partition. The caller starts the time of the
        leases. Return the deliveries, and whether a POLL after them finds no message; otherwise
        `next` has to look. Raises as `Broker.leases.acquire`.
        """
        broker = self._broker
        topic_name = group.topic.name
        topic = topic_name.encode("utf-8", "surrogatepass")
        room = MAX_LENGTH - DELIVERY_BYTES - len(topic)
        bytes_max -= count * (DELIVERY_BYTES + len(topic))
        lease_filter = RunLeaseFilter(broker, room, bytes_max)
        leased = broker.leases.acquire(
            topic_name, group.name, OWNER, None, count, lease_filter, now_us
        )
        taken, grants = lease_filter.taken, [grant for _, grant in leased]
        if taken:
            broker.counters.traffic.count_leased(group.topic, taken)
        deliveries = [
            Delivery(grant.offset + 1, topic, chunk.values[index])  # the tag of partition 0
            for grant, (chunk, index) in zip(grants, taken, strict=True)
        ]
        return (deliveries, grants), not lease_filter.stopped


class PollConnection(FrameConnection[bytes, FrameLengthError]):
    """A connection whose POLL may wait for a read from disk.

    The frame stays first in ``frames`` and a hold keeps later frames waiting, so deliveries are in
    the order of the POLLs.
    """

    def __init__(self, broker: Broker, reader: LengthPrefixedReader, polls: Polls) -> None:
        super().__init__(broker, reader)
        self._polls = polls
        self._damaged: tuple[RecordPlace, DamagedData] | None = None
        """The unreadable record that the current POLL met, and its damage."""

    def deliver(self, correlation_id: int, subscription_id: int) -> None:
        """Answer a POLL with the next message, or nothing if there is none.

        Raises `FrameOnHold`, `AwaitMemory`, and as `Broker.leases.acquire`.
        """
        self.await_memory()
        self._dead_letter_unreadable()
        used = self._use(subscription_id)
        if used is None:
            return
        found = self._polls.next(*used)
        if isinstance(found, NoLease):
            if found is NoLease.CUT_SHORT:
                self.hold(Hold.IN_PROGRESS)
                self.factory.clock.callLater(0, self.close_on_fault, self._go_on)
                raise FrameOnHold
        elif isinstance(found, Delivery):
            tag, topic, message = found
            head = delivery_head(tag or correlation_id, bool(tag), topic, len(message))
            self.answer(head, message)
        else:
            self._load(found)

    def lease_run(self, subscription_id: int, requests: Sequence[Request]) -> LeaseRun:
        """Lease and settle for the first of these requests of a subscription in one step.

        The count is 0 if `deliver` or `settle` has to handle the first one. Raises as `deliver`;
        then nothing is changed.
        """
        used = self._use(subscription_id) if self._damaged is None else None
        if used is None or not used[0].qos or len(used[1].partitions) != 1:
            return NOTHING_DONE
        leases, group_partition = self.broker.leases, used[1].partitions[0]
        offsets = _acknowledged(requests)
        size = len(requests) * LAPSE_AND_CHANGE * EVENT_PAIR_BYTES
        if len(set(offsets)) < len(offsets) or not self.group_commit.has_room(size):
            return NOTHING_DONE
        now_us = self.broker.time.monotonic_us()
        leased = leases.leased_run(group_partition, offsets, now_us) if offsets else 0
        requests = _before(requests, FrameType.ACK, leased)
        polls = sum(kind == FrameType.POLL for kind, _ in requests)
        found: Deliveries = [], []
        if polls:
            self.await_memory()
            limit = min(polls, RUN_LEASES_MAX)
            room = min(self.in_flight_room, RUN_BYTES_MAX)
            found, is_empty = self._polls.next_run(used[1], limit, room, now_us)
            if polls > limit or not is_empty:
                requests = _before(requests, FrameType.POLL, len(found[0]))
        offsets, settled = _acknowledged(requests), 0
        if offsets:
            tokens = [None] * len(offsets)
            settled = leases.settle_run(group_partition, offsets, None, tokens, now_us)
            self.wrote()
        if found[0]:
            leases.time_from_durable(group_partition, found[1])
        return LeaseRun(len(requests), found[0], settled)

    def _use(self, subscription_id: int) -> tuple[Subscription, ConsumerGroup] | None:
        """Return a subscription and its group, or None if unknown or not permitted."""
        subscriptions = self.broker.subscriptions
        found = subscriptions.find(subscription_id)
        if found is None:
            return None
        try:
            self.access.require(READ, found[1].topic.name)
        except (Denied, AuthenticationRequired):
            return None
        subscriptions.use(found[0])
        return found

    def _dead_letter_unreadable(self) -> None:
        """Make the unreadable record, if any, a dead letter; raises as `dead_letter`."""
        if self._damaged is None:
            return
        damaged, self._damaged = self._damaged, None
        try:
            dead_letter_damaged(self.broker, *damaged)
        except Congested:
            self._damaged = damaged
            raise

    def _load(self, place: RecordPlace) -> None:
        """Read a record into memory; raises `FrameOnHold`."""
        self.hold(Hold.IN_PROGRESS)
        group_partition, offset = place

        def loaded(_chunk: Chunk | None, failure: Exception | None) -> None:
            self.close_on_fault(self._loaded, place, failure)

        self.broker.reader.load(group_partition.partition, offset, loaded)
        raise FrameOnHold

    def _loaded(self, place: RecordPlace, failure: Exception | None) -> None:
        if self.gone:
            return
        if isinstance(failure, DamagedData):
            self._damaged = place, failure
        elif failure is not None and not isinstance(failure, RecordRemoved):
            self.frames.pop(0)  # the disk may give it another time, to another POLL
            self.used_quota()
        self.unhold(Hold.IN_PROGRESS)

    def _go_on(self) -> None:
        if not self.gone:
            self.unhold(Hold.IN_PROGRESS)

    def settle(self, subscription_id: int, partition: int, offset: int) -> None:
        """Settle a message in flight. Raises `LeaseLost` if it is not in flight."""
        used = self._use(subscription_id)
        if used is None or partition >= len(used[1].partitions):
            raise LeaseLost(UNKNOWN_DELIVERY)
        self.broker.leases.settle_leased(used[1].partitions[partition], offset)
        self.wrote()


def _acknowledged(requests: Sequence[Request]) -> list[int]:
    """Return the offsets that ACKs name, in a topic of one partition."""
    return [tag - 1 for kind, tag in requests if kind == FrameType.ACK]


def _before(requests: Sequence[Request], kind: int, count: int) -> Sequence[Request]:
    """Return the requests before the one of this kind that follows ``count`` others of it."""
    for index, request in enumerate(requests):
        if request[0] == kind:
            if not count:
                return requests[:index]
            count -= 1
    return requests
