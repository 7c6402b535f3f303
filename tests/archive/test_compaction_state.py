"""The note of what was looked at: kept, or taken for nothing, and never a reason to stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.archive.maintain.compaction_state import (
    FILE_NAME,
    CompactionState,
    PartitionState,
    read_state,
    write_state,
)

NOTE = CompactionState(
    "0f" * 16,
    7,
    {0: 0, (1 << 64) - 1: 1_700_000_000_000_000},
    [PartitionState(1, 0, 10, 5, 0, False), PartitionState(1, 1, 7, 7, 99, True)],
)


def test_a_note_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Also over an older one, and for a table that went on since."""
    write_state(tmp_path, CompactionState())
    write_state(tmp_path, NOTE)
    assert read_state(tmp_path, NOTE.log_id, 7) == NOTE
    assert read_state(tmp_path, NOTE.log_id, 8) == NOTE
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_without_a_note_nothing_was_looked_at(tmp_path: Path) -> None:
    """So everything is looked at again."""
    assert read_state(tmp_path, "ab", 3) == CompactionState("ab")


@pytest.mark.parametrize(("log_id", "version"), [("1f" * 16, 7), (NOTE.log_id, 6)])
def test_a_note_of_another_table_says_nothing(tmp_path: Path, log_id: str, version: int) -> None:
    """Another log's, or one of an archive that was brought back as it was before."""
    write_state(tmp_path, NOTE)
    assert read_state(tmp_path, log_id, version) == CompactionState(log_id)


def test_a_damaged_note_says_nothing(tmp_path: Path) -> None:
    """Cut anywhere, or any byte flipped; one of an earlier or a later version, too."""
    write_state(tmp_path, NOTE)
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    damaged = [data[:end] for end in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]
    damaged += [data.replace(b"compaction 2", b"compaction %d" % version) for version in (1, 3)]
    assert data not in damaged
    for one in damaged:
        path.write_bytes(one)
        assert read_state(tmp_path, NOTE.log_id, 7) == CompactionState(NOTE.log_id)


def test_what_a_later_version_adds_is_no_reason_to_stop(tmp_path: Path) -> None:
    """A note whose checksum is right but that says something else is taken for none."""
    from brokerd.archive.maintain import compaction_state

    body = b"\x93\x01\x02\x03"
    (tmp_path / FILE_NAME).write_bytes(compaction_state._head(body) + b"\n" + body)
    assert read_state(tmp_path, NOTE.log_id, 7) == CompactionState(NOTE.log_id)
