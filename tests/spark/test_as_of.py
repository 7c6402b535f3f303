"""An earlier version of the archive: by version, by time, by LSN."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from brokerd.archive.delta.history import list_versions
from brokerd.errors import BrokerdError
from brokerd.spark.options import BadOption, batch_request, parse_options, stream_request
from brokerd.spark.plan.as_of import NoSuchVersion
from brokerd.spark.request import AsOf
from tests.archive.inline import NOW_MS
from tests.spark.logs import Log, rows_of


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "data")
    topics = [log.create("one"), log.create("two")]
    for number in range(4):
        for topic_id in topics:
            log.append(topic_id, 0, b"%d" % number, b"x")
        log.seal()
        log.publish()
        if number < 3:
            log.roll_up()
    return log


def table_of(log: Log) -> Path:
    return Path(str(log.root)) / "records"


def values(log: Log, **as_of: int) -> list[tuple[str, int]]:
    return [(row.topic, row.offset) for row in log.read(as_of=AsOf(**as_of))]


def test_each_version_has_the_rows_that_delta_readers_see(log: Log) -> None:
    for one in list_versions(table_of(log)):
        table = DeltaTable(str(table_of(log)), version=one.version).to_pyarrow_table()
        wanted = sorted(zip(*(table[n].to_pylist() for n in ("topic", "offset")), strict=True))
        assert sorted(values(log, version=one.version)) == wanted


def test_removed_records_are_there_as_of_an_earlier_version(log: Log) -> None:
    """Trimmed, and of a deleted topic."""
    before = values(log, version=3)
    assert len(before) == 12
    log.trim(1, 0, 4)
    log.delete(2)
    log.publish()
    assert {row.topic for row in log.read()} == {"one"}
    assert values(log, version=3) == before
    plan = log.plan(has_scans=True, as_of=AsOf(version=3))
    assert sorted((row.topic, row.offset) for row in rows_of(plan)) == sorted(before)


def test_an_lsn_ends_the_log(log: Log) -> None:
    """In the middle of a version, and at the end of one."""
    table = DeltaTable(str(table_of(log))).to_pyarrow_table()
    whole = [(row["topic"], row["offset"], row["lsn"]) for row in table.to_pylist()]
    versions = [one.lsn for one in list_versions(table_of(log)) if one.lsn]
    for lsn in [versions[0], versions[1], versions[1] - 1, versions[0] + 1]:
        wanted = sorted((topic, offset) for topic, offset, of in whole if of < lsn)
        assert sorted(values(log, lsn=lsn)) == wanted, lsn
    with pytest.raises(NoSuchVersion, match=rf"LSN {versions[-1] + 1}; .* LSN {versions[-1]}$"):
        log.plan(as_of=AsOf(lsn=versions[-1] + 1))


def test_a_time_chooses_the_newest_version_before_it(log: Log) -> None:
    newest = list_versions(table_of(log))[-1]
    assert log.plan(as_of=AsOf(time_us=NOW_MS * 1000)).end_lsn == newest.lsn
    with pytest.raises(NoSuchVersion, match="no version at this time; it has the versions 0 to 3"):
        log.plan(as_of=AsOf(time_us=NOW_MS * 1000 - 1))


def test_a_version_that_does_not_exist_is_named(log: Log) -> None:
    with pytest.raises(NoSuchVersion, match="no version 9; it has the versions 0 to 3"):
        log.plan(as_of=AsOf(version=9))


def test_files_that_vacuum_deleted_are_named(log: Log) -> None:
    for path in DeltaTable(str(table_of(log)), version=1).file_uris():
        Path(path.removeprefix("file://")).unlink()
    with pytest.raises(NoSuchVersion, match=r"version 1 needs \d files that vacuum has deleted"):
        log.plan(as_of=AsOf(version=1))


@pytest.mark.parametrize(
    ("options", "as_of"),
    [
        ({"versionAsOf": "3"}, AsOf(version=3)),
        ({"lsnasof": "77"}, AsOf(lsn=77)),
        ({"timestampAsOf": "1970-01-01T00:00:01"}, AsOf(time_us=1_000_000)),
        ({}, None),
    ],
)
def test_options(options: dict[str, str], as_of: AsOf | None) -> None:
    assert batch_request(parse_options({"path": "p", **options})).as_of == as_of


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"versionAsOf": "-1"}, "versionAsOf='-1' is not a whole number"),
        ({"timestampAsOf": "soon"}, "timestampAsOf='soon' is not a time"),
        ({"versionAsOf": "1", "lsnAsOf": "1"}, "versionAsOf and lsnAsOf exclude each other"),
        ({"versionAsOf": "1", "only": "archive"}, "only has no effect with versionAsOf"),
        ({"versionAsOf": "1", "from": '{"a": {"0": 1}}'}, "take no offsets by topic"),
        ({"versionAsOf": "1", "table": "hourly"}, "versionAsOf is for the table records"),
    ],
)
def test_wrong_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        batch_request(parse_options({"path": "p", **options}))


def test_streams_have_no_as_of() -> None:
    with pytest.raises(BrokerdError, match="are for batches"):
        stream_request(parse_options({"path": "p", "lsnAsOf": "1"}))
