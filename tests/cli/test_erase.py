"""``brokerctl archive erase``: the lines of the proof, exit codes, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerd.cli.main import cli
from brokerd.errors import BrokerdError
from tests.archive.data import Data
from tests.archive.test_erase import fill, is_of_key, rows


@pytest.fixture
def data(tmp_path: Path) -> Data:
    data = Data(tmp_path / "data")
    fill(data, data.root)
    return data


def run(data: Data, *arguments: str) -> Result:
    given = ["--data-dir", str(data.path), *arguments[:1], "archive", "erase", *arguments[1:]]
    return CliRunner().invoke(cli, [one for one in given if one])


def test_the_lines_are_a_proof(data: Data) -> None:
    """They name each file with its rows before and after, and what is left in the journal."""
    result = run(data, "", "--topic", "topic-1", "--key", "customer-7", "--yes")
    assert result.exit_code == 3, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"archive {data.root}, table records, version 3"
    assert lines[1].startswith("before: 12 records of the key, ")
    rewrote = [one for one in lines if one.startswith("rewrote bucket=1/")]
    assert len(rewrote) == 3
    assert " 4 erased, " in rewrote[0]
    assert sum(one.startswith("deleted bucket=1/") for one in lines) == 3
    assert any(one.startswith("after: 0 records of the key, ") for one in lines)
    left = [one for one in lines if one.startswith("LEFT 4 records in the journal, 0000")]
    assert len(left) == 3
    assert "1.0 GiB of newer journal (archive.keep_wal_bytes)" in left[0]
    assert lines[-1] == "not complete: run it again afterwards"
    assert not any(map(is_of_key, rows(data.root)))


def test_an_erasure_is_complete_when_the_journal_is_gone(data: Data) -> None:
    """Then the exit code is 0, and JSON says so."""
    run(data, "", "--topic", "topic-1", "--key-hex", b"customer-7".hex(), "--yes")
    names = sorted(data.wal.glob("*.wal"))
    end = int(names[-1].stem) + names[-1].stat().st_size
    (data.wal / f"{0:020d}-{end:020d}.deleted").touch()
    for path in names:
        path.unlink()
        path.with_suffix(".idx").unlink()
    result = run(data, "--json", "--topic", "topic-1", "--key", "customer-7", "--yes")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["complete"], answer["found_after"], answer["journal"]) == (True, 0, [])
    assert (answer["key_hex"], answer["delete_after"]) == (b"customer-7".hex(), None)


def test_old_files_may_wait(data: Data) -> None:
    """The line tells who deletes them, and when."""
    arguments = ("--topic", "topic-1", "--key", "customer-7", "--yes", "--old-files", "later")
    lines = run(data, "", *arguments).stdout.splitlines()
    (line,) = [one for one in lines if one.startswith("LEFT 3 files of older versions: ")]
    assert "a complete run of brokerd-rollup after 20" in line
    assert not any(one.startswith("deleted") for one in lines)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--topic", "t"), "give either --key or --key-hex"),
        (("--topic", "t", "--key", "a", "--key-hex", "61"), "give either --key or --key-hex"),
        (("--topic", "t", "--key-hex", "6"), "not hexadecimal digits"),
        (("--key", "a"), "--topic"),
    ],
)
def test_wrong_usage(data: Data, arguments: tuple[str, ...], text: str) -> None:
    result = run(data, "", *arguments, "--yes")
    assert result.exit_code == 2
    assert text in result.output


def test_it_asks_first(data: Data) -> None:
    """Without a terminal it needs --yes; nothing changes."""
    before = rows(data.root)
    result = run(data, "", "--topic", "topic-1", "--key", "customer-7")
    assert isinstance(result.exception, BrokerdError)
    assert "say --yes" in str(result.exception)
    assert "erase all records of topic 'topic-1' with the key \"customer-7\"" in str(
        result.exception
    )
    assert rows(data.root) == before
