# Tests: tests/admin/test_archive_calls.py
"""The API's calls about the archive: describe, refresh, seal."""

from __future__ import annotations

import msgspec
from twisted.internet.defer import Deferred

from brokerd.admin.http.routing import ArchiveUnusable, Call, NotFound, Route
from brokerd.admin.shapes.archive import ArchiveShape, Sealed
from brokerd.security import ADMIN, MONITOR


def describe_archive(call: Call) -> ArchiveShape:
    """Describe the archive. Raises `NotFound` if the broker has none."""
    status = call.broker.archive_admin.status()
    if not status:
        raise NotFound("this broker has no archive")
    return msgspec.convert(status, ArchiveShape)


async def refresh_archive(call: Call) -> ArchiveShape:
    """Read the newest version, then describe the archive. Raises `ArchiveUnusable`."""
    refreshed: Deferred[Exception | None] = Deferred()
    call.broker.archive_admin.refresh(refreshed.callback)
    error = await refreshed
    if error is not None:
        raise ArchiveUnusable(f"the archive cannot be used: {error}")
    return describe_archive(call)


async def seal_wal(call: Call) -> Sealed:
    """Seal the open segment. Raises `NoSpace`."""
    sealed: Deferred[tuple[int, Exception | None]] = Deferred()
    call.broker.archive_admin.seal(lambda lsn, error: sealed.callback((lsn, error)))
    lsn, error = await sealed
    if error is not None:
        raise error
    return Sealed(lsn)


ROUTES = [
    Route(
        "GET",
        "/archive",
        MONITOR,
        "Describe the archive and the journal files that wait for it",
        describe_archive,
        ArchiveShape,
    ),
    Route(
        "POST",
        "/archive/refresh",
        MONITOR,
        "Use the newest version of the archive",
        refresh_archive,
        ArchiveShape,
    ),
    Route(
        "POST",
        "/wal/seal",
        ADMIN,
        "Seal the open segment, so that it can be archived",
        seal_wal,
        Sealed,
    ),
]
