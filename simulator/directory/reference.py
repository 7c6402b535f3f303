# Tests: tests/simulator/test_flips.py
"""A small log with every kind of entry, column and group event.

Two directories, both the same to the byte in every process:

- :func:`served` returns a broker's directory: RECORDS, GROUP_EVENTS, TOPIC, LOST and MARK entries
in three sealed segments and an unsealed one, their indexes, and two snapshots. A loss of power
right after a commit leaves it.

- :func:`reserved` returns entries of all kinds, also of unknown contents (SCHEDULE, SECURITY,
SCHEMA). Only the log can read it; a broker refuses it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgpack

from brokerd.broker import GroupPartition, Topic
from brokerd.broker.model.topics import TopicSettings
from brokerd.groups import GroupSettings
from brokerd.values import Encoding, Format, Record
from brokerd.wal import WalOptions
from brokerd.wal.recovery.loss_records import Loss, encode_loss
from brokerd.walformat import (
    SEGMENT_BYTES_MIN,
    Entry,
    EntryKind,
    EventKind,
    RecordColumns,
    encode_group_events,
    encode_records,
)
from simulator.machine.bare import (
    WAL_DIR,
    WALL_SECONDS,
    AcceptAll,
    BareBroker,
    BareLog,
    counting_ids,
)
from simulator.machine.disk import CrashModel, SimDisk

SECOND_US = 1_000_000
OPTIONS = WalOptions(segment_bytes=SEGMENT_BYTES_MIN, free_bytes_min=0)
_TOPIC_CREATED = msgpack.packb({"op": "created", "name": "t", "partitions": 1})
_LOSS = Loss("00000000000000000000.wal", 4096, 4104, 0, "is not damaged any more", [])
"""Recorded damage that the disk no longer has."""
Key = tuple[int, int, int]
"""Topic id, partition, offset."""


class Reference(NamedTuple):
    """A directory. ``live`` is the broker that wrote it, just before the loss of power."""

    disk: SimDisk
    live: BareBroker
    records: dict[Key, Record]
    """All acknowledged records."""


def served(snapshot_last: bool = False) -> Reference:
    """Return the directory of a broker; ``snapshot_last`` adds a snapshot after the last frame."""
    writing = _Writing()
    writing.records_of_every_column_kind()
    writing.leases_of_every_outcome()
    writing.seal()
    writing.groups_of_every_event()
    writing.topics_of_every_change()
    writing.damage_on_record()
    writing.snapshot_and_seal()
    writing.more(5)
    writing.snapshot_and_seal()
    writing.more(3)
    writing.house.pass_time(0.3)  # writes a mark
    writing.more(2)
    live = writing.house
    if snapshot_last:
        live.broker.write_last_snapshot()
    assert not live.failures
    disk = live.disk.fork()
    disk.crash(CrashModel.DROP)
    for name in disk.list(WAL_DIR):
        if name.endswith(".tmp"):
            disk.unlink(f"{WAL_DIR}/{name}")  # a spare segment of zeros
    return Reference(disk, live, writing.records)


class _Writing:
    """The work of clients, step by step."""

    def __init__(self) -> None:
        self.house = BareBroker(SimDisk(), OPTIONS, counting_ids(b"ref"))
        self.records: dict[Key, Record] = {}
        broker = self.house.broker
        self.orders = broker.topics.create("orders")
        self.events = broker.topics.create("Ereignisse/été", partitions=3)
        broker.topics.create("never used")
        self.house.run()

    # -- records ------------------------------------------------------------------------------

    def produce(self, topic: Topic, *records: Record, index: int = 0) -> None:
        """Append records; their own offsets and append times are ignored."""
        partition = topic.partition(index)
        for record in records:
            offset = self.house.broker.appender.produce(
                partition,
                record.value,
                record.encoding,
                record.key,
                record.metadata,
                record.producer_format,
                record.producer_time,
                record.expires_at_us,
            )
            self.records[topic.topic_id, index, offset] = record._replace(
                offset=offset, append_time_us=self.house.broker.time.time_us()
            )

    def records_of_every_column_kind(self) -> None:
        """Append batches whose columns are absent, constant, arrays, and arrays with validity."""
        far_us = int(WALL_SECONDS + 1e9) * SECOND_US
        note = msgpack.packb({"trace": "a1"})
        self.produce(self.orders, *[Record(0, b"plain-%d" % n) for n in range(3)])
        self.house.run()
        self.produce(
            self.orders,
            Record(0, b"first", None, Encoding.TEXT, None, 0, -5, 0, Format.MAMAMIA),
            Record(0, b"", b"key", Encoding.BYTES, note, 0, None, far_us, Format.FLYMQ),
            Record(0, b"\xc0", b"", Encoding.MSGPACK, b"", 0, 7, far_us + 9, Format.RUSTLOG),
            Record(0, b"BKfr" * 3, b"k", Encoding.BYTES, None, 0, 0, 0, Format.UNKNOWN),
        )
        self.house.run()
        same = Record(0, b"same", b"kk", Encoding.MSGPACK, note, 0, 99, far_us, Format.BLIPMQ)
        self.produce(self.orders, same, same)
        self.house.run()
        self.produce(self.orders, same._replace(producer_time=1), same._replace(value=b"other"))
        self.house.run()
        for index in range(3):  # one frame, three batches
            self.produce(
                self.events,
                *[Record(0, b"e%d" % n, b"%d" % n, producer_format=Format.MEGA) for n in range(4)],
                index=index,
            )
        self.house.run()

    def more(self, count: int) -> None:
        """Append frames with records of two topics, a lease and a settle each."""
        for n in range(count):
            self.house.pass_time(0.05)
            self.produce(self.orders, Record(0, b"more-%d" % n), Record(0, b"x" * n))
            self.produce(self.events, Record(0, b"again", b"%d" % n), index=n % 3)
            group_partition, offset = self.lease("orders", "workers", "bob")[0]
            self.house.broker.leases.settle(group_partition, offset, True, owner="bob")
            self.house.run()

    # -- groups -------------------------------------------------------------------------------

    def lease(
        self, topic: str, group: str, owner: str, count: int = 1
    ) -> list[tuple[GroupPartition, int]]:
        found = self.house.broker.leases.acquire(
            topic, group, owner, 30 * SECOND_US, count, AcceptAll()
        )
        return [(group_partition, grant.offset) for group_partition, grant in found]

    def topics_of_every_change(self) -> None:
        """Change settings, delete a topic, and write a batch that may be resent."""
        broker, house = self.house.broker, self.house
        broker.topics.configure("never used", TopicSettings(retention_us=3_600 * SECOND_US))
        broker.topics.create("brief")
        house.run()
        broker.topics.delete("brief")
        broker.producers.remember(self.orders, "ann", 1, [0, 1, 2])
        house.run()

    def damage_on_record(self) -> None:
        """Append the entries of a repair. A real repair writes them in a new segment."""
        self.house.broker.group_commit.add_entry(encode_loss(_LOSS))
        self.house.run()

    def leases_of_every_outcome(self) -> None:
        """Do everything that the Mamamia format can do to records."""
        broker, house = self.house.broker, self.house
        leased = self.lease("orders", "workers", "ann", 9)
        house.run()
        (group_partition, _), *_ = leased
        broker.leases.settle(group_partition, 0, True, owner="ann")
        broker.leases.settle(group_partition, 3, True, owner="ann")
        broker.leases.settle(group_partition, 1, False, owner="ann", delay_us=0)
        broker.leases.settle(group_partition, 2, False, owner="ann", delay_us=3_600 * SECOND_US)
        broker.leases.extend(group_partition, 4, 9_000 * SECOND_US, owner="ann")
        broker.leases.dead_letter(group_partition, 5, "too_large")
        house.run()
        for _ in range(2):  # its second and third failure
            [(group_partition, offset)] = self.lease("orders", "workers", "bob")
            broker.leases.settle(group_partition, offset, False, owner="bob")
            house.run()
        house.pass_time(31, step=1)  # the other leases lapse

    def groups_of_every_event(self) -> None:
        """Do everything that other formats and removals can do to a group."""
        topic, house = "Ereignisse/été", self.house
        now_us = house.broker.time.monotonic_us()
        for group in ("readers", "sélecteurs", "gone"):
            self.lease(topic, group, "eve", 5)
        house.run()
        group_partitions = list(self.events.groups["readers"].partitions)
        group_partitions[0].store.release(now_us, 0, owner="eve", delay_us=60 * SECOND_US)
        group_partitions[0].store.release(now_us, 1, owner="eve")
        group_partitions[1].store.settle_range(0, 2)
        group_partitions[2].store.commit_offset(3)
        odd = list(self.events.groups["sélecteurs"].partitions)
        odd[0].store.configure(GroupSettings(max_attempts=5))
        odd[1].store.seek(2)
        for offset in range(2):
            odd[2].store.dead_letter(now_us, 4, offset, "odd")
        odd[2].store.replay_dead(0, 1)
        odd[2].store.purge_dead(1, 2)
        group_partitions[2].store.pause()
        group_partitions[2].store.unpause()
        gone = list(self.events.groups["gone"].partitions)
        gone[0].store.delete()
        for group_partition in (*group_partitions, *odd, gone[0]):
            group_partition.keep()
            house.broker.group_commit.add_group_partition(group_partition)
        house.run()

    # -- the log ------------------------------------------------------------------------------

    def seal(self) -> None:
        self.house.run()
        self.house.wal.seal()
        self.house.run()

    def snapshot_and_seal(self) -> None:
        """Write a snapshot in the middle of a segment, so that replay begins inside it."""
        self.house.run()
        self.house.broker.write_last_snapshot()
        self.more(1)
        self.seal()


def reserved() -> tuple[SimDisk, list[Entry]]:
    """Return a log with entries of all kinds, sealed and unsealed, and the entries in order."""
    disk = SimDisk()
    log = BareLog(disk, OPTIONS, counting_ids(b"res"))
    log.wal.open(0, lambda frame: None)
    batch = encode_records(RecordColumns([b"one", b"two"], append_time_us=1))
    events = encode_group_events("g", [(EventKind.COMMITTED, 1, 0, 0, 0, "", "")])
    entries = [
        Entry(EntryKind.TOPIC, 1, 0, 0, 0, _TOPIC_CREATED),
        Entry(EntryKind.RECORDS, 1, 0, 0, 2, batch),
        Entry(EntryKind.GROUP_EVENTS, 1, 0, 0, 1, events),
        Entry(EntryKind.SCHEDULE, 1, 0, 0, 0, msgpack.packb({"op": "delayed", "until": 12})),
        Entry(EntryKind.SECURITY, 0, 0, 0, 0, msgpack.packb({"op": "user", "name": "ann"})),
        Entry(EntryKind.SCHEMA, 1, 0, 0, 0, msgpack.packb({"op": "schema", "version": 1})),
        Entry(EntryKind.RECORDS, 1, 0, 2, 2, batch),
        Entry(EntryKind.PRODUCER, 1, 0, 0, 0, msgpack.packb({"producer_id": "p", "sequence": 1})),
        Entry(EntryKind.SUBSCRIPTION, 1, 0, 0, 0, msgpack.packb({"op": "over", "id": 1})),
        Entry(EntryKind.STREAM, 0, 0, 0, 0, msgpack.packb({"op": "dropped", "name": "s"})),
        encode_loss(_LOSS),
        Entry(EntryKind.MARK, 0, 0, 0, 0, b""),
    ]
    for start, end in pairwise((0, 3, 6, len(entries))):
        log.wal.append(entries[start:end], start + 1)
        log.run()
        if end < len(entries):
            log.wal.seal()
            log.run()
    disk.crash(CrashModel.DROP)
    for name in disk.list(WAL_DIR):
        if name.endswith(".tmp"):
            disk.unlink(f"{WAL_DIR}/{name}")
    return disk, entries
