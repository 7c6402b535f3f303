"""``spark.read.format("brokerd")``: what rows look like, and what users are told."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerd.archive.storage.address import ObjectAddress
from tests.archive.making import body_position, damage
from tests.conftest import DELTA_JARS
from tests.spark.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE = (
    "struct<topic:string,topic_id:bigint,partition:int,offset:bigint,append_time:timestamp,"
    "producer_time:bigint,lsn:bigint,key:binary,value:binary,encoding:tinyint,metadata:binary,"
    "expires_at:bigint,producer_format:tinyint>"
)


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """A directory that looks like a broker's."""
    (tmp_path / "wal").mkdir()
    (tmp_path / "state").mkdir()
    return str(tmp_path)


def test_rows_have_the_columns_of_the_table_records(source: SparkSession, empty: str) -> None:
    """Without its bucket; as JSON the payload is text; named columns are in that order."""
    reader = source.read.format("brokerd")
    whole = reader.load(empty)
    assert whole.schema.simpleString() == WHOLE
    assert [field.name for field in whole.schema if field.nullable] == [
        "producer_time",
        "key",
        "metadata",
    ]
    shown = reader.option("payload", "json").option("columns", "value,offset,metadata").load(empty)
    assert shown.schema.simpleString() == "struct<value:string,offset:bigint,metadata:string>"
    packed = reader.option("payload", "msgpack").option("columns", "value").load(empty)
    assert packed.schema.simpleString() == "struct<value:binary>"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"payload": "xml"}, "BadOption: payload='xml' is unknown: give bytes, json, msgpack"),
        ({"Topic": "a"}, "BadOption: unknown option 'topic'; the options are topics, columns, "),
        ({"archive": "ftp://x"}, "BadLocation: the option archive"),
    ],
)
def test_what_is_wrong_is_said_when_a_place_is_loaded(
    source: SparkSession, empty: str, options: dict[str, str], said: str
) -> None:
    """In one line, without a traceback."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as refused:
        source.read.format("brokerd").options(**options).load(empty)
    assert said in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert len(str(refused.value).strip().splitlines()) <= 2


def test_tables_of_the_catalog_keep_their_options(source: SparkSession, log: Log) -> None:
    """Also when the table is streamed, though Spark passes no options then."""
    from pyspark.errors import AnalysisException, StreamingQueryException

    rows = len(log.rows)
    try:
        source.sql(f"CREATE TABLE whole USING brokerd LOCATION '{log.path}'")
        source.sql(
            f"CREATE TABLE part USING brokerd OPTIONS (path '{log.path}', topics 'one,two', "
            "columns 'topic,value', payload 'json')"
        )
        if DELTA_JARS:  # Spark knows no source of Python in the tables of another catalog
            with pytest.raises(AnalysisException, match="brokerd is not a valid"):
                source.table("whole")
            return
        source.catalog.createTable("made", str(log.path), "brokerd", topics="three")
        assert source.table("whole").count() == rows
        found = source.sql("SELECT DISTINCT topic, value FROM part").collect()
        assert sorted(found)[0] == ("one", "a of one")
        assert {row.topic for row in found} == {"one", "two"}
        assert {row.topic for row in source.table("made").collect()} == {"three"}
        stream = source.readStream.table("made").writeStream.format("memory").queryName("seen")
        query = stream.trigger(availableNow=True).start()
        if find_spec("pyspark.sql.streaming.datasource") is None:
            with pytest.raises(StreamingQueryException, match=r"brokerd need Spark 4\.2"):
                query.awaitTermination()
        else:
            query.awaitTermination()
            assert source.table("seen").count() == 3
    finally:
        for name in ("whole", "part", "made"):
            source.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_place_that_is_none_is_refused_with_what_it_lacks(
    source: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"it lacks wal/ or state/"):
        source.read.format("brokerd").load(str(tmp_path))
    with pytest.raises(AnalysisException, match=r"load.. needs a path"):
        source.read.format("brokerd").load()
    with pytest.raises(AnalysisException, match=r"load.. takes one path"):
        source.read.format("brokerd").load([str(tmp_path), "/b"])


def test_options_of_the_other_kind_are_refused_when_it_is_read(
    source: SparkSession, empty: str
) -> None:
    from pyspark.errors import AnalysisException

    batch = source.read.format("brokerd").option("maxBytesPerTrigger", "1MiB").load(empty)
    with pytest.raises(AnalysisException, match="BadOption: maxBytesPerTrigger is for streams"):
        batch.count()


def test_a_schema_of_ones_own_is_refused_in_favour_of_columns(
    source: SparkSession, empty: str
) -> None:
    from pyspark.errors import AnalysisException

    frame = source.read.format("brokerd").schema("topic string, n int").load(empty)
    with pytest.raises(AnalysisException, match="select columns with the option"):
        frame.count()
    source.read.format("brokerd").schema(WHOLE[7:-1].replace(":", " ")).load(empty)


@pytest.mark.parametrize("told", ["false", "true"])
def test_a_frame_has_the_same_rows_whatever_else_it_is_used_for(
    source: SparkSession, log: Log, told: str
) -> None:
    """With conditions and without, in one query and in several, and if Spark tells of them.

    It keeps what it planned for one use, and takes it for others.
    """
    setting = "spark.sql.python.filterPushdown.enabled"
    source.conf.set(setting, told)
    try:
        frame = source.read.format("brokerd").load(str(log.path))
        two, three = frame.where("topic = 'two'"), frame.where("topic = 'three'")
        assert [each.count() for each in (two, frame, three, two.union(three))] == [3, 9, 3, 6]
        assert frame.where("topic = 'two' OR partition = 0").count() == 7
        assert frame.join(two.select("lsn"), "lsn", "left_anti").count() == 6
    finally:
        source.conf.unset(setting)


def test_a_frame_is_the_log_as_it_was_when_it_was_first_used(
    source: SparkSession, log: Log
) -> None:
    """Records that came since are in another that is loaded; none goes with its journal file."""
    frame = source.read.format("brokerd").load(str(log.path))
    assert frame.count() == 9
    log.append(1, 0, b"since")
    log.seal()
    log.publish()
    log.roll_up()
    log.delete_archived()
    assert frame.count() == 9
    assert source.read.format("brokerd").load(str(log.path)).count() == 10


def test_a_view_of_sql_is_a_frame(source: SparkSession, log: Log) -> None:
    options = f"path '{log.path}', topics 'two', partitionBytes '1'"
    source.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING brokerd OPTIONS ({options})")
    assert source.table("log").rdd.getNumPartitions() == 2
    found = source.sql("SELECT max(offset) FROM log WHERE partition = 0").collect()
    assert [row[0] for row in found] == [1]


def test_damage_is_named_in_one_line(source: SparkSession, log: Log) -> None:
    """Of a batch that was planned and cannot be read; rows are never made up."""
    path = log.sealed[0]
    damage(path, body_position(path, b"a of one"))
    frame = source.read.format("brokerd").load(str(log.path))
    with pytest.raises(Exception, match=rf"DamagedBatch: .*{path.name}") as refused:
        frame.count()
    assert "Traceback" not in str(refused.value)
    assert source.read.format("brokerd").option("topics", "two").load(str(log.path)).count() == 3


def test_rows_that_expire_are_gone(source: SparkSession, log: Log) -> None:
    """By this machine's clock."""
    now_us = time.time_ns() // 1000
    log.append(1, 0, b"gone", expires_at=now_us - 1)
    log.append(1, 0, b"there", expires_at=now_us + 600_000_000)
    rows = source.read.format("brokerd").option("from", "2").load(str(log.path)).collect()
    assert [bytes(row["value"]) for row in rows] == [b"there"]


def test_an_archive_in_a_bucket_is_a_place(
    source: SparkSession, tmp_path: Path, bucket: ObjectAddress
) -> None:
    """By itself, and as that of a data directory."""
    log = Log(tmp_path / "data", bucket)
    topic_id = log.create("one")
    log.append(topic_id, 0, b"a", b"b")
    log.seal()
    log.publish()
    log.roll_up()
    log.delete_archived()
    log.append(topic_id, 0, b"c")

    def values(place: object, **options: str) -> list[bytes]:
        rows = source.read.format("brokerd").options(**options).load(str(place)).collect()
        return sorted(bytes(row["value"]) for row in rows)

    assert values(bucket) == [b"a", b"b"]
    assert values(log.path, archive=str(bucket)) == [b"a", b"b", b"c"]
