# Tests: tests/spark/test_end_proofs.py
"""The files that prove the end of a journal: bounds, snapshots, indexes of missing files.

A journal that ends earlier has lost its end. A query must then fail, and not return fewer rows.
docs/damage.rst, section "The end of the log", has the rules. No pyspark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from brokerd.archive.contract.bounds import FILE_NAME, Bounds
from brokerd.archive.journal.segment_list import end_of_known_gap
from brokerd.archive.storage.regular_file import open_regular
from brokerd.spark.location import STATE, WAL
from brokerd.walformat import ALIGNMENT, FormatError
from brokerd.walformat.index import INDEX_HEADER_BYTES, decode_index_header

_SNAPSHOT = re.compile(r"([0-9]{20})\.snap")
_INDEX = re.compile(r"([0-9]{20})\.idx")
_MISSING_BYTES_MAX = 16 << 30
"""An index at a larger distance belongs to another log."""


class SyncedBounds(Protocol):
    """The part of the bounds that a proof needs."""

    @property
    def synced_lsn(self) -> int: ...


class EndProof(NamedTuple):
    """A file that proves that the journal reached ``end_lsn``."""

    path: Path
    end_lsn: int
    first_lsn: int | None = None
    """For an index: the first LSN of its missing file."""


def read_end_proofs(root: Path, bounds: SyncedBounds) -> list[EndProof]:
    """Read the proofs in a data directory, before reading its journal. Raises OSError."""
    proofs = [EndProof(root / STATE / FILE_NAME, bounds.synced_lsn)]
    snapshots = [name for name in os.listdir(root / STATE) if _SNAPSHOT.fullmatch(name)]
    proofs += [EndProof(root / STATE / name, int(name[:20])) for name in snapshots]
    return [*proofs, *_lone_indexes(root / WAL)]


def _lone_indexes(wal: Path) -> Iterator[EndProof]:
    """Yield proofs from the sound indexes of missing journal files."""
    names = set(os.listdir(wal))
    for name in names:
        if _INDEX.fullmatch(name) is None or f"{name[:20]}.wal" in names:
            continue
        with suppress(OSError, FormatError):  # deleted during the loop, or not a proof
            with open(open_regular(wal / name), "rb") as file:
                header = decode_index_header(file.read(INDEX_HEADER_BYTES))
            if header.first_lsn == int(name[:20]):
                yield EndProof(wal / name, header.end_lsn, header.first_lsn)


def broken_proof(
    root: Path, bounds: Bounds, proofs: list[EndProof], end_lsn: int, tail: bool
) -> EndProof | None:
    """Return a proof that the journal reached beyond ``end_lsn``, or None.

    Known damage and deleted files count as read. Raises OSError.

    :param tail: whether the open journal file was read.
    """
    wal = root / WAL
    lsn = end_of_known_gap(wal, bounds, end_lsn)
    for proof in proofs:
        if proof.first_lsn is None:
            is_broken = tail and lsn + ALIGNMENT <= proof.end_lsn
        else:
            is_broken = (
                end_lsn < proof.end_lsn <= end_lsn + _MISSING_BYTES_MAX
                and end_of_known_gap(wal, bounds, proof.first_lsn) < proof.end_lsn
            )
        if is_broken:
            return proof
    return None
