# Tests: tests/archive/test_iceberg.py
"""Registers the archive's Iceberg tables in a catalog, and adds new snapshots there.

pyiceberg finds the catalog by its name: in the environment (``PYICEBERG_CATALOG__NAME__URI``) or in
``~/.pyiceberg.yaml``. The catalog writes metadata files of its own, beside those of brokerd.
"""

from __future__ import annotations

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
from brokerd.errors import BrokerdError


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
        try:
            self._update(table, metadata, location, where)
        except BrokerdError:
            raise
        except Exception as error:  # each catalog has errors of its own library
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ArchiveUnavailable(f"{where}: {text}; the next run tries again") from error

    def _update(self, table: str, metadata: TableMetadataV2, location: str, where: str) -> None:
        if self._catalog is None:
            settings = Config().get_catalog_config(self._name) or {}
            self._catalog = load_catalog(self._name, **settings)
            self._catalog.create_namespace_if_not_exists(self._namespace)
        catalog = self._catalog
        identifier = (*self._namespace.split("."), table)
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
        if found.metadata.table_uuid != metadata.table_uuid:
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
            catalog.commit_table(found, requirements, tuple(updates))


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
