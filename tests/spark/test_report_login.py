"""Reports of a named stream to a broker with TLS and accounts: who may report, and what is said.

The broker is a process; only Spark is not there.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import BrokerProcess
from brokerd.archive.contract.log_id import decode_log_id
from brokerd.spark.stream_report import Report, ReportFailed, StreamReporter, report_options
from tests.certificates import Authority

pytestmark = pytest.mark.slow


class AdminTls(BrokerProcess):
    """A broker whose admin site has TLS and asks for certificates."""

    def command(self) -> list[str]:
        admin = "--admin=ssl:0:interface=127.0.0.1"
        return [admin if part.startswith("--admin=") else part for part in super().command()]


class Site:
    """A broker with security on, an account `loader` with a key, and certificates."""

    def __init__(self, directory: Path) -> None:
        self.servers, self.clients = (
            Authority(directory, "servers"),
            Authority(directory, "clients"),
        )
        server, admin = self.servers.issue("broker"), self.clients.issue("admin")
        self.stranger = self.clients.issue("stranger")
        self.loader = self.clients.issue("loader")
        password = directory / "password"
        password.write_text("a long password\n")
        settings = [
            "security.auth=on",
            f"security.admin_password_file={password}",
            f"tls.certificate_file={server.certificate}",
            f"tls.key_file={server.key}",
            f"tls.client_ca_file={self.clients.certificate}",
            "tls.client_auth=optional",
        ]
        self.broker = AdminTls(directory / "data", directory / "log", settings)
        self._context = self.servers.client_context(admin)

    def call(self, method: str, path: str, **fields: object) -> Any:
        """Call the API as the administrator."""
        host, _, port = self.broker.admin.rpartition(":")
        connection = http.client.HTTPSConnection(host, int(port), context=self._context)
        headers = {"content-type": "application/json"}
        try:
            body = json.dumps(fields) if fields else None
            connection.request(method, f"/api/v1{path}", body, headers)
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        assert answer.status in (200, 201), found
        return found

    def report(self, offset: int = 0, **options: str) -> None:
        """Report a position as a stream with these options does. Raises ReportFailed."""
        given = {"streamName": "nightly", "failOnReportError": "true", **options}
        named = report_options(given)
        assert named is not None
        log_id = decode_log_id((self.broker.data_dir / "state" / "log_id").read_bytes())
        reporter = StreamReporter(named, str(self.broker.data_dir), ("orders",), lambda: 0.0)
        reporter.report(Report(log_id, 0, {(self.topic_id, 0): offset}))

    @property
    def topic_id(self) -> int:
        found: int = self.call("GET", "/topics/orders")["topic_id"]
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.broker:
        site.broker.start()
        site.call("POST", "/users", name="loader", roles=[])
        site.call("POST", "/topics", name="orders", partitions=1)
        yield site


def options_of(site: Site, certificate: Any = None, **more: str) -> dict[str, str]:
    """Return options of TLS, with a client's certificate if one is given."""
    given = {"tlsCaFile": str(site.servers.certificate)}
    if certificate is not None:
        given |= {
            "tlsCertificateFile": str(certificate.certificate),
            "tlsKeyFile": str(certificate.key),
        }
    return {**given, **more}


def lag(site: Site, name: str) -> int:
    found: int = site.call("GET", f"/streams/{name}")["lag_records"]
    return found


def test_a_report_needs_a_login_that_may_read_the_topics(site: Site, tmp_path: Path) -> None:
    """By certificate or by key; the address comes from the data directory."""
    key = tmp_path / "key"
    key.write_text(site.call("POST", "/keys", user="loader", label="stream")["key"] + "\n")
    with_key = options_of(site, streamKeyFile=str(key))
    by_certificate = options_of(site, site.loader, streamName="by-certificate")
    for options, said in (
        (options_of(site), "answered 401: "),
        (options_of(site, site.stranger), "answered 403: "),
        (with_key, "answered 403: "),
        (by_certificate, "answered 403: "),
    ):
        with pytest.raises(ReportFailed, match=said):
            site.report(**options)
    site.call("PUT", "/acls/topics/orders", users={"loader": ["read"]}, roles={}, public=False)
    site.call("POST", "/topics/orders/records", records=[{"value": "a"}, {"value": "b"}])
    site.report(1, **with_key)
    assert lag(site, "nightly") == 1
    site.report(2, **by_certificate)
    assert lag(site, "by-certificate") == 0
    with pytest.raises(ReportFailed, match="answered 403: "):
        site.report(2, **with_key, streamHoldsRetention="true")
    assert lag(site, "nightly") == 1
    key.write_text("no such key\n")
    with pytest.raises(ReportFailed, match="answered 401: "):
        site.report(2, **with_key)
    assert lag(site, "nightly") == 1


def test_a_report_goes_to_no_broker_but_the_expected_one(site: Site, tmp_path: Path) -> None:
    """A key would otherwise go to any server that answers."""
    key = tmp_path / "key"
    key.write_text("a key")
    others = Authority(tmp_path, "others")
    for options in (
        options_of(site, streamKeyFile=str(key), tlsCaFile=str(others.certificate)),
        options_of(site, streamKeyFile=str(key), tlsServerName="elsewhere"),
    ):
        with pytest.raises(ReportFailed, match="certificate verify failed"):
            site.report(**options)
