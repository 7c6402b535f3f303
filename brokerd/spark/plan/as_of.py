# Tests: tests/spark/test_as_of.py
"""A snapshot of an earlier version of the archive: the options ``versionAsOf`` and so on.

The topics are those of the rows, because the bounds of that time are gone. Records that were
trimmed or expired since are rows, too, and so are those of topics that were deleted since.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.delta.history import VersionInfo, list_versions
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError
from brokerd.spark.location import Location
from brokerd.spark.plan.archive_files import ArchiveVersion, records_table
from brokerd.spark.plan.journal import Journal
from brokerd.spark.plan.log_snapshot import LogSnapshot
from brokerd.spark.plan.topic_state import TopicState
from brokerd.spark.request import AsOf


class NoSuchVersion(BrokerdError):
    """The archive has no version as of this version, time or LSN, or its files are gone."""


class PastSnapshot(NamedTuple):
    """A snapshot of an earlier version."""

    snapshot: LogSnapshot
    time_us: int
    """The time of its commit."""


def snapshot_as_of(location: Location, newest: LogSnapshot, as_of: AsOf) -> PastSnapshot:
    """Return the version that an option names, without the journal.

    :param newest: the present snapshot, which proves that archive and log belong together.
    :raises NoSuchVersion: there is none.
    """
    table = records_table(location.archive)
    versions = [] if newest.archive is None else list_versions(table)
    found = _choose(versions, as_of, location.archive)
    past = DeltaLog(table, newest.log_id).read_at(found.version)
    archive = ArchiveVersion(past.state, past.version, past.files)
    bounds = Bounds(newest.log_id, 0, 0, False, 1, [])
    journal = Journal([], [], archive.records_lsn, {}, ())
    snapshot = LogSnapshot(newest.log_id, bounds, TopicState(bounds), archive, journal, False)
    return PastSnapshot(snapshot, found.time_ms * 1000)


def _choose(versions: list[VersionInfo], as_of: AsOf, archive: str) -> VersionInfo:
    if not versions:
        raise NoSuchVersion(f"{archive} has no versions: nothing was archived yet")
    oldest, newest = versions[0], versions[-1]
    if as_of.version is not None:
        for one in versions:
            if one.version == as_of.version:
                return one
        wanted, kept = f"version {as_of.version}", f"{oldest.version} to {newest.version}"
    elif as_of.time_us is not None:
        earlier = [one for one in versions if one.time_ms * 1000 <= as_of.time_us]
        if earlier:
            return earlier[-1]
        wanted = "version at this time"
        kept = f"{oldest.version} to {newest.version}, the first later than this"
    else:
        lsn = as_of.lsn or 0
        for one in versions:
            if one.lsn is not None and one.lsn >= lsn:
                return one
        wanted = f"version with the log up to LSN {lsn}"
        kept = f"{oldest.version} to {newest.version}, with the log up to LSN {newest.lsn or 0}"
    raise NoSuchVersion(f"{archive} has no {wanted}; it has the versions {kept}")


def check_files(location: Location, version: int, files: pa.Table) -> None:
    """Check that the files of an earlier version exist. Raises NoSuchVersion."""
    present = {entry.path for entry in open_store(records_table(location.archive)).list()}
    gone = [path for path in files["path"].to_pylist() if path not in present]
    if gone:
        raise NoSuchVersion(
            f"{location.archive}: version {version} needs {len(gone)} files that vacuum has "
            f"deleted, such as {gone[0]!r}; they stay for archive.vacuum_hours, so name a newer "
            "version"
        )
