# Tests: tests/test_telemetry.py
"""Sends spans to a collector by OTLP over HTTP (docs/tracing.rst).

The package opentelemetry encodes and sends spans in a thread of its own. It is imported only when
``telemetry.endpoint`` is set. A full queue drops spans; nothing here waits for the collector,
except the end of a stop, for `STOP_SECONDS`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from twisted.logger import Logger

from brokerd import __version__
from brokerd.broker.tracing import Span
from brokerd.errors import ConfigError
from brokerd.server import sections

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

    `start` and `offer` belong to the reactor's thread. ``call_from_thread`` runs a function there.
    """

    _log = Logger(namespace="brokerd")

    def __init__(
        self,
        section: sections.Telemetry,
        headers: Mapping[str, str],
        call_from_thread: Callable[..., object],
    ) -> None:
        self._section = section
        self._headers = dict(headers)
        self._call_from_thread = call_from_thread
        self._encode: Callable[[Span], Any] | None = None
        self._processor: Any = None
        self._exporter: _CountingExporter | None = None
        self._taken = 0
        self._works = True

    def start(self) -> None:
        """Import the packages and start the thread."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

        section = self._section
        resource = Resource.create(
            {"service.name": section.service_name, "service.version": __version__}
        )
        exporter = OTLPSpanExporter(
            endpoint=section.endpoint,
            certificate_file=section.ca_file or None,
            headers=self._headers,
            timeout=section.timeout_seconds,
        )
        self._exporter = counting = _CountingExporter(
            exporter, SpanExportResult.SUCCESS, self._exported
        )
        self._encode = _encoder(resource)
        self._processor = BatchSpanProcessor(
            counting,
            max_queue_size=section.queue_spans,
            schedule_delay_millis=section.interval_ms,
            max_export_batch_size=BATCH_SPANS,
            export_timeout_millis=section.timeout_seconds * 1000,
        )

    def offer(self, span: Span) -> bool:
        """Take a span; return False if the queue is full or does not exist."""
        if self._exporter is None or self._encode is None:
            return False
        if self._taken - self._exporter.ended >= self._section.queue_spans:
            return False
        self._taken += 1
        self._processor.on_end(self._encode(span))
        return True

    def stop(self) -> None:
        """Send the spans that are left, and end. It blocks; run it in a thread."""
        if self._processor is not None:
            self._processor.shutdown()

    def status(self) -> dict[str, int]:
        """Return the counters, in values that JSON can hold."""
        exporter = self._exporter
        ended, failed = (0, 0) if exporter is None else (exporter.ended, exporter.failed)
        return {"exported": ended - failed, "failed": failed, "waiting": self._taken - ended}

    def _exported(self, is_success: bool, reason: str) -> None:
        """Report a change in the exporter's thread."""
        if is_success != self._works:
            self._works = is_success
            self._call_from_thread(self._report, is_success, reason)

    def _report(self, works: bool, reason: str) -> None:
        if works:
            self._log.info("spans reach the collector again", event_id="telemetry-works")
        else:
            self._log.warn(
                "the broker cannot send spans to {endpoint}: {reason}; it drops them and goes on",
                event_id="telemetry-failed",
                endpoint=self._section.endpoint,
                reason=reason,
            )


class _FirstWarning(logging.Handler):
    """Keeps the first warning of an export, which has the cause, in place of lines on stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text and record.name.startswith(f"{_LOGGER}.exporter"):
            self.text = record.getMessage()[:REASON_CHARS_MAX]


class _CountingExporter:
    """An exporter that counts spans. Its methods have the names that the package calls."""

    def __init__(self, exporter: Any, success: object, report: Callable[[bool, str], None]) -> None:
        self._exporter = exporter
        self._success = success
        self._report = report
        self.ended = 0
        """Spans that are exported or dropped."""
        self.failed = 0
        """Of these, spans that the collector did not take."""
        self._warning = _FirstWarning()
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._warning)
        logger.propagate = False

    def export(self, spans: Sequence[Any]) -> Any:
        is_success = False
        self._warning.text = ""
        try:
            result = self._exporter.export(spans)
            is_success = result is self._success
            return result
        finally:
            if not is_success:
                self.failed += len(spans)
            self.ended += len(spans)
            self._report(is_success, self._warning.text or "the export failed")

    def shutdown(self) -> None:
        self._exporter.shutdown()
        logger = logging.getLogger(_LOGGER)
        logger.removeHandler(self._warning)
        logger.propagate = True

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


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
