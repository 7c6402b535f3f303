# Tests: tests/archive/test_iceberg.py
"""Registers the archive's Iceberg tables in a catalog, and adds new snapshots there.

pyiceberg finds the catalog by its name: in the environment (``PYICEBERG_CATALOG__NAME__URI``) or in
``~/.pyiceberg.yaml``. The catalog writes metadata files of its own, beside those of brokerd.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.utils.config import Config

from brokerd.archive.contract.layout import LOG_ID_PROPERTY
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.errors import JobFailed

_BUILT_IN = (ImportError, NotImplementedError, OSError, ValueError)
"""Built-in errors of pyiceberg: an absent driver, a call that the server does not have, a failed
connection or file, wrong settings."""


class CatalogTables:
    """The tables of one namespace of a catalog. Raises JobFailed for a wrong name."""

    def __init__(self, name: str, namespace: str) -> None:
        if not all(namespace.split(".")):
            raise JobFailed(
                f"archive.iceberg_namespace: {namespace!r} is not a namespace, such as "
                "brokerd or lake.brokerd"
            )
        self._name = name
        self._namespace = namespace
        self._catalog: Catalog | None = None

    def update(self, table: str, metadata: TableMetadataV2, location: str) -> None:
        """Make a table of the catalog have the snapshots of ``metadata``.

        :param location: the address of the file with the metadata, to register a new table.
        :raises JobFailed: the catalog has another table of this name, or is not set up.
        :raises ArchiveUnavailable: the catalog does not answer, or refuses.
        """
        where = f"archive.iceberg_catalog: {self._name}: {self._namespace}.{table}"
        identifier = (*self._namespace.split("."), table)
        with _library_errors(where):
            if self._catalog is None:
                settings = Config().get_catalog_config(self._name) or {}
                self._catalog = load_catalog(self._name, **settings)
                self._catalog.create_namespace_if_not_exists(self._namespace)
            catalog = self._catalog
            try:
                found = catalog.load_table(identifier)
            except NoSuchTableError:
                catalog.register_table(identifier, location)
                return
        log_id = metadata.properties[LOG_ID_PROPERTY]
        if found.metadata.properties.get(LOG_ID_PROPERTY) != log_id:
            raise JobFailed(
                f"{where} is not a table of this log: drop it there, or set another "
                "archive.iceberg_namespace"
            )
        is_same = found.metadata.table_uuid == metadata.table_uuid
        if not is_same or _has_foreign_numbers(found.metadata, metadata):
            with _library_errors(where):
                catalog.drop_table(identifier)  # it keeps the files
                catalog.register_table(identifier, location)
            return
        updates = list(_updates(found.metadata, metadata))
        if updates:
            current = found.metadata.current_snapshot_id
            requirements = (
                AssertTableUUID(uuid=metadata.table_uuid),
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=current),
            )
            with _library_errors(where):
                catalog.commit_table(found, requirements, tuple(updates))


@contextmanager
def _library_errors(where: str) -> Iterator[None]:
    """Convert the errors of a catalog's library to ArchiveUnavailable.

    Each catalog has errors of its own library, and pyiceberg also raises some built-in ones. Other
    errors, and these if brokerd's own code raises them, are faults of the program: they are raised
    as they are.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__ == "builtins" and not _is_of_library(error):
            raise
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArchiveUnavailable(f"{where}: {text}; the next run tries again") from error


def _is_of_library(error: Exception) -> bool:
    """Return whether a built-in error is one that a library of a catalog raises."""
    if not isinstance(error, _BUILT_IN):
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    raised_in: str = frames[-1].f_globals.get("__name__", "")
    return raised_in.partition(".")[0] != "brokerd"


def _has_foreign_numbers(found: Any, wanted: TableMetadataV2) -> bool:
    """Return whether commits of another program took the sequence numbers of new snapshots."""
    present = {one.snapshot_id for one in found.snapshots}
    numbers = [one.sequence_number for one in wanted.snapshots if one.snapshot_id not in present]
    return any((number or 0) <= found.last_sequence_number for number in numbers)


def _updates(found: Any, wanted: TableMetadataV2) -> list[Any]:
    """Return the updates that give a table the snapshots of ``wanted``."""
    present = {one.snapshot_id for one in found.snapshots}
    kept = {one.snapshot_id for one in wanted.snapshots}
    new = [one for one in wanted.snapshots if one.snapshot_id not in present]
    gone = sorted(present - kept)
    updates: list[Any] = [AddSnapshotUpdate(snapshot=one) for one in new]
    current = wanted.current_snapshot_id
    if current is not None and current != found.current_snapshot_id:
        updates.append(
            SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type="branch", snapshot_id=current)
        )
    if gone:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=gone))
    return updates
