# Tests: tests/spark/test_location.py
"""What a query reads from: the directory of a broker, or an archive by itself.

Touches no more than names. No pyspark.
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


class NoPlace(BrokerdError):
    """What stands at an address is neither a data directory nor an archive."""


class Location(NamedTuple):
    """What a query reads from; goes to other processes."""

    data_dir: str | None
    """The data directory of a broker, None: there is an archive alone."""
    archive: str
    """The archive's address; nothing need be there if there is a data directory."""


def open_place(path: str, archive: str | None = None) -> Location:
    """Tell what stands at an address.

    :param path: what the user names: a directory, or a URI.
    :param archive: where the archive of a data directory is, if it is not ``archive`` below it.
    :raises NoPlace: neither a data directory nor an archive is there; says what is missing. An
        object store is not asked.
    """
    if not path:
        raise NoPlace("load() wants a place: a broker's data directory, or an archive's address")
    try:
        named = address.check_uri(path)
    except ConfigError as error:
        raise NoPlace(str(error).replace("archive.uri", "load()")) from None
    if isinstance(named, address.ObjectAddress):
        return _archive_alone(named, archive)
    root = Path(os.path.abspath(named))
    try:
        return _directory(root, archive)
    except OSError as error:
        raise NoPlace(
            f"{root} cannot be looked at: {error.strerror}; who runs the query must be allowed to "
            "read the journal, state/ and the archive"
        ) from error


def _directory(root: Path, archive: str | None) -> Location:
    if (root / WAL).is_dir() and (root / STATE).is_dir():
        try:
            return Location(str(root), str(address.address(archive or "", root)))
        except ConfigError as error:
            raise NoPlace(str(error).replace("archive.uri", "the option archive", 1)) from None
    if (root / RECORDS.name / COMMITS).is_dir():
        return _archive_alone(root, archive)
    raise NoPlace(_what_lacks(root))


def _archive_alone(root: address.Place, archive: str | None) -> Location:
    if archive is not None:
        raise NoPlace(
            f"{root} is an archive, so the option archive={archive!r} says nothing: leave it "
            "out, or load the data directory"
        )
    return Location(None, str(root))


def _what_lacks(root: Path) -> str:
    if not root.exists():
        return f"{root} is not there: load a broker's data directory, or an archive"
    if not root.is_dir():
        return f"{root} is no directory: load a broker's data directory, or an archive"
    return (
        f"{root} is no data directory, for it lacks {WAL}/ or {STATE}/, and no archive, for it "
        f"lacks {RECORDS.name}/{COMMITS}/ (an archive has that as soon as brokerd-rollup ran)"
    )
