# Tests: tests/broker/test_topic_writer.py
"""Writes a client's record in one call: space in the log, the topic, the append.

The audit event of a new topic is queued: `AuditTrail.record` writes it in a later turn.

A format that creates topics by writing to them calls `TopicWriter`. Formats that refuse unknown
topics append to a partition with `RecordAppender.produce` or `RecordAppender.produce_values`.
"""

from __future__ import annotations

from brokerd.broker.context import Context
from brokerd.broker.model.topics import Partition, Topic
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.size import record_frame_bytes
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.topic_admin import TopicAdmin, check_topic_name
from brokerd.errors import UnknownPartition
from brokerd.security.access import Access
from brokerd.security.audit import topic_auto_created


class TopicWriter:
    """Appends records by topic name and creates topics that do not exist."""

    def __init__(
        self, context: Context, topics: TopicAdmin, records: RecordAppender, audit: AuditTrail
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._topics = topics
        self._records = records
        self._audit = audit

    def produce(
        self,
        by: Access,
        topic_name: str,
        partition_index: int | None,
        value: bytes,
        encoding: int,
        key: bytes | None,
        metadata: bytes | None,
        producer_format: int,
        expires_at_us: int | None = None,
        partitions: int = 1,
    ) -> tuple[Partition, int]:
        """Append one record and return its partition and offset.

        ``by`` is the access of the producer, for the audit event. ``partition_index`` is the
        number of the partition, or None for the topic to choose one, by the key if there is a key.
        ``expires_at_us`` is as in `RecordAppender.append`. A topic that does not exist is created
        with ``partitions`` partitions. Raises `NoSpace`, `Congested`, `UnknownPartition`,
        `InvalidName` or `LimitExceeded` before it changes anything.
        """
        size = record_frame_bytes(value, key, metadata)
        topic = self._state.by_name.get(topic_name)
        if topic is None:
            check_topic_name(topic_name)  # refuse a bad name even when the log has no space
        self._group_commit.admit(size)
        if topic is None:
            topic = self._create(by, topic_name, partitions, partition_index or 0)
        partition = topic.choose(key, partition_index)
        return partition, self._records.append(
            partition, value, encoding, key, metadata, producer_format, None, expires_at_us, size
        )

    def topic(
        self,
        by: Access,
        topic_name: str,
        size: int,
        partitions: int = 1,
        highest_partition: int = 0,
    ) -> Topic:
        """Return the topic of this name, and create it if it does not exist.

        A new topic is created only if the log has space for ``size`` bytes of records and the topic
        will have the partition ``highest_partition``. Raises as `produce`.
        """
        topic = self._state.by_name.get(topic_name)
        if topic is None:
            self._group_commit.admit(size)
            topic = self._create(by, topic_name, partitions, highest_partition)
        return topic

    def _create(
        self, by: Access, topic_name: str, partitions: int, highest_partition: int
    ) -> Topic:
        if not 0 <= highest_partition < partitions:
            raise UnknownPartition(
                f"topic {topic_name!r} does not exist and has no partition {highest_partition}; "
                f"its first record would create it with {partitions}, numbered from 0: create it "
                "first"
            )
        topic = self._topics.create(topic_name, partitions)
        self._audit.record(topic_auto_created(by.actor, topic_name))
        return topic
