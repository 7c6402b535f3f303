"""The broker core: topics, partitions, groups and the journal; values in, values out."""

from brokerd.broker.chunks import Chunk
from brokerd.broker.core import Broker, BrokerSettings
from brokerd.broker.journal import Clock, Congested, DelayedCall, Journal
from brokerd.broker.overview import GroupInfo
from brokerd.broker.topics import ConsumerGroup, Lane, Partition, Topic
from brokerd.broker.waiters import Waiter
from brokerd.groups import DeadLetter, GroupSettings, Lease

__all__ = [
    "Broker",
    "BrokerSettings",
    "Chunk",
    "Clock",
    "Congested",
    "ConsumerGroup",
    "DeadLetter",
    "DelayedCall",
    "GroupInfo",
    "GroupSettings",
    "Journal",
    "Lane",
    "Lease",
    "Partition",
    "Topic",
    "Waiter",
]
