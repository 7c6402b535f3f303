# Tests: tests/broker/test_archive_pin.py
"""Which archive the log relies on, and up to where: keeps `brokerd.archive.contract.pin` on the
disk.

It is durable before the first segment goes because of an archive, and never goes back. An archive
that is another one, or lacks what the log let go of, is refused from then on, also after a restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from twisted.logger import Logger

from brokerd.archive.contract.pairing import TableState, check_pin
from brokerd.archive.contract.pin import FILE_BYTES_MAX, FILE_NAME, Pin, decode_pin, encode_pin
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.broker.archive.access import ArchiveAccess
from brokerd.errors import DamagedData
from brokerd.wal import WorkerPool
from brokerd.wal.disk import write_atomically

Raised = Callable[[Exception | None], None]


class ArchivePin:
    """What the log relies on. ``access`` is None: no archive, ever. ``writer`` writes the file."""

    _log = Logger()

    def __init__(self, access: ArchiveAccess | None, writer: WorkerPool) -> None:
        self._access = access
        self._writer = writer
        self._relied: Pin | None = None
        self._durable: Pin | None = None
        self._problem = ""
        """Why it is not known what the log relies on."""

    def find(self) -> None:
        """Read the file, if there is one. Blocks; for the start."""
        if self._access is None:
            return
        try:
            self._relied = self._durable = self._read(self._access)
        except OSError as error:
            self._problem = f"state/{FILE_NAME} cannot be read: {error}; restart the broker"

    def _read(self, access: ArchiveAccess) -> Pin | None:
        """A damaged file is removed, and told of. Raises OSError."""
        disk, directory = access.disk, access.state_path
        if FILE_NAME not in disk.list(directory):
            return None
        path = os.path.join(directory, FILE_NAME)
        file = disk.open(path)
        try:
            return decode_pin(file.pread(min(file.size(), FILE_BYTES_MAX), 0))
        except DamagedData as error:
            self._log.error(
                "{error}; it is removed, and the archive that is there is taken for the right one: "
                "make sure that it is",
                error=str(error),
                event_id="relied-damaged",
            )
        finally:
            file.close()
        disk.unlink(path)
        disk.sync_directory(directory)
        return None

    def check(self, archive: TableState | None) -> None:
        """Refuse an archive that lacks records that the log has deleted; None: there is none.

        :raises ForeignArchive: it lacks some.
        :raises ArchiveUnavailable: there is none, or the broker could not read the pin.
        """
        if self._problem:
            raise ArchiveUnavailable(self._problem)
        if self._access is not None:
            check_pin(self._relied, archive, self._access.place)

    def raise_to(self, relied: Pin, done: Raised) -> None:
        """Rely on an archive that was checked, and call back when that is durable, or cannot be.

        In the latter case the log relies on it all the same, until the next start.
        """
        access = self._access
        assert access is not None, "there is an archive"
        lsn = max(relied.lsn, 0 if self._relied is None else self._relied.lsn)
        self._relied = relied = relied._replace(lsn=lsn)
        if relied == self._durable:
            done(None)
            return

        def write() -> None:
            access.disk.make_directory(access.state_path)
            write_atomically(access.disk, access.state_path, FILE_NAME, [encode_pin(relied)])

        def written(_: None, error: Exception | None) -> None:
            if error is None:
                self._durable = relied
            done(error)

        self._writer.submit(write, written)
