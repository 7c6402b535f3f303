"""The log as a stream: each record in exactly one micro-batch, whatever happens between two."""

from __future__ import annotations

import json
import pickle
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd.spark.options import parse_options
from brokerd.spark.read.row_format import row_format
from brokerd.spark.streaming import BadCheckpoint, DataLost, LogStreamReader
from tests.archive import making
from tests.archive.test_with_broker import brokerctl
from tests.cross.rolling import roll_up_all
from tests.spark.brokers import append, serving, wait_until
from tests.spark.logs import Log

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Value = tuple[str, int, int, bytes]
"""Topic, partition, offset and value."""


class Stream:
    """Asks a reader what Spark asks, with a checkpoint; each run is a query of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.offset: dict[str, Any] | None = None
        self.batches = 0

    def reader(self, **options: str) -> LogStreamReader:
        given = {"path": str(self.place), **options}
        return LogStreamReader(given, row_format(parse_options(given)).schema())

    def run(self, **options: str) -> list[Value]:
        """Take what is there now; what was new."""
        reader = self.reader(**options)
        if self.offset is None:
            self.offset = again(reader.initialOffset())
        limit = reader.getDefaultReadLimit()
        reader.prepareForTriggerAvailableNow()
        found: list[Value] = []
        while (end := again(reader.latestOffset(self.offset, limit))) != self.offset:
            for piece in pickle.loads(pickle.dumps(reader.partitions(self.offset, end))):
                for batch in pickle.loads(pickle.dumps(reader)).read(piece):
                    names = ("topic", "partition", "offset", "value")
                    found += zip(*(batch[name].to_pylist() for name in names), strict=True)
            self.offset = end
            self.batches += 1
        assert reader.partitions(self.offset, self.offset) == []
        return sorted(found)


def again(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


@pytest.fixture
def stream(log: Log) -> Stream:
    return Stream(log.path)


def lag(reader: LogStreamReader) -> tuple[int | None, int | None]:
    """The lag in records and bytes that the progress of a query shows."""
    report = again(reader.reportLatestOffset())
    return report.get("lag_records"), report.get("lag_bytes")


def new(log: Log, before: int = 0) -> list[Value]:
    """What was appended since there were so many records."""
    rows = log.rows[before:]
    return sorted((row.topic, row.partition, row.offset, row.value) for row in rows)


def test_each_record_comes_once_wherever_it_stands_by_then(log: Log, stream: Stream) -> None:
    """In the open file, in a closed one, or in the archive, merged or not."""
    assert stream.run() == new(log)
    assert stream.run() == []
    count = len(log.rows)
    log.append(3, 0, b"in the open file", b"too")
    assert stream.run() == new(log, count)
    log.seal()
    log.publish()
    log.roll_up()
    assert stream.run() == []
    count = len(log.rows)
    for turn in range(3):
        log.append(1, turn % 2, b"turn %d" % turn)
        log.seal()
    log.publish()
    log.roll_up()
    log.merge()
    log.vacuum()
    log.delete_archived()
    assert stream.run() == new(log, count)
    assert stream.offset is not None
    assert sorted(stream.offset) == ["first_lsn", "log_id", "lost", "lsn", "next", "version"]


STEPS = st.lists(
    st.sampled_from(
        ["append", "append", "stream", "seal", "roll_up", "merge", "vacuum", "delete_archived"]
    ),
    max_size=25,
)


@given(STEPS, st.sampled_from([None, "1KiB", "5KiB"]))
def test_whatever_happens_each_record_comes_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], most: str | None
) -> None:
    log = Log(tmp_path_factory.mktemp("steps") / "data")
    topic_id = log.create("t")
    stream = Stream(log.path)
    options = {} if most is None else {"maxBytesPerTrigger": most}
    found: list[Value] = []
    for number, step in enumerate([*steps, "stream"]):
        if step == "append":
            log.append(topic_id, number % 2, b"%d" % number, b"and %d" % number)
        elif step == "stream":
            found += stream.run(**options)
        else:
            log.publish()
            getattr(log, step)()
    assert sorted(found) == new(log)


def test_a_query_that_takes_what_is_there_now_ends(log: Log, stream: Stream) -> None:
    """Though records come all the time; they are for the next one."""
    reader = stream.reader()
    first = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    log.append(1, 0, b"later")
    end = reader.latestOffset(first, ReadAllAvailable())
    log.append(1, 0, b"later yet")
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.reportLatestOffset()["lsn"] > end["lsn"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"log_id": "f" * 32}, f"is of the log {'f' * 32}, and "),
        ({"lsn": 1 << 40}, "it is an older copy of the log"),
        ({"version": 3}, "upgrade the package brokerd"),
        ({"next": {"1": ["many"]}}, "use another checkpointLocation"),
        ({"first_lsn": None}, "use another checkpointLocation"),
        ({"version": None}, "brokerd did not write"),
        ({"lsn": "far"}, "use another checkpointLocation"),
        ({"lsn": -1}, "use another checkpointLocation"),
        ({"from": 7}, "use another checkpointLocation"),
    ],
)
def test_a_checkpoint_of_another_log_is_refused(
    log: Log,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    said: str,
) -> None:
    """And one that is farther than the log, or of a later version; it says what to do."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    stream.run()
    assert stream.offset is not None
    stream.offset.update(changes)
    with pytest.raises(BadCheckpoint) as refused:
        stream.run()
    assert said in str(refused.value)


def test_micro_batches_are_about_as_large_as_asked_for(log: Log, stream: Stream) -> None:
    """And none when there is nothing to do; all of them together have everything once."""
    assert stream.run(maxBytesPerTrigger="1KiB") == new(log)
    assert stream.batches > 3
    assert stream.run(maxBytesPerTrigger="1KiB") == []


def test_a_new_topic_is_in_the_stream_from_its_first_record(log: Log, stream: Stream) -> None:
    """If it is named, or a pattern of it; a name that no topic has yet is waited for."""
    named = {"topics": "four,fi*"}
    assert stream.run(**named) == []
    log.append(log.create("four"), 0, b"x", b"y")
    log.append(1, 0, b"of another")
    assert [value[3] for value in stream.run(**named)] == [b"x", b"y"]
    log.append(log.create("five"), 1, b"z")
    assert [value[3] for value in stream.run(**named)] == [b"z"]


@pytest.mark.parametrize("start", ["latest", "earliest", "offset", "offsets", "time"])
def test_from_is_where_a_new_stream_begins_and_a_checkpoint_goes_before_it(
    log: Log, stream: Stream, start: str
) -> None:
    time_us = log.log.time_us
    log.append(1, 0, b"later")
    partitions = json.dumps({"one": {"0": 2}, "two": {"0": 1 << 40, "1": 1 << 40}})
    said, wanted = {
        "latest": ("latest", []),
        "earliest": ("earliest", new(log)),
        "offset": ("2", [("one", 0, 2, b"later")]),
        "offsets": (
            partitions,
            [value for value in new(log) if value[0] == "three" or value[1:3] in ((1, 0), (0, 2))],
        ),
        "time": (
            (EPOCH + timedelta(microseconds=time_us)).isoformat(),
            [("one", 0, 2, b"later")],
        ),
    }[start]
    if start == "offsets":
        wanted = [value for value in wanted if value[0] != "two"]
    assert stream.run(**{"from": said}) == wanted
    count = len(log.rows)
    log.append(1, 0, b"one more", b"and another")
    assert stream.run(**{"from": "latest"}) == new(log, count)
    log.append(1, 0, b"the last")
    assert stream.run() == new(log, count + 2)


@pytest.mark.parametrize("chosen", ["from", "topics"])
def test_a_stream_that_begins_late_has_no_micro_batches_before(
    log: Log, stream: Stream, chosen: str
) -> None:
    """It begins with the first record that it wants, in the archive or in the journal."""
    for number in range(30):
        if number % 10 == 0:
            log.seal()
        log.append(1, 0, b"%d" % number * 200)
    log.publish()
    log.roll_up()
    time_us = log.log.time_us
    topic_id = log.create("four")
    log.append(topic_id, 0, b"the last")
    said = (EPOCH + timedelta(microseconds=time_us)).isoformat()
    assert [
        row[3]
        for row in stream.run(
            **{chosen: {"from": said, "topics": "four"}[chosen]}, maxBytesPerTrigger="1KiB"
        )
    ] == [b"the last"]
    assert stream.batches <= 5


# -- Records that are gone -----------------------------------------------------------------------


def trimmed(log: Log, stream: Stream) -> None:
    """Let a stream read, and then remove three records before it reads them."""
    stream.run()
    log.append(1, 0, b"trimmed", b"too", b"kept")
    log.append(1, 1, b"trimmed")
    log.append(2, 0, b"deleted with its topic")
    log.trim(1, 0, 4)
    log.trim(1, 1, 2)
    log.delete(2)


def test_stream_fails_when_records_were_trimmed_before_it_read_them(
    log: Log, stream: Stream
) -> None:
    trimmed(log, stream)
    with pytest.raises(
        DataLost, match=r"^3 records .*: offsets 2 to 3 of partition 0 of topic"
    ) as e:
        stream.run()
    assert "failOnDataLoss" in str(e.value)
    assert "one" in str(e.value)


@pytest.mark.parametrize("archived", [False, True])
def test_trimmed_records_are_counted_if_the_stream_goes_on(
    log: Log, stream: Stream, archived: bool
) -> None:
    """Each once, also when journal and archive have nothing of them any more."""
    trimmed(log, stream)
    if archived:
        log.seal()
        log.publish()
        log.roll_up()
        log.delete_archived()
    assert [value[3] for value in stream.run(failOnDataLoss="false")] == [b"kept"]
    assert stream.offset is not None
    assert stream.offset["lost"] == 3
    log.append(1, 0, b"later")
    assert [value[3] for value in stream.run()] == [b"later"]
    assert stream.offset["lost"] == 3


def test_records_that_a_stream_has_read_may_be_trimmed(log: Log, stream: Stream) -> None:
    """In the archive, too, and with micro-batches that end within its files."""
    for number in range(10):
        log.append(1, 0, b"%d" % number * 300)
    log.seal()
    log.publish()
    log.roll_up()
    reader = stream.reader(maxBytesPerTrigger="1KiB")
    first = again(reader.initialOffset())
    limit = reader.getDefaultReadLimit()
    end = first
    while end["next"].get("1", [0])[0] < 6:
        assert again(reader.latestOffset(end, limit)) != end
        end = again(reader.latestOffset(end, limit))
    position = end["next"]["1"][0]
    assert position < 12, "the end of the micro-batch is within the file"
    log.trim(1, 0, position)
    assert reader.latestOffset(end, limit)["lost"] == 0
    log.trim(1, 0, position + 1)
    with pytest.raises(DataLost, match=r"^1 records"):
        reader.latestOffset(end, limit)


def test_records_trimmed_before_the_stream_began_are_not_lost(log: Log, stream: Stream) -> None:
    log.trim(1, 0, 1)
    assert len(stream.run()) == len(log.rows) - 1


def test_micro_batch_that_is_done_again_fails_without_its_records(log: Log, stream: Stream) -> None:
    """They were trimmed while the stream was stopped in the middle of the batch."""
    stream.run()
    log.append(1, 0, b"x", b"y", b"z")
    reader = stream.reader()
    assert stream.offset is not None
    end = again(reader.latestOffset(stream.offset, ReadAllAvailable()))
    log.trim(1, 0, 4)
    with pytest.raises(DataLost, match=r"^2 records"):
        stream.reader().partitions(stream.offset, end)
    going_on = stream.reader(failOnDataLoss="false")
    assert len(going_on.partitions(stream.offset, end)) == 1
    log.append(1, 0, b"later")
    assert going_on.latestOffset(end, ReadAllAvailable())["lost"] == 2


# -- Other topics --------------------------------------------------------------------------------


@pytest.mark.parametrize("archived", [False, True])
def test_more_topics_over_a_checkpoint_bring_their_earlier_records(
    log: Log, stream: Stream, archived: bool
) -> None:
    """Also if nothing is new; each record once, though the selection shrinks between."""
    assert {value[0] for value in stream.run(topics="one")} == {"one"}
    if archived:
        log.seal()
        log.publish()
        log.roll_up()
        log.delete_archived()
    found = stream.run(topics="one,two")
    assert found == [value for value in new(log) if value[0] == "two"]
    log.append(2, 0, b"not read for now")
    log.append(1, 0, b"read")
    assert [value[3] for value in stream.run(topics="one")] == [b"read"]
    assert [value[3] for value in stream.run(topics="one,two")] == [b"not read for now"]
    assert {value[0] for value in stream.run()} == {"three"}


def test_records_trimmed_while_their_topic_was_not_selected_are_lost(
    log: Log, stream: Stream
) -> None:
    """The stream has read the topic before, so it goes on where it stopped."""
    stream.run(topics="one,two")
    stream.run(topics="one")
    log.append(2, 0, b"trimmed", b"too", b"kept")
    log.trim(2, 0, 4)
    assert stream.run(topics="one") == []
    with pytest.raises(DataLost, match=r"^2 records .* offsets 2 to 3 of partition 0 of topic"):
        stream.run(topics="one,two")
    found = stream.run(topics="one,two", failOnDataLoss="false")
    assert [value[3] for value in found] == [b"kept"]
    assert stream.offset is not None and stream.offset["lost"] == 2
    assert stream.run(topics="one,two") == []
    assert stream.offset["lost"] == 2


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("start", ["earliest", "1970-01-01", "0"])
def test_more_topics_bring_records_from_before_the_first_one_of_the_stream(
    log: Log, stream: Stream, start: str, archived: bool
) -> None:
    """The first topic of the stream is younger than the others."""
    if archived:
        log.seal()
        log.publish()
        log.roll_up()
        log.delete_archived()
    assert {value[0] for value in stream.run(topics="three", **{"from": start})} == {"three"}
    found = stream.run(topics="three,one")
    assert found == [value for value in new(log) if value[0] == "one"]
    assert {value[0] for value in stream.run()} == {"two"}
    log.trim(1, 0, 1)
    assert stream.run() == []


def test_more_topics_of_a_stream_that_began_late_begin_there_too(log: Log, stream: Stream) -> None:
    assert stream.run(topics="one", **{"from": "latest"}) == []
    log.append(2, 0, b"since then")
    assert stream.run(topics="one") == []
    assert [value[3] for value in stream.run(topics="*")] == [b"since then"]


def test_a_checkpoint_of_an_older_version_goes_on(log: Log, stream: Stream) -> None:
    stream.run()
    assert stream.offset is not None
    stream.offset = {"version": 1, "log_id": stream.offset["log_id"], "lsn": stream.offset["lsn"]}
    log.append(1, 0, b"new")
    assert [value[3] for value in stream.run()] == [b"new"]
    log.trim(1, 1, 1)
    log.append(1, 0, b"newer")
    assert [value[3] for value in stream.run()] == [b"newer"]
    log.append(1, 0, b"lost", b"kept")
    log.trim(1, 0, 5)
    with pytest.raises(DataLost, match=r"^1 records"):
        stream.run()


# -- Restored logs -------------------------------------------------------------------------------


def test_restored_log_that_has_grown_past_a_checkpoint_is_refused(
    log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.seal()
    log.append(1, 0, b"after the backup")
    stream.run()
    monkeypatch.setattr(making, "segment_id_of", lambda first_lsn: bytes(16))
    log.append(1, 0, b"of the restored log")
    with pytest.raises(BadCheckpoint, match="an older copy of the log was restored and has grown"):
        stream.run()


def test_without_the_tail_records_come_when_their_file_is_closed(log: Log, stream: Stream) -> None:
    """A stream that read the open file before waits until the closed ones are as far."""
    closed = [value for value in new(log) if value[0] != "three"]
    assert stream.run(tail="false") == closed
    log.seal()
    log.publish()
    assert [value[0] for value in stream.run(tail="false")] == ["three"] * 3
    log.append(1, 0, b"open")
    before = stream.offset
    assert [value[3] for value in stream.run()] == [b"open"]
    assert stream.run(tail="false") == []
    assert stream.run() == []
    reader = stream.reader(tail="false")
    assert before is not None and stream.offset is not None
    assert len(reader.partitions(before, stream.offset)) == 1, "a batch that has to be done again"


@pytest.mark.slow
def test_beside_a_broker_and_rollups_each_record_comes_once(tmp_path: Path) -> None:
    """While files are closed, taken and deleted, and records come."""
    data_dir = tmp_path / "data"
    stream = Stream(data_dir)
    ended = threading.Event()

    def write() -> None:
        try:
            for turn in range(60):
                append(data_dir, "orders", 500)
                if turn % 6 == 5:
                    brokerctl(data_dir, "archive", "seal")
                if turn % 9 == 8:
                    roll_up_all(data_dir)
        finally:
            ended.set()

    found: list[Value] = []
    with serving(data_dir):
        wait_until((data_dir / "state" / "bounds").exists)
        writer = threading.Thread(target=write)
        writer.start()
        while not ended.is_set():
            found += stream.run()
        writer.join()
        found += stream.run()
    assert sorted(value[2] for value in found) == list(range(30_000))
    assert stream.batches > 10


# -- Lag -----------------------------------------------------------------------------------------


def test_the_progress_shows_the_lag(log: Log, stream: Stream) -> None:
    """In records and bytes behind the last micro-batch, of the topics that the stream reads."""
    orders, other = log.create("orders"), log.create("other")
    for _ in range(8):
        log.append(orders, 0, *(b"x" * 1_000 for _ in range(10)))
    reader = stream.reader(topics="orders", maxBytesPerTrigger="20KiB")
    assert lag(reader) == (None, None)
    offset = again(reader.initialOffset())
    limit = reader.getDefaultReadLimit()
    seen = []
    while (end := again(reader.latestOffset(offset, limit))) != offset:
        offset = end
        seen.append(lag(reader))
    records = [one[0] for one in seen]
    assert len(seen) > 2
    assert records == sorted(records, reverse=True)
    assert 0 < records[0] < 80
    assert all(10_000 < size < 12_000 for count, size in seen if count == 10)
    assert seen[-1] == (0, 0)
    log.append(other, 0, b"of another topic")
    assert lag(reader) == (0, 0)
    log.append(orders, 1, b"a", b"b")
    count, size = lag(reader)
    assert (count, 0 < size < 1_000) == (2, True)


def test_the_lag_counts_what_is_archived_and_the_rest(log: Log, stream: Stream) -> None:
    """A stream that begins late has all of it before it."""
    topic = log.create("orders")
    log.append(topic, 0, b"a")
    reader = stream.reader()
    offset = again(reader.initialOffset())
    offset = again(reader.latestOffset(offset, ReadAllAvailable()))
    assert lag(reader) == (0, 0)
    log.append(topic, 0, *(b"b" * 100 for _ in range(50)))
    log.seal()
    log.roll_up()
    log.append(topic, 1, b"c", b"d")
    count, size = lag(reader)
    assert 52 <= count <= 53  # a file of the archive counts whole row groups
    assert size > 100
    again(reader.latestOffset(offset, ReadAllAvailable()))
    assert lag(reader) == (0, 0)
