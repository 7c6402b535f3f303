# Tests: tests/broker/test_topic_admin.py
"""TOPIC entries of the log.

docs/wal-format.rst, section "TOPIC body", is the contract.
"""

from __future__ import annotations

from typing import Any

import msgpack

from brokerd.broker.model.topics import Partition, Topic, TopicSettings
from brokerd.walformat import Entry, EntryKind


def _entry(topic: Topic, partition: int, **fields: Any) -> Entry:
    return Entry(EntryKind.TOPIC, topic.topic_id, partition, 0, 0, msgpack.packb(fields))


def topic_created_entry(topic: Topic) -> Entry:
    """Return the log entry that creates ``topic``."""
    fields: dict[str, Any] = {
        "op": "created",
        "name": topic.name,
        "partitions": len(topic.partitions),
    }
    if settings := topic.settings.given():
        fields["settings"] = settings
    if topic.internal_of:
        fields["internal_of"] = topic.internal_of
    return _entry(topic, 0, **fields)


def topic_configured_entry(topic: Topic, settings: TopicSettings) -> Entry:
    """Return the log entry that changes the settings of ``topic``."""
    return _entry(topic, 0, op="configured", settings=settings.given())


def topic_deleted_entry(topic: Topic, token_base: int) -> Entry:
    """Return the log entry that deletes ``topic`` and the internal topic that serves it.

    Groups of the deleted topic may have granted tokens up to ``token_base``. Later groups grant
    higher ones.
    """
    return _entry(topic, 0, op="deleted", token_base=token_base)


def topic_start_entry(partition: Partition, offset: int) -> Entry:
    """Return the log entry that removes the records of ``partition`` below ``offset``."""
    return _entry(partition.topic, partition.index, op="start", offset=offset)


def topic_archived_entry(partition: Partition, offset: int) -> Entry:
    """Return the log entry by which the log may lack records of ``partition`` below ``offset``."""
    return _entry(partition.topic, partition.index, op="archived", offset=offset)
