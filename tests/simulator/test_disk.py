"""What the disk in memory can do and a real one cannot: lose, fill up, rot, and fail on demand."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.wal import Disk, File, RealDisk
from simulator.machine.disk import Call, CrashModel, PowerLost, ShortWrite, SimDisk
from tests.strategies import disk as strategies
from tests.strategies.disk import Step

MODELS = list(CrashModel)
SEEDS = range(60)


def synced(data: bytes = b"synced", path: str = "d/x", disk: SimDisk | None = None) -> SimDisk:
    """A disk with a file whose bytes and name are durable."""
    disk = disk or SimDisk()
    file = disk.create(path)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_directory("d")
    return disk


def after(disk: SimDisk, model: CrashModel, seed: int = 0) -> dict[str, bytes]:
    """The files that a crash leaves; the disk itself goes on."""
    twin = disk.fork()
    twin.crash(model, Random(seed))
    return twin.files()


def outcomes(disk: SimDisk, model: CrashModel, path: str = "d/x") -> set[bytes | None]:
    """Everything that crashes of many seeds leave of a file; None where it is gone."""
    return {after(disk, model, seed).get(path) for seed in SEEDS}


def refusal(call: Callable[[], object]) -> int | None:
    """The errno that a call raises."""
    with pytest.raises(OSError) as raised:
        call()
    return raised.value.errno


class Runner:
    """Takes steps on a disk, and tells what comes of each in a form that can be compared."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.disk, self.directory = disk, directory
        self.open: list[tuple[File, bool]] = []
        """Files, and whether they are closed."""

    def take(self, step: Step) -> object:
        name, arguments = step
        try:
            return self._take(name, *arguments)
        except (OSError, ValueError) as error:
            return type(error), getattr(error, "errno", None)

    def _take(self, name: str, *arguments: Any) -> object:
        if name in ("create", "open"):
            file = getattr(self.disk, name)(f"{self.directory}/{arguments[0]}", *arguments[1:])
            self.open.append((file, False))
            return None
        if name in ("rename", "unlink"):
            return getattr(self.disk, name)(*(f"{self.directory}/{each}" for each in arguments))
        if name in ("list", "sync_directory"):
            return getattr(self.disk, name)(self.directory)
        if not self.open:
            return None
        index = arguments[0] % len(self.open)
        file, closed = self.open[index]
        if closed and name == "sync":
            raise ValueError("Python refuses this before the operating system can")
        if name == "close":
            self.open[index] = (file, True)
        return getattr(file, name)(*arguments[1:])


class ExpectedFile:
    def __init__(self) -> None:
        self.data, self.synced = bytearray(), b""


class Expected:
    """What steps that succeed make of a disk, told a second time and simply."""

    def __init__(self) -> None:
        self.seen: dict[str, ExpectedFile] = {}
        self.durable: dict[str, ExpectedFile] = {}
        self.opened: list[ExpectedFile] = []

    def take(self, step: Step) -> None:
        name, arguments = step
        if name in ("create", "open", "rename", "unlink", "sync_directory"):
            getattr(self, f"_{name}")(*arguments)
        elif name in ("pwrite", "truncate", "sync") and self.opened:
            index, *others = arguments
            assert isinstance(index, int)
            getattr(self, f"_{name}")(self.opened[index % len(self.opened)], *others)

    def _create(self, name: str) -> None:
        self.seen[name] = ExpectedFile()
        self.opened.append(self.seen[name])

    def _open(self, name: str, write: bool) -> None:
        self.opened.append(self.seen[name])

    def _rename(self, old: str, new: str) -> None:
        self.seen[new] = self.seen.pop(old)

    def _unlink(self, name: str) -> None:
        del self.seen[name]

    def _sync_directory(self) -> None:
        self.durable = dict(self.seen)

    def _pwrite(self, file: ExpectedFile, data: bytes, position: int) -> None:
        if data:
            file.data.extend(bytes(max(0, position - len(file.data))))
            file.data[position : position + len(data)] = data

    def _truncate(self, file: ExpectedFile, size: int) -> None:
        file.data = file.data[:size].ljust(size, b"\0")

    def _sync(self, file: ExpectedFile) -> None:
        file.synced = bytes(file.data)


def is_torn(found: dict[str, bytes], before: dict[str, bytes], now: dict[str, bytes]) -> bool:
    """Whether ``found`` is ``before`` with the beginning of the write that led to ``now``."""
    if found.keys() != before.keys() or found.keys() != now.keys():
        return False
    changed = [path for path in found if found[path] != before[path]]
    if len(changed) != 1:
        return False
    old, new, torn = (state[changed[0]] for state in (before, now, found))
    return len(torn) >= len(old) and any(
        torn == new[:cut] + old[cut:] for cut in range(len(torn) + 1)
    )


class TestAsARealDisk:
    @given(st.lists(strategies.steps, min_size=8, max_size=40))
    @example(
        [
            ("create", ("x",)),
            ("create", ("x",)),
            ("pwrite", (0, b"data", 0)),
            ("rename", ("x", "x")),
            ("open", ("x", False)),
            ("truncate", (1, 0)),
            ("pwrite", (1, b"data", 0)),
        ]
    )
    def test_without_a_crash_there_is_no_difference(self, steps: list[Step]) -> None:
        """Results, errors, listings and contents are those of the operating system."""
        with tempfile.TemporaryDirectory() as directory:
            sim, real = Runner(SimDisk(), "d"), Runner(RealDisk(), directory)
            for step in steps:
                assert sim.take(step) == real.take(step), step
            assert sim.disk.list("d") == real.disk.list(directory)
            for name in sim.disk.list("d"):
                found = [
                    each.disk.open(f"{each.directory}/{name}").pread(9999, 0)
                    for each in (sim, real)
                ]
                assert found[0] == found[1], name

    def test_a_file_is_renamed_within_its_directory_only(self) -> None:
        disk = synced()
        assert refusal(lambda: disk.rename("d/x", "e/x")) == errno.EXDEV
        assert disk.files() == {"d/x": b"synced"}


class TestCrash:
    def test_drop_loses_what_was_not_synced(self) -> None:
        disk = synced()
        disk.open("d/x", write=True).pwrite(b"lost", 0)
        disk.create("d/new")
        disk.crash()
        assert disk.files() == {"d/x": b"synced"}

    def test_keep_loses_nothing_and_what_survived_is_durable(self) -> None:
        disk = synced()
        disk.open("d/x", write=True).pwrite(b"kept, and more", 0)
        disk.create("d/new")
        disk.crash(CrashModel.KEEP)
        disk.crash(CrashModel.DROP)
        assert disk.files() == {"d/x": b"kept, and more", "d/new": b""}

    @pytest.mark.parametrize("model", MODELS)
    def test_what_a_crash_took_does_not_come_back_with_the_next(self, model: CrashModel) -> None:
        disk = synced()
        file = disk.open("d/x", write=True)
        file.pwrite(b"lost", 0)
        disk.fail("sync")
        refusal(file.sync)
        file.pwrite(b"more", 600)
        disk.create("d/new")
        disk.crash()
        assert {tuple(after(disk, model, seed).items()) for seed in SEEDS} == {
            (("d/x", b"synced"),)
        }

    def test_a_killed_process_leaves_its_writes_in_the_cache_unsynced(self) -> None:
        disk = synced()
        disk.open("d/x", write=True).pwrite(b"cached", 0)
        disk.kill()
        assert disk.files() == {"d/x": b"cached"}
        disk.crash()
        assert disk.files() == {"d/x": b"synced"}

    @pytest.mark.parametrize("end", [SimDisk.crash, SimDisk.kill])
    def test_files_that_were_open_end_with_their_process(
        self, end: Callable[[SimDisk], None]
    ) -> None:
        disk = synced()
        file = disk.open("d/x", write=True)
        end(disk)
        uses: list[Callable[[], object]] = [
            lambda: file.pread(1, 0),
            lambda: file.pwrite(b"a", 0),
            lambda: file.truncate(0),
            file.sync,
            file.size,
        ]
        for use in uses:
            with pytest.raises(PowerLost):
                use()
        assert disk.files() == {"d/x": b"synced"}

    @given(
        model=st.sampled_from(MODELS),
        before=st.lists(strategies.steps, max_size=15),
        later=st.lists(strategies.changes, max_size=15),
        seed=st.integers(0, 2**32),
    )
    def test_what_was_synced_survives(
        self, model: CrashModel, before: list[Step], later: list[Step], seed: int
    ) -> None:
        """Data by the sync of its file, names by that of their directory, whatever else goes on."""
        runner = Runner(disk := SimDisk(), "d")
        for step in before:
            runner.take(step)
        for name in disk.list("d"):
            disk.open(f"d/{name}").sync()
        disk.sync_directory("d")
        durable = disk.files()
        others = Runner(disk, "e")
        for step in later:
            others.take(step)
        disk.crash(model, Random(seed))
        found = {path: data for path, data in disk.files().items() if path.startswith("d/")}
        assert found == durable

    @given(steps=st.lists(strategies.steps, max_size=30))
    def test_drop_leaves_what_was_synced_and_keep_what_was_seen(self, steps: list[Step]) -> None:
        runner, expected = Runner(disk := SimDisk(), "d"), Expected()
        for step in steps:
            if not isinstance(runner.take(step), tuple):
                expected.take(step)
        assert after(disk, CrashModel.KEEP) == disk.files()
        assert after(disk, CrashModel.DROP) == {
            f"d/{name}": file.synced for name, file in expected.durable.items()
        }

    @given(steps=st.lists(strategies.changes, max_size=20), seed=st.integers(0, 2**32))
    def test_tear_leaves_a_prefix_of_the_operations_of_all_files(
        self, steps: list[Step], seed: int
    ) -> None:
        """Of the last write of the prefix, a prefix of the bytes."""
        runner = Runner(disk := synced(b"x" * 700), "d")
        runner.take(("open", ("x", True)))
        states = [disk.files()]
        for step in steps:
            runner.take(step)
            states.append(disk.files())
        found = after(disk, CrashModel.TEAR, seed)
        assert found in states or any(
            is_torn(found, states[index], states[index + 1]) for index in range(len(steps))
        )

    def test_tear_ends_anywhere(self) -> None:
        disk = synced(b"----")
        synced(b"----", "d/y", disk)
        x, y = disk.open("d/x", write=True), disk.open("d/y", write=True)
        for position in range(4):
            x.pwrite(b"x", position)
            y.pwrite(b"y", position)
        found = {tuple(after(disk, CrashModel.TEAR, seed).values()) for seed in range(200)}
        assert found == {
            ((b"x" * -(-count // 2)).ljust(4, b"-"), (b"y" * (count // 2)).ljust(4, b"-"))
            for count in range(9)
        }

    def test_tear_cuts_the_last_write_at_sectors_and_now_and_then_within_one(self) -> None:
        disk = synced(b"")
        disk.open("d/x", write=True).pwrite(b"a" * 2048, 256)
        sizes = [len(after(disk, CrashModel.TEAR, seed)["d/x"]) for seed in range(200)]
        assert {0, 512, 1024, 1536, 2048, 2304} < set(sizes)

    @given(
        steps=st.lists(strategies.steps, max_size=20),
        model=st.sampled_from(MODELS),
        seed=st.integers(0, 2**32),
    )
    def test_equal_random_numbers_leave_equal_disks(
        self, steps: list[Step], model: CrashModel, seed: int
    ) -> None:
        disks = SimDisk(), SimDisk()
        for disk in disks:
            runner = Runner(disk, "d")
            for step in steps:
                runner.take(step)
            disk.crash(model, Random(seed))
        assert disks[0].files() == disks[1].files()
        assert disks[0].digest() == disks[1].digest()

    @pytest.mark.parametrize("model", [CrashModel.TEAR, CrashModel.REORDER])
    def test_a_rename_over_a_name_leaves_the_old_or_the_new(self, model: CrashModel) -> None:
        disk = synced(b"old")
        synced(b"new", "d/y", disk)
        disk.rename("d/y", "d/x")
        found = [after(disk, model, seed) for seed in SEEDS]
        assert {"d/x": b"old", "d/y": b"new"} in found
        assert {"d/x": b"new"} in found
        assert len({tuple(files.items()) for files in found}) == 2

    @given(
        steps=st.lists(st.one_of(strategies.renames, strategies.unlinks), max_size=12),
        seed=st.integers(0, 2**32),
    )
    def test_names_of_a_directory_survive_as_a_prefix(self, steps: list[Step], seed: int) -> None:
        disk = synced(b"x")
        synced(b"y", "d/y", disk)
        synced(b"z", "d/z", disk)
        runner = Runner(disk, "d")
        states = [disk.files()]
        for step in steps:
            runner.take(step)
            states.append(disk.files())
        assert after(disk, CrashModel.REORDER, seed) in states
        assert after(disk, CrashModel.TEAR, seed) in states

    def test_each_directory_is_synced_and_survives_by_itself(self) -> None:
        disk = SimDisk()
        for path in ("d/x", "e/x", "e/y"):
            disk.create(path)
        disk.sync_directory("d")
        found = {tuple(after(disk, CrashModel.REORDER, seed)) for seed in SEEDS}
        assert found == {("d/x",), ("d/x", "e/x"), ("d/x", "e/x", "e/y")}

    def test_a_name_that_was_never_synced_may_survive_without_its_data(self) -> None:
        disk = SimDisk()
        file = disk.create("d/x")
        file.pwrite(b"a", 0)
        file.sync()
        disk.create("d/y").pwrite(b"b", 0)
        found = [after(disk, CrashModel.REORDER, seed) for seed in SEEDS]
        assert {files.get("d/x") for files in found} == {None, b"a"}
        assert {files.get("d/y") for files in found} >= {None, b"", b"b", b"\0"}


class TestReorder:
    def test_sectors_arrive_each_by_itself(self) -> None:
        disk = synced(b"-" * 1536)
        disk.open("d/x", write=True).pwrite(b"abc" * 512, 0)
        whole = b"abc" * 512
        assert outcomes(disk, CrashModel.REORDER) == {
            b"".join(
                (whole if bits >> sector & 1 else b"-" * 1536)[sector * 512 : sector * 512 + 512]
                for sector in range(3)
            )
            for bits in range(8)
        }

    def test_a_sector_is_one_of_those_that_the_cache_held(self) -> None:
        """Of two writes to one sector the second never arrives without the first."""
        disk = synced(b"--")
        file = disk.open("d/x", write=True)
        file.pwrite(b"a", 0)
        file.pwrite(b"b", 1)
        assert outcomes(disk, CrashModel.REORDER) == {b"--", b"a-", b"ab"}

    def test_the_size_may_arrive_without_the_data_and_the_data_without_the_size(self) -> None:
        disk = synced(b"-" * 512)
        disk.open("d/x", write=True).pwrite(b"a" * 1024, 0)
        assert outcomes(disk, CrashModel.REORDER) >= {
            old + new for old in (b"-" * 512, b"a" * 512) for new in (b"", bytes(512), b"a" * 512)
        }

    def test_what_did_not_arrive_may_read_as_bytes_of_other_files(self) -> None:
        disk = synced(b"secret" * 100, "d/other")
        disk.unlink("d/other")
        disk.sync_directory("d")
        synced(b"", "d/x", disk)
        disk.open("d/x", write=True).pwrite(b"a" * 512, 0)
        secret = (b"secret" * 100)[:512]
        assert outcomes(disk, CrashModel.REORDER) >= {b"", bytes(512), b"a" * 512, secret}

    def test_and_so_may_bytes_of_a_file_that_was_replaced(self) -> None:
        disk = synced(b"secret" * 100, "d/other")
        synced(b"", "d/new", disk)
        disk.rename("d/new", "d/other")
        disk.sync_directory("d")
        synced(b"", "d/x", disk)
        disk.open("d/x", write=True).pwrite(b"a" * 512, 0)
        assert (b"secret" * 100)[:512] in outcomes(disk, CrashModel.REORDER)

    def test_a_hole_reads_as_zeros(self) -> None:
        disk = synced(b"secret" * 200, "d/other")
        synced(b"", "d/x", disk)
        disk.open("d/x", write=True).truncate(1024)
        disk.open("d/x", write=True).pwrite(b"a", 2048)
        for found in outcomes(disk, CrashModel.REORDER):
            assert found is not None and not any(found[:2048])

    def test_a_truncation_survives_or_not(self) -> None:
        disk = synced(b"-" * 1024)
        file = disk.open("d/x", write=True)
        file.truncate(512)
        file.truncate(1536)
        file.pwrite(b"a" * 512, 512)
        cut = b"-" * 512
        assert outcomes(disk, CrashModel.REORDER) == {
            cut + cut,  # the old end: its blocks were given back in vain, and hold what they did
            cut,
            cut + bytes(1024),
            cut + b"a" * 512 + bytes(512),
        }


class TestFailedSync:
    """After fsync failed, data is to be seen, counts as clean, and is not on the disk."""

    def failed(self, data: bytes = b"lost..", position: int = 0) -> tuple[SimDisk, File]:
        disk = synced()
        file = disk.open("d/x", write=True)
        file.pwrite(data, position)
        disk.fail("sync")
        assert refusal(file.sync) == errno.EIO
        return disk, file

    def test_what_was_written_is_still_seen(self) -> None:
        _, file = self.failed()
        assert file.pread(99, 0) == b"lost.."

    def test_a_later_sync_succeeds_and_does_not_help(self) -> None:
        disk, file = self.failed()
        file.sync()
        assert after(disk, CrashModel.DROP) == {"d/x": b"synced"}
        assert after(disk, CrashModel.KEEP) == {"d/x": b"lost.."}
        for model in (CrashModel.TEAR, CrashModel.REORDER):
            assert outcomes(disk, model) == {b"synced", b"lost.."}

    def test_what_is_written_again_and_synced_is_durable(self) -> None:
        disk, file = self.failed()
        file.pwrite(b"again.", 0)
        file.sync()
        for model in MODELS:
            assert outcomes(disk, model) == {b"again."}

    def test_a_byte_written_again_brings_its_sector_along_and_no_other(self) -> None:
        disk, file = self.failed(b"a" * 1024)
        file.pwrite(b"b", 600)
        file.sync()
        found = after(disk, CrashModel.DROP)["d/x"]
        assert found == b"synced" + bytes(506) + b"a" * 88 + b"b" + b"a" * 423

    def test_the_size_can_still_be_synced_without_the_data(self) -> None:
        disk, file = self.failed(b"a" * 512, 512)
        assert after(disk, CrashModel.DROP) == {"d/x": b"synced"}
        file.sync()
        assert after(disk, CrashModel.DROP) == {"d/x": b"synced" + bytes(1018)}

    def test_what_was_cut_off_does_not_come_back(self) -> None:
        disk, file = self.failed(b"a" * 512, 512)
        file.truncate(6)
        file.truncate(1024)
        file.sync()
        for model in MODELS:
            assert outcomes(disk, model) == {b"synced" + bytes(1018)}

    def test_a_failed_sync_of_a_directory_can_be_made_again(self) -> None:
        disk = synced()
        disk.unlink("d/x")
        disk.fail("sync_directory")
        assert refusal(lambda: disk.sync_directory("d")) == errno.EIO
        assert after(disk, CrashModel.DROP) == {"d/x": b"synced"}
        disk.sync_directory("d")
        assert after(disk, CrashModel.DROP) == {}

    @given(
        steps=st.lists(st.one_of(strategies.writes, strategies.truncates), max_size=12),
        fails=st.sets(st.integers(0, 12)),
        seed=st.integers(0, 2**32),
    )
    def test_with_no_failure_since_a_byte_was_written_it_is_durable(
        self, steps: list[Step], fails: set[int], seed: int
    ) -> None:
        """Sync after each step; some fail. Keep loses nothing; writing all again heals all."""
        runner = Runner(disk := synced(), "d")
        runner.take(("open", ("x", True)))
        file = runner.open[0][0]
        for index, step in enumerate(steps):
            runner.take(step)
            if index in fails:
                disk.fail("sync")
            runner.take(("sync", (0,)))
        seen = disk.files()
        assert after(disk, CrashModel.KEEP, seed) == seen
        if not fails & set(range(len(steps))):
            assert after(disk, CrashModel.DROP) == seen
        file.pwrite(seen["d/x"], 0)
        file.sync()
        for model in MODELS:
            assert after(disk, model, seed) == seen


class TestFaults:
    def test_the_nth_call_fails_once(self) -> None:
        disk = synced()
        disk.fail("open", 2, errno.EMFILE)
        disk.open("d/x")
        assert refusal(lambda: disk.open("d/x")) == errno.EMFILE
        disk.open("d/x")

    def test_a_short_write_leaves_its_first_bytes(self) -> None:
        disk = synced()
        file = disk.open("d/x", write=True)
        disk.fail("pwrite", 1, errno.ENOSPC, written_bytes=3)
        assert refusal(lambda: file.pwrite(b"abcdef", 0)) == errno.ENOSPC
        assert file.pread(99, 0) == b"abcced"

    def test_a_hook_shortens_a_write_too(self) -> None:
        def enter(call: Call) -> None:
            raise ShortWrite(errno.EIO, call.length // 2)

        disk = synced()
        file = disk.open("d/x", write=True)
        disk.enter = enter
        assert refusal(lambda: file.pwrite(b"abcd", 6)) == errno.EIO
        assert disk.files() == {"d/x": b"syncedab"}

    @pytest.mark.parametrize(("limit", "error"), [("capacity", "ENOSPC"), ("quota", "EDQUOT")])
    def test_a_full_disk_takes_what_fits_its_blocks(self, limit: str, error: str) -> None:
        disk = synced(b"a")
        setattr(disk, limit, 3 * 4096)
        file = disk.create("d/y")
        full = getattr(errno, error)
        assert refusal(lambda: file.pwrite(b"b" * 9000, 0)) == full
        assert file.size() == 8192
        assert refusal(lambda: file.truncate(9000)) == full
        disk.open("d/x", write=True).pwrite(b"a" * 4096, 0)
        assert disk.used_bytes == 3 * 4096
        assert disk.free_bytes("d") == (0 if limit == "capacity" else 1 << 40)
        file.truncate(4096)
        file.pwrite(b"c" * 4096, 4096)
        disk.unlink("d/x")
        file.pwrite(b"c" * 4096, 8192)

    def test_a_bad_sector_fails_reads_until_it_is_written_whole_and_durably(self) -> None:
        disk = synced(b"a" * 1500)
        disk.spoil("d/x", 600, 1)
        file = disk.open("d/x", write=True)
        assert file.pread(512, 0) == b"a" * 512
        assert refusal(lambda: file.pread(1, 512)) == errno.EIO
        file.pwrite(b"b", 600)
        assert refusal(lambda: file.pread(1, 512)) == errno.EIO
        file.pwrite(b"b" * 512, 512)
        assert file.pread(512, 512) == b"b" * 512
        disk.crash()
        file = disk.open("d/x", write=True)
        assert refusal(lambda: file.pread(1, 1023)) == errno.EIO
        file.pwrite(b"b" * 512, 512)
        file.sync()
        disk.crash()
        assert disk.open("d/x").pread(512, 512) == b"b" * 512

    def test_a_bad_sector_that_is_cut_off_is_gone(self) -> None:
        disk = synced(b"a" * 1024)
        disk.spoil("d/x", 512, 512)
        file = disk.open("d/x", write=True)
        file.truncate(512)
        file.truncate(1024)
        assert file.pread(1024, 0) == b"a" * 512 + bytes(512)

    def test_rot_stays(self) -> None:
        disk = synced()
        disk.flip("d/x", 0, 0x20)
        assert disk.files() == {"d/x": b"Synced"}
        disk.crash()
        assert disk.files() == {"d/x": b"Synced"}

    def test_damage_by_hand_is_durable_where_the_file_is_synced(self) -> None:
        disk = synced()
        disk.content("d/x")[:2] = b"SY"
        disk.open("d/x", write=True).pwrite(b"lost", 0)
        disk.content("d/x")[4:] = b"lost"
        disk.crash()
        assert disk.files() == {"d/x": b"SYnced"}


class TestHooks:
    def test_each_call_is_told_before_and_after_its_effect(self) -> None:
        disk, told = SimDisk(), []
        disk.enter = lambda call: told.append(("enter", call, disk.files()))
        disk.leave = lambda call: told.append(("leave", call, disk.files()))
        disk.create("d/x").pwrite(b"abc", 5)
        disk.rename("d/x", "d/y")
        create, write = Call(1, "create", "d/x", 0, 0), Call(2, "pwrite", "d/x", 5, 3)
        rename = Call(3, "rename", "d/y", 0, 0)
        data = bytes(5) + b"abc"
        assert told == [
            ("enter", create, {}),
            ("leave", create, {"d/x": b""}),
            ("enter", write, {"d/x": b""}),
            ("leave", write, {"d/x": data}),
            ("enter", rename, {"d/x": data}),
            ("leave", rename, {"d/y": data}),
        ]

    @given(steps=st.lists(strategies.steps, max_size=20), stop=st.integers(1, 25))
    def test_what_stops_a_call_before_it_leaves_no_trace(
        self, steps: list[Step], stop: int
    ) -> None:
        """Neither the files nor what a crash makes of them change."""
        states = []

        def enter(call: Call) -> None:
            if call.number == stop:
                states.append((disk.files(), after(disk, CrashModel.DROP)))
                raise PowerLost

        runner = Runner(disk := SimDisk(), "d")
        disk.enter = enter
        try:
            for step in steps:
                runner.take(step)
        except PowerLost:
            assert states == [(disk.files(), after(disk, CrashModel.DROP))]

    def test_a_sync_covers_what_was_written_before_it_was_called(self) -> None:
        """Another thread writes while the sync is under way."""
        disk = synced()
        file = disk.open("d/x", write=True)
        file.pwrite(b"before", 0)

        def enter(call: Call) -> None:
            if call.name == "sync":
                file.pwrite(b"during", 6)

        disk.enter = enter
        file.sync()
        assert disk.files() == {"d/x": b"beforeduring"}
        disk.crash()
        assert disk.files() == {"d/x": b"before"}

    def test_a_sync_of_a_directory_covers_the_names_given_before_it_was_called(self) -> None:
        disk = SimDisk()
        disk.create("d/x")
        disk.enter = lambda call: disk.create("d/y") if call.name == "sync_directory" else None
        disk.sync_directory("d")
        assert list(disk.files()) == ["d/x", "d/y"]
        disk.crash()
        assert list(disk.files()) == ["d/x"]

    @pytest.mark.parametrize("position", [6, 512])
    def test_a_failed_sync_loses_what_was_written_before_it_was_called(self, position: int) -> None:
        """What came while it was under way is made durable by the next, in the same sector too."""
        disk = synced()
        file = disk.open("d/x", write=True)
        file.pwrite(b"before", 0)

        def enter(call: Call) -> None:
            if call.name == "sync" and disk.calls["sync"] == 2:
                file.pwrite(b"during", position)
                raise OSError(errno.EIO, "")

        disk.enter = enter
        assert refusal(file.sync) == errno.EIO
        file.sync()
        rest = bytes(position - 6) + b"during"
        assert after(disk, CrashModel.DROP) == {"d/x": b"synced" + rest}
        for model in (CrashModel.TEAR, CrashModel.REORDER):
            assert outcomes(disk, model) == {b"synced" + rest, b"before" + rest}

    def test_a_size_that_did_not_survive_a_failed_sync_is_not_made_by_its_data(self) -> None:
        """Two growing writes are lost; of the sizes, only what comes first may survive."""
        disk = synced(b"-" * 512)
        file = disk.open("d/x", write=True)
        disk.create("d/first")
        file.pwrite(b"a" * 512, 512)
        disk.create("d/second")
        file.pwrite(b"b" * 512, 1024)
        disk.fail("sync")
        refusal(file.sync)
        for seed in SEEDS:
            found = after(disk, CrashModel.TEAR, seed)
            largest = 1536 if "d/second" in found else 1024 if "d/first" in found else 512
            assert len(found["d/x"]) <= largest


class TestFork:
    @given(
        steps=st.lists(strategies.steps, max_size=20),
        later=st.lists(strategies.steps, max_size=10),
        model=st.sampled_from(MODELS),
        seed=st.integers(0, 2**32),
    )
    def test_it_ends_as_the_original_would_and_neither_changes_the_other(
        self, steps: list[Step], later: list[Step], model: CrashModel, seed: int
    ) -> None:
        runner = Runner(disk := SimDisk(), "d")
        for step in steps:
            runner.take(step)
        twin, other = disk.fork(), disk.fork()
        seen = disk.files()
        assert twin.files() == seen
        for step in later:
            runner.take(step)
        assert twin.files() == seen
        changed = disk.files()
        twin.crash(model, Random(seed))
        other.crash(model, Random(seed))
        assert disk.files() == changed
        assert twin.files() == other.files()

    def test_a_copy_is_synced_throughout(self) -> None:
        disk = synced()
        disk.open("d/x", write=True).pwrite(b"S", 0)
        copy = disk.copy()
        copy.crash()
        assert copy.files() == {"d/x": b"Synced"}
        disk.crash()
        assert disk.files() == {"d/x": b"synced"}

    def test_calls_are_numbered_on(self) -> None:
        twin, numbers = synced().fork(), []
        twin.enter = lambda call: numbers.append(call.number)
        twin.list("d")
        assert numbers == [5]

    def test_a_digest_tells_names_and_contents(self) -> None:
        digests = {
            disk.digest()
            for disk in (SimDisk(), synced(b"a"), synced(b"b"), synced(b"a", "d/y"), synced(b""))
        }
        assert len(digests) == 5
        assert synced().digest() == synced().fork().digest()
