"""Fingerprints of damaged places, the indexes at the end of a log, and ranges around gaps."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest

from brokerd.wal.recovery.damage_fingerprint import (
    PIECE_BYTES,
    DamageFingerprint,
    damage_checksum,
    fingerprint_damage,
    is_unchanged,
)
from brokerd.wal.recovery.report import ranges_outside
from brokerd.wal.recovery.tail_indexes import find_tail_indexes
from brokerd.walformat.index import MemoryIndex
from simulator.machine.disk import SimDisk

PATH = "wal"
FIRST = 100
POSITION, END = 10, 200
"""The damaged place, in the segment at `FIRST`: LSN 110 to 300."""


def name_of(lsn: int, suffix: str = "wal") -> str:
    return f"{lsn:020d}.{suffix}"


def disk_with(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk()
    for name, data in files.items():
        disk.create(f"{PATH}/{name}").pwrite(data, 0)
    return disk


class TestFingerprint:
    @pytest.mark.parametrize(
        ("first_lsn", "end_lsn", "lies"),
        [
            (0, 110, False),
            (0, 111, True),
            (150, 160, True),
            (299, 400, True),
            (300, 400, False),
            (0, 1000, True),
        ],
    )
    def test_a_place_lies_between_lsns(self, first_lsn: int, end_lsn: int, lies: bool) -> None:
        place = DamageFingerprint(name_of(FIRST), POSITION, END, 0)
        assert place.lies_in(first_lsn, end_lsn) is lies

    def test_a_place_in_another_file_has_no_lsn(self) -> None:
        assert not DamageFingerprint("pointer", 0, 1 << 40, 0).lies_in(0, 1 << 40)

    def test_it_names_the_other_segments_in_the_place(self) -> None:
        others = [name_of(lsn) for lsn in (109, 110, 111, 299, 300)]
        files = dict.fromkeys([name_of(FIRST), name_of(120, "idx"), *others], bytes(END))
        found = fingerprint_damage(disk_with(files), PATH, name_of(FIRST), POSITION, END)
        assert found.inside == (name_of(110), name_of(111), name_of(299))

    def test_its_own_segment_is_not_in_the_place(self) -> None:
        disk = disk_with({name_of(FIRST): bytes(END)})
        assert fingerprint_damage(disk, PATH, name_of(FIRST), 0, END).inside == ()

    def test_a_place_of_another_file_has_no_segments(self) -> None:
        disk = disk_with({"pointer": b"12", name_of(0): b""})
        assert fingerprint_damage(disk, PATH, "pointer", 0, 1 << 40).inside == ()

    def test_it_changes_with_each_byte_of_the_place_alone(self) -> None:
        end = PIECE_BYTES + 20
        data = os.urandom(end + 20)
        known = fingerprint_damage(disk_with({name_of(FIRST): data}), PATH, name_of(FIRST), 5, end)
        for at, is_same in ((4, True), (5, False), (PIECE_BYTES + 5, False), (end - 1, False)):
            other = bytearray(data)
            other[at] ^= 1
            disk = disk_with({name_of(FIRST): bytes(other)})
            assert is_unchanged(disk, PATH, known) is is_same, at
        other = bytearray(data)
        other[end] ^= 1
        assert is_unchanged(disk_with({name_of(FIRST): bytes(other)}), PATH, known)

    def test_a_file_that_ends_in_the_place_has_another_checksum(self) -> None:
        files = {name_of(FIRST): bytes(50), name_of(500): bytes(60), name_of(600): b""}
        disk = disk_with(files)
        checksums = [damage_checksum(disk, PATH, name, 0, 100) for name in files]
        assert len(set(checksums)) == 3
        assert damage_checksum(disk, PATH, "missing", 0, 100) == checksums[2]

    def test_a_place_that_cannot_be_read_is_unchanged(self) -> None:
        disk = disk_with({name_of(FIRST): bytes(END)})
        known = fingerprint_damage(disk, PATH, name_of(FIRST), POSITION, END)
        disk.content(f"{PATH}/{name_of(FIRST)}")[POSITION] = 1
        assert not is_unchanged(disk, PATH, known)
        disk.fail("pread", error=errno.EIO)
        assert is_unchanged(disk, PATH, known)

    def test_another_error_is_raised(self) -> None:
        disk = disk_with({name_of(FIRST): bytes(END)})
        known = fingerprint_damage(disk, PATH, name_of(FIRST), POSITION, END)
        disk.fail("open", error=errno.EACCES)
        with pytest.raises(PermissionError):
            is_unchanged(disk, PATH, known)

    @pytest.mark.parametrize("error", [errno.EISDIR, errno.ESPIPE, errno.ENXIO])
    def test_no_regular_file_has_no_bytes(self, error: int) -> None:
        disk = disk_with({name_of(FIRST): bytes(END)})
        disk.fail("open", error=error)
        checksum = damage_checksum(disk, PATH, name_of(FIRST), 0, END)
        assert checksum == damage_checksum(disk, PATH, "missing", 0, END)

    @pytest.mark.parametrize(
        ("first", "end", "is_same"),
        [(110, 300, True), (0, 999, True), (111, 999, False), (110, 299, False), (0, 110, False)],
    )
    def test_a_place_that_was_deleted_is_unchanged(
        self, first: int, end: int, is_same: bool
    ) -> None:
        disk = disk_with({name_of(FIRST): b"x" * END})
        known = fingerprint_damage(disk, PATH, name_of(FIRST), POSITION, END)
        left = disk_with({f"{first:020d}-{end:020d}.deleted": b""})
        assert is_unchanged(left, PATH, known) is is_same

    @pytest.mark.parametrize("lsn", [FIRST, 200])
    def test_a_segment_that_is_there_was_not_deleted(self, lsn: int) -> None:
        disk = disk_with({name_of(FIRST): b"x" * END})
        known = fingerprint_damage(disk, PATH, name_of(FIRST), POSITION, END)
        left = disk_with({f"{0:020d}-{999:020d}.deleted": b"", name_of(lsn): b""})
        assert not is_unchanged(left, PATH, known)


class TestTailIndexes:
    @staticmethod
    def index(first_lsn: int, end_lsn: int) -> bytes:
        index = MemoryIndex()
        index.add(1, 0, 100, 1, 9, 4160, 100)
        return index.encode(bytes(16), first_lsn, end_lsn)

    def found(self, files: dict[str, bytes], from_lsn: int) -> list[int]:
        disk = disk_with(files)
        return [one.header.first_lsn for one in find_tail_indexes(disk, PATH, from_lsn)]

    def test_a_damaged_index_hides_no_later_one(self) -> None:
        files = {name_of(lsn, "idx"): self.index(lsn, lsn + 8192) for lsn in (8192, 16384, 24576)}
        files[name_of(16384, "idx")] = b"no index"
        assert self.found(files, 8192) == [8192, 24576]

    def test_earlier_indexes_and_those_of_later_segments_are_left_out(self) -> None:
        lsns = (0, 8192, 16384, 24576)
        files = {name_of(lsn, "idx"): self.index(lsn, lsn + 8192) for lsn in lsns}
        files |= {name_of(8192): b"", name_of(16384): b""}
        assert self.found(files, 8192) == [8192, 24576]

    def test_an_index_under_another_name_or_of_nothing_is_left_out(self) -> None:
        files = {
            name_of(8192, "idx"): self.index(16384, 24576),
            name_of(24576, "idx"): self.index(24576, 24576),
            name_of(32768, "idx"): self.index(32768, 40960),
        }
        assert self.found(files, 0) == [32768]

    def test_an_index_that_cannot_be_read_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> NoReturn:
            raise OSError(errno.EIO, "no")

        monkeypatch.setattr(SimDisk, "open", refuse)
        assert self.found({name_of(0, "idx"): self.index(0, 8192)}, 0) == []


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([], [(0, 10)]),
        ([(0, 10)], []),
        ([(0, 3)], [(3, 10)]),
        ([(7, 10)], [(0, 7)]),
        ([(7, 12)], [(0, 7)]),
        ([(5, 6), (2, 3)], [(0, 2), (3, 5), (6, 10)]),
        ([(2, 4), (4, 6)], [(0, 2), (6, 10)]),
        ([(2, 8), (3, 4)], [(0, 2), (8, 10)]),
    ],
)
def test_ranges_outside_of_gaps(
    gaps: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert list(ranges_outside(gaps, 10)) == expected
