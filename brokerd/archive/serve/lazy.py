# Tests: tests/archive/test_lazy.py
"""An archive that is opened when it is there, so that a broker without one loads no library for it.

pyarrow takes 50 MB of memory and a quarter of a second; it is loaded when the table of records is
seen for the first time.
"""

from __future__ import annotations

from brokerd.archive.contract.view import Archive, ArchiveUnavailable, ArchiveView
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store

LOG_OF_RECORDS = "records/_delta_log"
"""What a place with an archive holds."""


class LazyArchive:
    """The archive at the place ``root``, of the log ``log_id``, as `brokerd.archive.contract.view`
    says.

    `refresh` belongs to one thread at a time.
    """

    def __init__(self, root: Place, log_id: str) -> None:
        self._root = root
        self._log_id = log_id
        self._archive: Archive | None = None

    def refresh(self) -> ArchiveView | None:
        """The newest version, None while nothing was ever archived there; see `Archive.refresh`.

        Raises `ArchiveUnavailable`, too, while the libraries are not installed.
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
        from brokerd.archive.serve.delta_archive import open_archive
    except ImportError as error:
        raise ArchiveUnavailable(
            f"there is an archive in {root}, and reading it takes a library that is not installed "
            f"({error}): pip install 'brokerd[archive]'"
        ) from error
    return open_archive(root, log_id)
