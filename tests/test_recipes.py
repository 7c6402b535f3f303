"""What docs/operations.rst says to do with an archive, done as it stands there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from benchmarks.process import BrokerProcess
from brokerd.archive.files import FileWriter
from brokerd.archive.layout import RECORDS, ROLLUP_APP, Range, arrow_schema
from brokerd.archive.table import Table, added, ensure_tables
from brokerd.client.mamamia import MamamiaClient
from tests.test_readme import example

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/operations.rst"
LOG_ID = "0123456789abcdef0123456789abcdef"
NOW_MS = 1_700_000_000_000
TIME_US = NOW_MS * 1000
PLACE = "/var/lib/brokerd/archive"
"""Where the page has the archive."""
TOPIC_ID = 1
SECONDS = 120

PAYLOADS = (
    (b"\x00raw", b"\x00raw", 0),
    ("text, ü", "text, ü".encode(), 1),
    ({"n": 1}, b"\x81\xa1n\x01", 2),
)
"""What clients see, bytes and encoding of values, by turns."""
COUNT = 9_000
"""Records of partition 0: more than the recipe reads in one go."""


def key_of(offset: int) -> bytes | None:
    return b"k%d" % offset if offset % 3 == 0 else None


def metadata_of(offset: int) -> dict[str, int] | None:
    return {"at": offset} if offset % 2 else None


def payload_of(offset: int) -> tuple[object, bytes, int]:
    return PAYLOADS[offset % len(PAYLOADS)]


def rows(partition: int, first: int, end: int) -> pa.Table:
    """Records of a topic called orders."""
    offsets = range(first, end)
    columns = {
        "topic": ["orders"] * len(offsets),
        "topic_id": [TOPIC_ID] * len(offsets),
        "partition": [partition] * len(offsets),
        "offset": list(offsets),
        "append_time": [TIME_US] * len(offsets),
        "producer_time": [None] * len(offsets),
        "lsn": list(offsets),
        "key": [key_of(at) for at in offsets],
        "value": [payload_of(at)[1] for at in offsets],
        "encoding": [payload_of(at)[2] for at in offsets],
        "metadata": [msgpack.packb(metadata_of(at)) if at % 2 else None for at in offsets],
        "expires_at": [0] * len(offsets),
        "producer_format": [1] * len(offsets),
    }
    return pa.table(columns, schema=arrow_schema(RECORDS))


def add(table: Table, partition: int, first: int, end: int) -> None:
    """Commit a file of records."""
    covered = [Range(TOPIC_ID, partition, first, end)]
    with FileWriter(table.path, RECORDS, LOG_ID, covered) as writer:
        writer.write(rows(partition, first, end))
        info = writer.close()
    lsn = table.transaction(ROLLUP_APP) + 1
    table.commit([added(info)], (), {ROLLUP_APP: lsn}, now_ms=NOW_MS)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a topic of two partitions. Version 3 has all of it; then a job removed some."""
    root = tmp_path_factory.mktemp("archive")
    table = ensure_tables(root, LOG_ID, NOW_MS)[RECORDS.name]
    add(table, 0, 0, 5_000)
    add(table, 0, 5_000, COUNT)
    add(table, 1, 10, 25)
    table.commit([], table.paths(), now_ms=NOW_MS, operation="CLEAN")
    return root


def run(code: str, archive: Path, replaced: tuple[str, str] = ("", "")) -> list[str]:
    """Run a recipe with the places and names that are this test's; the lines that it prints."""
    for old, new in (PLACE, str(archive)), replaced:
        assert old in code
        code = code.replace(old, new) if old else code
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quiet = {"PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **quiet},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def present(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive as it was before the job removed anything."""
    root = tmp_path_factory.mktemp("present") / "archive"
    shutil.copytree(archive, root)
    (root / "records" / "_delta_log" / f"{4:020}.json").unlink()
    return root


def test_the_versions_are_listed_with_what_they_have(archive: Path) -> None:
    """The newest first; who looks for records finds the version that still has them."""
    lines = run(example(PAGE, "DeltaTable(RECORDS).history()"), archive)
    assert [line.split()[0] for line in lines] == ["4", "3", "2", "1", "0"]
    assert lines[0].split()[1:] == ["CLEAN", "[]"]
    assert f"'offset_count': {COUNT}, 'offset_max': {COUNT - 1}" in lines[1]
    assert "'partition': 1, 'offset_count': 15, 'offset_max': 24" in lines[1]


def test_the_list_ends_where_vacuum_has_been(archive: Path, tmp_path: Path) -> None:
    """Versions whose files are gone are of no use."""
    root = tmp_path / "archive"
    shutil.copytree(archive, root)
    for path in root.glob("records/bucket=1/p-1-0-0-*"):
        path.unlink()
    lines = run(example(PAGE, "DeltaTable(RECORDS).history()"), root)
    assert [line.split()[0] for line in lines] == ["4"]


def test_a_topic_is_restored(archive: Path, tmp_path: Path) -> None:
    """Values, keys, metadata and order are as they were, in each partition."""
    with BrokerProcess(tmp_path / "data", tmp_path / "log", formats=["mamamia"]) as broker:
        broker.start()
        brokerctl = [sys.executable, "-c", "from brokerd.cli.main import main; main()"]
        create = [*brokerctl, "--server", broker.admin, "topic", "create", "orders-restored"]
        subprocess.run([*create, "--partitions", "2"], cwd=ROOT, check=True, timeout=SECONDS)
        run(example(PAGE, "batch_message"), archive, ("127.0.0.1:9000", broker.address))
        found: dict[int, list[tuple[object, object, object]]] = {0: [], 1: []}
        with MamamiaClient(broker.address) as client:
            while leased := client.acquire_batch("orders-restored", "g", "me", 1_000, wait=1.0):
                for message in leased:
                    one = (message.payload, message.metadata, message.key)
                    found[message.id >> 48].append(one)
        assert broker.stop() == 0
    offsets = {0: range(COUNT), 1: range(10, 25)}
    for partition, expected in offsets.items():
        assert found[partition] == [
            (payload_of(at)[0], metadata_of(at), key_of(at)) for at in expected
        ]


def test_pyarrow_reads_the_tables(present: Path) -> None:
    """The recipe without Spark counts the records of a topic."""
    assert run(example(PAGE, "rows.num_rows"), present) == [str(COUNT + 15)]


def test_duckdb_and_polars_read_the_tables(present: Path) -> None:
    """Where somebody installed them."""
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    assert run(example(PAGE, "import duckdb"), present) == [f"[('orders', {COUNT + 15})]"] * 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java on the PATH")
def test_spark_reads_the_tables(present: Path) -> None:
    """The recipe makes a view of each table that has files, and asks one of them."""
    assert f"|orders|   {COUNT + 15}|" in run(example(PAGE, "SparkSession"), present)
