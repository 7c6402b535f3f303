# Tests: tests/broker/test_bounds.py
"""Writes ``state/bounds`` and ``state/schemas`` for the rollup (docs/archive-format.rst).

The broker writes the file at its start and stop, after it seals a segment, once a minute while the
log grows, on request, and soon after a change that invalidates a bound: a seek, a commit to a lower
offset, new settings of a topic. The broker logs a failed write and tries again. It writes the
schemas first, if they have changed since their last write.

The capture runs in short steps that do not block the reactor. The write follows when the captured
state is synced to the disk at every durability: removed records must not come back.
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
from brokerd.archive.contract.schemas import FILE_NAME as SCHEMAS_NAME
from brokerd.archive.contract.schemas import StoredSchema, StoredSchemas, encode_schemas
from brokerd.broker.archive.access import ArchiveAccess
from brokerd.broker.archive.bounds import CommitPlace, HeldFrom, capture
from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.light_first import LightFirst
from brokerd.broker.model.log_id import LogId, find_log_id
from brokerd.errors import error_text
from brokerd.wal.disk import write_atomically
from brokerd.worker_pool import WorkerPool

STEP_PIECES = 200
"""Topics, or pieces of large topics, captured in one step."""

STEP_SECONDS = 0.002
"""Longest duration of a step, and the pause between steps."""

EVERY_SECONDS = 60.0
"""Interval of writes while the log grows."""

SOON_SECONDS = 1.0
"""Delay of a write after a change, so that more changes join it."""

RETRY_SECONDS = 5.0
"""Delay before the next attempt after a failed write."""

REST = 20
"""Least pause after a write, as a multiple of its duration. Requests do not wait for it."""

Written = Callable[[Exception | None], None]
"""Called with None when the bounds are durable, else with the error."""


Schemas = tuple[StoredSchema, ...]


class _Writing:
    """One write under way: its content, its start time and its requests."""

    def __init__(
        self, head: Bounds, schemas: Schemas, began: float, requests: list[Written]
    ) -> None:
        self.head = head
        self.schemas = schemas
        self.began = began
        self.requests = requests
        self.topics: list[bytes] = []


class BoundsWriter:
    """Writes the file in ``writer``, the thread that writes snapshots.

    ``places`` returns the known damaged places of the log, and ``schemas`` the registered versions:
    the same object while they are the same.
    """

    _log = Logger()

    def __init__(
        self,
        context: Context,
        access: ArchiveAccess,
        writer: WorkerPool,
        commit_place: CommitPlace,
        places: Callable[[], set[DamagedPlace]],
        schemas: Callable[[], Schemas] = tuple,
        held_from: HeldFrom = lambda partition: None,
    ) -> None:
        self._access = access
        self._state = context.state
        self._wal = context.wal
        self._group_commit = context.group_commit
        self._writer = writer
        self._light_first = LightFirst(context.group_commit, context.clock)
        self._clock = context.clock
        self._time = context.time
        self._commit_place = commit_place
        self._places = places
        self._schemas = schemas
        self._held_from = held_from
        self._written_schemas: Schemas | None = None
        self.log_id: str | None = None
        """None until the broker reads or makes it. Making it needs room on the disk."""
        self.written = 0
        self.lsn = 0
        """The last write covers all entries of the log below this LSN."""
        self.last_error: str | None = None
        self.on_written: Callable[[], None] = lambda: None
        """Called after each write that succeeds while the broker serves."""
        self._on_log_id: Callable[[str], None] | None = None
        self._requests: list[Written] = []
        self._wanted = False
        """Whether a change other than growth of the log calls for a write."""
        self._busy = False
        self._call: Timer | None = None
        self._due = 0.0
        self._rest_until = 0.0
        self._stopped = False

    # -- life ---------------------------------------------------------------------------------

    def find_log_id(self) -> None:
        """Read or make the id of the log; log an error. Blocks; for the start, after the replay."""
        try:
            self._set_log_id(self._find_log_id())
        except OSError as error:
            self._report(error)

    def start(self, on_log_id: Callable[[str], None]) -> None:
        """Write the file now and from then on after each change.

        Calls ``on_log_id`` with the id of the log, now or when the broker has made it.
        """
        self._on_log_id = on_log_id
        self._announce_log_id()
        self.changed()

    def _announce_log_id(self) -> None:
        if self._on_log_id is not None and self.log_id is not None:
            on_log_id, self._on_log_id = self._on_log_id, None
            on_log_id(self.log_id)

    def stop(self) -> None:
        """Stop all work and drop waiting callbacks."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def last_write(self) -> Callable[[], None]:
        """Capture the bounds; return the write, which blocks and logs an error.

        For a clean stop, after the last commit.
        """
        head, schemas = self._with_end(self._head()), self._schemas()
        pieces = capture(self._state.by_id.values(), self._commit_place, self._held_from)
        topics = [encode_topic(topic) for topic in pieces if topic is not None]

        def write() -> None:
            try:
                self._write(head, schemas, topics)
            except (OSError, MemoryError) as error:
                self._report(error)

        return write

    def status(self) -> dict[str, Any]:
        """Return the number of writes, the covered LSN and the last error as JSON values."""
        return {"written": self.written, "lsn": self.lsn, "error": self.last_error}

    # -- schedule -----------------------------------------------------------------------------

    def request(self, written: Written) -> None:
        """Write the current bounds as soon as possible, then call ``written``."""
        self._requests.append(written)
        self._plan(0)

    def changed(self) -> None:
        """Write soon, because a bound may be invalid or a new segment is sealed."""
        self._wanted = True
        self._plan(max(SOON_SECONDS, self._rest_until - self._clock.seconds()))

    def _plan(self, seconds: float) -> None:
        """Check in so many seconds whether to write, unless an earlier check or a write is due."""
        due = self._clock.seconds() + seconds
        if self._stopped or self._busy or (self._call is not None and self._due <= due):
            return
        if self._call is not None:
            self._call.cancel()
        self._due = due
        self._call = self._clock.callLater(seconds, self._check)

    def _check(self) -> None:
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
        writing = _Writing(self._head(), self._schemas(), self._clock.seconds(), requests)
        # Later topics have ids from `Bounds.next_topic_id` of the head on.
        topics = list(self._state.by_id.values())
        self._step(writing, capture(topics, self._commit_place, self._held_from))

    def _head(self) -> Bounds:
        """Return the bounds without topics. The write adds the log id."""
        return Bounds(
            log_id="",
            lsn=self._wal.appended_lsn,
            time_us=self._time.removal_us(),
            time_settled=True,
            next_topic_id=self._state.topics_known_below,
            topics=[],
            damage=sorted(self._places()),
        )

    def _with_end(self, head: Bounds) -> Bounds:
        """Add the end of the log, which is above all that the capture saw."""
        lsn, last = self._wal.appended_lsn, self._wal.last_segment()
        if last is None:
            return structs.replace(head, reached_lsn=lsn)
        segment_id = last.segment_id.hex()
        return structs.replace(
            head, reached_lsn=lsn, segment_lsn=last.first_lsn, segment_id=segment_id
        )

    def _step(self, writing: _Writing, pieces: Iterator[TopicBounds | None]) -> None:
        self._call = None
        if self._light_first.gives_way():
            self._call = self._clock.callLater(0, self._step, writing, pieces)
            return
        until = self._clock.seconds() + STEP_SECONDS
        for _ in range(STEP_PIECES):
            try:
                topic = next(pieces)
            except StopIteration:
                writing.head = self._with_end(writing.head)
                self._group_commit.when_all_durable(
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
                lambda: None if self._stopped else self._write_all(writing),
                lambda _, error: self._done(writing, error),
            )

    def _write_all(self, writing: _Writing) -> None:
        self._write(writing.head, writing.schemas, writing.topics)

    def _write(self, head: Bounds, schemas: Schemas, topics: list[bytes]) -> None:
        """Write the files atomically and durably. Blocks; raises OSError."""
        if self.log_id is None:
            self._set_log_id(self._find_log_id())
        assert self.log_id is not None
        data = encode_bounds(structs.replace(head, log_id=self.log_id), topics)
        self._access.disk.make_directory(self._access.state_path)
        if schemas is not self._written_schemas:
            self._write_schemas(self.log_id, schemas)
        write_atomically(self._access.disk, self._access.state_path, FILE_NAME, [data])
        self.written += 1
        self.lsn = head.lsn
        self.last_error = None

    def _write_schemas(self, log_id: str, schemas: Schemas) -> None:
        """Write the schemas. A log that never had one has no file. Blocks; raises OSError."""
        disk, directory = self._access.disk, self._access.state_path
        if schemas or SCHEMAS_NAME in disk.list(directory):
            data = encode_schemas(StoredSchemas(log_id, [*schemas]))
            write_atomically(disk, directory, SCHEMAS_NAME, [data])
        self._written_schemas = schemas

    def _done(self, writing: _Writing, error: Exception | None) -> None:
        if self._stopped:
            return
        self._busy = False
        now = self._clock.seconds()
        self._rest_until = now + REST * (now - writing.began)
        self._announce_log_id()
        if error is not None:
            self._report(error)
            self._wanted = True
        else:
            self.on_written()
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

    def _set_log_id(self, found: LogId) -> None:
        self.log_id = found.text
        if found.problem:
            self._log.error(
                "{problem}; the broker made it again{how}",
                event_id="log-id-damaged",
                problem=found.problem,
                how="; an older archive belongs to another log" if found.is_new else "",
            )
        elif found.is_new:
            self._log.info(
                "the log has the new id {log_id}", event_id="log-id-made", log_id=found.text
            )

    def _report(self, error: Exception) -> None:
        """Log why a write failed, once until a write succeeds."""
        if self.last_error is None:
            self._log.error(
                "the broker cannot write state/bounds: {error}; it tries again, and until then "
                "brokerd-rollup uses the last file",
                event_id="bounds-failed",
                error=error,
            )
        self.last_error = error_text(error)
