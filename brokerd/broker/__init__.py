"""The broker core: topics, partitions, groups and the journal; values in, values out."""

from brokerd.broker.archive_access import ArchiveAccess, ArchiveSettings
from brokerd.broker.chunks import Chunk
from brokerd.broker.core import Broker, BrokerSettings
from brokerd.broker.fetching import Fetched
from brokerd.broker.journal import Clock, Congested, DelayedCall, Journal
from brokerd.broker.leasing import key_hash
from brokerd.broker.overview import GroupInfo
from brokerd.broker.retention import RetentionSettings
from brokerd.broker.topics import ConsumerGroup, Lane, Partition, Topic, TopicSettings
from brokerd.broker.waiters import Waiter
from brokerd.groups import (
    GONE,
    NO_KEY,
    STOP,
    TAKE,
    UNKNOWN,
    DeadLetter,
    GroupSettings,
    Lease,
    gone_until,
)

__all__ = [
    "ArchiveAccess",
    "ArchiveSettings",
    "Broker",
    "BrokerSettings",
    "Chunk",
    "Clock",
    "Congested",
    "ConsumerGroup",
    "DeadLetter",
    "DelayedCall",
    "Fetched",
    "GONE",
    "GroupInfo",
    "GroupSettings",
    "Journal",
    "Lane",
    "Lease",
    "NO_KEY",
    "Partition",
    "RetentionSettings",
    "STOP",
    "TAKE",
    "Topic",
    "TopicSettings",
    "UNKNOWN",
    "Waiter",
    "gone_until",
    "key_hash",
]
