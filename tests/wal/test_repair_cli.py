"""``brokerctl wal repair`` on real directories: words, exit codes, and a broker afterwards."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
import pytest_twisted
from click.testing import CliRunner, Result

from brokerd.cli.main import cli
from brokerd.errors import ConfigError, NoSpace
from brokerd.wal import DirectoryLock, RealDisk, SnapshotChunk, Snapshots, Wal
from brokerd.wal.disk import RealFile
from brokerd.walformat import Entry, EntryKind
from simulator.machine.inline import InlinePool
from tests.test_assembly import serve, served
from tests.wal.rig import SMALL, events, records


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Twenty records of ``orders`` in two segments, as a crash leaves them, and a snapshot."""
    commits = InlinePool()
    wal_path = str(tmp_path / "wal")
    wal = Wal(
        RealDisk(), wal_path, SMALL, commits, commits, random.Random(1).randbytes, lambda: 0.0
    )
    wal.open(0, lambda frame: None)
    fields = {"op": "created", "name": "orders", "partitions": 1}
    wal.append([Entry(EntryKind.TOPIC, 1, 0, 0, 0, msgpack.packb(fields))], 1)
    for offset in range(20):
        commits.run()
        wal.append([records(offset, size=4000), events(offset)], 1 + offset)
    commits.run()
    state_path = str(tmp_path / "state")
    chunks = [SnapshotChunk(1, b"", 0, msgpack.packb({"next_topic_id": 1, "time_us": 0}))]
    Snapshots(RealDisk(), state_path, lambda n: bytes(n)).write(0, chunks)
    return tmp_path


def segments(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "wal").glob("*.wal"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))


def run(data_dir: Path, *args: str, as_json: bool = False) -> Result:
    options = ["--data-dir", str(data_dir), *(["--json"] if as_json else [])]
    return CliRunner().invoke(cli, [*options, "wal", *args], catch_exceptions=False)


def digest(data_dir: Path) -> dict[str, tuple[str, int]]:
    """Contents and times of everything in the directory."""
    return {
        str(path.relative_to(data_dir)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in sorted(data_dir.rglob("*"))
    }


def damage_a_batch(data_dir: Path) -> None:
    flip(segments(data_dir)[1], 4096 + 64 + 48 + 500)


class TestDryRun:
    def test_it_says_what_a_repair_would_do_and_changes_nothing(self, data_dir: Path) -> None:
        damage_a_batch(data_dir)
        before = digest(data_dir)
        result = run(data_dir, "repair", "--dry-run")
        assert result.exit_code == 1
        name = segments(data_dir)[1].name
        lines = result.output.splitlines()
        assert lines[0] == f"in {data_dir}:"
        assert lines[1].startswith(f"put wal/{name} at 4096 to ")
        assert lines[1].endswith("; lost topic 'orders' (id 1) partition 0 offset 14")
        assert lines[2] == "1 things to do; nothing was changed (--dry-run)"
        assert digest(data_dir) == before

    def test_a_lock_that_lies_there_is_not_written_to(self, data_dir: Path) -> None:
        (data_dir / "lock").write_text("4711\n")
        before = digest(data_dir)
        result = run(data_dir, "repair", "--dry-run")
        assert result.exit_code == 0 and "nothing to do" in result.output
        assert digest(data_dir) == before

    def test_the_same_in_json(self, data_dir: Path) -> None:
        damage_a_batch(data_dir)
        found = json.loads(run(data_dir, "repair", "--dry-run", as_json=True).output)
        assert found["dry_run"] is True and found["copies"] is None
        (action,) = found["actions"]
        assert (action["deed"], action["room"], action["position"]) == ("record", "wal", 4096)
        assert action["lost"] == [{"topic_id": 1, "partition": 0, "first": 14, "end": 15}]


class TestRepair:
    def test_it_does_so_and_verify_says_what_is_lost(self, data_dir: Path) -> None:
        damage_a_batch(data_dir)
        assert run(data_dir, "verify").exit_code == 1
        result = run(data_dir, "repair")
        assert result.exit_code == 0
        last = result.output.splitlines()[-1]
        assert last.startswith("1 things done, the log is sound; copies and list in ")
        assert (Path(last.rpartition(" in ")[2]) / "manifest.json").exists()
        verified = run(data_dir, "verify")
        assert verified.exit_code == 0
        assert "on record: " in verified.output
        assert "lost topic 'orders' (id 1) partition 0 offset 14" in verified.output
        assert "sound, but for 1 damaged places that a repair put on record" in verified.output
        assert len(json.loads(run(data_dir, "verify", as_json=True).output)["recorded"]) == 1

    def test_a_second_one_has_nothing_to_do(self, data_dir: Path) -> None:
        damage_a_batch(data_dir)
        run(data_dir, "repair")
        before = digest(data_dir / "wal"), digest(data_dir / "repair")
        result = run(data_dir, "repair")
        assert result.exit_code == 0 and "nothing to do" in result.output
        assert (digest(data_dir / "wal"), digest(data_dir / "repair")) == before

    def test_the_record_can_be_dumped(self, data_dir: Path) -> None:
        damage_a_batch(data_dir)
        run(data_dir, "repair")
        result = run(data_dir, "dump", "--kind", "lost")
        assert "'lost': [[1, 0, 14, 15]]" in result.output

    def test_each_thing_is_said_in_words(self, data_dir: Path) -> None:
        first, last = segments(data_dir)
        damage_a_batch(data_dir)
        flip(first.with_suffix(".idx"), -1)
        flip(first, 20)
        flip(next((data_dir / "state").iterdir()), -60)
        end = json.loads(run(data_dir, "verify", as_json=True).output)["next_lsn"]
        flip(last, end - int(last.stem) + 8)
        output = run(data_dir, "repair").output
        assert f"write the header block of wal/{first.name} again: " in output
        assert f"make wal/{first.stem}.idx again: " in output
        assert "move state/00000000000000000000.snap away: " in output
        assert f"cut wal/{last.name} at {end - int(last.stem)} to " in output
        assert "5 things done" in output
        assert run(data_dir, "verify").output.count("BAD") == 0

    def test_what_cannot_be_told_is_said(self, data_dir: Path) -> None:
        flip(segments(data_dir)[1], 4096)
        flip(segments(data_dir)[1], 4096 + 64)
        output = run(data_dir, "repair", "--dry-run").output
        assert "what else was there cannot be told" in output


class TestRefusals:
    def test_a_broker_that_runs_is_left_alone(self, data_dir: Path) -> None:
        code = (
            "import sys; from brokerd.wal import DirectoryLock; "
            "DirectoryLock(sys.argv[1]).acquire(); print('locked', flush=True); sys.stdin.read()"
        )
        damage_a_batch(data_dir)
        command = [sys.executable, "-c", code, str(data_dir)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"locked\n"
            before = digest(data_dir)
            for options in ((), ("--dry-run",)):
                result = run(data_dir, "repair", *options)
                assert result.exit_code == 75
                assert f"in use by another broker, process {other.pid}" in result.output
            assert digest(data_dir) == before
            assert other.stdin is not None
            other.stdin.close()

    def test_the_lock_is_given_back(self, data_dir: Path) -> None:
        run(data_dir, "repair")
        lock = DirectoryLock(str(data_dir))
        lock.acquire()
        lock.release()

    def test_a_directory_without_a_log_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--data-dir"):
            run(tmp_path / "none", "repair")
        assert not (tmp_path / "none").exists()

    def test_another_users_files_are_not_mixed_with_ours(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damage_a_batch(data_dir)
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(data_dir).st_uid + 1)
        before = digest(data_dir)
        with pytest.raises(ConfigError, match="run this as that user"):
            run(data_dir, "repair")
        assert digest(data_dir) == before
        assert run(data_dir, "repair", "--dry-run").exit_code == 1

    def test_a_full_disk_is_told_and_the_next_try_finishes(
        self, data_dir: Path, full: None
    ) -> None:
        damage_a_batch(data_dir)
        with pytest.raises(NoSpace, match=r"repair.*the disk is full.*goes on where it stopped"):
            run(data_dir, "repair")
        assert run(data_dir, "repair").exit_code == 0
        assert run(data_dir, "verify").exit_code == 0


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when first something is written to it."""
    write = RealFile.pwrite

    def pwrite(self: RealFile, data: bytes, position: int) -> None:
        monkeypatch.setattr(RealFile, "pwrite", write)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    monkeypatch.setattr(RealFile, "pwrite", pwrite)


@pytest_twisted.ensureDeferred
async def test_a_broker_serves_what_is_left_of_a_real_directory(tmp_path: Path) -> None:
    """Produced, crashed, damaged in three ways, repaired, and consumed to the end."""
    running = await serve(tmp_path / "before")

    def produce(client: Any) -> None:
        for number in range(50):
            client.produce("orders", {"n": number})

    await running.ask(produce)
    data_dir = tmp_path / "data"  # as it is while the broker still runs: as a crash leaves it
    shutil.copytree(tmp_path / "before", data_dir)
    await running.stop()
    (segment,) = segments(data_dir)
    data = segment.read_bytes()
    frames = [at for at in range(4096, len(data), 8) if data[at : at + 4] == b"BKfr"]
    flip(segment, frames[10] + 64 + 48 + 90)
    flip(segment, frames[20] + 40)
    flip(segment, frames[20] + 64 + 20)
    flip(segment, 30)
    assert run(data_dir, "verify").exit_code == 1
    assert run(data_dir, "repair").exit_code == 0
    assert run(data_dir, "verify").exit_code == 0

    def consume(client: Any) -> list[int]:
        found = []
        while messages := client.acquire_batch("orders", "g", "c", 10):
            for message in messages:
                client.settle("orders", "g", message.id, "c")
                assert message.payload == {"n": message.id}
                found.append(message.id)
        return found

    async with served(data_dir) as again:
        assert again.core.status()["recovery"]["damages"] == 0
        assert again.core.broker.damage.reason == ""
        found = await again.ask(consume)
        assert len(found) == 48 and found == sorted(found)
        assert await again.ask(lambda client: client.produce("orders", b"more")) >= 50
        info = await again.ask(lambda client: client.group_info("orders", "g"))
        assert info.lag == 1
    assert run(data_dir, "verify").exit_code == 0
