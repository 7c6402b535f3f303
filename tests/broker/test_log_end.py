"""The last segment cut short, emptied, replaced or deleted: what a start makes of it.

The broker ended without a clean stop, so that the last segment has no index, and no snapshot
reaches its end. ``state/bounds`` proves how far the log was.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from brokerd.archive.contract.bounds import decode_bounds, encode_bounds
from brokerd.archive.contract.pin import Pin, encode_pin
from brokerd.archive.contract.view import ArchiveView
from brokerd.errors import DamagedData
from brokerd.server.service import exit_code
from brokerd.wal import WalOptions
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import DataPaths, plan_repair
from brokerd.wal.damage.verify import verify
from brokerd.walformat import SEGMENT_BYTES_MAX, SegmentHeader, encode_frame, encode_segment_header
from simulator.machine.bare import DATA_DIR, STATE_DIR, WAL_DIR
from simulator.machine.disk import SimDisk
from tests.broker.desk import lease, produce
from tests.house import House
from tests.wal.rig import records

PATHS = DataPaths.of(DATA_DIR)
SEGMENT_BYTES = 64 << 10
BOUNDS = f"{STATE_DIR}/bounds"
Harm = Callable[[SimDisk, str], None]


class NoArchive:
    """Nothing was archived yet. A broker with an archive writes bounds."""

    def refresh(self) -> ArchiveView | None:
        return None


def segments(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(WAL_DIR) if name.endswith(".wal")]


def content(disk: SimDisk, name: str) -> bytearray:
    return disk.content(f"{WAL_DIR}/{name}")


def fill(house: House, count: int) -> None:
    """Produce records of 4 kB: 14 of them fill a segment."""
    for _ in range(count):
        produce(house, "t", b"." * 4000)
        house.run()


def new_house(count: int) -> House:
    options = WalOptions(segment_bytes=SEGMENT_BYTES, free_bytes_min=0)
    house = House(options=options, open_archive=lambda log_id: NoArchive())
    fill(house, count)
    return house


def killed(count: int) -> House:
    """A broker with so many records, killed after it wrote its bounds."""
    house = new_house(count)
    house.pass_time(61, step=1)
    house.disk.crash()
    return house


def cut(length: int) -> Harm:
    def harm(disk: SimDisk, name: str) -> None:
        del content(disk, name)[length:]

    return harm


def zero(disk: SimDisk, name: str) -> None:
    data = content(disk, name)
    data[9000:] = bytes(len(data) - 9000)


def unlink(disk: SimDisk, name: str) -> None:
    disk.unlink(f"{WAL_DIR}/{name}")
    disk.sync_directory(WAL_DIR)


def put(disk: SimDisk, path: str, data: bytes) -> None:
    if path.rpartition("/")[2] in disk.list(path.rpartition("/")[0]):
        disk.unlink(path)
    file = disk.create(path)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_directory(path.rpartition("/")[0])


def another_segment(first_lsn: int, count: int) -> bytes:
    """A sound segment of another log."""
    segment_id = bytes(range(16))
    parts = [b""]
    lsn = first_lsn + 4096
    for offset in range(count):
        parts.append(encode_frame([records(offset, size=4000)], lsn, segment_id, first_lsn, 1))
        lsn += len(parts[-1])
    parts[0] = encode_segment_header(SegmentHeader(segment_id, first_lsn, SEGMENT_BYTES, 0))
    return b"".join(parts)


HARMS = [cut(0), cut(10), cut(64), cut(4096), cut(5000), cut(9000), zero, unlink]
NAMES = ["0", "10", "64", "4096", "5000", "9000", "zeroed", "deleted"]


@pytest.mark.parametrize("count", [10, 40])
@pytest.mark.parametrize("harm", HARMS, ids=NAMES)
class TestTheEndIsGone:
    def test_every_start_says_so_and_uses_nothing_again(self, harm: Harm, count: int) -> None:
        house = killed(count)
        known = decode_bounds(bytes(house.disk.content(BOUNDS)))
        last = segments(house.disk)[-1]
        harm(house.disk, last)
        left = bytes(content(house.disk, last)) if last in segments(house.disk) else None
        places = []
        for number in range(3):
            house = house.again()
            assert house.report.next_lsn >= known.synced_lsn
            assert house.broker.damage.status()["degraded"]
            places.append([(one.name, one.position, one.end) for one in house.report.damages])
            if number == 0:
                ends = [one.end for damage in house.report.damages for one in damage.lost]
                assert max(ends, default=count) == count
            topic = house.broker.topics.find("t") or house.broker.topics.create("t")
            assert topic.topic_id > 1 or topic.partition(0).next_offset >= count
            if number == 1:
                fill(house, 1)
            house.disk.crash()
        assert places[0] == places[1] == places[2]
        if left is not None:
            assert bytes(content(house.disk, last)) == left

    def test_the_file_may_come_back(self, harm: Harm, count: int) -> None:
        """Also after a broker has served without it: no segment lies where it goes on."""
        house = killed(count)
        last = segments(house.disk)[-1]
        whole = bytes(content(house.disk, last))
        harm(house.disk, last)
        house = house.again()
        if house.broker.topics.find("t") is None:
            house.broker.topics.create("u")
        else:
            fill(house, 1)
        house.run()
        house.disk.crash()
        put(house.disk, f"{WAL_DIR}/{last}", whole)
        house = house.again()
        (partition,) = house.broker.topics.existing("t").partitions
        assert not any(first < count for first, _ in partition.gaps)
        assert all(one.first >= count for damage in house.report.damages for one in damage.lost)
        assert [offset for offset, _ in lease(house, limit=count)] == list(range(count))

    def test_verify_knows_it_and_a_repair_puts_it_on_record(self, harm: Harm, count: int) -> None:
        house = killed(count)
        harm(house.disk, segments(house.disk)[-1])
        assert not verify(house.disk, WAL_DIR, STATE_DIR).sound
        plan = plan_repair(house.disk, PATHS)
        started = House(
            house.disk.copy(),
            options=house.options,
            open_archive=house.open_archive,
        )
        assert started.report.next_lsn == plan.log_end
        repair(house.disk, PATHS, plan, "20231114T221320Z", lambda length: b"\7" * length)
        assert verify(house.disk, WAL_DIR, STATE_DIR).sound
        again = house.again()
        assert again.report.damages == []
        assert again.report.recorded
        topic = again.broker.topics.find("t")
        assert topic is None or topic.partition(0).next_offset >= count


def test_an_older_copy_of_the_last_segment_is_known_as_one() -> None:
    house = new_house(20)
    last = segments(house.disk)[-1]
    older = bytes(content(house.disk, last))
    fill(house, 6)
    house.pass_time(61, step=1)
    house.disk.crash()
    assert segments(house.disk)[-1] == last
    put(house.disk, f"{WAL_DIR}/{last}", older)
    house = house.again()
    (damage,) = house.report.damages
    assert [tuple(one) for one in damage.lost] == [(1, 0, 20, 26)]
    assert produce(house, "t", b"x")[0] >= 26


class TestAnOlderCopyBesideALaterIndex:
    """It is as long as it was allocated, so the index seems to lie inside of it."""

    def test_the_index_counts(self) -> None:
        house = new_house(10)
        last = segments(house.disk)[-1]
        older = bytes(content(house.disk, last))
        fill(house, 14)
        house.run()
        house.disk.crash()
        house = house.again()  # which makes the index of the last segment
        gone = segments(house.disk)[-1]
        assert gone != last
        put(house.disk, f"{WAL_DIR}/{last}", older)
        unlink(house.disk, gone)
        unlink(house.disk, last.replace(".wal", ".idx"))
        for name in ("bounds", *(n for n in house.disk.list(STATE_DIR) if n.endswith(".snap"))):
            if name in house.disk.list(STATE_DIR):
                house.disk.unlink(f"{STATE_DIR}/{name}")
        house.disk.crash()
        house = house.again()
        assert house.report.damages
        assert produce(house, "t", b"x")[0] >= 24


@pytest.mark.parametrize("count", [1, 6, 14])
class TestAnotherSegment:
    """Its frames are sound, and its id is not that of the segment that the log had there."""

    def refuse(self, house: House, witness: str) -> None:
        before = house.disk.files()
        text = rf"is another segment \(id .*, by {witness}\)\. Nothing was changed\. Bring the"
        with pytest.raises(DamagedData, match=text) as refused:
            house.again()
        assert exit_code(refused.value) == 1
        for call in (lambda: verify(house.disk, WAL_DIR, STATE_DIR), self.plan(house)):
            with pytest.raises(DamagedData, match=text):
                call()
        assert house.disk.files() == before

    def plan(self, house: House) -> Callable[[], object]:
        return lambda: plan_repair(house.disk, PATHS)

    def replace_last(self, house: House, count: int) -> tuple[str, bytes]:
        last = segments(house.disk)[-1]
        whole = bytes(content(house.disk, last))
        put(house.disk, f"{WAL_DIR}/{last}", another_segment(int(last[:20]), count))
        return last, whole

    def test_the_bounds_know_its_id(self, count: int) -> None:
        house = killed(20)
        last, whole = self.replace_last(house, count)
        self.refuse(house, "state/bounds")
        put(house.disk, f"{WAL_DIR}/{last}", whole)
        house = house.again()
        assert house.report.damages == []
        assert produce(house, "t", b"x") == [20]

    def test_its_index_knows_its_id(self, count: int) -> None:
        house = killed(20).again()  # which makes the index
        house.disk.crash()
        house.disk.unlink(BOUNDS)
        house.disk.sync_directory(STATE_DIR)
        last, _ = self.replace_last(house, count)
        self.refuse(house, last.replace(".wal", ".idx"))

    def test_without_it_the_loss_is_reported(self, count: int) -> None:
        house = killed(20)
        last, _ = self.replace_last(house, count)
        unlink(house.disk, last)
        house = house.again()
        assert house.report.damages
        assert produce(house, "t", b"x")[0] >= 20


class TestNoProof:
    """A torn write is no loss, and files that are not of this log prove nothing."""

    def test_a_torn_write_above_the_bounds_is_cut(self) -> None:
        house = killed(20)
        house = house.again()
        fill(house, 1)
        content(house.disk, segments(house.disk)[-1])[4200] ^= 1
        house.disk.crash()
        house = house.again()
        assert house.report.damages == []
        assert house.report.cut is not None

    @pytest.mark.parametrize("is_damaged", [False, True])
    def test_bounds_of_another_log_or_damaged_ones(self, is_damaged: bool) -> None:
        house = killed(20)
        bounds = decode_bounds(bytes(house.disk.content(BOUNDS)))
        other = structs.replace(bounds, log_id="0" * 32, lsn=1 << 30, reached_lsn=1 << 30)
        data = bytearray(encode_bounds(bounds if is_damaged else other))
        data[-20] ^= is_damaged
        put(house.disk, BOUNDS, bytes(data))
        assert house.again().report.damages == []

    def test_an_index_of_another_log_where_the_bounds_know_better(self) -> None:
        house, other = killed(20), House(options=WalOptions(SEGMENT_BYTES, free_bytes_min=0))
        fill(other, 20)
        other.disk.crash()
        other = other.again()  # which makes the index
        last = segments(house.disk)[-1]
        name = last.replace(".wal", ".idx")
        put(house.disk, f"{WAL_DIR}/{name}", bytes(content(other.disk, name)))
        house = house.again()
        assert house.report.damages == []
        assert produce(house, "t", b"x") == [20]

    def test_bounds_of_an_older_broker_prove_their_lsn(self) -> None:
        house = killed(20)
        bounds = decode_bounds(bytes(house.disk.content(BOUNDS)))
        older = structs.replace(bounds, reached_lsn=0, segment_lsn=0, segment_id="")
        put(house.disk, BOUNDS, encode_bounds(older))
        assert (
            House(
                house.disk.copy(), options=house.options, open_archive=house.open_archive
            ).report.damages
            == []
        )
        cut(9000)(house.disk, segments(house.disk)[-1])
        assert house.again().report.damages

    def test_offsets_in_bounds_of_an_older_broker_are_not_assigned_again(self) -> None:
        """It captured the offsets after the LSN."""
        house = killed(20)
        bounds = decode_bounds(bytes(house.disk.content(BOUNDS)))
        (topic,) = bounds.topics
        (partition,) = topic.partitions
        topic = structs.replace(topic, partitions=[structs.replace(partition, next=25)])
        older = structs.replace(bounds, topics=[topic], reached_lsn=0, segment_lsn=0, segment_id="")
        put(house.disk, BOUNDS, encode_bounds(older))
        house = house.again()
        assert produce(house, "t", b"x") == [25]
        assert house.broker.topics.existing("t").partitions[0].gaps == [(20, 25)]


def test_the_archive_pin_proves_the_end_too() -> None:
    house = killed(20)
    lsn = house.wal.appended_lsn
    house.disk.unlink(BOUNDS)
    put(house.disk, f"{STATE_DIR}/archived", encode_pin(Pin("", lsn)))
    unlink(house.disk, segments(house.disk)[-1])
    house = house.again()
    assert house.report.next_lsn >= lsn
    assert house.report.next_lsn <= lsn + SEGMENT_BYTES_MAX
    assert house.report.damages


@pytest.mark.parametrize("length", [5000, 8192, 9000])
def test_a_file_comes_back_with_frames_above_the_proof(length: int) -> None:
    """The log went on above all that the file can have held."""
    house = killed(5).again()
    fill(house, 4)
    house.pass_time(61, step=1)
    fill(house, 3)  # the bounds do not know of them
    house.disk.crash()
    last = segments(house.disk)[-1]
    whole = bytes(content(house.disk, last))
    cut(length)(house.disk, last)
    house = house.again()
    (new,) = produce(house, "t", b"new")
    house.run()
    house.disk.crash()
    put(house.disk, f"{WAL_DIR}/{last}", whole)
    house = house.again()
    found = [*lease(house, limit=20), *lease(house, limit=20)]
    assert [offset for offset, _ in found] == [*range(12), new]


@pytest.mark.parametrize("name", ["bounds", "archived", "log_id"])
def test_a_proof_that_the_disk_cannot_read_stops_the_start_and_the_message_has_the_remedy(
    name: str,
) -> None:
    """Without it the start would take the cut log for whole, and write a new proof."""
    house = killed(20)
    disk, path = house.disk, f"{STATE_DIR}/{name}"
    if name == "archived":
        house.disk.create(path).pwrite(encode_pin(Pin("a" * 16, 8)), 0)
    disk.spoil(path, 0, disk.size_of(path))
    before = disk.files()
    for _ in range(2):
        with pytest.raises(OSError, match=f"Input/output error. .*move it away.*{name}") as caught:
            house.again()
        assert exit_code(caught.value) == 74
        assert disk.files() == before
    disk.rename(path, f"{path}-unreadable")
    assert house.again().report.damages == []
