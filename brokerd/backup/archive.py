# Tests: tests/backup/test_archive.py
"""The archive that a backup names, and the check of it before a restore."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.archive.contract.layout import LAYOUTS
from brokerd.archive.contract.pairing import SegmentEnd, TableState, check_pin, log_problem
from brokerd.archive.contract.pin import Pin
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.backup.manifest import ArchiveVersion, BackupFailed, Manifest
from brokerd.errors import ConfigError, install_text


def read_archive(place: Place, log_id: str) -> tuple[ArchiveVersion, TableState] | None:
    """Read the newest version of an archive. Return None if there is no archive.

    :raises ConfigError: there is an archive, and a library that reads it is not installed.
    :raises ArchiveUnavailable: a file cannot be read.
    :raises ForeignArchive: it is the archive of another log or program.
    :raises NewerFormat: a later version of brokerd wrote it.
    """
    try:
        from brokerd.archive.delta.log_reader import DeltaLog
    except ImportError as error:
        if open_store(place).fingerprint("records/_delta_log") is None:
            return None
        raise ConfigError(
            f"{place} needs a library that is not installed ({error}): {install_text('archive')}"
        ) from None
    tables = {name: DeltaLog(place / name, log_id).read() for name in LAYOUTS}
    records = tables["records"]
    if records is None:
        return None
    state = records.state
    versions = {name: table.version for name, table in tables.items() if table is not None}
    return ArchiveVersion(str(place), state.archive_id, state.lsn, versions), state


def check_archive(
    place: Place,
    manifest: Manifest,
    pin: Pin | None,
    lsn: int,
    segment_at: Callable[[int], SegmentEnd | None],
) -> None:
    """Check that a log that goes on from ``lsn`` may use an archive.

    :param manifest: the backup that is restored.
    :param segment_at: returns the restored segment that holds the byte before an LSN.
    :raises BackupFailed: the archive is ahead of the log.
    :raises ForeignArchive: it is another archive, or lacks segments of the log.
    :raises ArchiveUnavailable: it is missing or cannot be read.
    """
    found = read_archive(place, manifest.log_id)
    state = None if found is None else found[1]
    check_pin(pin, state, str(place))
    if state is None:
        return
    problem = log_problem(state, lsn, segment_at)
    if not problem:
        return
    known = manifest.archive
    if known is not None and known.id == state.archive_id and known.lsn <= lsn:
        versions = ", ".join(f"{name} {version}" for name, version in known.versions.items())
        advice = f"take {place} back to the versions of the backup ({versions})"
    else:
        advice = f"take {place} back to versions that hold the log up to LSN {lsn} at most"
    raise BackupFailed(
        f"{place}: {problem}. Nothing was restored: {advice} (docs/backup.rst, Identity), or "
        "restore without --same-log, with an archive of its own"
    )
