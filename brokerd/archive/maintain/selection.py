# Tests: tests/archive/test_selection.py
"""Selects the files to merge and the partitions to compact, by docs/archive-tables.rst.

All functions depend only on file statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.layout import parse_records_name
from brokerd.archive.maintain.compaction_state import PartitionState
from brokerd.archive.maintain.file_stats import RecordsFile
from brokerd.archive.maintain.merge_policy import FILES_MAX, deepest, neighbours_to_merge, pieces

DEPTH_MAX = 8
"""Large shared files are merged when so many hold the same partition."""
SMALL_ROWS = 8192
"""A partition of at most so many records is compacted whenever it has new records."""

Partition = tuple[int, int]
"""(topic id, partition)"""


# -- Merging -------------------------------------------------------------------------------------


def files_to_merge(
    files: Iterable[RecordsFile],
    file_bytes: int,
    only: Collection[int] | None = None,
    growth: int = 2,
) -> list[list[RecordsFile]]:
    """Return groups of files to merge. Each group becomes as few files as possible.

    :param only: ids of the topics to maintain. None means all, and shared files.
    :param growth: see `neighbours_to_merge`.
    """
    units: list[list[RecordsFile]] = []
    own: dict[Partition, list[RecordsFile]] = {}
    shared: dict[int, list[RecordsFile]] = {}
    for file in files:
        if file.name.only is None:
            shared.setdefault(file.name.bucket, []).append(file)
        elif only is None or file.name.only.topic_id in only:
            own.setdefault(file.name.only[:2], []).append(file)
    for files_of_one in own.values():
        for run in _contiguous_runs(files_of_one):
            units += _worth_merging(run, file_bytes, growth)
    for bucket in () if only is not None else shared.values():
        by_lsn = sorted(bucket, key=lambda file: (file.first_lsn, file.path))
        units += _worth_merging(by_lsn, file_bytes, growth)
        merged = {file.path for unit in units for file in unit}
        units += _overlapping([file for file in bucket if file.path not in merged], file_bytes)
    return units


def _contiguous_runs(files: Iterable[RecordsFile]) -> list[list[RecordsFile]]:
    """Return runs of a partition's files. Each file begins at the end of the file before."""
    ordered = sorted(files, key=lambda file: file.name.only or ())
    runs = [ordered[:1]]
    for before, file in pairwise(ordered):
        assert before.name.only is not None and file.name.only is not None
        if before.name.only.end == file.name.only.first:
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


def _worth_merging(
    run: Sequence[RecordsFile], file_bytes: int, growth: int
) -> list[list[RecordsFile]]:
    """Return the parts of a run that the merge policy selects."""
    runs = neighbours_to_merge([file.size for file in run], file_bytes, growth)
    return [[run[at] for at in piece] for piece in pieces(runs)]


def _overlapping(files: Sequence[RecordsFile], file_bytes: int) -> list[list[RecordsFile]]:
    """Return the large shared files of a bucket with the same partition, if they are many."""
    large = [file for file in files if file.size * 2 >= file_bytes]
    names = [file.name for file in large]
    firsts = [(name.first_topic_id, name.first_partition) for name in names]
    lasts = [(name.last_topic_id, name.last_partition) for name in names]
    deep = deepest(list(zip(firsts, lasts, strict=True)))
    return [[large[at] for at in deep[:FILES_MAX]]] if len(deep) >= DEPTH_MAX else []


# -- Compaction ----------------------------------------------------------------------------------


class PartitionExtent(NamedTuple):
    """The part of a compacted partition that the archive holds."""

    first: int
    end: int
    rows: int


def compaction_bounds(bounds: Bounds, only: Collection[int] | None = None) -> dict[Partition, int]:
    """Return the ``compact_below`` of each partition that can be compacted."""
    return {
        (topic.id, index): partition.compact_below
        for topic, index, partition in bounds.partitions()
        if topic.compact and (only is None or topic.id in only)
        if partition.compact_below > partition.start
    }


def partitions_of_unreadable(
    paths: Iterable[str], partitions: Iterable[Partition]
) -> set[Partition]:
    """Return the partitions that may have records in unreadable files, by the files' names.

    A tombstone in another file must stay while these files may hold older records of its key.
    """
    names = [parse_records_name(path) for path in paths]
    owned = {name.only[:2] for name in names if name.only is not None}
    shared = [name for name in names if name.only is None]
    return {
        one for one in partitions if one in owned or any(name.may_hold(*one) for name in shared)
    }


def partition_extents(files: Iterable[RecordsFile]) -> dict[Partition, PartitionExtent]:
    """Return the sums of the files' extents by partition."""
    extents: dict[Partition, PartitionExtent] = {}
    for file in files:
        for topic_id, partition, first, end, rows in file.extents:
            before = extents.get((topic_id, partition), PartitionExtent(first, end, 0))
            extents[topic_id, partition] = PartitionExtent(
                min(first, before.first), max(end, before.end), before.rows + rows
            )
    return extents


def partitions_to_compact(
    extents: Mapping[Partition, PartitionExtent],
    below: Mapping[Partition, int],
    states: Mapping[Partition, PartitionState],
    percent: int,
    old_us: int,
) -> set[Partition]:
    """Return the partitions with enough new records, or with a tombstone that became old.

    :param below: the result of `compaction_bounds`.
    :param percent: the sufficient share of new records.
    :param old_us: a tombstone appended at this time or earlier is old.
    """
    selected = set()
    for partition, (first, end, rows) in extents.items():
        bound, state = below[partition], states.get(partition)
        if bound <= first:
            continue
        if state is None or state.again or 0 < state.tombstone_us <= old_us:
            selected.add(partition)
            continue
        new = max(0, end - state.end) + max(0, min(bound, end) - state.below)
        if new and (rows <= SMALL_ROWS or new * 100 >= rows * percent):
            selected.add(partition)
    return selected
