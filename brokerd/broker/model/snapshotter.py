# Tests: tests/broker/test_snapshotter.py
"""Takes snapshots of the broker's state without stalling it, and rebuilds the state from them.

A snapshot is taken in steps at frame boundaries, where the state in memory equals the log up to
``wal.appended_lsn``. Each step makes shallow copies of some group partitions and notes that
position. When the log is durable up to the last noted position, a thread encodes and writes the
snapshot. So a snapshot never holds a change that the log could still lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgpack
from twisted.logger import Logger

from brokerd.broker.clock import BrokerTime, Clock, Timer
from brokerd.broker.model.snapshot_capture import (
    CapturedGroupPartition,
    CapturedTopic,
    capture_deleted,
    capture_group_partition,
    capture_topic,
    encode_group_partitions,
)
from brokerd.broker.model.state import SNAPSHOT_META, Capture, Encode, State, known_damage
from brokerd.broker.model.topics import GroupPartition, Topic
from brokerd.errors import error_text
from brokerd.wal import (
    DamageFingerprint,
    RecoveryReport,
    SnapshotChunk,
    Snapshots,
    Wal,
)
from brokerd.worker_pool import WorkerPool

STEP_THINGS = 200
"""Topics or group partitions captured in one step."""

STEP_SECONDS = 0.005
"""The longest time of a step, and the pause between steps when no frame ends."""


class _Captured:
    """The captured state. A topic comes before its groups, and META comes first."""

    def __init__(self, first: Iterable[Encode] = ()) -> None:
        self.first = list(first)
        self.topics: dict[int, CapturedTopic] = {}
        """Topics by id that existed at the beginning. The log has later ones."""
        self.last: list[Encode] = []

    def encode(self) -> Iterator[SnapshotChunk]:
        for encode in self.first:
            yield encode()
        for topic in self.topics.values():
            yield from topic.encode()
        for encode in self.last:
            yield encode()


class Snapshotter:
    """Takes a snapshot every ``interval_bytes`` of log.

    ``idle()`` returns whether the journal has gathered no changes.
    """

    _log = Logger()

    def __init__(
        self,
        state: State,
        wal: Wal,
        snapshots: Snapshots,
        writer: WorkerPool,
        clock: Clock,
        time: BrokerTime,
        interval_bytes: int,
        idle: Callable[[], bool],
    ) -> None:
        self._state = state
        self._wal = wal
        self._snapshots = snapshots
        self._writer = writer
        self._clock = clock
        self._time = time
        self._interval_bytes = interval_bytes
        self._idle = idle
        self._start_lsn = 0
        self._captured_lsn = 0
        self._todo: Iterator[Topic | GroupPartition | Capture] | None = None
        self._captured = _Captured()
        self._writing = False
        self._stopped = False
        self._changed: set[DamageFingerprint] = set()
        """Damage that snapshots name and that has since been cured or has grown."""
        self._tick_call: Timer | None = None
        self.wanted = False
        """Set to take a snapshot at the next frame boundary, however little the log grew."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when another snapshot is written."""
        self.written = 0
        self.last_lsn = 0
        self.last_bytes = 0
        """Size of the last written snapshot."""
        self.last_error: str | None = None

    # -- reading ------------------------------------------------------------------------------

    @property
    def damaged(self) -> int:
        """The number of damaged snapshots that the start skipped."""
        return self._snapshots.damaged

    def replay(self) -> RecoveryReport:
        """Rebuild the state from the newest usable snapshot and the frames after it."""
        start_lsn = 0
        self._state.begin_replay(self._time.monotonic_us(), self._time.time_us())
        loaded = self._snapshots.load_newest(self._why_outdated, self._wal.deleted_lsn())
        if loaded is not None:
            start_lsn = loaded.start_lsn
            self._state.load_all(loaded.chunks)
        report = self._wal.open(
            start_lsn,
            self._state.apply,
            self._state.first_lsn,
            self._snapshots.reached_lsn,
            self._changed,
            self._snapshots.known_end(),
        )
        self._state.end_replay(report)
        self._start_lsn = self.last_lsn = start_lsn
        return report

    def second_newest(self) -> int | None:
        """Verify the second-newest snapshot, and return the LSN at which it begins.

        See `Snapshots.second_newest`. It blocks, so the thread that writes snapshots calls it.
        """
        return self._snapshots.second_newest()

    def _why_outdated(self, chunk: SnapshotChunk) -> str | None:
        """Return why the state in a snapshot no longer matches the log, or None if it does."""
        changed = [known for known in known_damage(chunk) if not self._wal.is_unchanged(known)]
        self._changed.update(changed)
        if not changed:
            return None
        return f"{changed[0].file} at {changed[0].position} is not damaged as it was then"

    # -- taking -------------------------------------------------------------------------------

    @property
    def taking(self) -> bool:
        """Whether a snapshot is being taken or written."""
        return self._todo is not None or self._writing or bool(self._captured.first)

    def step(self) -> None:
        """Begin, continue or finish a snapshot. The journal calls it at every frame boundary."""
        if self._stopped:
            return
        if self.taking:
            self._go_on()
        elif self.wanted or self._wal.appended_lsn - self._start_lsn >= self._interval_bytes:
            self.begin()

    def begin(self) -> None:
        """Start a snapshot; must be called at a frame boundary."""
        self.wanted = False
        self._start_lsn = self._captured_lsn = self._wal.appended_lsn
        self._captured = _Captured([self._meta()])
        self._state.stores.snapshots += 1
        topics = list(self._state.by_id.values())
        self._captured.topics = {topic.topic_id: CapturedTopic() for topic in topics}
        self._todo = self._parts(topics)
        self._capture()
        if self._tick_call is None:
            self._tick_later()

    def take_anew(self) -> None:
        """Take a snapshot at the next frame boundary, in place of one being captured."""
        self._todo, self._captured = None, _Captured()
        self.wanted = True

    def _parts(self, topics: list[Topic]) -> Iterator[Topic | GroupPartition | Capture]:
        """Yield all parts to capture. Parts created later are in the log after the beginning.

        A group that was deleted and made again since must not be captured: replay would apply the
        events of the first one to partitions without events in the second one.
        """
        yield from topics
        for topic in topics:
            for group in list(topic.groups.values()):
                if group.began < self._state.stores.snapshots:
                    yield from group.used()
        yield from self._state.captures

    def topic_deleted(self, topic: Topic) -> None:
        """Record in a snapshot that is being taken that ``topic`` is deleted.

        The log after the snapshot's beginning may name the topic, and replay must know it.
        """
        if self._todo is not None and topic.topic_id in self._captured.topics:
            deleted = capture_deleted(topic, self._start_lsn)
            self._captured.topics[topic.topic_id] = CapturedTopic(deleted)

    def _tick(self) -> None:
        self._tick_call = None
        if self.taking and self._idle():
            self._go_on()
        if self.taking and not self._writing:
            self._tick_later()

    def _tick_later(self) -> None:
        self._tick_call = self._clock.callLater(STEP_SECONDS, self._tick)

    def _go_on(self) -> None:
        if self._todo is not None:
            self._capture()
        elif not self._writing and self._wal.durable_lsn >= self._captured_lsn:
            self._writing = True
            captured, self._captured = self._captured, _Captured()
            start_lsn = self._start_lsn
            self._writer.submit(
                lambda: self._snapshots.write(start_lsn, captured.encode()),
                partial(self._written, start_lsn),
            )

    def _capture(self) -> None:
        assert self._todo is not None
        self._captured_lsn = self._wal.appended_lsn
        until = self._clock.seconds() + STEP_SECONDS
        for _ in range(STEP_THINGS):
            thing = next(self._todo, None)
            if thing is None:
                self._todo = None
                return
            self._add(thing)
            if self._clock.seconds() >= until:
                return

    def _add(self, thing: Topic | GroupPartition | Capture) -> None:
        """Capture a topic, a group partition or another part, unless it is deleted."""
        if isinstance(thing, Topic):
            captured = self._captured.topics[thing.topic_id]
            if captured.topic is None:
                captured.topic = capture_topic(thing, self._captured_lsn)
        elif isinstance(thing, GroupPartition):
            if not thing.group.deleted:
                topic_id = thing.partition.topic.topic_id
                self._captured.topics[topic_id].group_partitions.append(self._copy(thing))
        else:
            self._captured.last += thing(self._captured_lsn)

    def _copy(self, group_partition: GroupPartition) -> CapturedGroupPartition:
        return capture_group_partition(
            group_partition, self._captured_lsn, self._time.monotonic_us(), self._time.time_us()
        )

    def _meta(self) -> Encode:
        fields = {
            "next_topic_id": self._state.next_topic_id,
            "time_us": self._time.time_us(),
            "ahead_us": self._time.ahead_us,
            "first_lsn": self._state.first_lsn,
            "token_base": self._state.token_base,
            "doubted_topic_id": self._state.doubted_topic_id,
            "recorded": [
                (one.name, one.position, one.end, one.problem, one.lost)
                for one in self._state.recorded.values()
            ],
            "damage": self._state.known_damage,
        }
        chunk = SnapshotChunk(SNAPSHOT_META, b"", self._start_lsn, msgpack.packb(fields))
        return lambda: chunk

    def _written(self, start_lsn: int, size: int | None, error: Exception | None) -> None:
        self._writing = False
        if size is not None:
            self.last_bytes = size
            self.written += 1
            self.last_lsn = start_lsn
            self.last_error = None
            self._log.info("snapshot written at {lsn}", lsn=start_lsn, event_id="snapshot-written")
            self.on_written()
        else:
            assert error is not None, "a snapshot that has no size has an error"
            self.last_error = error_text(error)
            self._log.error(
                "cannot write the snapshot at {lsn}: {error}; the log keeps everything, "
                "but the next start takes longer",
                lsn=start_lsn,
                error=error,
                event_id="snapshot-failed",
            )

    def stop(self) -> None:
        """Take no more snapshots. A snapshot that is being written is finished."""
        self._stopped = True
        self._todo = None
        self._captured = _Captured()
        if self._tick_call is not None:
            self._tick_call.cancel()
            self._tick_call = None

    def write_last(self) -> None:
        """Take and write a snapshot in this thread. A clean stop does so after its last commit."""
        self._start_lsn = self._captured_lsn = self._wal.appended_lsn
        self._snapshots.write(self._start_lsn, self._encode_all())

    def _encode_all(self) -> Iterator[SnapshotChunk]:
        """Yield the chunks of all parts. The state does not change between them."""
        yield self._meta()()
        for topic in self._state.by_id.values():
            yield capture_topic(topic, self._captured_lsn)()
            group_partitions = (
                group_partition
                for group in topic.groups.values()
                for group_partition in group.used()
            )
            yield from encode_group_partitions(map(self._copy, group_partitions))
        for capture in self._state.captures:
            for encode in capture(self._captured_lsn):
                yield encode()
