"""One command gives an archive back that another program changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.contract.view import ForeignArchive
from brokerd.archive.data_dir import RollupLocked, rollup_lock
from brokerd.archive.delta.log_files import COMMITS, PROTOCOL, commit_name
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.delta.table import Table
from brokerd.archive.errors import JobFailed
from brokerd.archive.recover import RecoveredTable, RecoverJob, run_recover
from brokerd.archive.storage.address import ObjectAddress, Place
from brokerd.archive.storage.store import open_store
from brokerd.cli.main import cli
from brokerd.errors import BrokerdError
from tests.archive.data import NOW_MS, Data
from tests.archive.inline import ingest_inline
from tests.archive.making import LOG_ID
from tests.archive.test_log_files import open_to_writers


@pytest.fixture
def data(tmp_path: Path) -> Data:
    data = Data(tmp_path / "data")
    for path in data.fill():
        assert path.exists()
        data.publish()
        data.roll_up()
    data.fill(1)
    data.roll_up()
    data.publish()
    return data


def optimize(data: Data) -> DeltaTable:
    """Merge files by another program, which the protocol of older versions allows."""
    open_to_writers(data.root / RECORDS.name)
    table = DeltaTable(str(data.root / RECORDS.name))
    assert table.optimize.compact()["numFilesRemoved"] > 0
    return table


def recover(data: Data, root: Place | None = None) -> list[RecoveredTable]:
    return run_recover(RecoverJob(data.path, root or data.root, lambda: NOW_MS))


def test_optimize_of_another_program_is_undone(data: Data) -> None:
    """With its checkpoint; the protocol keeps it out from then on."""
    table = optimize(data)
    table.create_checkpoint()
    with pytest.raises(ForeignArchive, match=r"`brokerctl archive recover`"):
        Table(data.root, RECORDS, LOG_ID)
    (found,) = recover(data)
    assert (found.name, found.commits) == ("records", 1)
    assert "delta-rs" in found.reason
    assert {path.name for path in (data.root / found.aside).iterdir()} == {
        "_last_checkpoint",
        commit_name(table.version()),
        f"{table.version():020d}.checkpoint.parquet",
    }
    opened = Table(data.root, RECORDS, LOG_ID)
    assert opened.snapshot.protocol == PROTOCOL
    data.check()
    data.fill(1)
    data.roll_up()
    data.check()
    assert recover(data) == []


def test_rows_of_another_program_go(data: Data) -> None:
    open_to_writers(data.root / RECORDS.name)
    DeltaTable(str(data.root / RECORDS.name)).delete("topic_id = 1")
    assert len(data.records()) < len(data.appended)
    recover(data)
    data.check()


@pytest.mark.parametrize("deletes", [1, 2, 3])
def test_a_stopped_recovery_is_continued(
    data: Data, deletes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimize(data).create_checkpoint()
    DeltaTable(str(data.root / RECORDS.name)).delete("topic_id = 1")
    store = type(open_store(data.root))
    delete, done = store.delete, list[str]()

    def stop(self: object, paths: list[str]) -> None:
        if len(done) == deletes:
            raise KeyboardInterrupt
        done.extend(paths)
        delete(self, paths)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", stop)
        with pytest.raises(KeyboardInterrupt):
            recover(data)
    recover(data)
    data.check()
    assert Table(data.root, RECORDS, LOG_ID).snapshot.protocol == PROTOCOL


def test_files_that_are_gone_are_named(data: Data) -> None:
    """Then nothing is changed."""
    table = optimize(data)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    before = sorted((data.root / RECORDS.name).rglob("*"))
    with pytest.raises(JobFailed, match=r"records: version \d+, the last of brokerd, needs 4 fil"):
        recover(data)
    assert sorted((data.root / RECORDS.name).rglob("*")) == before


HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_running_rollup_is_left_alone(data: Data) -> None:
    with rollup_lock(data.path):
        (path,) = data.path.rglob("rollup.lock")
    command = [sys.executable, "-c", HOLD_LOCK, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(RollupLocked):
            recover(data)
        process.stdin.close()


def test_a_commit_of_brokerd_after_it_is_not_lost(data: Data) -> None:
    directory = data.root / RECORDS.name / COMMITS
    newest = max(directory.glob("*.json"))
    version = int(newest.stem)
    newest.rename(directory / commit_name(version + 1))
    line = {"commitInfo": {"engineInfo": "x"}}
    remove = {"remove": {"path": "y", "dataChange": True}}
    newest.write_text(f"{json.dumps(line)}\n{json.dumps(remove)}\n")
    with pytest.raises(ForeignArchive, match=r"is a commit of brokerd after a commit of another"):
        recover(data)


def test_in_a_bucket(data: Data, bucket: ObjectAddress) -> None:
    ingest_inline(bucket, data.wal, data.bounds())
    table = bucket / RECORDS.name
    store, log = open_store(table), DeltaLog(table, LOG_ID)
    before = log.read()
    assert before is not None
    line = {"commitInfo": {"engineInfo": "x"}}
    remove = {"remove": {"path": before.files["path"][0].as_py(), "dataChange": True}}
    text = f"{json.dumps(line)}\n{json.dumps(remove)}\n"
    store.put(f"{COMMITS}/{commit_name(before.version + 1)}", text.encode())
    with pytest.raises(ForeignArchive):
        log.read()
    (found,) = recover(data, bucket)
    assert found.version == before.version
    assert log.read() == before


# -- The command ---------------------------------------------------------------------------------


def run(data: Data, *arguments: str) -> Result:
    given = ["--data-dir", str(data.path), "archive", "recover", *arguments]
    return CliRunner().invoke(cli, given)


def test_the_command_tells_what_it_did(data: Data) -> None:
    assert run(data, "--yes").output == "no commit of another program; nothing to do\n"
    version = optimize(data).version()
    result = run(data, "--yes")
    assert result.exit_code == 0, result.output
    assert result.output == (
        f"records: 1 commit set aside in records/_brokerd/foreign-{version}; the newest version "
        f"is {version}\n"
    )
    data.check()


def test_the_command_asks_first(data: Data) -> None:
    version = optimize(data).version()
    result = run(data)
    assert isinstance(result.exception, BrokerdError)
    assert f"set aside the commits {version} to {version} of records" in str(result.exception)
    with pytest.raises(ForeignArchive):
        Table(data.root, RECORDS, LOG_ID)
