# Tests: tests/spark/test_topic_state.py
"""The topics of a log and the start offsets of their partitions.

The bounds give the state at one LSN (docs/archive-format.rst, section "The bounds file"). Later
TOPIC entries of the journal change it, as at a start of the broker (docs/wal-format.rst, section
"TOPIC body").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.topic_names import TopicNames
from brokerd.archive.journal.topics import TopicChange
from brokerd.errors import BrokerdError, NewerFormat, UnknownTopic, escaped
from brokerd.spark.plan.predicate import Interval, Key


class Topic(NamedTuple):
    """A live topic."""

    name: str
    internal_of: int
    """The id of the topic that this internal topic serves; 0 if it is not internal."""
    partitions: int


class TopicState:
    """The topics of a log."""

    def __init__(self, bounds: Bounds) -> None:
        self.topics = {
            one.id: Topic(one.name, one.internal_of, len(one.partitions)) for one in bounds.topics
        }
        self.next_topic_id = bounds.next_topic_id
        """A smaller id that ``topics`` lacks belongs to a deleted topic."""
        self.starts: dict[Key, int] = bounds.start_offsets()
        """Records below these offsets are removed. A partition without an entry starts at 0."""

    def apply(self, changes: Iterable[TopicChange]) -> None:
        """Apply TOPIC entries in order. Raises NewerFormat for an unknown operation."""
        for change in changes:
            apply = _OPS.get(change.fields.get("op", ""))
            if apply is None:
                raise NewerFormat(
                    f"the journal at LSN {change.lsn} has the topic operation "
                    f"{change.fields.get('op')!r}, which this brokerd does not know; upgrade it"
                )
            apply(self, change)

    def _is_deleted(self, topic_id: int) -> bool:
        return topic_id < self.next_topic_id and topic_id not in self.topics

    def _created(self, change: TopicChange) -> None:
        internal_of = change.fields.get("internal_of", 0)
        is_gone = self._is_deleted(change.topic_id) or (
            internal_of and self._is_deleted(internal_of)
        )
        self.next_topic_id = max(self.next_topic_id, change.topic_id + 1)
        if not is_gone and change.topic_id not in self.topics:
            name, partitions = change.fields["name"], change.fields["partitions"]
            self.topics[change.topic_id] = Topic(name, internal_of, partitions)

    def _deleted(self, change: TopicChange) -> None:
        self.next_topic_id = max(self.next_topic_id, change.topic_id + 1)
        serving = [id for id, one in self.topics.items() if one.internal_of == change.topic_id]
        for topic_id in (change.topic_id, *serving):
            self.topics.pop(topic_id, None)

    def _start(self, change: TopicChange) -> None:
        key = change.topic_id, change.partition
        self.starts[key] = max(self.starts.get(key, 0), change.fields["offset"])

    def _ignored(self, change: TopicChange) -> None:
        """Do nothing: queries do not depend on this operation."""

    # -- Selection -------------------------------------------------------------------------------

    def select(self, names: TopicNames, unknown_is_error: bool) -> tuple[int, ...]:
        """Return the ids of the topics that the names select, in order.

        :raises UnknownTopic: a name without ``*`` selects no topic, and ``unknown_is_error``.
        """
        ids = [
            topic_id
            for topic_id, topic in self.topics.items()
            if not topic.internal_of and names.match(topic.name)
        ]
        if unknown_is_error:
            selected = {self.topics[topic_id].name for topic_id in ids}
            missing = [name for name in names.exact() if name not in selected]
            if missing:
                raise UnknownTopic(
                    f"there is no topic {escaped(missing[0])!r}{self._suggestion(missing[0])}; a "
                    "name with * is a pattern"
                )
        return tuple(sorted(ids))

    def check_offsets(self, option: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Check that all partitions in an option with offsets exist.

        :raises UnknownTopic: a partition does not exist; the text names the option.
        """
        counts = {one.name: one.partitions for one in self.topics.values() if not one.internal_of}
        for name, partitions in offsets.items():
            if name not in counts:
                raise UnknownTopic(
                    f"{option}: there is no topic {escaped(name)!r}{self._suggestion(name)}"
                )
            for partition in partitions:
                if partition >= counts[name]:
                    raise UnknownTopic(
                        f"{option}: the topic {escaped(name)!r} has partitions 0 to "
                        f"{counts[name] - 1}, not {partition}"
                    )

    def _suggestion(self, name: str) -> str:
        names = sorted(topic.name for topic in self.topics.values() if not topic.internal_of)
        if not names:
            return ", nor any other"
        near = [one for one in names if one.lower() == name.lower()] or names[:5]
        more = len(names) - len(near)
        shown = ", ".join(repr(escaped(one)) for one in near)
        return f"; there is {shown}" + (f" and {more} more" if more else "")

    def partition_offsets(
        self,
        topic_ids: Iterable[int],
        everywhere: Interval,
        first: Mapping[str, Mapping[int, int]],
        end: Mapping[str, Mapping[int, int]],
    ) -> dict[Key, Interval]:
        """Return the offsets to read of each partition where they differ from ``everywhere``.

        :param first: the first offsets to read, by topic name and partition.
        :param end: the end offsets, by topic name and partition.
        """
        selected = set(topic_ids)
        found = {
            key: Interval(max(everywhere.first, start), everywhere.end)
            for key, start in self.starts.items()
            if key[0] in selected and start > everywhere.first
        }
        ids: dict[str, list[int]] = {}
        for topic_id in selected:
            ids.setdefault(self.topics[topic_id].name, []).append(topic_id)
        for given, is_first in ((first, True), (end, False)):
            for name, offsets in given.items():
                for topic_id in ids.get(name, ()):
                    for partition, offset in offsets.items():
                        key = topic_id, partition
                        limit = Interval(first=offset) if is_first else Interval(end=offset)
                        found[key] = found.get(key, everywhere).intersect(limit)
        return found

    def name_of(self, topic_id: int) -> str:
        """Return the name of a topic. Raises BrokerdError if the topic is unknown."""
        topic = self.topics.get(topic_id)
        if topic is None:
            raise BrokerdError(
                f"the name of topic id {topic_id} is unknown, and the journal has records of it: "
                "start the broker, which writes what it knows of the topic"
            )
        return topic.name


_OPS = {
    "created": TopicState._created,
    "configured": TopicState._ignored,
    "deleted": TopicState._deleted,
    "start": TopicState._start,
    "archived": TopicState._ignored,
}
