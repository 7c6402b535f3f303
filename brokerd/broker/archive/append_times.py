# Tests: tests/broker/test_cold.py
"""When records were appended that are in the archive alone, for whoever cannot wait to know.

The first question about a record has it looked up, and finds nothing; the next ones find its time.
Memory: `KNOWN_MAX` times, about 200 bytes each.
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.model.topics import Partition

KNOWN_MAX = 4_096

ASKED_MAX = 64
"""Records that are looked up at a time; readers of the archive have to wait for these."""

Place = tuple[int, int, int]
"""Topic id, partition, offset."""


class ArchiveAppendTimes:
    """Append times by place."""

    def __init__(self, archived: ArchiveReader) -> None:
        self._archived = archived
        self._known: OrderedDict[Place, int] = OrderedDict()
        self._asked: set[Place] = set()

    def time_of(self, partition: Partition, offset: int) -> int | None:
        """Broker time at which the record was appended, or the next one if it is removed.

        None if it is not known yet, or the archive does not know it.
        """
        place = partition.topic.topic_id, partition.index, offset
        if place in self._known:
            self._known.move_to_end(place)
            return self._known[place]
        if offset < partition.archived and len(self._asked) < ASKED_MAX:
            self._look_up(place)
        return None

    def _look_up(self, place: Place) -> None:
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

        def told(time_us: int | None, _: Exception | None) -> None:
            self._asked.discard(place)
            if time_us is not None:
                self._known[place] = time_us
                if len(self._known) > KNOWN_MAX:
                    self._known.popitem(last=False)

        self._archived.ask(question, told)
