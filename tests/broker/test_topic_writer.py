"""Records written by topic name: a first write creates the topic and leaves an audit event."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import BrokerSettings, Topic
from brokerd.errors import InvalidName, UnknownPartition
from brokerd.security.access import Access
from brokerd.security.audit import AuditFilter
from brokerd.values import RESERVED_PREFIX, Encoding, Format
from tests.broker.desk import read
from tests.house import House

DAY_US = 86_400 * 1_000_000


class Bob(Access):
    """The access of the one producer."""

    name = "bob"
    peer = "10.0.0.1"


BOB = Bob()


def audited() -> House:
    return House(settings=BrokerSettings(audit_keep_us=DAY_US))


def write(house: House, topic: str, index: int | None = None, **options: Any) -> tuple[int, int]:
    """Write ``x`` for bob; the partition's index and the offset."""
    partition, offset = house.broker.topic_writer.produce(
        BOB, topic, index, b"x", Encoding.BYTES, None, None, Format.FLYMQ, **options
    )
    return partition.index, offset


def events(house: House) -> list[tuple[str, str, str]]:
    """Who did what to which topic, by the audit trail."""
    pages: list[Any] = []
    house.run()
    house.broker.audit.query(AuditFilter(), lambda page, error: pages.append(page))
    house.run()
    return [(one.user, one.type, one.resource) for one in pages[0].events]


def test_a_first_write_creates_the_topic_and_says_who_did_it() -> None:
    house = audited()
    assert write(house, "t", partitions=3) == (0, 0)
    assert write(house, "t", 0) == (0, 1)
    assert house.broker.topics.existing("t").partitions[2].next_offset == 0
    assert events(house) == [("bob", "topic.create", "t")]
    assert read(house, "t", 1).value == b"x"


@pytest.mark.parametrize("index", [-1, 1, 7])
def test_a_write_to_a_partition_that_a_new_topic_lacks_creates_nothing(index: int) -> None:
    house = audited()
    with pytest.raises(UnknownPartition, match="would create it with 1"):
        write(house, "t", index)
    assert house.broker.topics.find("t") is None
    assert events(house) == []


def test_a_write_to_a_name_that_no_topic_may_have_leaves_no_event() -> None:
    house = audited()
    with pytest.raises(InvalidName):
        write(house, f"{RESERVED_PREFIX}t")
    assert events(house) == []


def test_a_topic_that_exists_needs_no_room() -> None:
    house = audited()

    def found(size: int) -> Topic:
        return house.broker.topic_writer.topic(BOB, "t", size)

    made = found(1)
    assert found(1 << 40) is made
