"""The bounds file as the archive's job finds it on the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.archive.contract.bounds import (
    Bounds,
    PartitionBounds,
    TopicBounds,
    decode_bounds,
    encode_topic,
)
from brokerd.archive.contract.schemas import StoredSchemas, decode_schemas
from brokerd.archive.contract.view import ArchiveView
from brokerd.broker import TopicSettings
from brokerd.broker.archive import bounds_writer
from brokerd.broker.archive.bounds import PIECE_ITEMS, capture
from brokerd.broker.archive.bounds_writer import EVERY_SECONDS, RETRY_SECONDS, SOON_SECONDS
from brokerd.broker.status.damage import DamagedBytes
from brokerd.errors import BrokerdError, DamagedData
from brokerd.groups import LeaseStore
from brokerd.schemas.values import SchemaType
from brokerd.security.access import OPEN
from brokerd.wal import WalOptions
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.read.scanner import ScanFrame
from brokerd.walformat import EntryKind, entry_size
from simulator.machine.bare import STATE_DIR, WAL_DIR
from tests.broker.desk import lease, produce, read, settle
from tests.house import House

FILE = f"{STATE_DIR}/bounds"


class NoArchive:
    """Nothing was archived yet."""

    def refresh(self) -> ArchiveView | None:
        return None


def new_house(**rest: Any) -> House:
    return House(open_archive=lambda log_id: NoArchive(), **rest)


@pytest.fixture
def house() -> House:
    return new_house()


def found(house: House) -> Bounds:
    """What the file says now."""
    return decode_bounds(bytes(house.disk.content(FILE)))


def asked(house: House, seconds: float = 0.1) -> Bounds:
    """What it says when it was just asked for."""
    written: list[Exception | None] = []
    house.broker.archive_admin.write_bounds(written.append)
    house.pass_time(seconds)
    assert written == [None]
    return found(house)


def topic(bounds: Bounds, name: str = "t") -> TopicBounds:
    return next(one for one in bounds.topics if one.name == name)


def below(house: House, index: int = 0) -> int:
    """The bound of a partition of topic ``t``."""
    return topic(asked(house)).partitions[index].compact_below


def test_a_start_writes_it(house: House) -> None:
    """The job needs it to begin at all."""
    house.pass_time(SOON_SECONDS + 0.1)
    assert found(house).topics == []
    assert found(house).next_topic_id == 1
    assert len(found(house).log_id) == 32


def test_it_tells_of_topics(house: House) -> None:
    """Their names, ids and settings; offsets by partition."""
    house.broker.topics.create("t", 2, TopicSettings(compact=True))
    house.broker.topics.create("u")
    produce(house, "t", b"a", b"b", b"c", index=1)
    house.broker.topics.trim("t", 1, 1)
    house.run()
    bounds = asked(house)
    assert bounds.topics == [
        TopicBounds(1, "t", 0, True, [PartitionBounds(0, 0, 0), PartitionBounds(1, 3, 3)]),
        TopicBounds(2, "u", 0, False, [PartitionBounds(0, 0, 0)]),
    ]
    assert bounds.next_topic_id == 3
    assert bounds.lsn == house.wal.durable_lsn


def test_a_deleted_topic_is_not_in_it(house: House) -> None:
    """Its id is below the next one, which is how the job knows."""
    house.append("t", b"x")
    house.broker.topics.delete("t")
    house.run()
    bounds = asked(house)
    assert (bounds.topics, bounds.next_topic_id) == ([], 2)


def test_records_that_a_group_has_to_do_stay(house: House) -> None:
    """The bound is the lowest record that some group has leased, delayed, dead or not settled."""
    produce(house, "t", *map(bytes, range(10)))
    house.run()
    assert below(house) == 10
    lease(house, limit=4)
    assert below(house) == 0
    for offset in (0, 1, 3):
        settle(house, offset)
    assert below(house) == 2
    lease(house, group="other", limit=1)
    assert below(house) == 0
    settle(house, 0, group="other")
    assert below(house) == 1


def test_a_delayed_record_stays(house: House) -> None:
    produce(house, "t", b"a", b"b")
    house.run()
    lease(house, limit=2)
    settle(house, 0, success=False, delay_seconds=60)
    settle(house, 1)
    assert below(house) == 0


def test_a_dead_letter_stays(house: House) -> None:
    """Somebody may still want to look at it, or to replay it."""
    produce(house, "t", b"a", b"b", b"c")
    house.run()
    lease(house, limit=3)
    house.broker.leases.dead_letter(house.broker.leases.group_partition("t", "g", 0, 1), 1, "bad")
    settle(house, 0)
    settle(house, 2)
    assert below(house) == 1
    house.broker.groups.purge_dead_letters("t", "g")
    assert below(house) == 3


def test_a_group_that_only_commits_has_what_follows_its_commit(house: House) -> None:
    produce(house, "t", *map(bytes, range(10)))
    house.broker.groups.commit_offset("t", "g", 0, 6)
    house.run()
    assert below(house) == 6


def test_a_group_has_everything_to_do_in_a_partition_without_events(house: House) -> None:
    house.broker.topics.create("t", 2)
    for index in (0, 1):
        produce(house, "t", b"a", b"b", b"c", index=index)
    house.broker.groups.commit_offset("t", "g", 0, 2)
    house.run()
    assert (below(house, 0), below(house, 1)) == (2, 0)
    house.broker.topics.trim("t", 1, 1)
    house.run()
    assert (below(house, 0), below(house, 1)) == (2, 1)


def test_a_group_that_commits_and_leases_has_what_it_leases(house: House) -> None:
    produce(house, "t", *map(bytes, range(10)))
    house.broker.groups.commit_offset("t", "g", 0, 6)
    lease(house)
    house.run()
    assert below(house) == 0


def test_delayed_messages_all_stay(house: House) -> None:
    """Their payloads are records of a topic without groups; they go when they have fired."""
    produce(house, "t", b"x")
    target = house.broker.topics.existing("t")
    house.broker.delayed.produce(target, b"later", delay_us=60_000_000)
    house.run()
    hidden = next(one for one in asked(house).topics if one.internal_of)
    assert hidden.internal_of == 1
    assert hidden.partitions == [PartitionBounds(0, 0, 1)]


def test_only_what_is_durable_is_in_it(house: House) -> None:
    """A settle that a power cut may take back raises no bound."""
    produce(house, "t", b"x")
    house.run()
    lease(house)
    settle(house, 0)
    written: list[Exception | None] = []
    house.broker.archive_admin.write_bounds(written.append)
    house.clock.advance(0)
    while house.snapshot_writer.step():
        house.clock.advance(0)
    assert not written
    house.run()
    assert written == [None]
    assert topic(found(house)).partitions[0].compact_below == 1


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_power_cut_takes_nothing_back_that_it_says(
    durability: Literal["fsync", "os"],
) -> None:
    """Whatever the durability: what the job removed because of it must not be there again."""
    options = WalOptions(segment_bytes=1 << 20, free_bytes_min=0, durability=durability)
    house = new_house(options=options)
    for name in "ab":
        house.append(name, b"x")
    house.broker.topics.delete("a")
    bounds = asked(house)
    assert [one.name for one in bounds.topics] == ["b"]
    again = house.crash()
    assert again.wal.durable_lsn >= bounds.lsn
    assert [one.name for one in again.broker.topics.all()] == ["b"]


def test_a_sync_that_fails_ends_the_broker() -> None:
    """As any does; and whoever asked for bounds hears of it."""
    options = WalOptions(segment_bytes=1 << 20, free_bytes_min=0, durability="os")
    house = new_house(options=options)
    house.append("t", b"x")
    house.disk.fail("sync")
    written: list[Exception | None] = []
    house.broker.archive_admin.write_bounds(written.append)
    house.pass_time(0.1)
    assert isinstance(written[0], OSError)
    assert house.failures


def test_a_topic_made_while_it_is_captured_is_not_taken_for_deleted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is not below the next one of the file."""
    monkeypatch.setattr(bounds_writer, "STEP_PIECES", 1)
    for name in "abc":
        house.broker.topics.create(name)
    house.broker.archive_admin.write_bounds(lambda error: None)
    house.clock.advance(0)
    house.broker.topics.create("late")
    house.broker.topics.delete("c")
    house.pass_time(0.2)
    bounds = found(house)
    assert ([one.name for one in bounds.topics], bounds.next_topic_id) == (["a", "b"], 4)


def test_a_clean_stop_writes_all_that_is_known(house: House) -> None:
    """So that the job may run while the broker is down."""
    produce(house, "t", b"x", b"y")
    house.run()
    lease(house)
    settle(house, 0)
    house.stop()
    bounds = found(house)
    assert topic(bounds).partitions == [PartitionBounds(0, 1, 2)]
    assert bounds.lsn == house.wal.appended_lsn


def test_it_follows_a_log_that_grows(house: House) -> None:
    """Once a minute; a log at rest costs nothing."""
    house.pass_time(2)
    house.append("t", b"x")
    house.pass_time(EVERY_SECONDS + 1, 0.5)
    assert topic(found(house)).partitions[0].next == 1
    calls = len(house.disk.files())
    before = house.disk.digest()
    house.pass_time(3 * EVERY_SECONDS, 0.5)
    assert (len(house.disk.files()), house.disk.digest()) == (calls, before)


@pytest.mark.parametrize(
    "change",
    [
        lambda house: house.broker.groups.seek("t", "g", 1),
        lambda house: house.broker.groups.commit_offset("t", "commits", 0, 1),
        lambda house: house.broker.topics.configure("t", TopicSettings(compact=False)),
    ],
)
def test_what_takes_a_bound_back_is_written_soon(
    house: House, change: Callable[[House], object]
) -> None:
    """The job may remove what the file says a moment longer, and no more."""
    house.broker.topics.create("t", 1, TopicSettings(compact=True))
    produce(house, "t", *map(bytes, range(4)))
    house.broker.groups.seek("t", "g", 4)
    house.broker.groups.commit_offset("t", "commits", 0, 4)
    house.pass_time(3)
    before = topic(found(house))
    assert before.partitions[0].compact_below == 4
    change(house)
    house.pass_time(SOON_SECONDS + 0.2)
    assert topic(found(house)) != before


def test_a_full_disk_is_told_and_tried_again(house: House) -> None:
    """Nothing else fails because of it."""
    house.append("t", b"x")
    assert topic(asked(house)).partitions[0].next == 1
    house.disk.fail("create", error=errno.ENOSPC)
    written: list[Exception | None] = []
    house.broker.archive_admin.write_bounds(written.append)
    house.pass_time(0.1)
    assert [str(error) for error in written] != ["None"]
    assert "No space" in house.broker.status()["archive"]["bounds"]["error"]
    house.append("t", b"y")
    house.pass_time(RETRY_SECONDS + 0.1)
    assert house.broker.status()["archive"]["bounds"]["error"] is None
    assert topic(found(house)).partitions[0].next == 2


def test_a_write_that_fails_is_told_once(house: House) -> None:
    """Until one succeeds; a full disk does not fill the log."""
    house.pass_time(2)
    with capturedLogs() as logs:
        for _ in range(3):
            house.disk.fail("create", error=errno.ENOSPC)
            house.broker.archive_admin.write_bounds(lambda error: None)
            house.pass_time(0.1)
    assert [event["log_level"].name for event in logs if event["event_id"] == "bounds-failed"] == [
        "error"
    ]


def test_a_large_one_is_not_written_all_the_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests longer than it took, but for those who ask."""
    monkeypatch.setattr(bounds_writer, "STEP_PIECES", 1)
    for number in range(20):
        house.broker.topics.create(str(number))
    house.pass_time(3)  # it takes one of them
    assert house.broker.status()["archive"]["bounds"]["written"] == 1
    house.broker.topics.configure("7", TopicSettings(compact=True))
    house.pass_time(15)
    assert not topic(found(house), "7").compact
    house.pass_time(10)
    assert topic(found(house), "7").compact
    house.broker.topics.configure("7", TopicSettings(compact=False))
    assert not topic(asked(house, 2), "7").compact


def test_a_step_ends_when_its_time_is_over(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """However cheap the topics before were."""
    encoded: list[TopicBounds] = []

    def encode(one: TopicBounds) -> bytes:
        house.clock.rightNow += bounds_writer.STEP_SECONDS
        encoded.append(one)
        return encode_topic(one)

    monkeypatch.setattr(bounds_writer, "encode_topic", encode)
    for name in "abc":
        house.broker.topics.create(name)
    house.broker.archive_admin.write_bounds(lambda error: None)
    house.clock.advance(0)
    assert [one.name for one in encoded] == ["a"]


def test_nothing_expires_by_a_clock_that_jumped(house: House) -> None:
    """As in the broker itself."""
    wall_us = house.wall_seconds * 1e6
    house.wall_seconds += 86_400
    bounds = asked(house)
    assert bounds.time_settled
    assert bounds.time_us == pytest.approx(wall_us, abs=2_000_000)


def test_damage_that_a_start_found_is_in_it(house: House) -> None:
    """And the offsets of which nothing is left: the job goes on past both."""
    for value in (b"a", b"b", b"c"):
        house.append("t", value)
    name, position, end = batch_of(house, 1)
    house.disk.flip(f"{WAL_DIR}/{name}", position + 20, 0xFF)
    again = house.crash()
    bounds = asked(again)
    (place,) = bounds.damage
    assert place.file == name
    assert place.position <= position + 20 < place.end <= end
    assert topic(bounds).partitions[0].gaps == [(1, 2)]
    assert asked(again.again()).damage == [place]


def test_damage_that_a_read_found_is_in_it(house: House) -> None:
    """The start does not look at what lies before its snapshot."""
    house.append("t", b"a")
    house.wal.seal()
    house.append("t", b"b")
    name, position, end = batch_of(house, 0)
    house.stop()
    house.disk.flip(f"{WAL_DIR}/{name}", position + 60, 0xFF)
    again = house.again()
    assert asked(again).damage == []
    with pytest.raises(DamagedData):
        read(again, "t", 0)
    (place,) = asked(again).damage
    assert (place.file, place.position, place.end) == (name, position, end)


def test_damage_in_no_known_place_is_not_in_it(house: House) -> None:
    """Nobody can go by that."""
    house.append("t", b"a")
    partition = house.broker.topics.existing("t").partition(0)
    house.broker.damage.read_damaged(partition, 0, 1, DamagedBytes("", -1, -1, "odd"))
    assert asked(house).damage == []


def batch_of(house: House, base_offset: int) -> tuple[str, int, int]:
    """File, position and end of the batch that begins at an offset."""
    for name, found in scan_log(house.disk, WAL_DIR):
        for one in found.entries if isinstance(found, ScanFrame) else ():
            entry = one.entry
            if entry is not None and entry[:4] == (EntryKind.RECORDS, 1, 0, base_offset):
                return name, one.position, one.position + entry_size(len(entry.body))
    raise AssertionError("there is no such batch")


def test_a_broker_without_archive_writes_none() -> None:
    house = House()
    house.append("t", b"x")
    house.pass_time(3)
    house.stop()
    assert not [name for name in house.disk.files() if not name.endswith((".wal", ".snap", ".idx"))]


OPERATIONS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 5)),
    st.tuples(st.just("lease"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("settle"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.just("fail"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.just("bury"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.just("replay"), st.integers(0, 1)),
    st.tuples(st.just("seek"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.just("trim"), st.integers(0, 30)),
)


@given(st.lists(OPERATIONS, max_size=25))
def test_below_the_bound_no_group_has_anything_to_do(operations: list[Any]) -> None:
    """And at the bound one has, unless it is the end: the archive keeps no more than it must."""
    house = new_house()
    house.broker.topics.create("t")
    for name, *arguments in operations:
        do(house, name, *arguments)
        house.run()
    partition = house.broker.topics.existing("t").partition(0)
    bounds = topic(asked(house)).partitions[0]
    assert (bounds.start, bounds.next) == (partition.start_offset, partition.next_offset)
    todo = [
        offset
        for group in house.broker.topics.existing("t").groups.values()
        for offset in to_do(group.partitions[0].store, bounds.next)
    ]
    assert bounds.compact_below == min(todo, default=bounds.next)


def do(house: House, name: str, first: int, number: int = 0) -> None:
    """One operation on the topic, or nothing where it makes no sense."""
    broker, group = house.broker, f"g{first}"
    topic = broker.topics.existing("t")
    if name == "produce":
        produce(house, "t", *[b"x"] * first)
    elif name == "trim":
        broker.topics.trim("t", 0, min(first, topic.partition(0).next_offset))
    elif name == "lease":
        lease(house, group=group, limit=number)
    elif name == "seek":
        broker.groups.seek("t", group, number)
    elif group in topic.groups:
        if name == "replay":
            broker.groups.replay_dead_letters("t", group)
        elif name == "bury":
            if number < topic.partition(0).next_offset:
                broker.leases.dead_letter(topic.groups[group].partitions[0], number, "bad")
        else:
            with suppress(BrokerdError):
                delay = 60.0 if name == "fail" else None
                settle(house, number, name == "settle", group=group, delay_seconds=delay)


def to_do(store: LeaseStore, end: int) -> Iterator[int]:
    """What a group has leased, delayed, dead or open, by its own lists."""
    yield from (one.offset for one in store.leases())
    yield from (offset for offset, _ in store.delays())
    yield from (one.offset for one in store.dead_letters())
    yield from store.open(0, end)


def test_a_wide_topic_is_captured_in_pieces(house: House) -> None:
    """However many partitions and groups it has, the reactor has its turn in between."""
    house.broker.topics.create("t", 30)
    for number in range(20):
        house.broker.groups.seek("t", f"g{number}", 0)
        house.run()
    pieces = list(capture([house.broker.topics.existing("t")], house.broker.overview.commit_place))
    assert len(pieces) == 1 + (30 * 21) // PIECE_ITEMS
    assert pieces[-1] is not None
    assert len(pieces[-1].partitions) == 30


def test_a_group_deleted_while_it_is_captured_has_nothing_to_do(house: House) -> None:
    house.broker.topics.create("t", 200)
    produce(house, "t", b"x", index=199)
    house.broker.groups.seek("t", "g", 0)
    house.broker.groups.seek("t", "other", "end")
    house.run()
    pieces = capture([house.broker.topics.existing("t")], house.broker.overview.commit_place)
    assert next(pieces) is None
    house.broker.groups.delete("t", "g")
    *_, last = pieces
    assert last is not None
    assert last.partitions[199].compact_below == 1


def test_requests_while_one_is_on_are_for_the_next(house: House) -> None:
    """What was applied before somebody asked is in what they are told of."""
    house.pass_time(2)
    house.broker.topics.create("a")
    first: list[list[str]] = []
    second: list[list[str]] = []

    def names() -> list[str]:
        return [one.name for one in found(house).topics]

    house.broker.archive_admin.write_bounds(lambda error: first.append(names()))
    house.clock.advance(0)
    house.broker.topics.create("b")
    house.broker.archive_admin.write_bounds(lambda error: second.append(names()))
    house.pass_time(0.5)
    assert first[0][:1] == ["a"]
    assert second == [["a", "b"]]


class TestSchemas:
    """``state/schemas``, which is written before the bounds if schemas have changed."""

    PATH = f"{STATE_DIR}/schemas"

    def stored(self, house: House) -> StoredSchemas:
        return decode_schemas(bytes(house.disk.content(self.PATH)))

    def register(self, house: House, text: bytes) -> None:
        done: list[Any] = []
        register = house.broker.schemas.register
        register(OPEN, "t", SchemaType.JSON, text, lambda *result: done.append(result))
        assert done[0][1] is None
        house.run()

    def names(self, house: House) -> list[str]:
        return house.disk.list(STATE_DIR)

    def test_all_versions_are_in_it_before_the_bounds(self, house: House) -> None:
        """With the broker time of their registration; deleted versions leave it."""
        self.register(house, b"{}")
        self.register(house, b'{"title": "t"}')
        bounds = asked(house)
        found = self.stored(house)
        assert found.log_id == bounds.log_id
        assert [(one.name, one.version, one.type, one.text) for one in found.versions] == [
            ("t", 1, "json", b"{}"),
            ("t", 2, "json", b'{"title": "t"}'),
        ]
        assert found.versions[0].created_us <= found.versions[1].created_us
        house.broker.schemas.delete(OPEN, "t", 1)
        house.run()
        asked(house)
        assert [one.version for one in self.stored(house).versions] == [2]
        house.broker.schemas.delete(OPEN, "t")
        house.run()
        asked(house)
        assert self.stored(house).versions == []

    def test_it_is_written_only_after_a_change(self, house: House) -> None:
        """A log that never had a schema has none."""
        asked(house)
        assert "schemas" not in self.names(house)
        self.register(house, b"{}")
        asked(house)
        house.disk.unlink(self.PATH)
        house.append("t", b"x")
        asked(house)
        assert "schemas" not in self.names(house)
        self.register(house, b"{}")
        asked(house)
        assert "schemas" in self.names(house)

    def test_a_start_writes_it_anew(self, house: House) -> None:
        """Also after a restore, which has no such file."""
        self.register(house, b"{}")
        again = house.crash()
        asked(again)
        assert len(self.stored(again).versions) == 1
        again.disk.unlink(self.PATH)
        last = again.crash()
        asked(last)
        assert len(self.stored(last).versions) == 1
