"""Other users may read an archive, with any umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.archive.job import run_job
from brokerd.archive.storage.access import AccessDenied, FileAccess, parse_access, set_umask
from brokerd.errors import ConfigError
from tests.archive.data import Data
from tests.archive.test_follow import job_of

pytestmark = pytest.mark.spark_tasks

GROUP = 54_321 if os.geteuid() == 0 else os.getegid()


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def modes(root: Path) -> tuple[set[int], set[int], set[int]]:
    """Return the modes of directories, the modes of files, and the groups of both."""
    found = [(path, path.stat()) for path in (root, *root.rglob("*"))]
    return (
        {stat.S_IMODE(one.st_mode) for path, one in found if path.is_dir()},
        {stat.S_IMODE(one.st_mode) for path, one in found if path.is_file()},
        {one.st_gid for _, one in found},
    )


def roll(data: Data, access: FileAccess, segments: int = 1) -> None:
    data.fill(segments)
    job = job_of(data)._replace(access=access)
    set_umask(access)
    assert run_job(job).problems == []


def test_an_archive_that_is_there_gets_group_and_mode_and_so_do_new_files(data: Data) -> None:
    roll(data, FileAccess())
    assert modes(data.root)[:2] == ({0o700}, {0o600})
    roll(data, parse_access(str(GROUP), "0640"))
    assert modes(data.root) == ({0o2750}, {0o640}, {GROUP})
    for _ in range(21):  # a checkpoint is among the new files
        roll(data, parse_access(str(GROUP), "0640"))
    assert modes(data.root) == ({0o2750}, {0o640}, {GROUP})
    data.check()


def test_group_of_a_directory_that_an_operator_made_stays(data: Data) -> None:
    data.root.mkdir()
    os.chown(data.root, -1, GROUP)
    data.root.chmod(0o2750)
    roll(data, parse_access("", "644"))
    assert modes(data.root) == ({0o2755}, {0o644}, {GROUP})


def test_what_the_process_may_not_do_is_told(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, user: int, group: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(AccessDenied, match=r"archive\.group \(54321\) and archive\.mode \(0640\)"):
        roll(data, FileAccess("54321", 0o640))


@pytest.mark.parametrize(
    ("group", "mode", "said"),
    [
        ("", "0440", "give an octal mode"),
        ("", "rw", "give an octal mode"),
        ("", "0o640", "give an octal mode"),
        ("x", "", "archive.group needs archive.mode"),
    ],
)
def test_a_wrong_mode_is_refused(group: str, mode: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_access(group, mode)


def test_an_unknown_group_is_told(data: Data) -> None:
    with pytest.raises(ConfigError, match="there is no group 'no such group'"):
        roll(data, parse_access("no such group", "0640"))
