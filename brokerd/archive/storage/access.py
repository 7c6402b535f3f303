# Tests: tests/archive/test_access.py
"""The group and the mode of an archive's files, so that other users of the machine may read them.

New files get the mode by the umask of the process, and the group by the setgid bit of their
directories (inode(7), "S_ISGID"). So the files of Spark and deltalake get both, too.
"""

from __future__ import annotations

import grp
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from brokerd.errors import BrokerdError, ConfigError

_MODE = re.compile(r"0?[67][0-7]{2}", re.ASCII)


class AccessDenied(BrokerdError):
    """The process may not change the group or the mode of a file."""


class FileAccess(NamedTuple):
    """The access of other users. The default leaves it to umask and directories."""

    group: str = ""
    """A name or a number; "" leaves the group."""
    mode: int | None = None
    """The mode of files. Directories also get x where files get r."""

    @property
    def directory_mode(self) -> int:
        """Return the mode of directories."""
        mode = self.mode or 0
        return mode | (mode & 0o444) >> 2 | (stat.S_ISGID if self.group else 0)


def parse_access(group: str, mode: str) -> FileAccess:
    """Parse ``archive.group`` and ``archive.mode``. Raises ConfigError."""
    if mode and not _MODE.fullmatch(mode):
        raise ConfigError(
            f"archive.mode is {mode!r}: give an octal mode that lets the owner read and write, "
            "such as 0640"
        )
    if group and not mode:
        raise ConfigError("archive.group needs archive.mode, such as 0640")
    return FileAccess(group, int(mode, 8) if mode else None)


def set_umask(access: FileAccess) -> None:
    """Set the umask of this process, and so of its Java and its tasks, by a mode."""
    if access.mode is not None:
        os.umask(0o777 & ~access.directory_mode)


def apply_access(root: Path, access: FileAccess) -> None:
    """Give the directories and files of an archive their group and mode, if the root lacks them.

    The root comes last, so that an interrupted call is repeated.

    :raises ConfigError: the group does not exist.
    :raises AccessDenied: the process may not do it.
    """
    if access.mode is None:
        return
    group_id = _group_id(access.group)
    found = root.stat()
    is_of_group = group_id in (-1, found.st_gid)
    if is_of_group and stat.S_IMODE(found.st_mode) == _kept(found, access.directory_mode):
        return
    try:
        for directory, _, names in os.walk(root, topdown=False):
            for name in names:
                _set(os.path.join(directory, name), group_id, access.mode)
            _set(directory, group_id, access.directory_mode)
    except PermissionError as error:
        raise AccessDenied(
            f"{error.filename}: user {os.geteuid()} may not set archive.group "
            f"({access.group or 'none'}) and archive.mode ({access.mode:04o}): the archive's owner "
            "must be a member of the group, and run brokerd-rollup; a systemd unit also needs "
            "PrivateUsers=no and RestrictSUIDSGID=no"
        ) from error


def _group_id(group: str) -> int:
    """Return the number of a group; -1 for none."""
    if not group:
        return -1
    if group.isascii() and group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"archive.group: there is no group {group!r}") from None


def _kept(found: os.stat_result, mode: int) -> int:
    """Return a mode, with the setgid bit that an operator gave to a directory."""
    return mode | (found.st_mode & stat.S_ISGID if stat.S_ISDIR(found.st_mode) else 0)


def _set(path: str, group_id: int, mode: int) -> None:
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return
        os.chown(path, -1, group_id)
        os.chmod(path, _kept(found, mode))
    except FileNotFoundError:
        return  # a temporary file
    except OSError as error:
        error.filename = path
        raise PermissionError(error.errno, error.strerror, path) from error
