"""Which files are merged, and which partitions are worth looking at."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.bounds import Bounds, PartitionBounds, TopicBounds
from brokerd.archive.contract.layout import Range, parse_records_name, records_name
from brokerd.archive.maintain.compaction_state import PartitionState
from brokerd.archive.maintain.file_stats import FileExtent, RecordsFile
from brokerd.archive.maintain.merge_policy import FILES_MAX
from brokerd.archive.maintain.selection import (
    DEPTH_MAX,
    PartitionExtent,
    compaction_bounds,
    files_to_merge,
    partition_extents,
    partitions_to_compact,
)

TAIL = f"{'0' * 8}-{'0' * 16}"
SIZE = 128


def own(first: int, end: int, size: int = 1, topic_id: int = 1) -> RecordsFile:
    """A file of one partition."""
    only = Range(topic_id, 0, first, end)
    path = records_name(topic_id % 16, only, only, TAIL)
    return RecordsFile(path, size, end - first, first, parse_records_name(path))


def shared(lsn: int, size: int = 1, low: int = 1, high: int = 161) -> RecordsFile:
    """A file that topics from one to another share."""
    path = records_name(1, Range(low, 0, 0, 1), Range(high, 0, 0, 1), f"{lsn:08x}-{'0' * 16}")
    return RecordsFile(path, size, 1, lsn, parse_records_name(path))


def test_files_of_a_partition_are_merged_where_they_touch() -> None:
    """What lies apart stays apart: a file covers one range."""
    one, two, three, far = own(0, 5), own(5, 9), own(9, 12), own(20, 30)
    assert files_to_merge([three, far, two, one], SIZE) == [[one, two, three]]
    other = own(0, 5, topic_id=17)
    assert files_to_merge([one, other], SIZE) == []


def test_a_large_file_waits_until_there_is_enough_after_it() -> None:
    """A record is not written again because of every small file."""
    large, small = own(0, 50, 60), own(50, 51, 20)
    assert files_to_merge([large, small], SIZE) == []
    assert files_to_merge([large, small, own(51, 52, 40)], SIZE) != []


def test_shared_files_are_merged_in_the_order_of_the_log() -> None:
    """Whatever their names say."""
    files = [shared(lsn) for lsn in (30, 10, 20)]
    assert [[f.first_lsn for f in unit] for unit in files_to_merge(files, SIZE)] == [[10, 20, 30]]


def test_no_more_files_are_merged_at_once_than_may_be_open() -> None:
    """After many runs without merging."""
    units = files_to_merge([shared(lsn) for lsn in range(200)], 10_000)
    assert sum(map(len, units)) == 200
    assert max(map(len, units)) == FILES_MAX


def test_large_shared_files_are_sorted_into_each_other_when_they_are_many() -> None:
    """A topic's records are not spread over ever more files."""
    wide = [shared(lsn, SIZE) for lsn in range(DEPTH_MAX - 1)]
    apart = shared(100, SIZE, 177, 193)
    assert files_to_merge([*wide, apart], SIZE) == []
    one_more = shared(101, SIZE, 1, 17)
    (unit,) = files_to_merge([*wide, apart, one_more], SIZE)
    assert {file.path for file in unit} == {file.path for file in [*wide, one_more]}


def test_large_shared_files_of_one_topic_are_compared_by_partition() -> None:
    """Files of its other partitions have nothing to sort into them."""

    def of(lsn: int, low: int, high: int) -> RecordsFile:
        tail = f"{lsn:08x}-{'0' * 16}"
        path = records_name(1, Range(1, low, 0, 1), Range(1, high, 0, 1), tail)
        return RecordsFile(path, SIZE, 1, lsn, parse_records_name(path))

    below = [of(lsn, 0, 3) for lsn in range(DEPTH_MAX - 1)]
    above = [of(100 + lsn, 4, 7) for lsn in range(DEPTH_MAX - 1)]
    assert files_to_merge([*below, *above], SIZE) == []
    both = of(200, 3, 4)
    (unit,) = files_to_merge([*below, *above, both], SIZE)
    assert {file.path for file in unit} == {file.path for file in [*below, both]}


def test_only_some_topics_are_merged_when_others_are_not_meant() -> None:
    """Shared files hold others' records, so they are left."""
    files = [own(0, 5), own(5, 9), own(0, 5, topic_id=17), own(5, 9, topic_id=17)]
    files += [shared(lsn) for lsn in range(4)]
    assert files_to_merge(files, SIZE, only={17}) == [files[2:4]]


def bounds(compact: bool, *partitions: tuple[int, int]) -> Bounds:
    found = [PartitionBounds(start, below, 100) for start, below in partitions]
    return Bounds("ab", 0, 0, True, 2, [TopicBounds(1, "t", 0, compact, found)])


def test_only_topics_that_are_set_so_are_compacted_below_their_bound() -> None:
    """And only partitions in which anything lies below it."""
    assert compaction_bounds(bounds(True, (0, 10), (5, 5), (2, 3))) == {(1, 0): 10, (1, 2): 3}
    assert compaction_bounds(bounds(False, (0, 10))) == {}
    assert compaction_bounds(bounds(True, (0, 10)), only={2}) == {}


def test_the_extent_of_a_partition_is_that_of_all_its_files() -> None:
    """From the first offset to the last end; rows add up."""
    files = [own(20, 30), own(0, 5), own(5, 9), own(0, 2, topic_id=17)]
    for file in files:
        assert file.name.only is not None
        file.extents.append(FileExtent(*file.name.only, file.rows))
    assert partition_extents(files) == {
        (1, 0): PartitionExtent(0, 30, 19),
        (17, 0): PartitionExtent(0, 2, 2),
    }


@pytest.mark.parametrize(
    ("extent", "below", "state", "is_selected"),
    [
        (PartitionExtent(0, 100_000, 100_000), 50, None, True),
        (PartitionExtent(60, 100_000, 90_000), 50, None, False),
        (PartitionExtent(0, 100_000, 100_000), 50_000, (100_000, 50_000, 0, False), False),
        (PartitionExtent(0, 110_000, 100_000), 50_000, (100_000, 50_000, 0, False), False),
        (PartitionExtent(0, 120_000, 100_000), 50_000, (100_000, 50_000, 0, False), True),
        (PartitionExtent(0, 110_000, 100_000), 60_000, (100_000, 50_000, 0, False), True),
        (PartitionExtent(0, 100_000, 100_000), 1 << 40, (100_000, 100_000, 0, False), False),
        (PartitionExtent(0, 1001, 1000), 500, (1000, 500, 0, False), True),
        (PartitionExtent(0, 1000, 1000), 500, (1000, 500, 0, False), False),
        (PartitionExtent(0, 1000, 1000), 500, (1000, 500, 0, True), True),
        (PartitionExtent(0, 1000, 1000), 500, (1000, 500, 70, False), True),
        (PartitionExtent(0, 1000, 1000), 500, (1000, 500, 71, False), False),
    ],
)
def test_a_partition_is_looked_at_when_enough_is_new(
    extent: PartitionExtent,
    below: int,
    state: tuple[int, int, int, bool] | None,
    is_selected: bool,
) -> None:
    """New are records above those seen, and those that the bound has passed; or a tombstone is."""
    states = {} if state is None else {(1, 0): PartitionState(1, 0, *state)}
    found = partitions_to_compact({(1, 0): extent}, {(1, 0): below}, states, 20, 70)
    assert found == ({(1, 0)} if is_selected else set())
