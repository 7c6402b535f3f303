# Tests: tests/archive/test_coverage.py
"""Computes the covered ranges of a file of records from its batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from brokerd.archive.contract.layout import Range
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.journal.sealed import Batches

Gaps = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
"""Ranges of offsets that damage destroyed, by topic id and partition: first and end (exclusive)."""


def covered_ranges(batches: Sequence[Batches], lost: Sequence[Batches], gaps: Gaps) -> list[Range]:
    """Compute the covered ranges of a file. They are sorted, and neither touch nor overlap.

    They hold the offsets of the batches, and of gaps that touch a batch or replace a lost batch.
    A gap certainly holds no record.

    :param batches: batches that do not overlap.
    :param lost: batches that known damage made unreadable.
    """
    ranges = merge_ranges(_ranges(batches))
    missed = _ranges(lost)
    found = [one for one in ranges if one[:2] not in gaps]
    for key, some in gaps.items():
        own = [one for one in ranges if one[:2] == key]
        taken = [Range(*key, *gap) for gap in some]
        known = [*own, *(gap for gap in taken if any(_overlap(gap, one) for one in missed))]
        merged = merge_ranges([*own, *taken])
        found += [one for one in merged if any(_overlap(one, part) for part in known)]
    return sorted(found)


def _ranges(batches: Iterable[Batches]) -> list[Range]:
    """Return a range for each run of adjacent batches, in order."""
    found = [one for one in batches if len(one.count)]
    if not found:
        return []
    topic_id, partition, base, count = (
        np.concatenate([one[column] for one in found]) for column in range(4)
    )
    order = np.lexsort((base, partition, topic_id))
    topic_id, partition, base = topic_id[order], partition[order], base[order]
    end = base + count[order]
    head = np.ones(len(base), np.bool_)
    head[1:] = (
        (topic_id[1:] != topic_id[:-1]) | (partition[1:] != partition[:-1]) | (base[1:] != end[:-1])
    )
    heads = np.flatnonzero(head)
    lasts = np.append(heads[1:], len(base)) - 1
    columns = (topic_id[heads], partition[heads], base[heads], end[lasts])
    return [Range(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _overlap(one: Range, other: Range) -> bool:
    return one[:2] == other[:2] and one.first < other.end and other.first < one.end
