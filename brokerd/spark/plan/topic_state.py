# Tests: tests/spark/test_topic_state.py
"""Which topics there are, and where their partitions begin: by bounds, and what came after them.

The bounds say what was so at some LSN (docs/archive-format.rst, section "The bounds file"). What
the journal says of topics from there on is applied as a broker does that starts
(docs/wal-format.rst, section "TOPIC body").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.journal.frame_scan import TopicChange
from brokerd.errors import BrokerdError, NewerFormat, UnknownTopic, escaped
from brokerd.spark.plan.predicate import Key, Names, Within


class Topic(NamedTuple):
    """A topic that is not deleted."""

    name: str
    internal_of: int
    """Id of the topic that it serves; 0 for one that has a name to ask for."""
    partitions: int


class TopicState:
    """All topics of a log."""

    def __init__(self, bounds: Bounds) -> None:
        self.topics = {
            one.id: Topic(one.name, one.internal_of, len(one.partitions)) for one in bounds.topics
        }
        self.next_topic_id = bounds.next_topic_id
        """An id below it that is not among the topics is that of a deleted one."""
        self.starts: dict[Key, int] = {
            (topic.id, index): partition.start
            for topic in bounds.topics
            for index, partition in enumerate(topic.partitions)
            if partition.start > 0
        }
        """Records below are removed; where nothing stands it is 0."""

    def apply(self, changes: Iterable[TopicChange]) -> None:
        """What the journal says, in order. Raises NewerFormat."""
        for change in changes:
            apply = _OPS.get(change.fields.get("op", ""))
            if apply is None:
                raise NewerFormat(
                    f"the journal at LSN {change.lsn} says {change.fields.get('op')!r} of a topic, "
                    "which this brokerd does not know; upgrade it"
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

    def _nothing(self, change: TopicChange) -> None:
        """It changes nothing that is asked for here."""

    # -- What is wanted --------------------------------------------------------------------------

    def chosen(self, names: Names, unknown_is_error: bool) -> tuple[int, ...]:
        """Ids of the topics with such names, in order. Raises UnknownTopic."""
        found = [
            topic_id
            for topic_id, topic in self.topics.items()
            if not topic.internal_of and names.has(topic.name)
        ]
        if unknown_is_error:
            there = {self.topics[topic_id].name for topic_id in found}
            missing = [name for name in names.exact() if name not in there]
            if missing:
                raise UnknownTopic(
                    f"there is no topic {escaped(missing[0])!r}{self._others(missing[0])}; names "
                    "with * stand for those that fit"
                )
        return tuple(sorted(found))

    def check(self, option: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Look whether there are the partitions that offsets are given for.

        Raises UnknownTopic, which names the option.
        """
        counts = {one.name: one.partitions for one in self.topics.values() if not one.internal_of}
        for name, partitions in offsets.items():
            if name not in counts:
                raise UnknownTopic(
                    f"{option}: there is no topic {escaped(name)!r}{self._others(name)}"
                )
            for partition in partitions:
                if partition >= counts[name]:
                    raise UnknownTopic(
                        f"{option}: the topic {escaped(name)!r} has partitions 0 to "
                        f"{counts[name] - 1}, and not {partition}"
                    )

    def _others(self, name: str) -> str:
        there = sorted(t.name for t in self.topics.values() if not t.internal_of)
        if not there:
            return ", nor any other"
        near = [one for one in there if one.lower() == name.lower()] or there[:5]
        more = len(there) - len(near)
        told = ", ".join(repr(escaped(one)) for one in near)
        return f"; there is {told}" + (f" and {more} more" if more else "")

    def limits(
        self,
        topic_ids: Iterable[int],
        everywhere: Within,
        first: Mapping[str, Mapping[int, int]],
        end: Mapping[str, Mapping[int, int]],
    ) -> dict[Key, Within]:
        """Offsets that are wanted of partitions, where these are not ``everywhere``."""
        wanted = set(topic_ids)
        found = {
            key: Within(max(everywhere.first, start), everywhere.end)
            for key, start in self.starts.items()
            if key[0] in wanted and start > everywhere.first
        }
        ids: dict[str, list[int]] = {}
        for topic_id in wanted:
            ids.setdefault(self.topics[topic_id].name, []).append(topic_id)
        for given, is_first in ((first, True), (end, False)):
            for name, offsets in given.items():
                for topic_id in ids.get(name, ()):
                    for partition, offset in offsets.items():
                        key = topic_id, partition
                        limit = Within(first=offset) if is_first else Within(end=offset)
                        found[key] = found.get(key, everywhere).and_within(limit)
        return found

    def name_of(self, topic_id: int) -> str:
        """The name of a topic of which the journal has records. Raises BrokerdError."""
        topic = self.topics.get(topic_id)
        if topic is None:
            raise BrokerdError(
                f"nothing tells the name of topic id {topic_id}, of which the journal has records: "
                "start the broker, which says what it knows of it"
            )
        return topic.name


_OPS = {
    "created": TopicState._created,
    "configured": TopicState._nothing,
    "deleted": TopicState._deleted,
    "start": TopicState._start,
    "archived": TopicState._nothing,
}
