"""What pages say to do with an archive, done as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from benchmarks.process import BrokerProcess
from brokerd.archive.contract.layout import RECORDS, ROLLUP_APP, Range, arrow_schema
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.parquet.writer import FileWriter
from brokerd.archive.storage.address import object_address
from brokerd.archive.storage.store import open_store
from brokerd.client.mamamia import MamamiaClient
from tests.archive.s3 import environment, make_bucket
from tests.test_readme import example

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/archive.rst"
SPARK_PAGE = "docs/spark.rst"
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
    table.commit([add_file(info)], (), {ROLLUP_APP: lsn}, now_ms=NOW_MS)


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


def run(code: str, archive: Path | str, replaced: tuple[str, str] = ("", "")) -> list[str]:
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
    page = (ROOT / PAGE).read_text()
    with BrokerProcess(tmp_path / "data", tmp_path / "log", formats=["mamamia"]) as broker:
        broker.start()
        brokerctl = [sys.executable, "-c", "from brokerd.cli.main import main; main()"]
        (line,) = re.findall("^    brokerctl .* (archive restore-topic .*)$", page, re.MULTILINE)
        given = ["--server", broker.admin, *line.split(), f"--archive={archive}"]
        subprocess.run([*brokerctl, *given], cwd=ROOT, check=True, timeout=SECONDS)
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


@pytest.fixture(scope="module")
def in_a_bucket(
    present: Path, s3_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of the same archive in a bucket; the environment says how to come there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(s3_server).items():
            patch.setenv(name, value)
        place = object_address(f"s3://{make_bucket(s3_server)}/archive")
        store = open_store(place)
        for path in sorted(present.rglob("*")):
            if path.is_file():
                store.upload(path.relative_to(present).as_posix(), path)
        yield str(place)


@pytest.mark.parametrize(
    ("recipe", "printed"),
    [
        ("import pyarrow.parquet", f"{COUNT + 15}"),
        ("import duckdb", f"[('orders', {COUNT + 15})]"),
        ("import polars", f"[('orders', {COUNT + 15})]"),
    ],
)
def test_other_programs_read_the_tables(recipe: str, printed: str, present: Path) -> None:
    """pyarrow, DuckDB and Polars find all records of the topic."""
    assert run(example(SPARK_PAGE, recipe), present) == [printed]


def test_polars_reads_a_bucket(in_a_bucket: str) -> None:
    """With the variables of the environment that brokerd has."""
    assert run(example(SPARK_PAGE, "import polars"), in_a_bucket) == [f"[('orders', {COUNT + 15})]"]
