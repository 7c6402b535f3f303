"""Named streams: what a stream of Spark reports to the broker, when, and what stops it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerd.spark import stream_report as module
from brokerd.spark.options import BadOption, batch_request, parse_options
from brokerd.spark.stream_report import Report, ReportFailed, StreamReporter, report_options
from tests.admin.caller import Caller
from tests.archive.test_with_broker import broker, brokerctl
from tests.cli.shell import Wired
from tests.house import House
from tests.spark.brokers import append, wait_until
from tests.spark.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = {"streamName": "loader", "streamServer": "127.0.0.1:1"}


class Desk:
    """A reporter, a clock by hand and the admin site of a broker, which may be away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.now = 100.0
        self.away = False
        self.asked = 0
        self.house = House()
        self.house.append("orders", b"x")
        monkeypatch.setattr(module, "open_socket", self._open)
        named = report_options({**HERE, **options})
        assert named is not None
        self.reporter = StreamReporter(named, None, ("orders",), lambda: self.now)

    def _open(self, *_: object) -> Wired:
        self.asked += 1
        if self.away:
            raise ConnectionRefusedError(111, "Connection refused")
        return Wired(Caller(self.house))

    def report(self, lsn: int = 64, *offsets: int) -> None:
        positions = {(1, partition): offset for partition, offset in enumerate(offsets)}
        self.reporter.report(Report("ab", lsn, positions))

    def known(self) -> tuple[int, list[int]] | None:
        """Return LSN and offsets that the broker has."""
        stream = self.house.broker.streams.find("loader")
        return stream and (stream.lsn, list(stream.offsets.get(1, ())))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def test_a_position_reaches_the_broker(desk: Desk) -> None:
    desk.report(64, 1)
    assert desk.known() == (64, [1])
    stream = desk.house.broker.streams.find("loader")
    assert stream is not None and stream.topics.names == ("orders",)
    assert desk.reporter.status() == {"reports": 1, "failed_reports": 0}


def test_only_news_is_reported_at_once(desk: Desk) -> None:
    """A report makes the log grow: a stream that reported each LSN would never come to rest."""
    desk.report(64, 0)
    desk.report(64, 0)
    desk.report(72, 0)
    assert desk.asked == 1
    desk.report(80, 1)
    assert (desk.asked, desk.known()) == (2, (80, [1]))
    desk.now += module.REPEAT_SECONDS
    desk.report(88, 1)
    assert (desk.asked, desk.known()) == (3, (88, [1]))
    desk.report(64, 1)
    assert (desk.asked, desk.known()) == (4, (64, [1]))


def test_a_broker_that_is_away_does_not_stop_the_stream(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "brokerd.spark")
    desk.away = True
    for lsn in (64, 72, 80):
        desk.report(lsn, 0)
    assert desk.asked == 1
    (line,) = caplog.messages
    assert "stream loader could not report its position" in line and "refused" in line
    desk.now += module.RETRY_SECONDS
    desk.report(88, 0)
    assert desk.reporter.status() == {"reports": 0, "failed_reports": 2}
    assert len(caplog.messages) == 1
    desk.away = False
    desk.now += module.RETRY_SECONDS
    desk.report(88, 1)
    assert desk.known() == (88, [1])
    assert "again" in caplog.messages[-1]


def test_a_user_may_want_the_query_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, failOnReportError="true")
    desk.away = True
    for _ in range(2):
        with pytest.raises(ReportFailed, match=r"refused.*failOnReportError is true"):
            desk.report()
    desk.away = False
    with pytest.raises(ReportFailed, match=r"answered 400: .*which ends at 1"):
        desk.report(64, 9)


def test_a_stream_may_hold_and_is_told_once_when_it_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(monkeypatch, streamHoldsRetention="true")
    desk.report(64, 0)
    stream = desk.house.broker.streams.find("loader")
    assert stream is not None and stream.holds
    assert caplog.messages == []
    desk.house.wal._allocator.error = "No space left on device"
    desk.report(64, 1)
    desk.report(64, 0)
    (line,) = caplog.messages
    assert "loader does not hold retention (disk)" in line


def test_the_first_line_of_the_key_file_is_the_login(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("brk_1234\nother\n")
    named = report_options({**HERE, "streamKeyFile": str(path)})
    assert named is not None
    reporter = StreamReporter(named, None, None)
    assert reporter._login() == {"Authorization": "Bearer brk_1234"}
    path.write_text("\n")
    with pytest.raises(BadOption, match="no API key"):
        reporter._login()


def test_the_address_comes_from_the_data_directory(tmp_path: Path) -> None:
    named = report_options({"streamName": "loader"})
    assert named is not None
    reporter = StreamReporter(named, str(tmp_path), None)
    with pytest.raises(ReportFailed, match="no broker serves"):
        reporter._site()
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "listeners.json"
    file.write_text(json.dumps({"admin": "0.0.0.0:7", "tls": ["admin"]}))
    assert [str(one) for one in reporter._site()] == ["127.0.0.1:7", "True", "localhost"]
    file.write_text(json.dumps({"mamamia": "127.0.0.1:9"}))
    with pytest.raises(ReportFailed, match="names no admin site"):
        reporter._site()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streamName": ""}, "1 to 255 bytes"),
        ({"streamName": "a\n"}, "1 to 255 bytes"),
        ({"streamName": "a", "streamServer": "ftp://host:1"}, "must be http"),
        ({"streamName": "a", "streamServer": "http://ann:secret@host:1"}, "without a name"),
        ({"streamName": "a", "streamServer": "host"}, "streamServer"),
        ({"streamName": "a", "failOnReportError": "perhaps"}, "neither true nor false"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text) as caught:
        report_options(options)
    assert "secret" not in str(caught.value)


def test_the_options_belong_together_and_to_streams(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="streamKeyFile is for named streams"):
        parse_options({"path": "p", "streamKeyFile": "k"})
    with pytest.raises(BadOption, match="streamName is for streams"):
        batch_request(parse_options({"path": "p", "streamName": "a"}))
    named = report_options({"streamName": "loader"})
    assert named is not None
    with pytest.raises(BadOption, match="needs streamServer"):
        StreamReporter(named, None, None)


# -- the source ----------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Report]]:
    """Return the list of all reports."""
    sent: list[Report] = []
    monkeypatch.setattr(StreamReporter, "_send", lambda self, report: sent.append(report))
    yield sent


def test_a_planned_micro_batch_is_not_reported_before_its_commit(
    log: Log, sent: list[Report]
) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need Spark 4.2")
    from tests.spark.test_streaming import Stream, again

    reader = Stream(log.path).reader(streamName="loader")
    limit = reader.getDefaultReadLimit()
    start = again(reader.initialOffset())
    first = again(reader.latestOffset(start, limit))
    reader.partitions(start, first)
    assert {one.lsn for one in sent} == {start["lsn"]}
    log.append(1, 0, b"more")
    second = again(reader.latestOffset(first, limit))
    assert sent[-1].lsn == first["lsn"] < second["lsn"]
    assert sent[-1].positions[1, 0] == 2
    reader.partitions(first, second)
    reader.commit(first)
    assert sent[-1].lsn == first["lsn"]
    reader.commit(second)
    assert (sent[-1].lsn, sent[-1].positions[1, 0]) == (second["lsn"], 3)
    assert reader.reportLatestOffset()["reports"] == len(sent) == 3


def test_a_stream_from_the_end_has_read_what_was_there(log: Log, sent: list[Report]) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need Spark 4.2")
    from tests.spark.test_streaming import Stream, again

    log.append(3, 1, b"after the bounds")
    reader = Stream(log.path).reader(streamName="loader", **{"from": "latest"})
    start = again(reader.initialOffset())
    reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sent[0].positions == {(1, 0): 2, (1, 1): 1, (2, 0): 2, (2, 1): 1, (3, 0): 2, (3, 1): 2}


@pytest.mark.slow
def test_the_broker_has_the_position_that_spark_has_committed(
    source: SparkSession, tmp_path: Path
) -> None:
    """Also after a failed micro-batch, after kill -9 of the broker, and while it is away."""
    data_dir, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    seen: list[int] = []

    def take(rows: Any, batch: int) -> None:
        count = rows.count()
        if count and fails:
            raise ValueError("no")
        seen.append(count)

    def run() -> None:
        stream = source.readStream.format("brokerd").options(topics="orders", streamName="loader")
        query = (
            stream.load(str(data_dir))
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def known() -> tuple[int, int, list[int]]:
        found = brokerctl(data_dir, "streams", "show", "loader")
        offsets = [one["offsets"] for one in found["positions"]]
        return found["lsn"], found["lag_records"], offsets[0] if offsets else []

    fails = False
    with broker(data_dir) as process:
        append(data_dir, "orders", 100)
        wait_until((data_dir / "state" / "bounds").exists)
        run()
        lsn, lag, offsets = known()
        assert (lag, offsets, sum(seen)) == (0, [100], 100)
        append(data_dir, "orders", 50)
        assert known() == (lsn, 50, [100])
        fails = True
        with pytest.raises(Exception, match="no"):
            run()
        assert known()[1:] == (50, [100])
        process.kill()
        process.wait()
    fails = False
    with broker(data_dir):
        assert known()[1:] == (50, [100])
        run()
        assert known()[1:] == (0, [150])
        append(data_dir, "orders", 10)
    run()
    assert sum(seen) == 160
    with broker(data_dir):
        assert known()[1:] == (10, [150])
