"""What tests commit to a table: names of files that need not be there."""

from __future__ import annotations

from brokerd.archive.deltalog import Facts
from brokerd.archive.layout import Range, records_name
from brokerd.archive.table import Added

NOW_MS = 1_700_000_000_000
LOG_ID = "0123456789abcdef0123456789abcdef"
OTHER_LOG_ID = "f" * 32


def tail(number: int) -> str:
    """The end of a file's name, another one for each number."""
    return f"{number % (1 << 32):08x}-{number:016x}"


def records_file(
    topic_id: int, first: int, end: int, *, number: int = 0, partition: int = 0, **facts: int
) -> Added:
    """A file of records of one partition. By default its times are its offsets."""
    only = Range(topic_id, partition, first, end)
    path = records_name(topic_id % 16, only, only, tail(number))
    known = Facts(end - first, 100 * (end - first), first, end - 1, first, end - 1)
    low = {"topic_id": topic_id, "partition": partition, "offset": first, "append_time": first}
    high = {**low, "offset": end - 1, "append_time": end - 1}
    return Added(path, 1000 + end - first, known._replace(**facts), low, high)


def shared_file(
    low: tuple[int, int], high: tuple[int, int], *, number: int = 0, **facts: int
) -> Added:
    """A file of records of several partitions, from (topic id, partition) to another."""
    first, last = Range(*low, 0, 1), Range(*high, 0, 1)
    path = records_name(low[0] % 16, first, last, tail(number))
    return Added(path, 2000, Facts(2, 200, 0, 1, 0, 1)._replace(**facts))
