"""``brokerctl backup`` and ``restore``: lines, JSON, exit codes, modes of files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerd.backup.manifest import BackupFailed
from brokerd.cli.main import cli
from brokerd.errors import ConfigError
from tests.backup.world import BIG, LOG_ID, Log, read_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "data")
    log.put(5, BIG)
    return log


def run(log: Log, *arguments: object) -> Result:
    given = ["--data-dir", str(log.data_dir), *map(str, arguments)]
    return CliRunner().invoke(cli, given, catch_exceptions=False)


def answer(log: Log, *arguments: object) -> Any:
    result = run(log, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_day_of_an_operator(log: Log, tmp_path: Path) -> None:
    """Back up, look, check, prune, restore: every line says what was done."""
    to = tmp_path / "backups"
    lsn = log.wal.durable_lsn
    result = run(log, "backup", to)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"backup 1 in {to}: up to LSN {lsn} (1970-01-01T00:00:05.0")
    log.put(1)
    again = answer(log, "backup", "create", to, "--keep", 1)
    assert (again["number"], again["copied_files"], again["pruned"]["backups"]) == (2, 1, [1])
    (listed,) = answer(log, "backup", "list", to)["backups"]
    assert (listed["number"], listed["lsn"], listed["log_id"]) == (2, log.wal.durable_lsn, LOG_ID)
    assert "backup" in run(log, "backup", "list", to).stdout.splitlines()[0]
    assert run(log, "backup", "verify", to).stdout.endswith(": sound\n")
    assert answer(log, "backup", "verify", to, "--quick")["problems"] == []
    assert answer(log, "backup", "prune", to, "--keep", 3)["files"] == 0
    result = run(log, "restore", to, tmp_path / "restored", "--to-time", "1970-01-01T00:00:05Z")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith(f"restored backup 2 to {tmp_path / 'restored'}: up to LSN {lsn} (1970")
    assert second.endswith("(new)") and LOG_ID not in second
    assert read_log(tmp_path / "restored")[0] == [0, 1, 2, 3, 4]
    same = answer(log, "restore", to, tmp_path / "same", "--same-log", "--to-lsn", lsn)
    assert (same["log_id"], same["lsn"], same["records"]) == (LOG_ID, lsn, 5)


def test_only_the_owner_reads_a_backup(log: Log, tmp_path: Path) -> None:
    """A restored directory has the modes that the broker gives; the umask is as before."""
    before = os.umask(0o022)
    try:
        run(log, "backup", tmp_path / "backups")
        run(log, "restore", tmp_path / "backups", tmp_path / "restored")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    for path in [tmp_path / "backups", *(tmp_path / "backups").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE((tmp_path / "restored").stat().st_mode) == 0o700
    for path in (tmp_path / "restored").rglob("*"):
        expected = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_damage_exits_with_1_and_is_named(log: Log, tmp_path: Path) -> None:
    path = log.wal_path / f"{log.segments()[0]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    result = run(log, "backup", tmp_path / "backups")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"DAMAGE {path.name} at 4096: ")
    stored = min((tmp_path / "backups" / "wal").glob("*.wal"))
    stored.unlink()
    result = run(log, "backup", "verify", tmp_path / "backups")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"DAMAGE {stored} is missing")
    assert result.stdout.endswith(": DAMAGED\n")


def test_a_damaged_manifest_is_listed_beside_the_others(log: Log, tmp_path: Path) -> None:
    for _ in range(2):
        run(log, "backup", tmp_path / "backups")
    path = tmp_path / "backups" / "backups" / "00000001.backup"
    path.write_bytes(path.read_bytes()[:-2])
    result = run(log, "--json", "backup", "list", tmp_path / "backups")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [one["number"] for one in found["backups"]] == [2]
    assert found["damaged"][0].startswith(f"{path} is damaged")


@pytest.mark.parametrize("verb", ["list", "verify"])
def test_a_place_without_backups_is_named(log: Log, tmp_path: Path, verb: str) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} holds no backups; brokerctl backup"):
        run(log, "backup", verb, tmp_path)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("", "the address of the backups: name a directory"),
        ("ftp://host/x", "^the address of the backups: 'ftp://host/x' is neither"),
        ("s3://user@bucket", "remove the credentials"),
    ],
)
def test_a_wrong_address_is_named(log: Log, to: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(log, "backup", "create", to)


def test_a_backup_inside_of_the_journal_is_refused(log: Log) -> None:
    with pytest.raises(ConfigError, match="belongs to the broker"):
        run(log, "backup", log.wal_path / "backups")


@pytest.mark.parametrize("name", ["backups", ".", "elsewhere/../backups"])
def test_a_backup_inside_of_the_data_directory_is_refused(log: Log, name: str) -> None:
    """It would be lost with the directory."""
    with pytest.raises(ConfigError, match="is in the data directory"):
        run(log, "backup", log.data_dir / name)
    assert not (log.data_dir / "backups").exists()


def test_a_backup_of_nothing_makes_no_directory(log: Log, tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "nothing"), "backup", str(tmp_path / "backups")]
    with pytest.raises(BackupFailed, match="is no data directory"):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert not (tmp_path / "backups").exists()


def test_a_file_of_another_size_is_named_with_both_sizes(log: Log, tmp_path: Path) -> None:
    run(log, "backup", tmp_path / "backups")
    stored = min((tmp_path / "backups" / "wal").glob("*.wal"))
    size = stored.stat().st_size
    os.truncate(stored, 7)
    for options in ((), ("--quick",)):
        result = run(log, "backup", "verify", tmp_path / "backups", *options)
        assert result.exit_code == 1
        assert result.stdout.startswith(f"DAMAGE {stored} has 7 bytes, not {size}\n")


@pytest.mark.parametrize(
    "options",
    [("--to-lsn", "1", "--to-time", "1h"), ("--archive", "/a"), ("--to-time", "noon")],
)
def test_options_that_contradict_are_usage_errors(
    log: Log, tmp_path: Path, options: tuple[str, ...]
) -> None:
    run(log, "backup", tmp_path / "backups")
    assert run(log, "restore", tmp_path / "backups", tmp_path / "r", *options).exit_code == 2


def test_a_log_that_relies_on_an_archive_says_so(log: Log, tmp_path: Path) -> None:
    """The backup cannot name the archive's address; a copy of the log does not use it."""
    log.pin("a" * 16, 4096)
    result = run(log, "backup", tmp_path / "backups")
    assert result.exit_code == 0
    assert f"the log relies on the archive {'a' * 16}, and" in result.stderr
    result = run(log, "restore", tmp_path / "backups", tmp_path / "restored")
    assert f"that the original's archive {'a' * 16} has" in result.stdout
