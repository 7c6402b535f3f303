"""Typed tables of the rollup: each record once, in its table or in that of rejected records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.layout import UNFINISHED
from brokerd.archive.contract.schemas import (
    FILE_NAME,
    StoredSchema,
    StoredSchemas,
    decode_schemas,
    encode_schemas,
)
from brokerd.archive.erase import EraseJob, run_erase
from brokerd.archive.job import JobReport, run_job
from brokerd.archive.recover import RecoverJob, run_recover
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.store import open_store
from brokerd.archive.typed import derive, topic_schema
from brokerd.archive.typed.layouts import STATISTICS
from tests.archive.data import MIB, NOW_MS, Data
from tests.archive.inline import map_here
from tests.archive.making import LOG_ID
from tests.archive.test_job import TAKE_ONLY, job_of
from tests.archive.test_log_files import open_to_writers

pytestmark = pytest.mark.spark_tasks
"""Nothing here starts Spark, and tasks run where the job runs them."""

TYPED = TAKE_ONLY._replace(typed=True, merge=False, local_lot_bytes=MIB)


class Orders(Data):
    """A log whose topic 1 has a schema."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.versions: list[StoredSchema] = []

    def register(self, *, required: tuple[str, ...] = ("n",), **types: Any) -> None:
        properties = {
            name: {"type": kind} if isinstance(kind, str) else kind for name, kind in types.items()
        }
        text = {"type": "object", "properties": properties, "required": required}
        number = len(self.versions) + 1
        stored = StoredSchema(
            "topic-1", number, "json", json.dumps(text).encode(), self.log.time_us
        )
        self.versions.append(stored)

    def publish(self) -> None:
        data = encode_schemas(StoredSchemas(LOG_ID, self.versions))
        (self.path / "state" / FILE_NAME).write_bytes(data)
        super().publish()

    def add(self, *values: object, topic_id: int = 1, partition: int = 0) -> None:
        texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in values]
        self.append(topic_id, partition, *texts)

    def roll(self, **changes: Any) -> JobReport:
        self.publish()
        given = {"settings": TYPED, **changes}
        report = run_job(job_of(self, None, **given))
        assert report.problems == []
        return report

    def table(self, part: str) -> list[dict[str, Any]]:
        table = DeltaTable(str(self.root / "typed" / "1" / part)).to_pyarrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def typed(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in ("offset", *names)) for row in self.table("rows")]

    def rejected(self) -> list[tuple[int, str]]:
        return [(row["offset"], row["schema_error"]) for row in self.table("rejected")]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of other steps here, too; they would start Spark."""
    monkeypatch.setattr(SparkRunner, "map", map_here)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    found = Orders(tmp_path / "data")
    found.register(n="integer", s="string")
    return found


def test_rows_are_typed_and_the_others_rejected(orders: Orders) -> None:
    """Without Spark for a small lot; other topics have no such table."""
    orders.add({"n": 1, "s": "a"}, b"no JSON", {"n": 2})
    orders.add({"n": 9}, topic_id=2)
    orders.log.seal()
    report = orders.roll()
    (step,) = [one for one in report.steps if one.name == "typed"]
    assert step.numbers["typed"] == 2
    assert step.numbers["rejected"] == 1
    assert orders.typed("n", "s", "schema_version") == [(0, 1, "a", 1), (2, 2, None, 1)]
    assert orders.rejected() == [
        (1, "version 1: invalid JSON message: Expecting value: line 1 column 1 (char 0)")
    ]
    assert orders.table("rejected")[0]["value"] == b"no JSON"
    assert os.listdir(orders.root / "typed") == ["1"]
    copy = decode_schemas((orders.root / FILE_NAME).read_bytes())
    assert copy.versions == orders.versions
    assert orders.roll().steps[0].lines == []


def test_records_with_many_fields_are_written_in_parts(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part with its own records."""
    monkeypatch.setattr(topic_schema, "PART_CELLS", 4)
    orders.register(n="integer", l={"type": "array", "items": {"type": "integer"}})
    values = [{"n": n, "l": [n] * (n % 4)} if n % 5 else {"n": "x"} for n in range(40)]
    orders.add(*values)
    orders.log.seal()
    orders.roll()
    fit = [(at, one["n"], one["l"]) for at, one in enumerate(values) if at % 5]
    assert orders.typed("n", "l") == fit
    assert [offset for offset, _ in orders.rejected()] == list(range(0, 40, 5))


@pytest.mark.usefixtures("inline")
def test_each_record_comes_once_over_runs_and_merges(orders: Orders) -> None:
    """The merge changes no row."""
    settings = TYPED._replace(merge=True)
    for number in range(6):
        orders.add({"n": number}, {"s": 1}, partition=number % 2)
        orders.log.seal()
        orders.roll(settings=settings, is_small=number % 2 == 0)
    assert [row["n"] for row in orders.table("rows")] == [0, 2, 4, 1, 3, 5]
    assert len(orders.table("rejected")) == 6
    assert len(DeltaTable(str(orders.root / "typed/1/rows")).file_uris()) < 4


@pytest.mark.usefixtures("inline")
def test_small_rounds_merge_many_files_at_once(orders: Orders) -> None:
    """Pairs would write each row anew with each doubling. A complete run merges the rest."""
    settings = TYPED._replace(merge=True)

    def files() -> int:
        return len(DeltaTable(str(orders.root / "typed/1/rows")).file_uris())

    for number in range(5):
        orders.add({"n": number})
        orders.log.seal()
        orders.roll(settings=settings, is_small=True)
    assert files() == 5
    orders.roll(settings=settings)
    assert files() == 1
    assert orders.typed("n") == [(number, number) for number in range(5)]


@pytest.mark.usefixtures("inline")
def test_a_new_field_is_a_new_column(orders: Orders) -> None:
    """Old files lack it; engines read null. A deleted version stays usable."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    orders.add({"n": 1})
    orders.log.seal()
    orders.roll()
    inner = {"type": "object", "properties": {"k": {"type": "string"}}}
    orders.register(n="integer", s="string", o=inner, l={"type": "array", "items": {}})
    orders.versions.pop(0)
    orders.add({"n": 2, "o": {"k": "x"}, "l": [1]})
    orders.log.seal()
    report = orders.roll()
    assert "typed table of topic-1: new columns o, l" in report.steps[0].lines
    assert orders.typed("n", "o", "l") == [(0, 1, None, None), (1, 2, {"k": "x"}, ["1"])]
    orders.add({"n": 3})
    orders.log.seal()
    orders.roll(settings=TYPED._replace(merge=True))
    table = DeltaTable(str(orders.root / "typed/1/rows"))
    frame = polars.scan_delta(str(orders.root / "typed/1/rows")).collect()
    assert sorted(frame["n"]) == [1, 2, 3]
    query = duckdb.read_parquet(table.file_uris(), union_by_name=True)
    assert query.aggregate("sum(n)").fetchall() == [(6,)]


def test_a_wider_type_makes_the_table_anew(orders: Orders) -> None:
    """In one commit, from the archive; rejected records stay as they are."""
    orders.add({"n": 1}, {"s": "x"})
    orders.log.seal()
    orders.roll()
    orders.register(n="number", s="string")
    orders.add({"n": 1.5})
    orders.log.seal()
    report = orders.roll()
    assert any("made anew with 2 columns and 2 rows" in line for line in report.steps[0].lines)
    assert orders.typed("n", "schema_version") == [(0, 1.0, 1), (2, 1.5, 2)]
    assert [offset for offset, _ in orders.rejected()] == [1]


def test_a_table_that_mixes_two_fields_is_made_anew(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions of brokerd did so if names differ in case. A run mends the table once."""
    orders.add({"n": 1, "s": "a"})
    orders.register(n="integer", S="string")
    orders.add({"n": 2, "S": "b"})
    orders.log.seal()
    with monkeypatch.context() as patch:
        patch.setattr(derive, "NAMES_PROPERTY", "brokerd.another")
        orders.roll()
    told = "made anew with 3 columns and 2 rows, because two fields had one column"
    (line,) = orders.roll().steps[0].lines
    assert told in line
    assert orders.typed("n", "s", "S_2") == [(0, 1, "a", None), (1, 2, None, "b")]
    assert orders.roll().steps[0].lines == []


def test_an_incompatible_type_is_told_once(orders: Orders) -> None:
    """The column keeps its type, and the values are rejected."""
    orders.add({"n": 1})
    orders.log.seal()
    orders.roll()
    orders.register(n="string")
    orders.add({"n": "x"})
    orders.log.seal()
    told = "typed table of topic-1: column n stays bigint, and version 2 has string"
    assert told in orders.roll().steps[0].lines
    assert orders.rejected() == [(1, "version 2: column n is bigint, and the value string")]
    assert told not in orders.roll().steps[0].lines


def test_records_after_the_bounds_wait(orders: Orders) -> None:
    """Their schemas may not be known yet."""
    orders.add({"n": 1})
    orders.log.seal()
    orders.publish()
    early = (orders.path / "state/bounds").read_bytes()
    orders.register(n="integer", late="string")
    orders.add({"n": 2, "late": "x"})
    orders.log.seal()
    schemas = orders.versions.pop()
    orders.publish()
    (orders.path / "state/bounds").write_bytes(early)
    assert run_job(job_of(orders, None, settings=TYPED)).problems == []
    assert orders.typed("n") == [(0, 1)]
    orders.versions.append(schemas)
    orders.roll()
    assert orders.typed("n", "late") == [(0, 1, None), (1, 2, "x")]


@pytest.mark.usefixtures("inline")
def test_rows_of_removed_records_go(orders: Orders) -> None:
    """A complete run removes them after every kind of removal of records."""
    orders.add({"n": 1}, {"n": 2}, {"s": 1})
    orders.log.seal()
    orders.roll()
    orders.add({"n": 4})
    orders.add({"n": 5}, partition=1)
    orders.log.seal()
    orders.roll()
    orders.starts[1] = 3
    settings = TYPED._replace(retention=True)
    orders.roll(settings=settings)
    orders.roll(settings=settings)
    assert orders.typed("n") == [(3, 4), (0, 5)]
    assert orders.rejected() == []


def test_an_erasure_removes_rows_of_typed_tables(orders: Orders) -> None:
    """Also when the rollup does not keep the tables any more. Old files go with the others."""
    orders.append(1, 0, b'{"n": 1}', b'{"s": 1}', b'{"n": 2}', keys=[b"ann", b"ann", b"bob"])
    orders.log.seal()
    orders.roll()
    given = TYPED._replace(typed=False)
    job = EraseJob(orders.path, orders.root, given, lambda: NOW_MS, "topic-1", b"ann")
    report = run_erase(job)
    assert (report.erased, report.found_after, report.typed_erased) == (2, 0, 2)
    assert (report.typed, report.problems) == ((), ())
    assert orders.typed("n") == [(2, 2)]
    assert orders.rejected() == []
    assert sum(one.startswith("typed/1/") for one in report.deleted) == 2
    files = [one.read_bytes() for one in (orders.root / "typed").rglob("*.parquet")]
    assert len(files) == 1
    assert run_erase(job).typed_erased == 0
    orders.add({"n": 3})
    orders.log.seal()
    orders.roll()
    assert orders.typed("n") == [(2, 2), (3, 3)]


def test_an_erasure_tells_of_old_typed_files_and_of_rows_that_stay(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files may wait for the rollup. Rows of records that a group uses stay with them."""
    orders.append(1, 0, b'{"n": 1}', b'{"n": 2}', keys=[b"ann", b"bob"])
    orders.append(1, 1, b'{"n": 3}', keys=[b"ann"])
    orders.log.seal()
    orders.roll()
    bounds = orders.bounds()
    partitions = bounds.topics[0].partitions
    partitions[1] = msgspec.structs.replace(partitions[1], compact_below=0)
    monkeypatch.setattr(orders, "bounds", lambda: bounds)
    orders.publish()
    job = EraseJob(orders.path, orders.root, TYPED, lambda: NOW_MS, "topic-1", b"ann")
    report = run_erase(job._replace(deletes_now=False))
    assert (report.erased, report.typed_erased) == (1, 1)
    assert sorted((one.rows, one.live) for one in report.typed) == [(1, True), (2, False)]
    assert orders.typed("n") == [(1, 2), (0, 3)]
    (row,) = run_erase(job).typed
    assert (row.rows, row.live) == (1, True)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_an_erasure_goes_on_after_a_typed_file_that_cannot_be_read(
    orders: Orders, is_gone: bool
) -> None:
    """The other files, also of the same table, and the old files of records lose the key."""
    for number in range(2):
        orders.append(1, 0, b'{"n": %d}' % number, b'{"s": 1}', keys=[b"ann", b"ann"])
        orders.log.seal()
        orders.roll(settings=TYPED._replace(merge=False))
    bad = min((orders.root / "typed/1/rows").glob("*.parquet"))
    bad.write_bytes(bad.read_bytes()[:-20])
    if is_gone:
        bad.unlink()
    job = EraseJob(orders.path, orders.root, TYPED, lambda: NOW_MS, "topic-1", b"ann")
    report = run_erase(job)
    assert (report.erased, report.found_after, report.typed_erased) == (4, 0, 3)
    (problem,) = report.problems
    assert bad.name in problem
    assert not report.is_complete
    left = {one.name for one in (orders.root / "typed").rglob("*.parquet")}
    assert left == (set() if is_gone else {bad.name})
    assert sum(one.startswith("bucket=1/") for one in report.deleted) == 2


def test_an_erasure_deletes_unfinished_typed_files(orders: Orders) -> None:
    """A stopped rollup left one. It may have the key, and nobody can read it."""
    orders.append(1, 0, b'{"n": 1}', keys=[b"ann"])
    orders.log.seal()
    orders.roll()
    left = orders.root / "typed/1/rows" / f"{UNFINISHED}00.parquet"
    left.write_bytes(b"PAR1ann")
    job = EraseJob(orders.path, orders.root, TYPED, lambda: NOW_MS, "topic-1", b"ann")
    kept = run_erase(job._replace(deletes_now=False))
    assert any(left.name in one for one in kept.problems)
    assert run_erase(job).problems == ()
    assert not left.exists()


def test_the_tables_of_a_deleted_topic_are_deleted(orders: Orders) -> None:
    """Also their rejected records."""
    orders.add({"n": 1})
    orders.add({"n": 1}, topic_id=2)
    orders.log.seal()
    orders.roll()
    del orders.starts[1]
    report = orders.roll()
    assert "deleted the typed table of topic id 1, which is deleted" in report.steps[0].lines
    assert [one for one in (orders.root / "typed").rglob("*") if one.is_file()] == []
    assert orders.roll().steps[0].lines == []


def test_a_stop_between_the_two_commits_doubles_no_row(orders: Orders) -> None:
    """The next run has newer records, too; the table of rows must get these alone."""

    def stop(name: str) -> None:
        if name == "after typed rows commit":
            raise KeyboardInterrupt

    orders.add({"n": 1}, b"bad")
    orders.log.seal()
    orders.publish()
    with pytest.raises(KeyboardInterrupt):
        run_job(job_of(orders, None, settings=TYPED, failpoint=stop))
    orders.add({"n": 2}, b"worse")
    orders.log.seal()
    orders.roll()
    assert orders.typed("n") == [(0, 1), (2, 2)]
    assert [offset for offset, _ in orders.rejected()] == [1, 3]


def test_files_have_statistics_with_null_counts(orders: Orders) -> None:
    """Without null counts, other programs skip no file."""
    orders.add({"n": 1}, {"n": 2}, b"bad")
    orders.log.seal()
    orders.roll()
    for part, rows, last in ("rows", 2, 1), ("rejected", 1, 2):
        actions = DeltaTable(str(orders.root / "typed/1" / part)).get_add_actions()
        (found,) = pa.table(actions).to_pylist()
        assert found["num_records"] == rows
        assert found["max"]["offset"] == last
        assert found["null_count"] == dict.fromkeys(STATISTICS, 0)


def test_a_table_that_fails_does_not_stop_the_others(orders: Orders) -> None:
    """Its error is told."""
    orders.versions.append(msgspec.structs.replace(orders.versions[0], name="topic-2"))
    orders.add({"n": 1})
    orders.add({"n": 2}, topic_id=2)
    orders.log.seal()
    orders.roll()
    (commit,) = (orders.root / "typed/1/rows/_delta_log").glob("*1.json")
    commit.write_bytes(b"{}")
    orders.add({"n": 3})
    orders.add({"n": 4}, topic_id=2)
    orders.log.seal()
    orders.publish()
    (problem,) = run_job(job_of(orders, None, settings=TYPED)).problems
    assert str(commit) in problem
    found = DeltaTable(str(orders.root / "typed/2/rows")).to_pyarrow_table()
    assert sorted(found["n"].to_pylist()) == [2, 4]
    abandoned = orders.root / "typed/2/rejected/t-0.parquet"
    abandoned.write_bytes(b"PAR1")
    os.utime(abandoned, (0, 0))
    (problem,) = run_job(job_of(orders, None, settings=TYPED._replace(vacuum=True))).problems
    assert str(commit) in problem
    assert not abandoned.exists()


def test_optimize_of_another_program_is_undone(orders: Orders) -> None:
    """By ``brokerctl archive recover``, as for the other tables."""
    for number in range(2):
        orders.add({"n": number})
        orders.log.seal()
        orders.roll()
    open_to_writers(orders.root / "typed/1/rows")
    table = DeltaTable(str(orders.root / "typed/1/rows"))
    assert table.optimize.compact()["numFilesRemoved"] == 2
    orders.publish()
    (problem,) = run_job(job_of(orders, None, settings=TYPED)).problems
    assert "typed/1/rows" in problem and "`brokerctl archive recover`" in problem
    (found,) = run_recover(RecoverJob(orders.path, orders.root, lambda: NOW_MS))
    assert (found.name, found.commits) == ("typed/1/rows", 1)
    orders.add({"n": 2})
    orders.log.seal()
    orders.roll()
    assert orders.typed("n") == [(0, 0), (1, 1), (2, 2)]


def test_hostile_values_and_schemas_do_not_stop_a_run(orders: Orders) -> None:
    """A lone surrogate in JSON, which UTF-8 cannot express; a record without fields in Avro."""
    inner = {"name": "e", "type": {"type": "record", "name": "E", "fields": []}}
    fields = [inner, {"name": "n", "type": "long"}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    orders.versions.append(StoredSchema("topic-2", 1, "avro", text, 0))
    closed = {"type": "object", "properties": {"n": {}}, "additionalProperties": False}
    orders.versions[0] = StoredSchema("topic-1", 1, "json", json.dumps(closed).encode(), 0)
    orders.add({"\ud800": 1}, {"n": "x"})
    orders.add(b"\x06", topic_id=2)
    orders.log.seal()
    orders.roll()
    assert orders.rejected() == [(0, "version 1: unexpected field: \\ud800")]
    assert orders.typed("n") == [(1, '"x"')]
    found = DeltaTable(str(orders.root / "typed/2/rows")).to_pyarrow_table()
    assert found["n"].to_pylist() == [3]


@pytest.mark.usefixtures("inline")
def test_commits_of_records_are_looked_through_once(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new table has the rows of the present version, and looks at later commits alone."""
    monkeypatch.setattr(derive, "MARK_COMMITS", 2)

    def seen() -> tuple[int, int]:
        table = DeltaTable(str(orders.root / "typed/1/rows"))
        return table.transaction_version(derive.REMOVAL_APP) or 0, table.version()

    for number in range(4):
        orders.add({"n": number})
        orders.log.seal()
        orders.roll(is_small=number in (1, 2))
        version = DeltaTable(str(orders.root / "records")).version()
        if number == 0:
            first = version
            assert seen()[0] == first
    assert first + 2 <= version == seen()[0]
    before = seen()
    orders.roll()
    assert seen() == before
    orders.starts[1] = 1
    orders.roll(settings=TYPED._replace(retention=True))
    orders.roll(settings=TYPED._replace(retention=True))
    assert orders.typed("n") == [(1, 1), (2, 2), (3, 3)]


POINTS = [
    "before schemas are published",
    "before a typed table is created",
    "before columns of a typed table",
    "typed rows written",
    "before typed rows commit",
    "after typed rows commit",
    "before typed rejected commit",
    "after typed rejected commit",
    "before typed files are merged",
    "before a typed table is made anew",
    "after a typed table is made anew",
    "before typed rows are removed",
    "before a typed table is deleted",
]


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_each_row_is_there_once(orders: Orders, point: str) -> None:
    """At each point, the first and the second time that a run passes it."""

    class Killed(BaseException):
        """In place of the end of the process."""

    def killed(count: int, **changes: Any) -> bool:
        passed = 0

        def at(name: str) -> None:
            nonlocal passed
            passed += name == point
            if name == point and passed == count:
                raise Killed

        orders.publish()
        try:
            assert run_job(job_of(orders, None, failpoint=at, **changes)).problems == []
        except Killed:
            return True
        return False

    merges = point == "before typed files are merged"
    settings = TYPED._replace(merge=merges, retention=True)
    kills = 0
    orders.add({"n": 0}, {"s": 0})
    orders.add({"n": 0}, topic_id=2)
    orders.log.seal()
    kills += killed(1, settings=settings) + killed(2, settings=settings)
    orders.register(n="integer", s="string", more="string")
    orders.add({"n": 1, "more": "x"}, {"s": 1})
    orders.log.seal()
    kills += killed(1, settings=settings) + killed(2, settings=settings)
    orders.register(n="number", s="string", more="string")
    orders.add({"n": 2.5}, {"s": 2})
    orders.log.seal()
    kills += killed(1, settings=settings) + killed(2, settings=settings)
    if merges:
        for number in range(3, 7):
            orders.add({"n": number, "s": "x" * 2000})
            orders.log.seal()
            kills += killed(1, settings=settings)
        orders.roll(settings=settings)
        assert [row[0] for row in orders.typed()] == [0, 2, 4, 6, 7, 8, 9]
    orders.starts[1] = 0 if merges else 2
    kills += killed(1, settings=settings) + killed(1, settings=settings)
    orders.roll(settings=settings)
    orders.roll(settings=settings)
    if not merges:
        assert orders.typed("n", "more") == [(2, 1.0, "x"), (4, 2.5, None)]
    assert [offset for offset, _ in orders.rejected()] == ([1] if merges else []) + [3, 5]
    del orders.starts[1]
    kills += killed(1, settings=settings)
    orders.roll(settings=settings)
    assert list((orders.root / "typed").rglob("*.json")) == []
    assert kills


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
def test_in_a_bucket(orders: Orders, bucket: ObjectAddress) -> None:
    """New columns, a table made anew, an erasure, and a deleted topic."""
    settings = TYPED._replace(merge=True)

    def rows(part: str) -> list[tuple[int, Any]]:
        options = open_store(bucket).deltalake_options
        table = DeltaTable(f"{bucket}/typed/1/{part}", storage_options=options)
        column = "n" if part == "rows" else "value"
        found = table.to_pyarrow_table(columns=["offset", column]).to_pylist()
        return sorted((row["offset"], row[column]) for row in found)

    orders.append(1, 0, b'{"n": 0}', b'{"n": 1}', b"bad", keys=[b"ann", b"bob", b"ann"])
    orders.log.seal()
    orders.roll(root=bucket, settings=settings)
    orders.register(n="integer", s="string", more="string")
    orders.add({"n": 3, "more": "x"})
    orders.log.seal()
    orders.roll(root=bucket, settings=settings)
    orders.register(n="number", s="string", more="string")
    for number in range(4):
        orders.add({"n": number + 0.5})
        orders.log.seal()
        orders.roll(root=bucket, settings=settings, is_small=number % 2 == 0)
    assert rows("rows") == [(0, 0), (1, 1), (3, 3), *((at + 4, at + 0.5) for at in range(4))]
    assert rows("rejected") == [(2, b"bad")]
    report = run_erase(EraseJob(orders.path, bucket, settings, lambda: NOW_MS, "topic-1", b"ann"))
    assert (report.found_after, report.typed_erased) == (0, 2)
    assert (report.typed, report.problems) == ((), ())
    assert rows("rows") == [(1, 1), (3, 3), *((at + 4, at + 0.5) for at in range(4))]
    assert rows("rejected") == []
    orders.roll(root=bucket, settings=settings)
    assert rows("rows") == [(1, 1), (3, 3), *((at + 4, at + 0.5) for at in range(4))]
    orders.starts[2] = 0
    del orders.starts[1]
    orders.roll(root=bucket, settings=settings)
    assert list(open_store(bucket).list("typed", hidden=True)) == []
