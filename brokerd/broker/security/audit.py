# Tests: tests/broker/test_audit.py
"""The audit trail: a topic of the broker's own, and who did what as JSON in its records.

docs/security.rst, section "Audit trail", is the contract. What an administrator changes is in one
frame of the log with the event that tells of it (`AuditTrail.carry_out`). Logins and denials are
appended in the next turn of the reactor, and nobody waits for that (`AuditTrail.record`): floods
of them are counted (`brokerd.security.audit.RepeatFilter`), and events without room are dropped,
which is counted too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import structs
from twisted.logger import Logger

from brokerd.broker.context import Context
from brokerd.broker.journal import (
    BATCH_FRAME_BYTES,
    RECORD_FRAME_BYTES,
    Congested,
    DelayedCall,
)
from brokerd.broker.model.topics import Topic, TopicSettings
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.security.audit_search import Answered, AuditSearcher
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
"""Events that wait for room in the log; more are dropped."""

RETRY_SECONDS = 1.0

ADMITTED_BYTES = EVENT_BYTES_MAX + RECORD_FRAME_BYTES + BATCH_FRAME_BYTES + OWN_TOPIC_BYTES
"""What an event is admitted with to the log."""

T = TypeVar("T")


class AuditTrail:
    """Keeps events for ``keep_us``; None: there is no trail, and every method does without.

    :param open_topic: `TopicAdmin.own_topic`.
    """

    _log = Logger()

    def __init__(
        self,
        context: Context,
        appender: RecordAppender,
        searches: AuditSearcher,
        open_topic: Callable[[str, TopicSettings], Topic],
        keep_us: int | None,
    ) -> None:
        self._journal = context.journal
        self._appender = appender
        self._searches = searches
        self._clock = context.clock
        self._time = context.time
        self._open_topic = open_topic
        self._settings = TopicSettings(keep_us, 0, 0, False)
        self.enabled = keep_us is not None
        self._repeats = RepeatFilter()
        self._waiting: deque[AuditEvent] = deque()
        self._write_call: DelayedCall | None = None
        self._window_call: DelayedCall | None = None
        self._written = self._repeated = self._dropped = 0
        self._results = dict.fromkeys(Result, 0)
        """How logins went, and how often somebody was denied something, trail or not."""
        self._untold: int | None = None
        """Events dropped since that was told last; None: not told in this window."""
        self._stopped = False

    def start(self) -> None:
        """Make the trail's topic, or give it its settings. Without room that is done later."""
        if self.enabled:
            try:
                self._journal.admit_events(OWN_TOPIC_BYTES)
                self._open_topic(AUDIT_TOPIC, self._settings)
            except (NoSpace, Congested) as why:
                self._log.warn(
                    "the audit trail cannot be opened now, and is with the first event: {problem}",
                    problem=str(why),
                    event_id="audit-closed",
                )

    def stop(self) -> None:
        """Write what was counted and what waits; take nothing after that."""
        self._stopped = True
        for call in (self._write_call, self._window_call):
            if call is not None:
                call.cancel()
        self._write_call = self._window_call = None
        self._put(self._repeats.end_window())
        self._write()
        self._drop(len(self._waiting), "the broker stops")
        self._waiting.clear()
        self._searches.stop()

    def status(self) -> dict[str, Any]:
        """What was written, counted and dropped since the start, and logins that failed."""
        return {
            "enabled": self.enabled,
            "written": self._written,
            "repeated": self._repeated,
            "dropped": self._dropped,
            "logins_failed": self._results[Result.FAILURE],
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
        """Call ``change`` and write that it was done into the frame that holds what it did.

        What it returns is returned, and what it raises is raised: then nothing is written. It may
        be admitted to the log once, before it changes anything. Raises `NoSpace` and `Congested`
        before anything is changed. ``admit`` finds room for the event; `Journal.admit_events` if
        none is given.
        """
        if not self.enabled:
            return change()
        said = event(actor, kind, resource, action, details=details)
        (admit or self._journal.admit_events)(ADMITTED_BYTES)
        with self._journal.leaving_room(ADMITTED_BYTES):
            done = change()
        self._append(structs.replace(said, time_us=self._time.time_us()))
        return done

    def record(self, said: AuditEvent) -> None:
        """Write an event soon, or count it if there are many. Never fails, and nobody waits."""
        self._results[Result(said.result)] += 1
        if not self.enabled or self._stopped:
            return
        if self._window_call is None:
            self._window_call = self._clock.callLater(WINDOW_US / 1e6, self._end_window)
        if self._repeats.take(said):
            self._put([said])
        else:
            self._repeated += 1

    def _put(self, events: list[AuditEvent]) -> None:
        now_us = self._time.time_us()
        room = max(0, WAITING_MAX - len(self._waiting))
        self._waiting.extend(structs.replace(said, time_us=now_us) for said in events[:room])
        self._drop(len(events) - room, f"{WAITING_MAX} wait for room in the log already")
        if self._waiting and self._write_call is None and not self._stopped:
            # In a turn of its own: whoever is at work has been admitted, and adds to the log yet.
            self._write_call = self._clock.callLater(0, self._write)

    def _write(self) -> None:
        """Append what waits, or as much as there is room for."""
        self._write_call = None
        try:
            while self._waiting:
                self._journal.admit(ADMITTED_BYTES)
                self._append(self._waiting.popleft())
        except Congested:
            if not self._stopped:
                self._write_call = self._clock.callLater(RETRY_SECONDS, self._write)
        except BrokerdError as why:
            self._drop(len(self._waiting), str(why))
            self._waiting.clear()

    def _append(self, said: AuditEvent) -> None:
        """Append an event for which `ADMITTED_BYTES` are admitted."""
        partition = self._open_topic(AUDIT_TOPIC, self._settings).partitions[0]
        self._appender.append(partition, encode_event(said), Encoding.TEXT, expires_at_us=0)
        self._written += 1

    def _end_window(self) -> None:
        self._window_call = None
        self._put(self._repeats.end_window())
        untold, self._untold = self._untold, None
        self._tell_dropped(untold or 0, "as before; these are those of the last minute")

    def _drop(self, count: int, why: str) -> None:
        """Count events that are lost; the first are told at once, others once a window."""
        if count <= 0:
            return
        self._dropped += count
        if self._untold is None:
            self._untold = 0
            self._tell_dropped(count, why)
        else:
            self._untold += count

    def _tell_dropped(self, count: int, why: str) -> None:
        if count:
            self._log.error(
                "{count} audit events are lost: {problem}",
                count=count,
                problem=why,
                event_id="audit-dropped",
            )

    # -- asking -------------------------------------------------------------------------------

    def query(self, wanted: AuditFilter, answered: Answered) -> None:
        """Call ``answered(page, error)`` with what is wanted, newest first, later or at once.

        One error or none: `DamagedData`, ``OSError`` and `ArchiveUnavailable` as reading records,
        `ShuttingDown`. Raises `InvalidRequest` for a filter that makes no sense, or when there is
        no trail; `LimitExceeded` when too many ask.
        """
        if not self.enabled:
            raise InvalidRequest("audit trail is not enabled")
        wanted.check()
        self._searches.ask(wanted, answered)
