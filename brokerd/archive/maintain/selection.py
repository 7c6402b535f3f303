# Tests: tests/archive/test_selection.py
"""Which files are merged, and which partitions compaction looks at. Pure: facts in, choices out.

The rules are docs/archive-tables.rst.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.maintain.compaction_state import PartitionLook
from brokerd.archive.maintain.merge_policy import FILES_MAX, deepest, neighbours_to_merge, pieces
from brokerd.archive.maintain.survey import RecordsFile

DEPTH_MAX = 8
"""So many large shared files may hold one partition before they are sorted into each other."""
SMALL_ROWS = 8192
"""A partition with no more records is looked at whenever there is anything new."""

Partition = tuple[int, int]
"""(topic id, partition)"""


# -- Merging -------------------------------------------------------------------------------------


def files_to_merge(
    files: Iterable[RecordsFile], file_bytes: int, only: Collection[int] | None = None
) -> list[list[RecordsFile]]:
    """Files of records that become one, or as few as can be.

    :param only: ids of the topics that this is limited to; files that others share are left.
    """
    units: list[list[RecordsFile]] = []
    own: dict[Partition, list[RecordsFile]] = {}
    shared: dict[int, list[RecordsFile]] = {}
    for file in files:
        if file.name.only is None:
            shared.setdefault(file.name.bucket, []).append(file)
        elif only is None or file.name.only.topic_id in only:
            own.setdefault(file.name.only[:2], []).append(file)
    for one in own.values():
        for run in _touching(one):
            units += _merged(run, file_bytes)
    for one in () if only is not None else shared.values():
        units += _merged(sorted(one, key=lambda file: (file.first_lsn, file.path)), file_bytes)
        taken = {file.path for unit in units for file in unit}
        units += _sorted_into_each_other([f for f in one if f.path not in taken], file_bytes)
    return units


def _touching(files: Iterable[RecordsFile]) -> list[list[RecordsFile]]:
    """Runs of files of one partition in which each begins where the one before ends."""
    ordered = sorted(files, key=lambda file: file.name.only or ())
    runs = [ordered[:1]]
    for before, file in pairwise(ordered):
        assert before.name.only is not None and file.name.only is not None
        if before.name.only.end == file.name.only.first:
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


def _merged(run: Sequence[RecordsFile], file_bytes: int) -> list[list[RecordsFile]]:
    """Parts of a run that are worth merging."""
    runs = neighbours_to_merge([file.size for file in run], file_bytes)
    return [[run[at] for at in piece] for piece in pieces(runs)]


def _sorted_into_each_other(
    files: Sequence[RecordsFile], file_bytes: int
) -> list[list[RecordsFile]]:
    """Large shared files of a bucket, if many hold the same partition."""
    large = [file for file in files if file.size * 2 >= file_bytes]
    deep = deepest([((n[1], n[2]), (n[3], n[4])) for n in (file.name for file in large)])
    return [[large[at] for at in deep[:FILES_MAX]]] if len(deep) >= DEPTH_MAX else []


# -- Compaction ----------------------------------------------------------------------------------


class Extent(NamedTuple):
    """What the archive holds of a partition that may be compacted."""

    first: int
    end: int
    rows: int


def compactable(bounds: Bounds, only: Collection[int] | None = None) -> dict[Partition, int]:
    """``compact_below`` of the partitions of which anything may be compacted."""
    return {
        (topic.id, index): partition.compact_below
        for topic in bounds.topics
        if topic.compact and (only is None or topic.id in only)
        for index, partition in enumerate(topic.partitions)
        if partition.compact_below > partition.start
    }


def held_of(files: Iterable[RecordsFile]) -> dict[Partition, Extent]:
    """What files hold of partitions, as far as it was asked."""
    found: dict[Partition, Extent] = {}
    for file in files:
        for topic_id, partition, first, end, rows in file.held:
            before = found.get((topic_id, partition), Extent(first, end, 0))
            found[topic_id, partition] = Extent(
                min(first, before.first), max(end, before.end), before.rows + rows
            )
    return found


def partitions_to_look_at(
    held: Mapping[Partition, Extent],
    below: Mapping[Partition, int],
    looked: Mapping[Partition, PartitionLook],
    percent: int,
    old_us: int,
) -> set[Partition]:
    """Partitions of which enough is new, or of which a tombstone is due.

    :param below: ``compact_below`` of those that may be compacted.
    :param old_us: tombstones that were appended by then are old.
    """
    found = set()
    for partition, (first, end, rows) in held.items():
        bound, look = below[partition], looked.get(partition)
        if bound <= first:
            continue
        if look is None or look.again or 0 < look.tombstone_us <= old_us:
            found.add(partition)
            continue
        new = max(0, end - look.end) + max(0, min(bound, end) - look.below)
        if new and (rows <= SMALL_ROWS or new * 100 >= rows * percent):
            found.add(partition)
    return found
