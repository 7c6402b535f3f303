"""The broker core: topics, partitions, groups and the journal; values in, values out."""

from brokerd.broker.archive.access import ArchiveAccess, ArchiveSettings
from brokerd.broker.broker import Broker
from brokerd.broker.clock import Clock, ClockSettings, Timer
from brokerd.broker.group_commit import Congested, GroupCommit
from brokerd.broker.leases.service import key_hash
from brokerd.broker.leases.waiters import Waiter
from brokerd.broker.model.chunks import Chunk, DenseChunk
from brokerd.broker.model.topics import (
    ConsumerGroup,
    GroupPartition,
    Partition,
    Topic,
    TopicSettings,
)
from brokerd.broker.records.fetch import FetchCallback
from brokerd.broker.retention.retention import RetentionSettings
from brokerd.broker.settings import BrokerSettings
from brokerd.broker.status.overview import GroupInfo
from brokerd.broker.wiring import build_broker
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
from brokerd.groups.packed import Position

__all__ = [
    "ArchiveAccess",
    "ArchiveSettings",
    "Broker",
    "BrokerSettings",
    "Chunk",
    "Clock",
    "ClockSettings",
    "Congested",
    "DenseChunk",
    "ConsumerGroup",
    "DeadLetter",
    "Timer",
    "FetchCallback",
    "GONE",
    "GroupInfo",
    "GroupSettings",
    "Position",
    "GroupCommit",
    "GroupPartition",
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
    "build_broker",
    "gone_until",
    "key_hash",
]
