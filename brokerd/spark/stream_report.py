# Tests: tests/spark/test_stream_report.py
"""Reports the position of a named stream to the broker: docs/spark.rst, section "Named streams".

A report is a PUT of the admin API (docs/admin-api.rst). A failed report does not stop the stream
unless the user wants it to: the reporter logs it, counts it, and tries again. No pyspark.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from brokerd.client.addresses import Address, open_socket, parse_address
from brokerd.client.errors import AddressError
from brokerd.errors import BrokerdError, error_text
from brokerd.spark.options import BadOption, parse_boolean
from brokerd.spark.plan.positions import Positions
from brokerd.spark.sink.options import Tls, parse_tls

NAME = "streamName"
SERVER = "streamServer"
KEY_FILE = "streamKeyFile"
HOLDS = "streamHoldsRetention"
FAILS = "failOnReportError"
NAME_BYTES_MAX = 255
TIMEOUT_SECONDS = 5.0
"""Longest wait for a connection and for each part of an answer."""
RETRY_SECONDS = 10.0
"""Pause after a failed report, so that a broker that does not answer costs little time."""
REPEAT_SECONDS = 30.0
"""Interval of reports without news. A report makes the log grow, which the next micro-batch reads
and reports; so a report of a new LSN alone waits for this time, too."""
KEY_BYTES_MAX = 4_096
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address to reach a broker of this machine that listens on all addresses."""

_log = logging.getLogger("brokerd.spark")


class ReportFailed(BrokerdError):
    """A named stream could not report its position."""

    retryable = True


class ReportOptions(NamedTuple):
    """The options of a named stream."""

    name: str
    server: str | None
    """The address of the admin site. None: the one in the data directory."""
    key_file: str | None
    tls: Tls | None
    fails: bool
    """Whether a failed report fails the query."""
    holds: bool = False
    """Whether retention shall wait for the stream."""


class Report(NamedTuple):
    """A position of a stream, which Spark has committed."""

    log_id: str
    lsn: int
    positions: Positions
    """The next offset, by topic id and partition."""


class _Site(NamedTuple):
    """The address of an admin site."""

    address: Address
    tls: bool
    name: str
    """The name that its certificate must have."""


def report_options(values: Mapping[str, str]) -> ReportOptions | None:
    """Parse and check the options of a named stream; None without a name.

    :param values: options by their names.
    :raises BadOption: the text names the option.
    """
    name = values.get(NAME)
    if name is None:
        return None
    if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise BadOption(f"{NAME} must have 1 to {NAME_BYTES_MAX} bytes of printable UTF-8")
    server = values.get(SERVER)
    if server is not None:
        _parse_server(server)
    return ReportOptions(
        name,
        server,
        values.get(KEY_FILE),
        parse_tls(values),
        parse_boolean(values, FAILS, False),
        parse_boolean(values, HOLDS, False),
    )


class StreamReporter:
    """Reports the positions of one stream. ``topics`` is its selection.

    :param data_dir: the data directory with the address of the admin site, or None.
    :param seconds: a monotonic clock.
    """

    def __init__(
        self,
        options: ReportOptions,
        data_dir: str | None,
        topics: tuple[str, ...] | None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        if options.server is None and data_dir is None:
            raise BadOption(
                f"{NAME} needs {SERVER}, the address of the broker's admin site, such as "
                "http://127.0.0.1:9644, because the path is an archive without a data directory"
            )
        self._options = options
        self._data_dir = data_dir
        self._topics = topics
        self._seconds = seconds
        self._sent: Report | None = None
        self._sent_at = 0.0
        self._failed_at: float | None = None
        """Time of the last failure; None after a success."""
        self._hold_dropped = ""
        """Why the broker dropped the hold of this stream; empty: it did not."""
        self.reports = 0
        self.failures = 0

    def report(self, report: Report) -> None:
        """Send a position, unless the broker has it already.

        :raises ReportFailed: the broker did not take it, and the user wants to know.
        """
        if not self._is_due(report):
            return
        try:
            self._send(report)
        except (OSError, HTTPException, BrokerdError) as error:
            self._fail(error)
            return
        if self._failed_at is not None:
            _log.warning(
                "the stream %s reports its position to the broker again", self._options.name
            )
        self._sent, self._sent_at, self._failed_at = report, self._seconds(), None
        self.reports += 1

    def status(self) -> dict[str, int]:
        """Return the numbers of reports and of failed reports, for the query's progress."""
        return {"reports": self.reports, "failed_reports": self.failures}

    def _is_due(self, report: Report) -> bool:
        now = self._seconds()
        if self._failed_at is not None and not self._options.fails:
            return now >= self._failed_at + RETRY_SECONDS
        sent = self._sent
        if sent is None or report.positions != sent.positions or report.lsn < sent.lsn:
            return True
        return now >= self._sent_at + REPEAT_SECONDS

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        text = (
            f"the stream {self._options.name} could not report its position to the broker: "
            f"{error_text(error)}"
        )
        if self._options.fails:
            raise ReportFailed(f"{text}; {FAILS} is true, so the query fails") from error
        if self._failed_at is None:
            _log.warning(
                "%s. The stream goes on, and tries again every %.0f s; until then the broker "
                "shows its last position",
                text,
                RETRY_SECONDS,
            )
        self._failed_at = self._seconds()

    # -- HTTP ----------------------------------------------------------------------------------

    def _send(self, report: Report) -> None:
        """Send a report. Raises OSError, HTTPException and BrokerdError."""
        site = self._site()
        offsets: dict[str, list[int]] = {}
        for (topic_id, _), offset in sorted(report.positions.items()):
            offsets.setdefault(str(topic_id), []).append(offset)
        body = json.dumps(
            {
                "log_id": report.log_id,
                "lsn": report.lsn,
                "topics": None if self._topics is None else list(self._topics),
                "offsets": offsets,
                "holds": self._options.holds,
            }
        ).encode()
        headers = {"Content-Type": "application/json", **self._login()}
        connection = HTTPConnection("brokerd")
        try:
            connection.sock = self._open(site)
            name = quote(self._options.name, safe="")
            path = f"/api/v1/streams/{name}/position"
            connection.request("PUT", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ReportFailed(f"{site.address} answered {response.status}: {_refusal(answer)}")
        self._note_hold(answer)

    def _note_hold(self, answer: bytes) -> None:
        """Log once that the stream does not hold retention, and why."""
        dropped = json.loads(answer).get("hold_dropped", "")
        if dropped and not self._hold_dropped:
            _log.warning(
                "the stream %s does not hold retention (%s): the broker may remove records before "
                "the stream reads them (retention.stream_hold_seconds, stream_hold_bytes)",
                self._options.name,
                dropped,
            )
        self._hold_dropped = dropped

    def _open(self, site: _Site) -> Any:
        opened = open_socket(site.address, TIMEOUT_SECONDS)
        if not site.tls:
            return opened
        try:
            context = (self._options.tls or Tls()).context()
            name = (self._options.tls or Tls()).server_name or site.name
            return context.wrap_socket(opened, server_hostname=name)
        except BaseException:
            opened.close()
            raise

    def _login(self) -> dict[str, str]:
        """Return the header with the API key, which the key file has in its first line."""
        path = self._options.key_file
        if path is None:
            return {}
        with open(path, encoding="ascii", errors="replace") as file:
            key = file.readline(KEY_BYTES_MAX).strip()
        if not key or not key.isascii() or not key.isprintable():
            raise BadOption(f"{KEY_FILE}: {path} has no API key in its first line")
        return {"Authorization": f"Bearer {key}"}

    def _site(self) -> _Site:
        """Return the address: a broker on port 0 has another one after each start."""
        if self._options.server is not None:
            address, tls = _parse_server(self._options.server)
            return _Site(address, tls or self._options.tls is not None, address.host or "localhost")
        assert self._data_dir is not None
        path = Path(self._data_dir, "run", "listeners.json")
        try:
            listeners = json.loads(path.read_text())
            admin, tls = listeners["admin"], "admin" in listeners.get("tls", ())
        except FileNotFoundError:
            raise ReportFailed(f"no broker serves {self._data_dir} now") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ReportFailed(
                f"{path} names no admin site: give {SERVER}, or start the broker with one"
            ) from None
        address = parse_address(admin)
        if address.host in ANYWHERE:
            return _Site(address._replace(host=ANYWHERE[address.host]), tls, "localhost")
        return _Site(address, tls, address.host or "localhost")


def _parse_server(text: str) -> tuple[Address, bool]:
    """Return the address in a URL, and whether it speaks TLS. Raises `BadOption`."""
    scheme, _, rest = text.strip().rpartition("://")
    if scheme not in ("", "http", "https") or "@" in rest:
        raise BadOption(
            f"{SERVER} must be http://HOST:PORT, https://HOST:PORT, HOST:PORT or unix:PATH, "
            "without a name or password"
        )
    try:
        return parse_address(rest.rstrip("/") if scheme else rest), scheme == "https"
    except AddressError as error:
        raise BadOption(f"{SERVER}: {error}") from None


def _refusal(answer: bytes) -> str:
    """Return the text of a refusal of the admin API."""
    try:
        fields = json.loads(answer)
        return str(fields["error"])
    except (ValueError, KeyError, TypeError):
        return "this is not the admin site of a broker"
