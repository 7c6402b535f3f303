"""Snapshots: only those that read back count, the two newest stay, a bad one is passed over."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs
from xxhash import xxh3_64_intdigest

from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal import RealDisk, SnapshotChunk, Snapshots
from brokerd.wal.disk import write_atomically
from brokerd.wal.snapshot import (
    END_KIND,
    READ_BYTES,
    SnapshotFile,
    encode_chunk,
    encode_snapshot_header,
    snapshot_name,
)
from brokerd.walformat import segment_salt
from simulator.machine.disk import Call, PowerLost, SimDisk

PATH = "data/state"
CHUNKS = [
    SnapshotChunk(1, b"meta", 500, b"body"),
    SnapshotChunk(2, b"", 512, b""),
    SnapshotChunk(3, b"1/0/g", 600, b"x" * 300),
]


def snapshots(disk: SimDisk | None = None) -> tuple[Snapshots, SimDisk]:
    disk = disk or SimDisk()
    return Snapshots(disk, PATH, random.Random(1).randbytes, lambda: 77), disk


def load(found: Snapshots) -> tuple[int, list[SnapshotChunk]] | None:
    loaded = found.load_newest()
    return None if loaded is None else (loaded.start_lsn, list(loaded.chunks))


class TestRoundTrip:
    def test_a_snapshot_comes_back(self) -> None:
        store, disk = snapshots()
        assert load(store) is None
        store.write(500, iter(CHUNKS))
        assert load(store) == (500, CHUNKS)
        name = f"{500:020d}.snap"
        assert SnapshotFile(disk.open(f"{PATH}/{name}"), name).time_us == 77

    @given(
        st.lists(
            st.builds(
                SnapshotChunk,
                st.integers(0, 65534),
                st.binary(max_size=9),
                st.integers(0, 2**64 - 1),
                st.binary(max_size=99),
                st.just(False),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def test_any_chunks_come_back(self, chunks: list[SnapshotChunk]) -> None:
        store, _ = snapshots()
        store.write(8, chunks)
        assert load(store) == (8, chunks)

    def test_what_takes_several_chunks_comes_back_in_their_order(self) -> None:
        store, _ = snapshots()
        parts = [SnapshotChunk(3, b"large", 600, b"%d" % part, part < 4) for part in range(5)]
        store.write(500, [CHUNKS[0], *parts, CHUNKS[2]])
        assert load(store) == (500, [CHUNKS[0], *parts, CHUNKS[2]])

    def test_many_chunks_are_read_at_once_and_large_ones_whole(self) -> None:
        store, disk = snapshots()
        chunks = [SnapshotChunk(2, b"%d" % index, 500, bytes(100)) for index in range(1_000)]
        chunks.insert(500, SnapshotChunk(3, b"large", 500, bytes(READ_BYTES + 1)))
        reads: list[Call] = []
        disk.enter = lambda call: reads.append(call) if call.name == "pread" else None
        store.write(500, chunks)
        assert 0 < len(reads) <= 6, "read back"
        assert load(store) == (500, chunks)

    def test_it_survives_a_power_cut_once_written(self) -> None:
        store, disk = snapshots()
        store.write(500, CHUNKS)
        disk.crash()
        assert load(snapshots(disk)[0]) == (500, CHUNKS)

    def test_the_exact_bytes(self) -> None:
        snapshot_id = bytes(range(16))
        assert encode_snapshot_header(snapshot_id, 500, 77) == bytes.fromhex(
            "42524b44534e5000 0100 0000 00000000 000102030405060708090a0b0c0d0e0f"
            "f401000000000000 4d00000000000000 49d21d172b0d657d"
        )
        assert encode_chunk(CHUNKS[0], 56, segment_salt(snapshot_id)) == bytes.fromhex(
            "424b6368 0100 0000 04000000 04000000 f401000000000000 3800000000000000"
            "465a7303cb587d76 b5170258416ab449 6d657461 626f6479"
        )


class TestKeeping:
    def test_the_two_newest_are_kept(self) -> None:
        store, _ = snapshots()
        for lsn in (100, 200, 300):
            store.write(lsn, CHUNKS)
        assert store.names() == [f"{300:020d}.snap", f"{200:020d}.snap"]

    def test_the_second_newest_counts_once_no_power_cut_takes_a_newer_one_back(self) -> None:
        """A process that is killed before the sync of the directory leaves a name unsynced.

        Two such kills leave two. Then the log below both would be deleted, and both could go.
        """
        _, disk = snapshots()

        def kill(call: Call) -> None:
            if call.name == "sync_directory":
                raise PowerLost

        for lsn in (100, 200):
            snapshots(disk)[0].write(lsn, CHUNKS)
        for lsn in (300, 400):
            disk.enter = kill
            with pytest.raises(PowerLost):
                snapshots(disk)[0].write(lsn, CHUNKS)
            disk.enter = lambda call: None
            disk.kill()
        store, _ = snapshots(disk)
        assert load(store) == (400, CHUNKS)
        assert store.second_newest() == 300
        syncs = disk.calls["sync_directory"]
        assert store.second_newest() == 300
        assert disk.calls["sync_directory"] == syncs, "one sync is enough"
        disk.crash()
        after, _ = snapshots(disk)
        assert load(after) == (400, CHUNKS)
        assert after.second_newest() == 300

    def test_a_snapshot_whose_name_could_not_be_synced_does_not_count_after_a_later_sync(
        self,
    ) -> None:
        """A disk may report once that it lost a name, and succeed in the next sync without it."""
        store, disk = snapshots()
        disk.forgets_failed_names = True
        for lsn in (100, 200):
            store.write(lsn, CHUNKS)
        disk.fail("sync_directory")
        with pytest.raises(OSError, match="Input/output error"):
            store.write(300, CHUNKS)
        assert store.second_newest() == 100, "200 is still the newest for sure"
        store.write(400, CHUNKS)
        assert store.second_newest() == 200
        disk.crash()
        after = snapshots(disk)[0]
        assert after.names()[:2] == [f"{400:020d}.snap", f"{200:020d}.snap"]
        assert load(after) == (400, CHUNKS)

    def test_a_doubtful_snapshot_stays_doubtful_if_the_next_one_of_its_name_fails(self) -> None:
        store, disk = snapshots()
        for lsn in (100, 200):
            store.write(lsn, CHUNKS)
        for call in ("sync_directory", "rename"):
            disk.fail(call)
            with pytest.raises(OSError, match="Input/output error"):
                store.write(300, CHUNKS)
        assert store.second_newest() == 100
        store.write(300, CHUNKS)
        assert store.second_newest() == 200

    def test_after_a_start_whose_first_sync_fails_two_new_snapshots_are_needed(self) -> None:
        store, disk = snapshots()
        for lsn in (100, 200):
            store.write(lsn, CHUNKS)
        store = snapshots(disk)[0]
        disk.fail("sync_directory")
        with pytest.raises(OSError, match="Input/output error"):
            store.second_newest()
        assert store.second_newest() is None
        store.write(300, CHUNKS)
        assert store.second_newest() is None
        assert store.names()[-1] == f"{100:020d}.snap", "none of the older ones is deleted"
        store.write(400, CHUNKS)
        assert store.second_newest() == 300
        assert store.names() == [f"{400:020d}.snap", f"{300:020d}.snap"]

    def test_a_failed_write_leaves_nothing_behind_and_the_older_ones_stay(self) -> None:
        for call, nth in (("pwrite", 2), ("sync", 1), ("create", 1)):
            store, disk = snapshots()
            store.write(100, CHUNKS)
            disk.fail(call, nth, errno.ENOSPC)
            with pytest.raises(OSError):
                store.write(200, CHUNKS)
            assert disk.list(PATH) == [f"{100:020d}.snap"]
            store.write(200, CHUNKS)
            assert load(store) == (200, CHUNKS)

    def test_a_snapshot_that_does_not_read_back_does_not_count(self) -> None:
        store, disk = snapshots()
        store.write(100, CHUNKS)

        def rot(call: Call) -> None:
            if call.name == "sync":
                disk.content(call.path)[-60] ^= 1

        disk.enter = rot
        with pytest.raises(DamagedData):
            store.write(200, CHUNKS)
        assert disk.list(PATH) == [f"{100:020d}.snap"]

    def test_an_error_of_the_chunks_is_passed_on_and_leaves_nothing(self) -> None:
        store, disk = snapshots()

        def chunks() -> object:
            yield CHUNKS[0]
            raise KeyError("state")

        with pytest.raises(KeyError):
            store.write(100, chunks())  # type: ignore[arg-type]
        assert disk.list(PATH) == []

    def test_leftovers_of_a_crash_are_deleted(self) -> None:
        store, disk = snapshots()
        disk.create(f"{PATH}/{90:020d}.snap.tmp")
        disk.create(f"{PATH}/{100:020d}.snap.tmp")
        store.write(100, CHUNKS)
        assert load(store) == (100, CHUNKS)
        assert disk.list(PATH) == [f"{100:020d}.snap"]


class TestDamage:
    def test_every_flipped_byte_is_noticed_and_the_older_one_is_taken(self) -> None:
        store, disk = snapshots()
        store.write(100, CHUNKS[:1])
        store.write(500, CHUNKS)
        data = disk.content(f"{PATH}/{500:020d}.snap")
        whole = bytes(data)
        for position in range(len(data)):
            data[position] ^= 1
            with capturedLogs() as captured:
                found = load(store)
            if found != (500, CHUNKS):
                assert found == (100, CHUNKS[:1])
                (event,) = captured
                assert event["event_id"] == "snapshot-damaged"
                assert f"{500:020d}.snap at" in event["problem"]
            else:
                assert whole[position] == 0, "only padding may differ"
            data[position] ^= 1

    def test_cut_anywhere_it_does_not_count(self) -> None:
        store, disk = snapshots()
        store.write(500, CHUNKS)
        data = disk.content(f"{PATH}/{500:020d}.snap")
        whole = bytes(data)
        for length in range(len(whole)):
            data[:] = whole[:length]
            assert load(store) is None

    def test_with_a_chunk_taken_out_it_does_not_count(self) -> None:
        store, disk = snapshots()
        store.write(500, CHUNKS)
        data = disk.content(f"{PATH}/{500:020d}.snap")
        del data[56 : 56 + 56]
        assert load(store) is None

    @pytest.mark.parametrize(
        "next_chunk",
        [
            None,
            SnapshotChunk(2, b"large", 600, b"rest"),
            SnapshotChunk(3, b"other", 600, b"rest"),
            SnapshotChunk(3, b"large", 601, b"rest"),
        ],
    )
    def test_what_goes_on_in_no_chunk_is_neither_written_nor_trusted(
        self, next_chunk: SnapshotChunk | None
    ) -> None:
        store, disk = snapshots()
        begun = SnapshotChunk(3, b"large", 600, b"first", True)
        with pytest.raises(DamagedData, match="does not continue here"):
            store.write(500, [begun] if next_chunk is None else [begun, next_chunk])
        assert disk.list(PATH) == []

    def test_flags_that_only_newer_versions_know_are_refused(self) -> None:
        store, disk = snapshots()
        store.write(500, CHUNKS[:1])
        data = disk.content(f"{PATH}/{500:020d}.snap")
        salt = segment_salt(bytes(data[16:32]))
        data[56 + 6] = 2
        data[56 + 32 : 56 + 40] = xxh3_64_intdigest(bytes(data[56 : 56 + 32]), salt).to_bytes(
            8, "little"
        )
        with pytest.raises(NewerFormat, match=r"flags 0x2; upgrade"):
            load(store)

    def test_a_snapshot_that_the_disk_cannot_read_is_passed_over(self) -> None:
        store, disk = snapshots()
        store.write(100, CHUNKS[:1])
        store.write(500, CHUNKS)
        for call in ("open", "pread"):
            disk.fail(call)
            with capturedLogs() as captured:
                assert load(snapshots(disk)[0]) == (100, CHUNKS[:1])
            assert [event["event_id"] for event in captured] == ["snapshot-damaged"]
            disk.fail(call)
            with capturedLogs() as captured:
                assert snapshots(disk)[0].second_newest() is None
            assert [event["event_id"] for event in captured] == ["snapshot-damaged"]
        disk.fail("pread", error=errno.ENOMEM)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            load(store)

    def test_one_that_can_be_read_only_once_is_an_error_of_the_disk_and_then_passed_over(
        self,
    ) -> None:
        """A start that ends with an error of the disk is repeated; one with damaged data is not."""
        store, disk = snapshots()
        store.write(100, CHUNKS[:1])
        store.write(500, CHUNKS)
        loaded = store.load_newest()
        assert loaded is not None
        disk.spoil(f"{PATH}/{500:020d}.snap", 0, 1 << 12)
        with pytest.raises(OSError, match="sound a moment ago") as caught:
            list(loaded.chunks)
        assert caught.value.errno == errno.EIO
        assert load(snapshots(disk)[0]) == (100, CHUNKS[:1])

    @pytest.mark.parametrize("bad_lsns", [(900, 901), (201,), (150,)])
    def test_damaged_ones_do_not_count_as_kept(self, bad_lsns: tuple[int, ...]) -> None:
        """A damaged name above the end of the log would end each new snapshot at once."""
        store, disk = snapshots()
        for lsn in (100, 200):
            store.write(lsn, CHUNKS)
        for lsn in bad_lsns:
            disk.create(f"{PATH}/{snapshot_name(lsn)}").pwrite(b"rubbish", 0)
        loaded = load(store)
        assert loaded is not None and loaded[0] == 200
        store.write(300, CHUNKS)
        assert store.second_newest() == 200
        above = [snapshot_name(lsn) for lsn in bad_lsns if lsn > 200]
        assert store.names() == sorted([snapshot_name(200), snapshot_name(300), *above])[::-1]
        store.write(400, CHUNKS)
        assert load(store) == (400, CHUNKS)
        assert store.second_newest() == 300

    def test_one_that_rots_later_does_not_count_any_more(self) -> None:
        store, disk = snapshots()
        for lsn in (100, 200):
            store.write(lsn, CHUNKS)
        disk.content(f"{PATH}/{snapshot_name(100)}")[-60] ^= 1
        assert store.second_newest() is None
        store.write(300, CHUNKS)
        assert store.second_newest() == 200
        assert store.names() == [snapshot_name(300), snapshot_name(200)]

    def test_a_snapshot_under_another_name_does_not_count(self) -> None:
        store, disk = snapshots()
        store.write(500, CHUNKS)
        disk.rename(f"{PATH}/{500:020d}.snap", f"{PATH}/{900:020d}.snap")
        assert load(store) is None


def test_an_empty_snapshot_is_neither_written_nor_trusted() -> None:
    """To start from one would be to forget all that the log held before it."""
    disk = SimDisk()
    snapshots = Snapshots(disk, "/state", lambda count: bytes(count))
    snapshots.write(8, [SnapshotChunk(1, b"k", 8, b"body")])
    with pytest.raises(DamagedData, match="no state at all"):
        snapshots.write(16, [])
    end = encode_chunk(SnapshotChunk(END_KIND, b"", 0, b""), 56, segment_salt(bytes(16)))
    write_atomically(
        disk, "/state", snapshot_name(24), [encode_snapshot_header(bytes(16), 24, 0), end]
    )
    loaded = snapshots.load_newest()
    assert loaded is not None
    assert loaded.start_lsn == 8


def test_what_is_not_ours_in_the_directory_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    snapshots = Snapshots(RealDisk(), str(path), random.Random(1).randbytes)
    snapshots.write(80, [SnapshotChunk(1, b"k", 80, b"mine")])
    (path / "x.tmp").mkdir()
    (path / "notes.snap").write_bytes(b"")
    (path / ("9" * 20 + ".snap")).mkdir()
    loaded = snapshots.load_newest()
    assert loaded is not None and loaded.start_lsn == 80
    snapshots.write(160, [SnapshotChunk(1, b"k", 160, b"mine")])
    assert (path / "x.tmp").is_dir() and (path / "notes.snap").exists()
