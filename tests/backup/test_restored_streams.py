"""A named stream in a restored data directory: its position and hold, and reports afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerd.archive.contract.log_id import decode_log_id
from brokerd.spark.stream_report import Report, ReportFailed, StreamReporter, report_options
from tests.archive.test_with_broker import broker, brokerctl, produce

pytestmark = pytest.mark.slow


def log_id_of(data_dir: Path) -> str:
    return decode_log_id((data_dir / "state" / "log_id").read_bytes())


def report(data_dir: Path, topic_id: int, offset: int, log_id: str = "") -> None:
    """Report as a stream over this data directory does. Raises ReportFailed."""
    values = {
        "streamName": "loader",
        "streamHoldsRetention": "true",
        "failOnReportError": "true",
    }
    options = report_options(values)
    assert options is not None
    reporter = StreamReporter(options, str(data_dir), ("orders",), lambda: 0.0)
    reporter.report(Report(log_id or log_id_of(data_dir), 0, {(topic_id, 0): offset}))


def position(data_dir: Path) -> tuple[list[int], int, bool]:
    """Return the offsets of the stream, its lag, and whether it holds."""
    found: dict[str, Any] = brokerctl(data_dir, "streams", "show", "loader")
    return found["positions"][0]["offsets"], found["lag_records"], found["holds"]


def test_a_stream_is_where_it_was_at_the_backup_and_goes_on(tmp_path: Path) -> None:
    """The stream of the lost log is refused; one that begins anew is not, under the same name."""
    data_dir, to, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    with broker(data_dir):
        produce(data_dir, 100, "before")
        topic_id = brokerctl(data_dir, "topic", "describe", "orders")["topic_id"]
        report(data_dir, topic_id, 60)
        brokerctl(data_dir, "backup", "create", str(to))
        produce(data_dir, 50, "after")
        report(data_dir, topic_id, 150)
        assert position(data_dir) == ([150], 0, True)
    brokerctl(data_dir, "restore", str(to), str(restored))
    with broker(restored):
        assert position(restored) == ([60], 40, True)
        with pytest.raises(ReportFailed, match=r"reads the log \w+, and this broker has"):
            report(restored, topic_id, 70, log_id_of(data_dir))
        with pytest.raises(ReportFailed, match="answered 4"):
            report(restored, topic_id, 150)
        assert position(restored) == ([60], 40, True)
        report(restored, topic_id, 0)
        assert position(restored) == ([0], 100, True)
        report(restored, topic_id, 100)
        assert position(restored) == ([100], 0, True)
