"""What is no file is said to be none, at once."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from brokerd.archive.storage.regular_file import read_regular
from tests.archive.making import KINDS, make_no_file


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    assert read_regular(path, 4) == b"four"


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"fives")
    with pytest.raises(OSError, match="it has 5 bytes") as raised:
        read_regular(path, 4)
    assert raised.value.errno == errno.EFBIG


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """Nobody writes to the pipe, and the device has no end."""
    path = tmp_path / "thing"
    make_no_file(path, kind)
    with pytest.raises(OSError, match="not a regular file") as raised:
        read_regular(path, 1 << 20)
    assert raised.value.filename == str(path)
