# Tests: tests/protocols/test_blipmq_poll.py
"""POLL and ACK of the BlipMQ format: docs/protocols/blipmq.rst, section Delivery."""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from brokerd.broker import TAKE, Broker, Chunk, Congested, ConsumerGroup
from brokerd.broker.subscriptions import Subscription
from brokerd.codecs.blipmq import DELIVERY_BYTES, MAX_LENGTH, UNKNOWN_DELIVERY, delivery_head
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
from brokerd.values import Format, message_id_of, split_message_id

OWNER = "blipmq"
"""Owner of all leases of subscriptions, so that any connection may acknowledge."""

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
            broker.leases.time_from_durable(group_partition, grant)
        else:
            broker.leases.settle_leased(group_partition, grant.offset, token=grant.token)
        return Delivery(tag, topic, chunk.values[index])


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

    def _use(self, subscription_id: int) -> tuple[Subscription, ConsumerGroup] | None:
        """Return a subscription and its group, or None if unknown or not permitted."""
        subscriptions = self.broker.subscriptions
        topic_name = subscriptions.topic_name(subscription_id)
        if topic_name is None:
            return None
        try:
            self.access.require(READ, topic_name)
        except (Denied, AuthenticationRequired):
            return None
        return subscriptions.use(subscription_id)

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
