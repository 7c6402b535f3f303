# Tests: tests/broker/test_state.py, tests/broker/test_recovery.py, tests/broker/test_shrunk_log.py
"""Recovers the state after damage: a replay takes notes, and uses them at its end.

The replay uses the readable part of a damaged log. A topic whose creation is lost gets a generated
name. The replay skips an event that does not fit the state before it. The broker does not assign an
offset again that the damaged bytes may have assigned. A batch has at least as many bytes as records
(see `GroupCommit`). So a partition without a frame after the damage skips an offset for each
damaged byte. Offsets without even the header of a batch are gaps of their partition; groups do not
wait for them.

The broker does not grant a token again that the damaged bytes may have granted: each grant takes
more than one byte of the log. A group without a lease after the damage skips as many tokens as
there are damaged bytes. Every group made later skips them too: the damage may have taken all of it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from twisted.logger import Logger

from brokerd.broker.model.topics import ConsumerGroup, GroupPartition, Partition, Topic
from brokerd.errors import DamagedData
from brokerd.wal import Damage, LostRange, RecoveryReport, decode_loss
from brokerd.walformat import Entry

if TYPE_CHECKING:
    from brokerd.broker.model.state import State


class Replay:
    """Notes of a replay."""

    def __init__(self, now_us: int, time_us: int) -> None:
        self.time_us = time_us
        self.shift_us = now_us - time_us
        """Monotonic time less broker time. Delays continue by it."""
        self.fresh_from: dict[object, int] = {}
        """The LSN from which frames change a topic or group partition; without an entry, all do."""
        self.unused_from: dict[tuple[ConsumerGroup, int], int] = {}
        """The same for group partitions without events, by group and partition. Snapshots of older
        versions have them."""
        self.known_at: dict[Partition, int] = {}
        """LSN of the last frame with the next offset of a partition."""
        self.topic_created_at = -1
        """LSN up to which all topics are known."""
        self.topics_known_below = 1
        """All topics with lower ids are known: those of the snapshot."""
        self.token_known_at: dict[GroupPartition, int] = {}
        """LSN of the last frame with a token of a group partition."""
        self.groups_known_at = -1
        """LSN up to which all groups are known."""
        self.nameless: set[Topic] = set()
        self.deleted: set[int] = set()
        """Ids of deleted topics; older frames do not bring them back."""
        self.passed_over: dict[GroupPartition, list[str]] = {}
        """Reasons why events were not applied. A deletion clears the list."""
        self.losses: list[Entry] = []
        """Damage that a repair recorded."""
        self.was_damaged = False
        """Whether a broker served this log, or a repair saw it, while some of it was damaged."""


class DamageRecovery:
    """Repairs ``state`` at the end of a replay of a damaged log."""

    _log = Logger()

    def __init__(self, state: State, replay: Replay, report: RecoveryReport) -> None:
        self._state = state
        self._replay = replay
        self._report = report

    def run(self) -> None:
        """Run all steps. Raises `DamagedData` as `State.end_replay` does."""
        state, report = self._state, self._report
        self._recall()
        state.known_damage = sorted({*state.known_damage, *report.damage_fingerprints})
        damages = [*report.damages, *report.recorded]
        self._tell_passed_over(bool(damages))
        for topic in sorted(self._replay.nameless, key=lambda topic: topic.topic_id):
            self._name(topic)
        self._believe_headers()
        self._believe_bounds(bool(damages))
        if damages:
            self._lose_the_end(damages[-1])
            for damage in damages:
                self._skip_tokens(damage)
            self._begin_tokens()
        self._give_up_losses()
        for damage in report.recorded:
            self._skip_offsets(damage)
        for damage in report.damages:
            for partition, gap in self._skip_offsets(damage):
                state.new_gaps.setdefault(partition, []).append(gap)

    def _tell_passed_over(self, is_damaged: bool) -> None:
        """Log the events that were not applied. A log that was never damaged has none."""
        passed_over = list(chain.from_iterable(self._replay.passed_over.values()))
        if passed_over and not (is_damaged or self._replay.was_damaged):
            raise DamagedData(
                f"the log contradicts itself: {passed_over[0]}; run brokerctl wal verify"
            )
        for problem in passed_over:
            self._log.error(
                "passed over an event after damage in the log: {problem}",
                problem=problem,
                event_id="event-passed-over",
            )

    def _believe_headers(self) -> None:
        """Use the offsets and topic ids in indexes and intact headers."""
        state, report = self._state, self._report
        state.next_topic_id = max(state.next_topic_id, report.last_topic_id + 1)
        for (topic_id, index), next_offset in report.next_offsets.items():
            state.raise_next_offset(topic_id, index, next_offset)
        report.keep_needed(state.needed_from())
        for hole in report.holes:
            partition = state.partition(hole.topic_id, hole.partition)
            if partition is not None:
                partition.add_gap(hole.first, hole.end)

    def _believe_bounds(self, is_damaged: bool) -> None:
        """Use the assigned offsets and topic ids in the bounds.

        After damage, `_lose_the_end` reports the offsets that the log does not know.
        """
        state, known = self._state, self._report.known_end
        state.next_topic_id = max(state.next_topic_id, known.next_topic_id)
        for topic_id, index, _, end in known.assigned:
            partition = state.partition(topic_id, index)
            if partition is None or end <= partition.next_offset:
                continue
            if is_damaged:
                partition.restore(end)
            else:  # an older broker wrote the bounds without the LSN of these offsets
                gap = partition.next_offset, end
                partition.skip_offsets(end - partition.next_offset)
                state.new_gaps.setdefault(partition, []).append(gap)

    def _give_up_losses(self) -> None:
        for entry in self._replay.losses:
            if entry not in self._report.stale_losses:
                loss = decode_loss(entry)
                place = loss.file, loss.position, loss.end
                self._state.record(Damage(*place, loss.problem, loss.lost))
                for lost in loss.lost:
                    self._give_up(lost)

    def _recall(self) -> None:
        """Register recorded damage in the part of the log that the snapshot replaced.

        A snapshot is used only while all the damage that it names is unchanged.
        """
        known = {place[:3] for place in self._state.known_damage} & self._state.recorded.keys()
        found, self._report.damages = self._report.damages, []
        for damage in found:
            is_recorded = (damage.name, damage.position, damage.end) in known
            (self._report.recorded if is_recorded else self._report.damages).append(damage)

    def _name(self, topic: Topic) -> None:
        """Give a topic whose name is lost an unused name."""
        name = f"lost-topic-{topic.topic_id}"
        while name in self._state.by_name:
            name += "-again"
        topic.name = name
        self._state.by_name[name] = topic

    def _lose_the_end(self, damage: Damage) -> None:
        """Report records that the snapshot counts and the log lacks."""
        for topic in self._state.by_id.values():
            for partition in topic.partitions:
                key = topic.topic_id, partition.index
                told = self._report.next_offsets.get(key, 0)
                known = max(partition.start_offset, partition.archived_end, told)
                for first, end in partition.without_gaps(known, partition.next_offset):
                    damage.lost.append(LostRange(*key, first, end))
                    partition.add_gap(first, end)

    def _give_up(self, lost: LostRange) -> None:
        """Settle records in all groups that a repair recorded as lost."""
        self._state.raise_next_offset(lost.topic_id, lost.partition, lost.end)
        partition = self._state.partition(lost.topic_id, lost.partition)
        if partition is not None:
            partition.add_gap(lost.first, lost.end)

    def _skip_tokens(self, damage: Damage) -> None:
        """Skip the tokens that damaged bytes may have granted."""
        if not damage.may_hold_frames:
            return
        lsn, end_lsn = _stretch(damage)
        self._state.token_base += max(0, end_lsn - max(lsn, self._replay.groups_known_at))
        for group_partition, known_at in self._replay.token_known_at.items():
            size = end_lsn - max(lsn, known_at)
            group_partition.store.skip_tokens(group_partition.last_token + size)
            self._state.stores.trim()

    def _begin_tokens(self) -> None:
        """After damage, let groups with unknown tokens begin above all tokens that may be lost."""
        group_partitions = list(self._state.group_partitions())
        for group_partition in group_partitions:
            if group_partition.group.topic in self._replay.nameless:
                # A topic that gets its lost name may get groups of these names.
                self._state.token_base = max(self._state.token_base, group_partition.last_token)
        for group_partition in group_partitions:
            if group_partition not in self._replay.token_known_at:
                group_partition.store.skip_tokens(self._state.token_base)
                self._state.stores.trim()

    def _skip_offsets(self, damage: Damage) -> list[tuple[Partition, tuple[int, int]]]:
        """Never assign again what damaged bytes may have assigned; returns the new gaps."""
        gaps: list[tuple[Partition, tuple[int, int]]] = []
        if damage.is_counted or not damage.may_hold_frames:
            return gaps  # all records are known, or the partition had none
        lsn, end_lsn = _stretch(damage)
        # A piece of a snapshot may be of a moment when only some of the damaged bytes were written.
        self._state.next_topic_id += max(0, end_lsn - max(lsn, self._replay.topic_created_at))
        if end_lsn > self._replay.groups_known_at:
            self._doubt_topics()
        for topic in self._state.by_id.values():
            for partition in topic.partitions:
                size = end_lsn - max(lsn, self._replay.known_at.get(partition, -1))
                if size > 0:
                    first = partition.next_offset
                    partition.skip_offsets(size)
                    gaps.append((partition, (first, first + size)))
        return gaps

    def _doubt_topics(self) -> None:
        """Do not take a topic for deleted if the damaged bytes may have created it."""
        state, first = self._state, self._replay.topics_known_below
        state.doubted_topic_id = min(state.doubted_topic_id or first, first)


def _stretch(damage: Damage) -> tuple[int, int]:
    """Return the first LSN of a damage and its end."""
    segment_lsn = int(damage.name.partition(".")[0])
    return segment_lsn + damage.position, segment_lsn + damage.end
