# Tests: tests/spark/test_archive_files.py
"""Reads the matching rows of the archive's files.

Statistics in the footer exclude row groups. The other row groups are filtered row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.layout import RECORDS, arrow_schema
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.spark.plan.archive_files import FilePart, records_table
from brokerd.spark.plan.predicate import Integers, Interval, Mask, Predicate

_SCHEMA = arrow_schema(RECORDS)


def open_file_part(address: str, part: FilePart) -> ArchiveFile:
    """Open a file and verify its footer.

    Raises the errors of `brokerd.archive.parquet.reader.open_file`.
    """
    return open_file(records_table(address), part.path, part.size)


class RowChecks(NamedTuple):
    """The conditions to check for each row of a row group."""

    keys: bool
    """Topic id, partition and offset."""
    names: bool
    times: bool
    lsns: bool
    expiry: bool

    def columns(self) -> Iterator[str]:
        """Return the columns that the checks need."""
        if self.keys:
            yield from ("topic_id", "partition", "offset")
        if self.names:
            yield "topic"
        if self.times:
            yield "append_time"
        if self.lsns:
            yield "lsn"
        if self.expiry:
            yield "expires_at"


def read_rows(
    file: ArchiveFile, part: FilePart, predicate: Predicate, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the matching rows of a part of an open file, one row group at a time.

    Raises DamagedArchive and ArchiveUnavailable.
    """
    for group in range(len(file.groups)):
        checks = _checks(file, group, part, predicate)
        if checks is None:
            continue
        needed = list(dict.fromkeys([*columns, *checks.columns()]))
        table = file.read_table([group], needed)
        mask = match_rows(table, predicate, part.offsets, checks)
        yield from _batches(table.select(list(columns)), mask)


def _checks(
    file: ArchiveFile, group: int, part: FilePart, predicate: Predicate
) -> RowChecks | None:
    """Return the checks that a row group needs, or None if it has no matching row."""
    facts = file.groups[group]
    first, last = facts["first"].item(), facts["last"].item()
    times = int(facts["time_min"]), int(facts["time_max"])
    if not predicate.times_us.overlaps(*times):
        return None
    keys = True
    if first[:2] == last[:2]:
        offsets = predicate.offsets_of(first[0], first[1])
        if offsets is None:
            return None
        offsets = offsets.intersect(part.offsets)
        if not offsets.overlaps(first[2], last[2]):
            return None
        keys = not offsets.contains(first[2], last[2])
    lsns = predicate.lsns.contains(*part.lsns)
    if not lsns:
        group_lsns = file.lsns(group)
        if not predicate.lsns.overlaps(*group_lsns):
            return None
        lsns = predicate.lsns.contains(*group_lsns)
    names = last[0] >= predicate.first_unknown_id
    return RowChecks(
        keys=keys or names,
        names=names,
        times=not predicate.times_us.contains(*times),
        lsns=not lsns,
        expiry=file.footer.expiring > 0,
    )


def match_rows(
    rows: Any, predicate: Predicate, offsets: Interval, checks: RowChecks
) -> Mask | None:
    """Return a mask of the matching rows, or None if all rows match.

    :param rows: a table or batch with the columns of ``checks``. The function is fast for rows
        sorted by topic and partition.
    """
    masks = []
    if checks.keys:
        topic_id, partition, offset = (
            rows[name].to_numpy() for name in ("topic_id", "partition", "offset")
        )
        low, high = predicate.offset_bounds(
            topic_id, partition, lambda row: str(rows["topic"][row])
        )
        masks.append((offset >= low) & (offset < high) & offsets.mask(offset))
    if checks.times:
        masks.append(predicate.times_us.mask(_microseconds(rows["append_time"])))
    if checks.lsns:
        masks.append(predicate.lsns.mask(rows["lsn"].to_numpy()))
    if checks.expiry:
        expires = rows["expires_at"].to_numpy()
        masks.append((expires == 0) | (expires > predicate.now_us))
    if not masks:
        return None
    mask: Mask = np.logical_and.reduce(masks)
    return None if mask.all() else mask


def _microseconds(times: Any) -> Integers:
    numbers: Integers = pc.cast(times, pa.int64()).to_numpy()
    return numbers


def _batches(table: pa.Table, mask: Mask | None) -> Iterator[pa.RecordBatch]:
    """Yield the masked rows of a table, with the types of the table of records."""
    if mask is not None:
        table = table.filter(pa.array(mask))
    schema = pa.schema([_SCHEMA.field(name) for name in table.column_names])
    if table.schema != schema:
        table = table.cast(schema)
    table = table.replace_schema_metadata()  # drop the footer's metadata
    yield from (batch for batch in table.to_batches() if len(batch))
