# Tests: tests/broker/test_bounds.py
"""Writes ``state/bounds`` for the job that keeps the archive (docs/archive-format.rst).

It is written when the broker has started and when it stops, when a segment was sealed, once a
minute while the log grows, on request, and soon after a change that takes back what it says: a
seek, a commit further back, other settings of a topic. A write that fails is told and tried again.

It is captured in steps so that the reactor is never held up, and written once all that it says is
on the disk, whatever the durability: what is removed because of it must not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs
from twisted.logger import Logger

from brokerd.archive.contract.bounds import (
    FILE_NAME,
    Bounds,
    DamagedPlace,
    TopicBounds,
    encode_bounds,
    encode_topic,
)
from brokerd.broker.archive.access import ArchiveAccess
from brokerd.broker.archive.bounds import CommitPlace, capture
from brokerd.broker.context import Context
from brokerd.broker.journal import DelayedCall
from brokerd.broker.model.log_id import LogId, find_log_id
from brokerd.errors import error_text
from brokerd.wal import WorkerPool
from brokerd.wal.disk import write_atomically

STEP_PIECES = 200
"""Topics, or pieces of large ones, captured in one step."""

STEP_SECONDS = 0.005
"""How long a step may take, and the pause between steps."""

EVERY_SECONDS = 60.0
"""How often it is written while the log grows."""

SOON_SECONDS = 1.0
"""How long further changes may join one before it is written."""

RETRY_SECONDS = 5.0
"""When a write that failed is tried again."""

REST = 20
"""But for requests, it rests so many times as long as it took."""

Written = Callable[[Exception | None], None]
"""Called when the bounds are durable, or with why they are not."""


class _Writing:
    """One file on its way: what it says, when it was begun, and who asked for it."""

    def __init__(self, head: Bounds, began: float, requests: list[Written]) -> None:
        self.head = head
        self.began = began
        self.requests = requests
        self.topics: list[bytes] = []


class BoundsWriter:
    """Has the file written in ``writer``, the thread that writes snapshots.

    ``places`` gives the damaged places of the log that are known by now.
    """

    _log = Logger()

    def __init__(
        self,
        context: Context,
        access: ArchiveAccess,
        writer: WorkerPool,
        commit_place: CommitPlace,
        places: Callable[[], set[DamagedPlace]],
    ) -> None:
        self._access = access
        self._state = context.state
        self._wal = context.wal
        self._journal = context.journal
        self._writer = writer
        self._clock = context.clock
        self._time = context.time
        self._commit_place = commit_place
        self._places = places
        self.log_id: str | None = None
        """None until it is known: when it is made, the disk must have room."""
        self.written = 0
        self.lsn = 0
        """What was written last holds all that the log said below."""
        self.last_error: str | None = None
        self._tell_id: Callable[[str], None] | None = None
        self._requests: list[Written] = []
        self._wanted = False
        """Whether there is reason to write it other than that the log grew."""
        self._busy = False
        self._call: DelayedCall | None = None
        self._due = 0.0
        self._rest_until = 0.0
        self._stopped = False

    # -- life ---------------------------------------------------------------------------------

    def find_log_id(self) -> None:
        """Know the id of the log, or say why not. Blocks; for the start, after the replay."""
        try:
            self._know(self._find_log_id())
        except OSError as error:
            self._tell(error)

    def start(self, know: Callable[[str], None]) -> None:
        """Write it, and from then on whenever there is reason to.

        ``know`` is told the id of the log, now or when there is one.
        """
        self._tell_id = know
        self._pass_id_on()
        self.changed()

    def _pass_id_on(self) -> None:
        if self._tell_id is not None and self.log_id is not None:
            tell, self._tell_id = self._tell_id, None
            tell(self.log_id)

    def stop(self) -> None:
        """Begin nothing any more; who asked is never told."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def write_last(self) -> None:
        """Write it here and now, or say why not; for a clean stop, after the last commit."""
        head = self._head()
        pieces = capture(self._state.by_id.values(), self._commit_place)
        topics = [encode_topic(topic) for topic in pieces if topic is not None]
        try:
            self._write(head, topics)
        except OSError as error:
            self._tell(error)

    def status(self) -> dict[str, Any]:
        """What was written, in values that JSON can hold."""
        return {"written": self.written, "lsn": self.lsn, "error": self.last_error}

    # -- when ---------------------------------------------------------------------------------

    def request(self, written: Written) -> None:
        """Write what is so now, as soon as can be, and call back then."""
        self._requests.append(written)
        self._plan(0)

    def changed(self) -> None:
        """Write it soon: what it says may be wrong by now, or the job wants to know of more."""
        self._wanted = True
        self._plan(max(SOON_SECONDS, self._rest_until - self._clock.seconds()))

    def _plan(self, seconds: float) -> None:
        """Have a look in so many seconds, if none is planned before; while one is on, after it."""
        due = self._clock.seconds() + seconds
        if self._stopped or self._busy or (self._call is not None and self._due <= due):
            return
        if self._call is not None:
            self._call.cancel()
        self._due = due
        self._call = self._clock.callLater(seconds, self._look)

    def _look(self) -> None:
        self._call = None
        if self._requests or self._wanted or self._wal.appended_lsn > self.lsn:
            self._begin()
        else:
            self._plan(EVERY_SECONDS)

    # -- writing ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._busy = True
        self._wanted = False
        requests, self._requests = self._requests, []
        writing = _Writing(self._head(), self._clock.seconds(), requests)
        # Topics that come later have ids from the head's on.
        topics = list(self._state.by_id.values())
        self._step(writing, capture(topics, self._commit_place))

    def _head(self) -> Bounds:
        """All but the topics. The id is that of the time of writing."""
        return Bounds(
            log_id="",
            lsn=self._wal.appended_lsn,
            time_us=self._time.removal_us(),
            time_settled=True,
            next_topic_id=self._state.topics_known_below,
            topics=[],
            damage=sorted(self._places()),
        )

    def _step(self, writing: _Writing, pieces: Iterator[TopicBounds | None]) -> None:
        self._call = None
        until = self._clock.seconds() + STEP_SECONDS
        for _ in range(STEP_PIECES):
            try:
                topic = next(pieces)
            except StopIteration:
                self._journal.when_all_durable(
                    lambda: self._wal.when_synced(lambda error: self._submit(writing, error))
                )
                return
            if topic is not None:
                writing.topics.append(encode_topic(topic))
            if self._clock.seconds() >= until:
                break
        self._call = self._clock.callLater(STEP_SECONDS, self._step, writing, pieces)

    def _submit(self, writing: _Writing, error: Exception | None) -> None:
        if error is not None:
            self._done(writing, error)
        elif not self._stopped:
            self._writer.submit(
                lambda: self._write(writing.head, writing.topics),
                lambda _, error: self._done(writing, error),
            )

    def _write(self, head: Bounds, topics: list[bytes]) -> None:
        """Write the file, whole and durable. Blocks; raises OSError."""
        if self.log_id is None:
            self._know(self._find_log_id())
        assert self.log_id is not None
        data = encode_bounds(structs.replace(head, log_id=self.log_id), topics)
        self._access.disk.make_directory(self._access.state_path)
        write_atomically(self._access.disk, self._access.state_path, FILE_NAME, [data])
        self.written += 1
        self.lsn = head.lsn
        self.last_error = None

    def _done(self, writing: _Writing, error: Exception | None) -> None:
        if self._stopped:
            return
        self._busy = False
        now = self._clock.seconds()
        self._rest_until = now + REST * (now - writing.began)
        self._pass_id_on()
        if error is not None:
            self._tell(error)
            self._wanted = True
        for written in writing.requests:
            written(error)
        if self._requests:
            self._plan(0)
        elif error is not None:
            self._plan(RETRY_SECONDS)
        elif self._wanted:
            self.changed()
        else:
            self._plan(EVERY_SECONDS)

    def _find_log_id(self) -> LogId:
        return find_log_id(self._access.disk, self._access.state_path, self._access.random_bytes)

    def _know(self, found: LogId) -> None:
        self.log_id = found.text
        if found.problem:
            self._log.error(
                "{problem}; it was made again{how}",
                event_id="log-id-damaged",
                problem=found.problem,
                how=": an archive made before is that of another log" if found.is_new else "",
            )
        elif found.is_new:
            self._log.info(
                "the log has the id {log_id} from now on", event_id="log-id-made", log_id=found.text
            )

    def _tell(self, error: Exception) -> None:
        """Say once why the file cannot be written, until it can."""
        if self.last_error is None:
            self._log.error(
                "state/bounds cannot be written: {error}; it is tried again, and until then "
                "brokerd-rollup goes by the last that was",
                event_id="bounds-failed",
                error=error,
            )
        self.last_error = error_text(error)
