# Tests: tests/archive/test_lazy.py
"""Opens an archive once it exists, so that a broker without an archive does not load pyarrow.

Loading pyarrow takes 50 MB of memory and a quarter of a second.
"""

from __future__ import annotations

from brokerd.archive.contract.view import Archive, ArchiveUnavailable, ArchiveView
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import install_text

LOG_OF_RECORDS = "records/_delta_log"
"""A directory that every archive has."""


class LazyArchive:
    """Implements `brokerd.archive.contract.view.Archive` for the log ``log_id`` at ``root``.

    `refresh` serves one thread at a time.
    """

    def __init__(self, root: Place, log_id: str) -> None:
        self._root = root
        self._log_id = log_id
        self._archive: Archive | None = None

    def refresh(self) -> ArchiveView | None:
        """Return the newest version, or None before the archive exists: see `Archive.refresh`.

        Raises `ArchiveUnavailable` also if a library is not installed.
        """
        if self._archive is None:
            store = open_store(self._root)
            if store.fingerprint(LOG_OF_RECORDS) is None:
                return None
            if not store.is_local and not store.names(LOG_OF_RECORDS):
                return None
            self._archive = _open(self._root, self._log_id)
        return self._archive.refresh()


def _open(root: Place, log_id: str) -> Archive:
    try:
        from brokerd.archive.serve.delta_archive import DeltaArchive
    except ImportError as error:
        raise ArchiveUnavailable(
            f"reading the archive in {root} needs a library that is not installed ({error}): "
            f"{install_text('archive')}"
        ) from error
    return DeltaArchive(root, log_id)
