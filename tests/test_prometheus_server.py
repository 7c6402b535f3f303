"""A real Prometheus scrapes a real broker: it evaluates every rule and fills the dashboard."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import BrokerProcess
from brokerd.archive.contract.log_id import decode_log_id
from brokerd.client.mamamia import MamamiaClient
from tests.test_prometheus import RULES, panel_expressions, rule_expressions

PROMETHEUS = shutil.which("prometheus")
SECONDS = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROMETHEUS is None,
        reason="there is no Prometheus here (Debian: apt-get install prometheus)",
    ),
]

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: brokerd
    static_configs: [{{targets: ["{target}"]}}]
"""
EMPTY = ("brokerd_condition{", "brokerd_schema_checks", "brokerd_refusals", "> 0)")
"""Parts of expressions that have no result for a broker at rest."""


class Server:
    """A running Prometheus."""

    def __init__(self, directory: Path, target: str) -> None:
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, target=target))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        assert PROMETHEUS is not None
        self.log = (directory / "prometheus.log").open("w+")
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            found = json.loads(answer.read())
        assert found["status"] == "success"
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        text = expression.replace("$__rate_interval", "30s").replace("$instance", ".*")
        found: list[Any] = self.get("query", query=text)["result"]
        return found

    def until(self, expression: str) -> None:
        """Wait until an expression has a result."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                if self.query(expression):
                    return
            except OSError:  # it is not up yet
                pass
            assert time.monotonic() < end, f"no result: {expression}"
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(SECONDS)
        self.log.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    nobody = "telemetry.endpoint=http://127.0.0.1:9/v1/traces"
    with BrokerProcess(tmp_path / "data", tmp_path / "broker.log", [nobody]) as process:
        process.start()
        yield process


@pytest.fixture
def server(broker: BrokerProcess, tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, broker.admin)
    yield made
    made.stop()


def report_stream(broker: BrokerProcess) -> None:
    """Report a stream of all topics that has read nothing yet."""
    log_id = decode_log_id((broker.data_dir / "state" / "log_id").read_bytes())
    body = json.dumps({"log_id": log_id, "lsn": 0, "offsets": {}}).encode()
    url = f"http://{broker.admin}/api/v1/streams/loader/position"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, body, headers, method="PUT")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200


def test_rules_and_panels_have_results(broker: BrokerProcess, server: Server) -> None:
    """And the alert for a broker that is away begins to count when it ends."""
    server.until("brokerd_ready == 1")
    with MamamiaClient(broker.address) as client:
        for number in range(50):
            client.produce("t", b"x" * 100)
            client.acquire("t", "g", "c")
            client.settle("t", "g", number, "c")
        client.produce("t", b"x")
        server.until("rate(brokerd_wal_commits_total[30s]) > 0")
        # A rate needs two samples of a series that begins with its topic.
        server.until("count_over_time(brokerd_topic_written_bytes_total[30s]) > 2")
        server.until("brokerd_group_lag_records == 1")
    report_stream(broker)
    server.until("brokerd_stream_lag_records == 51")
    for expression in panel_expressions():
        found = server.query(expression)
        assert found or any(part in expression for part in EMPTY), expression
    (group,) = server.get("rules")["groups"]
    assert len(group["rules"]) == len(rule_expressions())
    assert {rule["health"] for rule in group["rules"]} == {"ok"}, group
    assert server.query('ALERTS{alertname="BrokerdDown"}') == []
    broker.stop()
    server.until('ALERTS{alertname="BrokerdDown", alertstate="pending"}')
