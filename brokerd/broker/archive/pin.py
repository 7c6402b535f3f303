# Tests: tests/broker/test_archive_pin.py
"""Keeps the archive pin on the disk: the archive, and the LSN up to which the log relies on it.

`brokerd.archive.contract.pin` defines the file. The pin is durable before the broker deletes the
first archived segment, and its LSN only grows. From then on, also after a restart, the broker
refuses another archive, and an archive that lacks deleted records.
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
from brokerd.wal.disk import write_atomically
from brokerd.worker_pool import WorkerPool

Raised = Callable[[Exception | None], None]


class ArchivePin:
    """Holds the pin; ``writer`` writes its file. ``access`` None: the broker has no archive."""

    _log = Logger()

    def __init__(self, access: ArchiveAccess | None, writer: WorkerPool) -> None:
        self._access = access
        self._writer = writer
        self._pin: Pin | None = None
        self._durable: Pin | None = None
        self._problem = ""
        """The reason why the pin is unknown; "" if it is known."""

    def find(self) -> None:
        """Read the file if it exists. Blocks; for the start."""
        if self._access is None:
            return
        try:
            self._pin = self._durable = self._read(self._access)
        except OSError as error:
            self._problem = f"state/{FILE_NAME} cannot be read: {error}; restart the broker"

    def _read(self, access: ArchiveAccess) -> Pin | None:
        """Read the pin; log and remove a damaged file. Raises OSError."""
        disk, directory = access.disk, access.state_path
        if FILE_NAME not in disk.list(directory):
            return None
        path = os.path.join(directory, FILE_NAME)
        file = disk.open(path)
        try:
            return decode_pin(file.pread(min(file.size(), FILE_BYTES_MAX), 0))
        except DamagedData as error:
            self._log.error(
                "{error}; the broker removes the file and trusts the present archive: make sure "
                "that it is the right one",
                error=str(error),
                event_id="relied-damaged",
            )
        finally:
            file.close()
        disk.unlink(path)
        disk.sync_directory(directory)
        return None

    def check(self, archive: TableState | None) -> None:
        """Refuse an archive that lacks records that the log has deleted.

        :param archive: None if the archive does not exist.
        :raises ForeignArchive: the archive lacks deleted records.
        :raises ArchiveUnavailable: the archive does not exist, or the pin is unknown.
        """
        if self._problem:
            raise ArchiveUnavailable(self._problem)
        if self._access is not None:
            check_pin(self._pin, archive, self._access.place)

    def raise_to(self, pin: Pin, done: Raised) -> None:
        """Pin a checked archive; call ``done(error)`` after the write.

        After an error, the pin stays in force until the next start.
        """
        access = self._access
        assert access is not None, "the broker has an archive"
        lsn = max(pin.lsn, 0 if self._pin is None else self._pin.lsn)
        self._pin = pin = pin._replace(lsn=lsn)
        if pin == self._durable:
            done(None)
            return

        def write() -> None:
            access.disk.make_directory(access.state_path)
            write_atomically(access.disk, access.state_path, FILE_NAME, [encode_pin(pin)])

        def written(_: None, error: Exception | None) -> None:
            if error is None:
                self._durable = pin
            done(error)

        self._writer.submit(write, written)
