# Tests: tests/test_telemetry.py
"""Sends spans to a collector by OTLP over HTTP (docs/tracing.rst).

The package opentelemetry encodes and sends them; it is imported only when ``telemetry.endpoint`` is
set. A full queue drops spans; nothing here waits for the collector, except the end of a stop, for
`STOP_SECONDS`. The package's own queue is not used: its stop may take 30 s, it wants spans in the
package's form, which takes 20 us each, from the reactor's thread, and it does not count drops.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from brokerd import __version__
from brokerd.broker.clock import Timer
from brokerd.broker.tracing import Span
from brokerd.errors import ConfigError, error_text
from brokerd.server import sections
from brokerd.server.host import Threads

BATCH_SPANS = 512
"""The most spans of one request to the collector."""
STOP_SECONDS = 3.0
"""Longest wait of a stop for the spans that are left."""
TEXT_CHARS_MAX = 256
"""Length at which texts in spans are cut."""
REASON_CHARS_MAX = 300
"""Length at which the reason of a failed export is cut."""

_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_LOGGER = "opentelemetry"


def check_packages(section: sections.Telemetry) -> None:
    """Raise ConfigError if the section needs packages or a file that are not there."""
    if not section.endpoint:
        return
    if section.ca_file and not os.access(section.ca_file, os.R_OK):
        raise ConfigError(f"telemetry.ca_file: cannot read {section.ca_file}")
    for package in _PACKAGES:
        try:
            is_there = find_spec(package) is not None
        except ModuleNotFoundError:  # its parent is not there
            is_there = False
        if not is_there:
            raise ConfigError(
                f"telemetry.endpoint is set, and {package} is not installed: "
                "pip install 'brokerd[telemetry]'"
            )


class Telemetry:
    """Spans on their way to the collector; a `SpanSink`.

    One thread encodes and sends a batch after the other. Everything else runs in the reactor's.
    """

    _log = Logger(namespace="brokerd")

    def __init__(
        self,
        section: sections.Telemetry,
        headers: Mapping[str, str],
        threads: Threads,
        clock: Any,
    ) -> None:
        self._section = section
        self._headers = dict(headers)
        self._threads = threads
        self._clock = clock
        self._exporter: _Exporter | None = None
        self._waiting: deque[Span] = deque()
        self._sending = 0
        """Spans of the export under way."""
        self._timer: Timer | None = None
        self._ended: Deferred[None] | None = None
        """Fires when no span is left, at a stop."""
        self._works = True
        self._exported = 0
        self._failed = 0

    def start(self) -> None:
        """Import the packages and start the thread."""
        self._threads.start()
        self._exporter = _Exporter(self._section, self._headers)

    def offer(self, span: Span) -> bool:
        """Take a span; return False if the queue is full or closed."""
        waiting = self._waiting
        if len(waiting) + self._sending >= self._section.queue_spans or self._ended is not None:
            return False
        waiting.append(span)
        self._go_on()
        return True

    def _go_on(self) -> None:
        """Send a batch if it is full or nothing may follow it. Otherwise wait for more spans."""
        if self._sending or not self._waiting or self._exporter is None:
            return
        if len(self._waiting) >= BATCH_SPANS or self._ended is not None:
            self._send()
        elif self._timer is None:
            self._timer = self._clock.callLater(self._section.interval_ms / 1000, self._send)

    def _send(self) -> None:
        self._stop_timer()
        assert self._exporter is not None
        batch = [self._waiting.popleft() for _ in range(min(BATCH_SPANS, len(self._waiting)))]
        self._sending = len(batch)
        self._threads.submit(partial(self._exporter.export, batch), self._sent)

    def _sent(self, reason: str, error: Exception | None) -> None:
        """Count a batch. ``reason`` tells why the collector did not take it."""
        count, self._sending = self._sending, 0
        if error is not None:
            reason = error_text(error)[:REASON_CHARS_MAX]
        if reason:
            self._failed += count
        else:
            self._exported += count
        self._report(not reason, reason)
        self._go_on()
        if self._ended is not None and not self._sending and not self._ended.called:
            self._ended.callback(None)

    def _report(self, works: bool, reason: str) -> None:
        """Log the first failure, and the first success after it."""
        if works == self._works or self._exporter is None:
            return
        self._works = works
        if works:
            self._log.info("spans reach the collector again", event_id="telemetry-works")
        else:
            self._log.warn(
                "the broker cannot send spans to {endpoint}: {reason}; it drops them and goes on",
                event_id="telemetry-failed",
                endpoint=self._section.endpoint,
                reason=reason,
            )

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    async def stop(self) -> None:
        """Send the spans that are left, within STOP_SECONDS, and end the thread."""
        self._stop_timer()
        ended: Deferred[None] = Deferred()
        self._ended = ended
        self._go_on()
        if not self._sending:
            ended.callback(None)
        try:
            await ended.addTimeout(STOP_SECONDS, self._clock)
        except TimeoutError:
            self._log.warn(
                "the collector did not take the last spans within {seconds} s; the stop goes on "
                "without them",
                event_id="telemetry-hangs",
                seconds=STOP_SECONDS,
            )
        self.abandon()
        self._threads.stop(0.0)

    def abandon(self) -> None:
        """Send nothing more. An export under way ends soon, by its timeout at the latest."""
        self._stop_timer()
        self._waiting.clear()
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def status(self) -> dict[str, int]:
        """Return the counters, in values that JSON can hold."""
        waiting = len(self._waiting) + self._sending
        return {"exported": self._exported, "failed": self._failed, "waiting": waiting}


class _FirstWarning(logging.Handler):
    """Keeps the first warning of an export, which has the cause, in place of lines on stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text and record.name.startswith(f"{_LOGGER}.exporter"):
            self.text = record.getMessage()[:REASON_CHARS_MAX]


class _Exporter:
    """The package's exporter. `export` belongs to the thread."""

    def __init__(self, section: sections.Telemetry, headers: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        resource = Resource.create(
            {"service.name": section.service_name, "service.version": __version__}
        )
        self._encode = _encoder(resource)
        self._success = SpanExportResult.SUCCESS
        self._exporter = OTLPSpanExporter(
            endpoint=section.endpoint,
            certificate_file=section.ca_file or None,
            headers=headers,
            timeout=section.timeout_seconds,
        )
        self._warning = _FirstWarning()
        logging.getLogger(_LOGGER).addHandler(self._warning)  # for good: lines may come late

    def export(self, batch: Sequence[Span]) -> str:
        """Send spans; return why the collector did not take them, "" if it did."""
        self._warning.text = ""
        result = self._exporter.export([self._encode(span) for span in batch])
        return "" if result is self._success else self._warning.text or "the export failed"

    def close(self) -> None:
        """Interrupt the waits of an export, and close the connection."""
        self._exporter.shutdown()


def _encoder(resource: Any) -> Callable[[Span], Any]:
    """Return the function that makes the package's span of ours."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import (
        Link,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        TraceState,
    )

    kinds = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
    sampled = TraceFlags(TraceFlags.SAMPLED)
    scope = InstrumentationScope("brokerd", __version__)
    fine, failed = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
    no_state = TraceState()

    def encode(span: Span) -> Any:
        parent = span.parent
        state = TraceState.from_header([parent.state]) if parent.state else no_state

        def context(span_id: int, is_remote: bool = False) -> Any:
            return SpanContext(parent.trace_id, span_id, is_remote, sampled, state)

        attributes = {
            name: _text(value) if isinstance(value, str) else value
            for name, value in span.attributes.items()
        }
        if span.error:
            attributes["error.type"] = span.error
        return ReadableSpan(
            name=_text(span.name),
            context=context(span.span_id),
            parent=context(parent.span_id, is_remote=True),
            resource=resource,
            attributes=attributes,
            links=[Link(context(span.linked_id))] if span.linked_id else (),
            kind=kinds[span.kind],
            status=failed if span.error else fine,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )

    return encode


def _text(text: str) -> str:
    """Cut a long text, and replace the surrogates that UTF-8 cannot express."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
