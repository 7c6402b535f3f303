"""``brokerctl archive``."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.view import ArchiveUnavailable
from tests.admin.caller import Caller
from tests.broker.fakearchive import FakeArchive
from tests.cli.shell import Shell
from tests.house import House


@pytest.fixture
def archive(shell: Shell) -> FakeArchive:
    """That of the shell's broker, with nothing in it."""
    archive = FakeArchive()
    shell.caller = Caller(House(open_archive=archive.open))
    shell.caller.house.run()
    return archive


def test_a_seal_and_a_refresh_bring_what_was_written_into_the_archive(
    shell: Shell, archive: FakeArchive
) -> None:
    """As an operator would, who wants it there now."""
    shell.run("produce", "orders", "x")
    [line] = shell.lines("archive", "seal")
    lsn = shell.json("archive", "seal")["lsn"]
    assert line == f"the journal is sealed up to LSN {lsn}"
    lines = shell.lines("archive", "status")
    assert lines[:2] == [
        "archive    DATA_DIR/archive",
        "state      nothing was archived yet, looked at 0s ago",
    ]
    assert any(line.startswith("not in it  1 file of the journal, 4.") for line in lines)
    assert "journal    begins at LSN 0" in lines
    assert "deleted    0 files of the journal, 0 B, since the start" in lines
    archive.roll_up(shell.caller.house)
    lines = shell.lines("archive", "refresh")
    assert lines[1:4] == [
        "state      in use, looked at 0s ago",
        "version    0",
        "records    1 file, 1 B",
    ]
    assert shell.json("archive", "status")["records_lsn"] == lsn


def test_an_archive_that_cannot_be_used_says_why(shell: Shell, archive: FakeArchive) -> None:
    """One line, and exit code 1; the status goes on to be shown."""
    archive.failure = ArchiveUnavailable("the disk is away")
    assert shell.refused("archive", "refresh") == "the archive cannot be used: the disk is away"
    assert "state      cannot be used, looked at 0s ago: the disk is away" in shell.lines(
        "archive", "status"
    )


def test_a_broker_that_has_none_says_so(shell: Shell) -> None:
    assert shell.refused("archive", "status") == "this broker has no archive"
