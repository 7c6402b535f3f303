"""Spans on their way to a collector: OTLP over HTTP, to a small collector in the test's process."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import pytest_twisted
from msgspec import structs
from prometheus_client import generate_latest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

import brokerd
from brokerd.admin.metrics import make_registry
from brokerd.broker.tracing import Span, TraceContext
from brokerd.codecs.mamamia import Acquire, Produce, Settle, encode_request
from brokerd.errors import ConfigError
from brokerd.server import assembly, telemetry
from brokerd.server.config import Config, load, telemetry_headers, with_secrets
from brokerd.server.sections import Telemetry as Section
from brokerd.server.telemetry import (
    BATCH_SPANS,
    STOP_SECONDS,
    TEXT_CHARS_MAX,
    Telemetry,
    check_packages,
)
from tests.broker.test_tracing import PARENT, TRACE, metadata
from tests.corehouse import CoreHouse, HandClock, HandThreads

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="brokerd[telemetry]"
)

LOADS = re.compile(r"^(import|from) opentelemetry", re.MULTILINE)
SPAN = Span(
    "settle orders",
    "server",
    TraceContext(TRACE, PARENT, True, "v=1"),
    0xABC,
    1_700_000_000_000_000_000,
    1_700_000_000_250_000_000,
    {"messaging.system": "brokerd", "messaging.brokerd.lease.attempt": 2, "long": "é" * 1_000},
    "failed",
    0xDEF,
)


class Collector:
    """An OTLP collector that keeps what it gets; ``status`` is the code of its answers."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.answers = Event()
        """Unset: the collector takes requests and does not answer."""
        self.answers.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.answers.wait(120)
                collector.headers.append({name.lower(): v for name, v in self.headers.items()})
                request = trace_service.ExportTraceServiceRequest.FromString(body)
                collector.requests.append(request)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture
def nobody() -> str:
    """A URL at which nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"


class Desk:
    """Telemetry whose clock and thread the test drives."""

    def __init__(self, url: str, **options: Any) -> None:
        section = Section(endpoint=url, **{"timeout_seconds": 5, "interval_ms": 100, **options})
        self.clock, self.threads = HandClock(), HandThreads()
        headers = {"Authorization": "Bearer secret"}
        self.sender = Telemetry(section, headers, self.threads, self.clock)
        self.sender.start()

    def pass_time(self, seconds: float = 0.1) -> None:
        self.clock.advance(seconds)
        self.threads.run()

    def send(self, *spans: Span) -> None:
        for span in spans:
            assert self.sender.offer(span)
        self.pass_time()

    def stop(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.sender.stop())


def attributes(values: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in values}


# -- sending ----------------------------------------------------------------------------------


def test_a_span_on_the_wire(collector: Collector) -> None:
    desk = Desk(collector.url, service_name="orders-broker")
    assert desk.sender.offer(SPAN)
    desk.pass_time(0.09)
    assert not collector.requests, "more spans may follow"
    desk.pass_time(0.02)
    (request,) = collector.requests
    (resource,) = request.resource_spans
    found = attributes(resource.resource.attributes)
    assert found["service.name"] == "orders-broker" and found["service.version"]
    assert resource.scope_spans[0].scope.name == "brokerd"
    (span,) = collector.spans()
    assert span.name == "settle orders"
    assert span.trace_id == TRACE.to_bytes(16, "big")
    assert span.span_id == (0xABC).to_bytes(8, "big")
    assert span.parent_span_id == PARENT.to_bytes(8, "big")
    assert span.trace_state == "v=1"
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.start_time_unix_nano == SPAN.start_ns and span.end_time_unix_nano == SPAN.end_ns
    assert attributes(span.attributes) == {
        "messaging.system": "brokerd",
        "messaging.brokerd.lease.attempt": 2,
        "long": "é" * TEXT_CHARS_MAX,
        "error.type": "failed",
    }
    assert span.status.code == span.status.STATUS_CODE_ERROR
    (link,) = span.links
    assert link.trace_id == span.trace_id and link.span_id == (0xDEF).to_bytes(8, "big")
    assert collector.headers[0]["authorization"] == "Bearer secret"
    assert desk.sender.status() == {"exported": 1, "failed": 0, "waiting": 0}


def test_an_odd_span_does_not_stop_the_others(collector: Collector) -> None:
    """Names of clients may be no UTF-8, and a tracestate may break W3C's rules."""
    odd = SPAN._replace(
        name="lease \udc80",
        kind="internal",
        parent=SPAN.parent._replace(state="no member"),
        attributes={"messaging.client.id": "caf\udce9"},
        error="",
        linked_id=0,
    )
    desk = Desk(collector.url)
    desk.send(odd, SPAN)
    first, second = collector.spans()
    assert first.name == "lease ?" and attributes(first.attributes) == {
        "messaging.client.id": "caf?"
    }
    assert first.kind == first.SPAN_KIND_INTERNAL
    assert first.status.code == first.status.STATUS_CODE_UNSET
    assert not first.trace_state and not first.links
    assert second.name == "settle orders"


def test_a_collector_that_is_away(
    nobody: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for logger in (logging.getLogger(), logging.getLogger("opentelemetry")):
        monkeypatch.setattr(logger, "handlers", [])
    desk = Desk(nobody, timeout_seconds=1.3)  # two attempts
    with capturedLogs() as logs:
        desk.send(SPAN)
    (event,) = logs
    assert event["event_id"] == "telemetry-failed" and event["endpoint"] == nobody
    assert "refused" in event["reason"] and "secret" not in str(event)
    assert desk.sender.status() == {"exported": 0, "failed": 1, "waiting": 0}
    assert capfd.readouterr() == ("", ""), "the package writes nothing past the log"


def test_a_collector_that_refuses_and_recovers(collector: Collector) -> None:
    """Each change is one line in the log."""
    desk = Desk(collector.url)
    with capturedLogs() as logs:
        for status in (200, 400, 400, 200, 200):
            collector.status = status
            desk.send(SPAN)
    assert [event["event_id"] for event in logs] == ["telemetry-failed", "telemetry-works"]
    assert "400" in logs[0]["reason"]
    assert desk.sender.status() == {"exported": 3, "failed": 2, "waiting": 0}


def test_a_fault_in_the_package_is_a_failed_export(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("planted")

    desk = Desk(collector.url)
    monkeypatch.setattr(desk.sender._exporter, "_encode", fail)
    with capturedLogs() as logs:
        desk.send(SPAN)
    assert "planted" in logs[0]["reason"]
    assert desk.sender.status() == {"exported": 0, "failed": 1, "waiting": 0}


def test_full_batches_do_not_wait(collector: Collector) -> None:
    """One export is under way at a time; what came meanwhile follows it."""
    desk = Desk(collector.url)
    for _ in range(2 * BATCH_SPANS + 1):
        assert desk.sender.offer(SPAN)
    desk.pass_time(0.0)
    assert [
        len(request.resource_spans[0].scope_spans[0].spans) for request in collector.requests
    ] == [
        BATCH_SPANS,
        BATCH_SPANS,
    ]
    assert desk.sender.status()["waiting"] == 1
    desk.pass_time()
    assert len(collector.spans()) == 2 * BATCH_SPANS + 1
    desk.pass_time(9.0)
    assert len(collector.requests) == 3, "nothing is sent when there is nothing"


def test_a_stuck_collector_fills_the_queue(collector: Collector) -> None:
    """Spans of the export under way count, because they are in memory, too."""
    desk = Desk(collector.url, queue_spans=1_000)
    assert sum(desk.sender.offer(SPAN) for _ in range(2_000)) == 1_000
    desk.clock.advance(100.0)
    assert not desk.sender.offer(SPAN)
    assert desk.sender.status() == {"exported": 0, "failed": 0, "waiting": 1_000}
    desk.pass_time()
    desk.send(SPAN)
    assert desk.sender.status() == {"exported": 1_001, "failed": 0, "waiting": 0}


def test_a_stop_sends_all_that_is_left(collector: Collector) -> None:
    desk = Desk(collector.url)
    for _ in range(BATCH_SPANS + 5):
        assert desk.sender.offer(SPAN)
    stopped = desk.stop()
    assert not stopped.called and not desk.sender.offer(SPAN), "the queue is closed"
    desk.threads.run()
    assert stopped.called and len(collector.spans()) == BATCH_SPANS + 5
    assert Desk(collector.url).stop().called, "there is nothing to wait for"


def test_a_stop_ends_without_a_stuck_collector(
    collector: Collector, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for logger in (logging.getLogger(), logging.getLogger("opentelemetry")):
        monkeypatch.setattr(logger, "handlers", [])
    desk = Desk(collector.url)
    for _ in range(BATCH_SPANS + 5):
        assert desk.sender.offer(SPAN)
    with capturedLogs() as logs:
        stopped = desk.stop()
        desk.clock.advance(STOP_SECONDS - 0.1)
        assert not stopped.called
        desk.clock.advance(0.2)
    assert stopped.called and [event["event_id"] for event in logs] == ["telemetry-hangs"]
    assert not desk.clock.getDelayedCalls()
    desk.pass_time()
    assert not collector.requests, "the export that ended late was the last"
    assert desk.sender.status()["waiting"] == 0
    assert capfd.readouterr().err == "", "it writes nothing past the log"


# -- in the broker ----------------------------------------------------------------------------


def test_a_whole_broker_sends_its_spans(collector: Collector) -> None:
    section = Section(endpoint=collector.url, interval_ms=100)
    house = CoreHouse(Config(telemetry=section))
    wire = house.connect_to(house.factory("mamamia"))
    for request in (
        Produce("orders", b"x", metadata=metadata(tracestate="v=1")),
        Produce("orders", b"not traced"),
        Acquire("orders", "g", "worker"),
        Settle("orders", "g", 0, "worker", True),
    ):
        wire.send_bytes(encode_request(request))
        house.run()
    house.pass_time(0.2)
    assert len(collector.spans()) == 3
    spans = {span.name: span for span in collector.spans()}
    assert spans.keys() == {"produce orders", "lease orders", "settle orders"}
    ids = {span.span_id for span in spans.values()}
    assert len(ids) == 3 and bytes(8) not in ids
    assert spans["settle orders"].links[0].span_id == spans["lease orders"].span_id
    for span in spans.values():
        assert span.trace_id == TRACE.to_bytes(16, "big") and span.trace_state == "v=1"
    lines = generate_latest(make_registry(house.core.status())).decode().splitlines()
    for operation in ("produce", "lease", "settle"):
        assert f'brokerd_telemetry_spans_total{{operation="{operation}"}} 1.0' in lines
    assert "brokerd_telemetry_exported_total 3.0" in lines
    assert 'brokerd_telemetry_dropped_total{limit="queue"} 0.0' in lines
    wire.send_bytes(encode_request(Produce("orders", b"last", metadata=metadata())))
    house.run()
    house.stop()
    assert len(collector.spans()) == 4, "a stop sends what is left"


@pytest_twisted.ensureDeferred
async def test_a_stop_does_not_wait_for_a_stuck_collector(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted.internet import reactor

    monkeypatch.setattr(telemetry, "STOP_SECONDS", 0.2)
    collector.answers.clear()
    core = assembly.make_core(Config(telemetry=Section(endpoint=collector.url)), tmp_path, reactor)
    core.lock()
    await core.open()
    broker = core.broker
    broker.appender.produce(broker.topics.create("orders").partition(0), b"x", metadata=metadata())
    with capturedLogs() as logs:
        await core.close()
    assert "telemetry-hangs" in [event.get("event_id") for event in logs]
    assert not collector.requests, "the collector answers only after the stop"
    assert core.status()["telemetry"]["spans"]["produce"] == 1, "it had a span to send"
    assembly.make_core(Config(), tmp_path, reactor).lock()  # the stop released the directory


def test_without_an_endpoint_nothing_is_loaded() -> None:
    house = CoreHouse()
    assert "telemetry" not in house.core.status()
    assert house.broker.group_commit.observer is None
    root = Path(brokerd.__file__).parent
    modules = {path: path.read_text() for path in root.rglob("*.py")}
    assert root / "server" / "telemetry.py" in modules
    loading = [path for path, text in modules.items() if LOADS.search(text)]
    assert not loading, "these load the package when they are imported"


# -- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http"])
def test_missing_packages_are_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        if name.startswith(missing + "."):
            raise ModuleNotFoundError(name)
        return None if name == missing else object()

    monkeypatch.setattr(telemetry, "find_spec", find)
    config = Config(telemetry=Section(endpoint="http://127.0.0.1:1/"))
    with pytest.raises(ConfigError, match=r"pip install 'brokerd\[telemetry\]'"):
        CoreHouse(config)
    check_packages(Section())


def test_a_missing_file_of_authorities_is_named(tmp_path: Path) -> None:
    section = Section(endpoint="https://127.0.0.1:1/", ca_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"telemetry\.ca_file: cannot read"):
        CoreHouse(Config(telemetry=section))


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:4318",
        "grpc://127.0.0.1:4317",
        "http://",
        "http:///v1/traces",
        "http://user:password@127.0.0.1:4318/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://127.0.0.1/v1 traces",
        "http://127.0.0.1/\nv1",
        "http://[::1/",
        "http://ex\u00e4mple/",
    ],
)
def test_an_endpoint_is_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.endpoint: expected the URL") as caught:
        load(assignments=[f"telemetry.endpoint={url}"])
    assert "password@" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "http://[::1]:4318/v1/traces", "https://collector/a?b=c"])
def test_a_valid_endpoint(url: str) -> None:
    assert load(assignments=[f"telemetry.endpoint={url}"]).config.telemetry.endpoint == url


def test_headers_come_from_the_list_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# a comment\nAuthorization = Basic a2V5=\n")
    section = Section(headers=("X-Tenant=7",), headers_file=str(file))
    config = with_secrets(Config(telemetry=section))
    assert telemetry_headers(config) == {"X-Tenant": "7", "Authorization": "Basic a2V5="}


@pytest.mark.parametrize("line", ["secret", "=secret", "a b=secret", "A=sec\nret", "A=\u00fc"])
def test_a_wrong_header_is_refused_without_its_text(line: str) -> None:
    config = Config()
    section = structs.replace(config.telemetry, headers=("X-Tenant=7", line))
    with pytest.raises(ConfigError, match="header 2 is not of the form") as caught:
        with_secrets(structs.replace(config, telemetry=section))
    assert "ret" not in str(caught.value)
