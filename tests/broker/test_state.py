"""What is left after damage is served, what is lost is told, and no offset is assigned twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.model.snapshotter import STEP_THINGS
from brokerd.broker.model.state import State
from brokerd.errors import DamagedData, LeaseLost, NewerFormat
from brokerd.groups import GroupSettings
from brokerd.wal import Frame, LostRange, SnapshotChunk, WalOptions
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.read.scanner import ScanEntry, ScanFrame
from brokerd.walformat import Entry, EntryKind
from simulator.machine.bare import WAL_DIR
from tests.broker.desk import acknowledged, grants, lease, produce, read, settle
from tests.house import House


def entries(house: House) -> list[tuple[str, ScanFrame, ScanEntry]]:
    """(file, frame, entry) of all that stands in the log."""
    return [
        (name, found, entry)
        for name, found in scan_log(house.disk, WAL_DIR)
        if isinstance(found, ScanFrame)
        for entry in found.entries
    ]


def rot(house: House, name: str, position: int, length: int = 1) -> None:
    content = house.disk.content(f"{WAL_DIR}/{name}")
    for at in range(position, position + length):
        content[at] ^= 0xFF


def after_damage(house: House, hit: Callable[[Entry | None], bool], header: bool = False) -> House:
    """Crash, damage the entries that ``hit`` names (all of it, or its header), and start again."""
    house.pass_time(0.5)
    house.disk.crash()
    found = [place for place in entries(house) if hit(place[2].entry)]
    assert found, "there is nothing to damage"
    for name, _, entry in found:
        rot(house, name, entry.position + (0 if header else 48))
    return house.again()


def is_records(topic_id: int, base_offset: int) -> Callable[[Entry | None], bool]:
    return lambda entry: (
        entry is not None
        and entry.kind == EntryKind.RECORDS
        and (entry.topic_id, entry.base_offset) == (topic_id, base_offset)
    )


def is_kind(kind: EntryKind) -> Callable[[Entry | None], bool]:
    return lambda entry: entry is not None and entry.kind == kind


def produce_each(house: House, topic: str, *values: bytes) -> None:
    """One frame for each value."""
    for value in values:
        produce(house, topic, value)
        house.run()


def drain(house: House, group: str = "g", topic: str = "t") -> list[tuple[int, bytes]]:
    """Lease all there is."""
    found = []
    while more := lease(house, topic, group, limit=9):
        found += more
    return found


class TestLostRecords:
    def test_damage_in_the_middle_takes_one_record_and_no_offset(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1", b"2")
        house = after_damage(house, is_records(1, 1))
        assert len(house.report.damages) == 1
        assert [read(house, "t", offset).value for offset in (0, 2)] == [b"0", b"2"]
        with pytest.raises(DamagedData, match=r"\.wal at \d+ to \d+: entry body"):
            read(house, "t", 1)
        assert produce(house, "t", b"3") == [3]

    def test_below_a_snapshot_nothing_is_a_tear(self) -> None:
        """No frame follows, but the snapshot was not written before the log was synced."""
        house = House()
        produce_each(house, "t", b"0", b"1")
        house.broker.write_last_snapshot()
        produce(house, "t", b"2")
        house.turn()
        house.disk.crash()
        [(name, frame, entry)] = [p for p in entries(house) if is_records(1, 1)(p[2].entry)]
        for position, value in ((frame.position, b"1"), (entry.position + 48, None)):
            disk = house.disk.copy()
            disk.flip(f"{WAL_DIR}/{name}", position, 0xFF)
            again = house.again(disk=disk)
            assert again.report.cut is None
            assert len(again.report.damages) == 1
            if value is not None:
                assert read(again, "t", 1).value == value
            assert produce(again, "t", b"new") == [2]

    def test_above_a_snapshot_there_may_be_a_tear_after_damage(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        house.broker.write_last_snapshot()
        house.disk.crash()
        [(name, frame, _)] = [p for p in entries(house) if is_records(1, 1)(p[2].entry)]
        end = frame.position + frame.header.length
        for position in (frame.position, end + 100):
            house.disk.flip(f"{WAL_DIR}/{name}", position, 0xFF)
        house = house.again()
        assert house.report.cut is not None and house.report.cut.position == end
        assert [damage.end for damage in house.report.damages] == [end]
        assert read(house, "t", 1).value == b"1"

    def test_lost_at_the_end_with_its_header_left_leaves_its_offset_out(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1", b"2")
        house = after_damage(house, is_records(1, 2))
        assert produce(house, "t", b"new") == [3]

    @pytest.mark.parametrize("first_too", [False, True])
    def test_offsets_are_never_reused_although_nothing_tells_them(self, first_too: bool) -> None:
        """The last frames of a topic are lost with their headers, and only others follow."""
        house = House()
        house.broker.topics.create("t")
        house.run()
        produce_each(house, "t", b"0", *[b""] * 5)
        produce_each(house, "u", b"x")
        first = 0 if first_too else 1
        lost = [is_records(1, offset) for offset in range(first, 6)]
        house = after_damage(house, lambda entry: any(hit(entry) for hit in lost), header=True)
        [offset] = produce(house, "t", b"new")
        assert offset > 5
        house.run()
        house = house.crash()
        assert read(house, "t", offset).value == b"new"
        assert produce(house, "t", b"newer") == [offset + 1]

    def test_a_whole_stretch_of_the_log_that_is_gone_leaves_its_offsets_out(self) -> None:
        house = House()
        produce_each(house, "t", b"0")
        produce(house, "t", *[b""] * 500)
        house.run()
        produce_each(house, "u", b"x")
        house.disk.crash()
        spots = [place for place in entries(house) if is_records(1, 1)(place[2].entry)]
        name, frame, _ = spots[0]
        rot(house, name, frame.position, frame.header.length)
        house = house.again()
        [offset] = produce(house, "t", b"new")
        assert offset > 500

    def test_groups_pass_over_what_was_left_out_at_once(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        lease(house)
        house.run()
        produce_each(house, "u", b"x")
        house = after_damage(house, is_records(1, 1), header=True)
        [offset] = produce(house, "t", b"new")
        for group in ("g", "fresh"):
            settle(house, 0, group=group)
            assert lease(house, group=group, owner="bob") == [(offset, b"new")]
            assert house.broker.overview.group_info("t", group).lag == 1
        house.run()
        house = house.crash()
        for group in ("g", "fresh", "fresher"):
            assert house.broker.overview.group_info("t", group).dead == 0
        assert drain(house, "fresher") == [(0, b"0"), (offset, b"new")]

    @pytest.mark.parametrize("clean", [True, False])
    def test_and_so_do_groups_made_after_the_next_start(self, clean: bool) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        produce_each(house, "u", b"x")
        house = after_damage(house, is_records(1, 1), header=True)
        [offset] = produce(house, "t", b"new")
        house.run()
        if clean:
            house.stop()
        house = house.again() if clean else house.crash()
        assert drain(house) == [(0, b"0"), (offset, b"new")]

    def test_a_partition_that_goes_on_after_the_damage_leaves_nothing_out(self) -> None:
        house = House()
        produce_each(house, "t", b"0")
        produce_each(house, "u", b"x")
        produce_each(house, "t", b"1")
        house.broker.topics.create("empty")
        house.run()
        house = after_damage(house, is_records(2, 0), header=True)
        assert produce(house, "t", b"2") == [2]
        assert produce(house, "empty", b"0") == [0]

    def test_what_a_snapshot_told_after_the_damage_leaves_nothing_out(self) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=1))
        produce_each(house, "u", b"x")
        produce_each(house, "t", b"0", b"1")
        house.pass_time(1)
        produce_each(house, "u", b"x")
        house.disk.crash()
        name, _, entry = next(p for p in entries(house) if is_records(2, 1)(p[2].entry))
        rot(house, name, entry.position)
        house = house.again()
        assert len(house.report.damages) == 1
        assert produce(house, "t", b"2") == [2]
        assert house.broker.topics.create("next").topic_id == 3

    def test_starting_again_and_again_leaves_out_no_more(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        produce_each(house, "u", b"x")
        house = after_damage(house, is_records(1, 1), header=True)
        end = house.broker.topics.existing("t").partitions[0].next_offset
        for _ in range(3):
            house = house.crash()
            assert house.broker.topics.existing("t").partitions[0].next_offset == end


class TestLostTopics:
    def test_records_of_a_lost_topic_are_served_under_a_name_of_its_own(self) -> None:
        house = House()
        house.broker.topics.create("orders", 3)
        house.run()
        for index in (0, 2, 1):
            produce(house, "orders", b"%d" % index, index=index)
            lease(house, "orders")
            house.run()
        house = after_damage(house, is_kind(EntryKind.TOPIC))
        [topic] = house.broker.topics.all()
        assert (topic.topic_id, topic.name, len(topic.partitions)) == (1, "lost-topic-1", 3)
        assert [read(house, topic.name, 0, index).value for index in range(3)] == [b"0", b"1", b"2"]
        assert house.broker.overview.group_info(topic.name, "g").leased == 3

    def test_its_old_name_is_free_and_its_id_is_not_used_again(self) -> None:
        house = House()
        produce_each(house, "orders", b"old")
        house = after_damage(house, is_kind(EntryKind.TOPIC))
        assert house.broker.topics.find("orders") is None
        produce_each(house, "orders", b"new")
        assert house.broker.topics.existing("orders").topic_id > 1
        house = house.crash()
        assert read(house, "orders", 0).value == b"new"
        assert read(house, "lost-topic-1", 0).value == b"old"

    def test_its_name_gives_way_to_a_topic_that_has_it(self) -> None:
        house = House()
        produce_each(house, "orders", b"old")
        produce_each(house, "lost-topic-1", b"mine")
        house = after_damage(
            house, lambda e: e is not None and e.kind == EntryKind.TOPIC and e.topic_id == 1
        )
        assert read(house, "lost-topic-1", 0).value == b"mine"
        assert read(house, "lost-topic-1-again", 0).value == b"old"

    def test_the_name_stays_if_a_snapshot_tells_it(self) -> None:
        house = House()
        produce_each(house, "orders", b"old")
        house.stop()
        house = house.again()
        produce_each(house, "orders", b"new")
        house = after_damage(house, is_kind(EntryKind.TOPIC))
        assert read(house, "orders", 1).value == b"new"

    def test_an_id_that_only_the_header_of_a_damaged_entry_names_is_not_used_again(self) -> None:
        """Every entry there was is counted, so that nothing is left out: the header must tell."""
        house = House()
        for name in ("a", "b"):
            house.broker.topics.create(name)
            house.run()
        house = after_damage(
            house, lambda entry: entry is not None and entry[:2] == (EntryKind.TOPIC, 2)
        )
        [damage] = house.report.damages
        assert "TOPIC of topic id 2" in damage.problem
        assert house.broker.topics.create("c").topic_id == 3

    def test_an_id_is_not_used_again_although_nothing_is_left_of_its_topic(self) -> None:
        house = House()
        produce_each(house, "t", b"0")
        house.broker.topics.create("empty")
        house.run()
        house = after_damage(
            house,
            lambda e: e is not None and e.kind == EntryKind.TOPIC and e.topic_id == 2,
            header=True,
        )
        assert house.broker.topics.create("next").topic_id > 2


class TestLostEvents:
    def events(self, count: int) -> Callable[[Entry | None], bool]:
        """Names the entry of group events with this number, counted from 0."""
        seen: list[Entry] = []

        def hit(entry: Entry | None) -> bool:
            if entry is None or entry.kind != EntryKind.GROUP_EVENTS:
                return False
            seen.append(entry)
            return len(seen) == count + 1

        return hit

    def test_a_lease_that_is_lost_makes_its_record_free_and_the_broker_starts(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        lease(house, seconds=1)
        house.run()
        house.pass_time(2)  # the lapse of what will be lost
        lease(house, owner="bob", limit=2)
        house.run()
        house = after_damage(house, self.events(0))
        with pytest.raises(Exception, match="does not own"):
            settle(house, 0, owner="ann")
        assert settle(house, 0, owner="bob")

    def test_a_settle_whose_lease_is_lost_stays_settled(self) -> None:
        house = House()
        produce_each(house, "t", b"0")
        lease(house)
        house.run()
        settle(house, 0)
        house.broker.group_commit.ticket()
        house = after_damage(house, self.events(0))
        assert house.broker.overview.group_info("t", "g").floor == 1

    def test_a_log_that_contradicts_itself_without_damage_is_refused(self) -> None:
        """That would be a fault of brokerd, and serving on would make it worse."""
        house = House()
        produce_each(house, "t", b"0")
        lease(house)
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        group_partition.store.events[:] = [(6, 0, 0, 1, 0, "", "")]
        house.broker.group_commit.ticket()
        house.run()
        with pytest.raises(DamagedData, match=r"the log contradicts itself.*verify"):
            house.crash()


@pytest.mark.parametrize("header", [False, True], ids=["a body", "a header"])
class TestLostTokens:
    """A token that somebody still has is never given again, although the log forgot it."""

    def after(self, house: House, header: bool, count: int = 1) -> House:
        """Lose the last ``count`` entries of group events."""
        hit = is_kind(EntryKind.GROUP_EVENTS)
        found = [e.entry for _, _, e in entries(house) if hit(e.entry)]
        return after_damage(house, lambda entry: entry in found[-count:], header)

    def leased(self, count: int = 3) -> tuple[House, list[int]]:
        """Each record leased once, one frame each; their tokens."""
        house = House()
        produce_each(house, "t", *[b"%d" % number for number in range(count)])
        tokens = []
        for _ in range(count):
            [(grant, _)] = grants(house, seconds=3600)
            tokens.append(grant.token)
            house.run()
        return house, tokens

    def test_of_a_group_that_lost_its_last_leases(self, header: bool) -> None:
        house, tokens = self.leased()
        house = self.after(house, header, 2)
        [(grant, _)] = grants(house)
        assert grant.offset == 1 and grant.token > max(tokens)
        for stale in tokens:
            with pytest.raises(LeaseLost):
                settle(house, 1, token=stale)
        assert settle(house, 1, token=grant.token)

    def test_of_a_group_that_is_lost_altogether(self, header: bool) -> None:
        house, tokens = self.leased()
        house = self.after(house, header, 3)
        [(grant, _)] = grants(house)
        assert grant.offset == 0 and grant.token > max(tokens)

    def test_of_a_group_that_is_lost_before_a_topic_was_made(self, header: bool) -> None:
        """That all topics are known says nothing of their groups."""
        house, tokens = self.leased()
        house.broker.topics.create("later")
        house.run()
        house = self.after(house, header, 3)
        [(grant, _)] = grants(house)
        assert grant.token > max(tokens)

    def test_of_a_group_that_begins_anew_some_starts_later(self, header: bool) -> None:
        """The start that tells of the damage, and a snapshot, may lie long before."""
        house, tokens = self.leased()
        house = self.after(house, header, 3)
        for _ in range(3):
            produce_each(house, "u", b"x")
            house.stop()
            house = house.again()
        assert house.report.damages == []
        [(grant, _)] = grants(house)
        assert grant.token > max(tokens)
        house.run()
        house = house.crash()
        [(next_grant, _)] = grants(house)
        assert next_grant.token == grant.token + 1

    def test_of_a_group_that_began_anew_without_a_lease(self, header: bool) -> None:
        house, tokens = self.leased()
        house = self.after(house, header, 3)
        settle(house, 0, owner=None)
        house.run()
        house = house.crash()
        [(grant, _)] = grants(house)
        assert grant.offset == 1 and grant.token > max(tokens)

    def test_starting_again_and_again_leaves_out_no_more(self, header: bool) -> None:
        house, _ = self.leased()
        house = self.after(house, header, 2)
        [(first, _)] = grants(house)
        for _ in range(3):
            house = house.crash()
        [(again, _)] = grants(house)
        assert again.token == first.token
        house.run()
        house = house.crash()
        [(second, _)] = grants(house)
        assert second.token == first.token + 1

    def test_of_the_same_group_in_a_topic_that_got_the_name_of_a_lost_one(
        self, header: bool
    ) -> None:
        """It has had more tokens than the damage has bytes."""
        house = House()
        produce_each(house, "t", *[b""] * 5)
        produce(house, "t", *[b"x"] * 995)
        tokens = [grant.token for grant, _ in grants(house, seconds=3600, limit=1000)]
        house.run()
        house = after_damage(house, is_kind(EntryKind.TOPIC), header)
        produce_each(house, "t", b"new")
        [(grant, _)] = grants(house)
        assert grant.offset == 0 and grant.token > max(tokens)

    def test_a_group_that_leased_after_the_damage_goes_on_where_it_was(self, header: bool) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1", b"2")
        lease(house, group="other")
        house.run()
        hit = entries(house)[-1][2].entry
        for _ in range(2):
            lease(house, seconds=3600)
            house.run()
        house = after_damage(house, lambda entry: entry == hit, header)
        [(grant, _)] = grants(house)
        assert (grant.offset, grant.token) == (2, 3)


def test_the_damage_of_a_header_block_or_a_stray_file_leaves_no_token_out() -> None:
    house = House()
    produce_each(house, "t", b"0", b"1")
    lease(house)
    house.run()
    house.disk.crash()
    [name] = [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]
    rot(house, name, 20)
    stray = house.disk.create(f"{WAL_DIR}/{4096:020d}.wal")
    stray.pwrite(b"x" * 5000, 0)
    house = house.again()
    assert len(house.report.damages) == 2
    [(grant, _)] = grants(house)
    assert grant.token == 2


class TestSettings:
    """A group that was given settings keeps them; the others have those of the configuration."""

    def configured(self) -> House:
        house = House(settings=BrokerSettings(groups=GroupSettings(max_attempts=3)))
        produce_each(house, "t", b"0")
        for group in ("given", "plain"):
            lease(house, group=group)
            settle(house, 0, group=group, success=False)
            house.run()
        group_partition = house.broker.leases.group_partition("t", "given", 0, 0)
        group_partition.store.configure(GroupSettings(max_attempts=2))
        house.broker.group_commit.add_group_partition(group_partition)
        house.run()
        return house

    @pytest.mark.parametrize("how", ["log", "snapshot", "snapshot of a snapshot"])
    def test_both_come_back_so(self, how: str) -> None:
        house = self.configured()
        new = BrokerSettings(groups=GroupSettings(max_attempts=7))
        if how == "log":
            house = house.crash(settings=new)
        else:
            house.stop()
            house = house.again(settings=new)
        if how == "snapshot of a snapshot":
            house.stop()
            house = house.again()
        assert house.broker.overview.group_info("t", "given").max_attempts == 2
        assert house.broker.overview.group_info("t", "plain").max_attempts == 7
        for group, dead in (("given", 1), ("plain", 0)):
            lease(house, group=group)
            settle(house, 0, group=group, success=False)
            assert house.broker.overview.group_info("t", group).dead == dead


class TestNewerFormats:
    def state(self) -> State:
        return State(GroupSettings())

    def test_entries_of_an_unknown_kind_are_refused_with_their_place(self) -> None:
        frame = Frame(4096, 5000, 1, [Entry(5, 1, 0, 0, 0, b"")])
        with pytest.raises(NewerFormat, match=r"frame at 4096 .*kind 5.*upgrade"):
            self.state().apply(frame)

    def test_so_is_what_a_topic_cannot_yet_undergo(self) -> None:
        body = b"\x81\xa2op\xa7renamed"
        frame = Frame(4096, 5000, 1, [Entry(EntryKind.TOPIC, 1, 0, 0, 0, body)])
        with pytest.raises(NewerFormat, match="'renamed'"):
            self.state().apply(frame)

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            (EntryKind.TOPIC, b"\x81\xa2op"),
            (EntryKind.TOPIC, b"\x80"),
            (EntryKind.TOPIC, b"\x81\xa2op\xa7created"),
            (EntryKind.TOPIC, b"\x81\xa2op\x91\x01"),
            (EntryKind.TOPIC, b"\x93\x01\x02\x03"),
            (EntryKind.MARK, b"\xc1"),
            (EntryKind.GROUP_EVENTS, b"\x05"),
        ],
    )
    def test_so_are_bodies_of_another_form(self, kind: int, body: bytes) -> None:
        frame = Frame(4096, 5000, 1, [Entry(kind, 1, 0, 1, 0, body)])
        with pytest.raises(NewerFormat, match=r"frame at 4096 .*kind.*cannot read.*upgrade"):
            self.state().apply(frame)

    def test_so_are_chunks_of_a_snapshot_of_another_form(self) -> None:
        with pytest.raises(NewerFormat, match=r"chunk of kind 2.*cannot read.*upgrade"):
            self.state().load_all([SnapshotChunk(2, b"", 0, b"\x80")])

    def test_so_are_chunks_of_a_snapshot(self) -> None:
        with pytest.raises(NewerFormat, match=r"chunk of kind 99.*upgrade"):
            self.state().load_all([SnapshotChunk(99, b"", 0, b"\x80")])


def test_a_sound_log_leaves_nothing_out() -> None:
    house = House(settings=BrokerSettings(snapshot_interval_bytes=300))
    for _ in range(5):
        produce_each(house, "t", b"0", b"1")
        house = house.crash()
    assert house.broker.topics.existing("t").partitions[0].next_offset == 10
    assert house.broker.topics.existing("t").partitions[0].gaps == []
    assert house.report.damages == []


def test_a_new_group_leaves_out_the_gaps_of_every_partition_for_good() -> None:
    """Also of partitions it has not leased from when the power goes."""
    house = House()
    topic = house.broker.topics.create("orders", 2)
    for partition in topic.partitions:
        partition.skip_offsets(10)
        house.broker.appender.produce(partition, b"x")
    house.run()
    lease(house, topic="orders")
    house.run()
    house = house.crash()
    group_partitions = house.broker.topics.existing("orders").groups["g"].partitions
    assert [
        group_partition.store.lag(group_partition.partition.next_offset)
        for group_partition in group_partitions
    ] == [1, 1]


class TestLostStretches:
    """Whole parts of the log that are gone, and with them the headers of what they held."""

    def segmented(self, topics: int = 1, segments: int = 3, **options: Any) -> House:
        """Two records of 20 kB in each of some topics, in every segment."""
        house = House(options=WalOptions(segment_bytes=64 << 10, free_bytes_min=0, **options))
        for segment in range(segments):
            for topic in range(topics):
                produce_each(house, f"t{topic}", *[b"%d" % segment + bytes(9_000)] * 2)
            house.wal.seal()
            house.run()
        return house

    def without(self, house: House, index: int) -> House:
        house.disk.unlink(f"{WAL_DIR}/{house.wal.segments()[index].name}")
        house.disk.sync_directory(WAL_DIR)
        return house.crash()

    def test_a_missing_segment_costs_a_group_no_more_than_a_range(self) -> None:
        house = self.segmented()
        lease(house, "t0")
        house.run()
        house = self.without(house, 1)
        [damage] = house.report.damages
        assert damage.lost == [LostRange(1, 0, 2, 4)]
        for group in ("g", "fresh"):
            settle(house, 0, topic="t0", group=group)
            assert [o for o, _ in drain(house, group, "t0")] == [1, 4, 5]
            assert house.broker.overview.group_info("t0", group).dead == 0

    @pytest.mark.parametrize("clean", [True, False])
    def test_the_first_segment_is_missed_although_a_snapshot_covers_it(self, clean: bool) -> None:
        house = self.segmented()
        house.broker.topics.create("later")
        house.run()
        lease(house, "t0", limit=9)
        acknowledged(house)
        house.run()
        if clean:
            house.stop()
            house = house.again()
        house = self.without(house, 0)
        [damage] = house.report.damages
        assert "nothing is left of the log from LSN 0" in damage.problem
        assert LostRange(1, 0, 0, 2) in damage.lost
        assert settle(house, 2, topic="t0" if clean else "lost-topic-1")
        [topic, *_] = house.broker.topics.all()
        assert drain(house, "fresh", topic.name)[0][0] == 2
        assert produce(house, topic.name, b"new") == [6]

    def test_what_was_in_the_first_segment_alone_is_told_too(self) -> None:
        house = House()
        produce_each(house, "only", b"0", b"1")
        house.wal.seal()
        house.run()
        produce_each(house, "t", b"x")
        house.stop()
        house = self.without(house.again(), 0)
        [damage] = house.report.damages
        assert damage.lost == [LostRange(1, 0, 0, 2)]
        assert lease(house, "only") == []
        assert produce(house, "only", b"2") == [2]

    def test_a_huge_gap_takes_neither_time_nor_memory_of_idle_groups(self) -> None:
        house = House()
        produce_each(house, "t", b"0")
        for group in range(20):
            lease(house, group=f"g{group}")
        acknowledged(house)
        house.run()
        house.disk.crash()
        partition = house.broker.topics.existing("t").partitions[0]
        partition.skip_offsets(1 << 40)
        house.broker.start()
        for group in range(20):
            [group_partition] = house.broker.topics.existing("t").groups[f"g{group}"].partitions
            assert group_partition.store.lag(partition.next_offset) == 1
            assert len(b"".join(group_partition.store.freeze().encode())) < 1000

    def test_the_start_needs_no_room_in_the_log_to_leave_offsets_out(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        for group in range(200):
            lease(house, group=f"{group:0200}")
            house.run()
        produce_each(house, "u", b"x")
        house.disk.crash()
        [place] = [p for p in entries(house) if is_records(1, 1)(p[2].entry)]
        rot(house, place[0], place[2].position)
        house.disk.capacity = house.disk.used_bytes
        house = house.again(options=WalOptions(segment_bytes=64 << 10, free_bytes_min=0))
        assert house.failures == []
        assert house.broker.overview.group_info("t", f"{7:0200}").lag == 1
        house.disk.capacity = None
        house.wal.retry_allocation()
        house.run()
        [offset] = produce(house, "t", b"new")
        house.run()
        house = house.crash()
        assert house.broker.overview.group_info("t", f"{7:0200}").lag == 2
        assert read(house, "t", offset).value == b"new"

    def test_a_batch_whose_header_is_left_is_refused_alone_by_new_groups_too(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1", b"2")
        house = after_damage(house, is_records(1, 1))
        assert lease(house) == [(0, b"0")]
        with pytest.raises(DamagedData, match=r"\.wal at \d+ to \d+: entry body"):
            lease(house)

    @pytest.mark.parametrize("where", [0, 1, 2])
    def test_of_two_batches_in_a_frame_the_damaged_one_is_no_gap(self, where: int) -> None:
        house = House()
        produce(house, "t", *[b""] * 264)
        house.run()
        produce_each(house, "t", b"last")
        hit = is_kind(EntryKind.RECORDS)
        bases = [p[2].header.base_offset for p in entries(house) if hit(p[2].entry)]
        assert bases[:3] == [0, 88, 176]
        house = after_damage(house, is_records(1, bases[where]))
        assert house.broker.topics.existing("t").partitions[0].gaps == []
        assert produce(house, "t", b"new") == [265]


class TestASnapshotAheadOfTheLog:
    """Without fsync a power loss takes the end of the log, but not a snapshot that knows of it."""

    def ahead(self, late: int = 0) -> House:
        """All but the first frame is lost; ``late`` topics were captured in later steps."""
        house = House(
            settings=BrokerSettings(snapshot_interval_bytes=1 << 40),
            options=WalOptions(segment_bytes=1 << 20, free_bytes_min=0, durability="os"),
        )
        produce_each(house, "t", b"0")
        produce_each(house, "t", b"1", b"2")
        for topic in range(late):
            produce_each(house, f"late{topic}", b"0")
            lease(house, f"late{topic}", seconds=1)
            house.run()
        house.broker.snapshotter.begin()
        return house

    def test_is_told_and_no_offset_is_given_twice(self) -> None:
        house = self.ahead()
        house.pass_time(0.1)
        house = house.crash()
        [damage] = house.report.damages
        assert "the log ends at LSN" in damage.problem and "durability" in damage.problem
        assert damage.lost == [LostRange(1, 0, 1, 3)]
        assert produce(house, "t", b"new") == [3]
        house.run()
        assert [offset for offset, _ in drain(house)] == [0, 3]

    def test_an_offset_given_while_the_snapshot_was_taken_is_not_given_again(self) -> None:
        """The topic was captured before it, a group after it: so far the log had got."""
        house = self.ahead(late=STEP_THINGS)
        [offset] = produce(house, "t", b"captured too late")
        house.run()
        house.pass_time(0.1)
        assert house.broker.status()["snapshots_written"] == 1
        house = house.crash()
        assert produce(house, "t", b"new")[0] > offset

    def test_what_comes_afterwards_stays(self) -> None:
        """Also to topics and groups that the snapshot captured where the log is lost now."""
        house = self.ahead(late=STEP_THINGS + 5)
        for number in range(3):
            produce_each(house, "late0", bytes(20_000))
            house.clock.advance(0.01 * number)
        house.pass_time(0.1)
        assert house.broker.status()["snapshots_written"] == 1
        house = house.crash()
        names = ["t", "late1", f"late{STEP_THINGS + 1}", f"late{STEP_THINGS + 4}"]
        offsets = {}
        for name in names:
            [offsets[name]] = produce(house, name, b"new")
            settle(house, offsets[name], topic=name)
            house.run()
        house.wal.sync()
        house.run()
        house = house.crash()
        for name in names:
            assert read(house, name, offsets[name]).value == b"new"
            assert house.broker.topics.existing(name).partitions[0].next_offset > offsets[name]
            assert drain(house, topic=name)[-1:] != [(offsets[name], b"new")]
