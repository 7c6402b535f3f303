# Tests: tests/broker/test_cold.py
"""Caches append times of archived records, for callers that cannot wait for a read.

The first question about a record starts a read and returns None. Later questions return the time.
Memory: `KNOWN_MAX` times, about 200 bytes each.
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.model.topics import Partition

KNOWN_MAX = 4_096

ASKED_MAX = 64
"""Reads under way at a time; other readers of the archive wait for these."""

_RecordKey = tuple[int, int, int]
"""Topic id, partition, offset."""


class ArchiveAppendTimes:
    """Looks up append times by topic, partition and offset."""

    def __init__(self, archive_reader: ArchiveReader) -> None:
        self._archive_reader = archive_reader
        self._known: OrderedDict[_RecordKey, int] = OrderedDict()
        self._asked: set[_RecordKey] = set()

    def time_of(self, partition: Partition, offset: int) -> int | None:
        """Return the broker time of the append of this record, or of the next one if it is removed.

        Returns None before the read ends, and for records that the archive does not hold.
        """
        place = partition.topic.topic_id, partition.index, offset
        if place in self._known:
            self._known.move_to_end(place)
            return self._known[place]
        if offset < partition.archived_end and len(self._asked) < ASKED_MAX:
            self._look_up(place)
        return None

    def _look_up(self, place: _RecordKey) -> None:
        if place in self._asked:
            return
        self._asked.add(place)

        def question(view: ArchiveView) -> int | None:
            topic_id, index, offset = place
            while (rows := view.read(topic_id, index, offset, 0)) is not None:
                if rows.offsets:
                    times = rows.columns.append_time_us
                    return times if isinstance(times, int) else times[0]
                offset = rows.end
            return None

        def on_answer(time_us: int | None, _: Exception | None) -> None:
            self._asked.discard(place)
            if time_us is not None:
                self._known[place] = time_us
                if len(self._known) > KNOWN_MAX:
                    self._known.popitem(last=False)

        self._archive_reader.ask(question, on_answer)
