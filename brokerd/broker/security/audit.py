# Tests: tests/broker/test_audit.py
"""The audit trail: a topic of the broker itself with JSON records of changes, logins and denials.

docs/security.rst, section "Audit trail", is the contract. `AuditTrail.carry_out` puts a change and
its event into one frame of the log. `AuditTrail.record` appends a login or a denial in the next
reactor turn, and no answer waits for it. It counts repeated events without writing them
(`brokerd.security.audit.RepeatFilter`), and it drops and counts events without room in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import structs
from twisted.logger import Logger

from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES, Congested
from brokerd.broker.model.topics import Topic, TopicSettings
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.size import RECORD_FRAME_BYTES
from brokerd.broker.security.audit_search import AuditSearcher, SearchDone
from brokerd.broker.topic_admin import OWN_TOPIC_BYTES
from brokerd.errors import BrokerdError, InvalidRequest, NoSpace
from brokerd.security.audit import (
    AUDIT_TOPIC,
    EVENT_BYTES_MAX,
    WINDOW_US,
    Actor,
    AuditEvent,
    AuditFilter,
    EventType,
    RepeatFilter,
    Result,
    encode_event,
    event,
)
from brokerd.values import Encoding

WAITING_MAX = 1_000
"""Events that may wait for room in the log. The trail drops others."""

RETRY_SECONDS = 1.0

ADMITTED_BYTES = EVENT_BYTES_MAX + RECORD_FRAME_BYTES + ENTRY_OVERHEAD_BYTES + OWN_TOPIC_BYTES
"""Room in the log that is reserved for one event."""

T = TypeVar("T")


class AuditTrail:
    """Writes events to the audit trail and answers queries.

    :param open_topic: `TopicAdmin.own_topic`.
    :param keep_us: retention of the trail; None disables it: changes are made without events.
    """

    _log = Logger()

    def __init__(
        self,
        context: Context,
        appender: RecordAppender,
        searcher: AuditSearcher,
        open_topic: Callable[[str, TopicSettings], Topic],
        keep_us: int | None,
    ) -> None:
        self._group_commit = context.group_commit
        self._appender = appender
        self._searcher = searcher
        self._clock = context.clock
        self._time = context.time
        self._open_topic = open_topic
        self._settings = TopicSettings(keep_us, 0, 0, False)
        self.enabled = keep_us is not None
        self._repeats = RepeatFilter()
        self._waiting: deque[AuditEvent] = deque()
        self._write_call: Timer | None = None
        self._window_call: Timer | None = None
        self._written = self._repeated = self._dropped = 0
        self._results = dict.fromkeys(Result, 0)
        """Counts of logins and denials by result, also while the trail is disabled."""
        self._logins_refused = 0
        """Logins without a place in the queue."""
        self._unlogged: int | None = None
        """Events dropped since the last log line; None: no log line yet in this window."""
        self._stopped = False

    def start(self) -> None:
        """Create the trail's topic or update its settings; without room the first event does it."""
        if self.enabled:
            try:
                self._group_commit.admit_events(OWN_TOPIC_BYTES)
                self._open_topic(AUDIT_TOPIC, self._settings)
            except (NoSpace, Congested) as error:
                self._log.warn(
                    "the topic of the audit trail cannot be created now; the first event creates "
                    "it: {problem}",
                    problem=str(error),
                    event_id="audit-closed",
                )

    def stop(self) -> None:
        """Write the counts of repeated events and all waiting events, then ignore new ones."""
        self._stopped = True
        for call in (self._write_call, self._window_call):
            if call is not None:
                call.cancel()
        self._write_call = self._window_call = None
        self._put(self._repeats.end_window())
        self._write()
        self._drop(len(self._waiting), "the broker stops")
        self._waiting.clear()
        self._searcher.stop()

    def status(self) -> dict[str, Any]:
        """Return counts since the start: events written, repeated, dropped; failed and refused
        logins; denials."""
        return {
            "enabled": self.enabled,
            "written": self._written,
            "repeated": self._repeated,
            "dropped": self._dropped,
            "logins_failed": self._results[Result.FAILURE],
            "logins_refused": self._logins_refused,
            "denied": self._results[Result.DENIED],
        }

    # -- writing ------------------------------------------------------------------------------

    def carry_out(
        self,
        actor: Actor,
        kind: EventType,
        resource: str,
        change: Callable[[], T],
        details: Mapping[str, str] | None = None,
        action: str = "",
        admit: Callable[[int], None] | None = None,
    ) -> T:
        """Call ``change``, write its event into the same frame, and return its result.

        If ``change`` raises, no event is written. ``change`` may reserve room in the log once,
        before it changes anything. Raises `NoSpace` and `Congested` before ``change`` runs.
        ``admit`` reserves room for the event; the default is `GroupCommit.admit_events`.
        """
        if not self.enabled:
            return change()
        audit_event = event(actor, kind, resource, action, details=details)
        (admit or self._group_commit.admit_events)(ADMITTED_BYTES)
        with self._group_commit.reserving(ADMITTED_BYTES):
            result = change()
        self._append(structs.replace(audit_event, time_us=self._time.time_us()))
        return result

    def record(self, audit_event: AuditEvent) -> None:
        """Write an event soon, or count it if it repeats. Raises no error."""
        if audit_event.type == EventType.LOGIN_REFUSED:
            self._logins_refused += 1
        else:
            self._results[Result(audit_event.result)] += 1
        if not self.enabled or self._stopped:
            return
        if self._window_call is None:
            self._window_call = self._clock.callLater(WINDOW_US / 1e6, self._end_window)
        if self._repeats.should_write(audit_event):
            self._put([audit_event])
        else:
            self._repeated += 1

    def _put(self, events: list[AuditEvent]) -> None:
        now_us = self._time.time_us()
        room = max(0, WAITING_MAX - len(self._waiting))
        self._waiting.extend(structs.replace(each, time_us=now_us) for each in events[:room])
        self._drop(len(events) - room, f"{WAITING_MAX} wait for room in the log already")
        if self._waiting and self._write_call is None and not self._stopped:
            # In a later turn: the current caller has reserved room that it still needs.
            self._write_call = self._clock.callLater(0, self._write)

    def _write(self) -> None:
        """Append waiting events while the log has room."""
        self._write_call = None
        try:
            while self._waiting:
                self._group_commit.admit(ADMITTED_BYTES)
                self._append(self._waiting.popleft())
        except Congested:
            if not self._stopped:
                self._write_call = self._clock.callLater(RETRY_SECONDS, self._write)
        except BrokerdError as error:
            self._drop(len(self._waiting), str(error))
            self._waiting.clear()

    def _append(self, audit_event: AuditEvent) -> None:
        """Append an event. The caller has reserved `ADMITTED_BYTES`."""
        partition = self._open_topic(AUDIT_TOPIC, self._settings).partitions[0]
        self._appender.append(partition, encode_event(audit_event), Encoding.TEXT, expires_at_us=0)
        self._written += 1

    def _end_window(self) -> None:
        self._window_call = None
        self._put(self._repeats.end_window())
        unlogged, self._unlogged = self._unlogged, None
        self._log_dropped(unlogged or 0, "for the reason logged before, in the last minute")

    def _drop(self, count: int, reason: str) -> None:
        """Count lost events. The first ones are logged at once, others once a window."""
        if count <= 0:
            return
        self._dropped += count
        if self._unlogged is None:
            self._unlogged = 0
            self._log_dropped(count, reason)
        else:
            self._unlogged += count

    def _log_dropped(self, count: int, reason: str) -> None:
        if count:
            self._log.error(
                "{count} audit events are lost: {problem}",
                count=count,
                problem=reason,
                event_id="audit-dropped",
            )

    # -- queries ------------------------------------------------------------------------------

    def query(self, query: AuditFilter, done: SearchDone) -> None:
        """Call ``done(page, error)``, at once or later, with the newest events that match.

        ``error`` is None, `DamagedData`, ``OSError``, `ArchiveUnavailable` or `ShuttingDown`.
        Raises `InvalidRequest` for a contradictory filter or a disabled trail, and `LimitExceeded`
        when too many queries wait.
        """
        if not self.enabled:
            raise InvalidRequest("audit trail is not enabled")
        query.check()
        self._searcher.ask(query, done)
