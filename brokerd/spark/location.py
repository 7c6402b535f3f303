# Tests: tests/spark/test_location.py
"""The location that a query reads: a broker's data directory, or only an archive.

This module examines only names, and opens no file. No pyspark.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.storage import address
from brokerd.errors import BrokerdError, ConfigError

WAL = "wal"
STATE = "state"


class BadLocation(BrokerdError):
    """An address holds neither a data directory nor an archive."""


class Location(NamedTuple):
    """The location that a query reads. It is pickled."""

    data_dir: str | None
    """The data directory of a broker, or None for an archive without data directory."""
    archive: str
    """The archive's address. If ``data_dir`` is set, the archive need not exist yet."""


def open_location(path: str, archive: str | None = None) -> Location:
    """Return the location at an address. In an object store, the archive need not exist.

    :param path: a directory or a URI, in the user's form.
    :param archive: the archive of the data directory; the default is ``archive`` below it.
    :raises BadLocation: the address is neither; the text names the missing directory.
    """
    if not path:
        raise BadLocation("load() needs a path: a broker's data directory or an archive's address")
    try:
        parsed = address.check_uri(path)
    except ConfigError as error:
        raise BadLocation(str(error).replace("archive.uri", "load()")) from None
    if isinstance(parsed, address.ObjectAddress):
        return _archive_alone(parsed, archive)
    root = Path(os.path.abspath(parsed))
    try:
        return _directory(root, archive)
    except OSError as error:
        raise BadLocation(
            f"{root} cannot be read: {error.strerror}; the user who runs the query needs read "
            "access to the journal, state/ and the archive"
        ) from error


def _directory(root: Path, archive: str | None) -> Location:
    if (root / WAL).is_dir() and (root / STATE).is_dir():
        try:
            return Location(str(root), str(address.address(archive or "", root)))
        except ConfigError as error:
            raise BadLocation(str(error).replace("archive.uri", "the option archive", 1)) from None
    if (root / RECORDS.name / COMMITS).is_dir():
        return _archive_alone(root, archive)
    raise BadLocation(_missing_text(root))


def _archive_alone(root: address.Place, archive: str | None) -> Location:
    if archive is not None:
        raise BadLocation(
            f"{root} is an archive, so the option archive={archive!r} has no effect: leave it "
            "out, or load the data directory"
        )
    return Location(None, str(root))


def _missing_text(root: Path) -> str:
    if not root.exists():
        return f"{root} does not exist: load a broker's data directory, or an archive"
    if not root.is_dir():
        return f"{root} is not a directory: load a broker's data directory, or an archive"
    return (
        f"{root} is not a data directory, because it lacks {WAL}/ or {STATE}/, and not an archive, "
        f"because it lacks {RECORDS.name}/{COMMITS}/ (brokerd-rollup creates that)"
    )
