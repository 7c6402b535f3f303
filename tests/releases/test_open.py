"""Data directories and archives that earlier releases wrote open, and go on, as they were.

The files ``*.tar.xz`` beside this are of one release each: see `tests.releases.make`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from deltalake import DeltaTable

from brokerd.spark import register
from tests.releases.clients import Clients, serving
from tests.releases.history import ROOT, roll_up
from tests.releases.view import admin_view, archive_rows, formats_view, now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = sorted(Path(__file__).parent.glob("*.tar.xz"))
UNTOUCHED = [
    "dead_letters",
    "scheduled",
    "users",
    "access_lists",
    "keys",
    "schemas",
    "compatibility",
]
"""Sections that `append` does not change."""
NEW = "by a later release"


class Release(NamedTuple):
    """What a release has left."""

    data_dir: Path
    expected: dict[str, Any]


@pytest.fixture(params=FILES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Release:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expectations.json").read_text())
    return Release(tmp_path / "data", expected)


def test_there_is_a_release_to_test() -> None:
    assert FILES


def test_a_directory_of_a_release_opens_and_takes_more(release: Release) -> None:
    """All formats and the admin API show what the release did, and keep it beside what is new."""
    data_dir, expected = release
    started = now()
    with serving(data_dir) as clients:
        assert_shown(admin_view(clients, started), expected["admin"])
        assert_shown(formats_view(clients, expected["facts"]), expected["formats"])
        append(clients)
    with serving(data_dir) as clients:
        shown = admin_view(clients, started)
    assert_shown({name: shown[name] for name in UNTOUCHED}, expected["admin"], UNTOUCHED)
    for place, records in expected["admin"]["records"].items():
        found = shown["records"][place]
        assert known(found[: len(records)], records) == records, place
        added = [NEW] if place in ("work/0", "orders/2") else []
        assert [one["value"] for one in found[len(records) :]] == added, place
    assert [one["offset"] for one in shown["leases"]["work/billing"]][:1] != [0]
    assert_sound(data_dir)


def test_the_journal_of_a_release_has_no_damage(release: Release) -> None:
    """Also where no broker has opened it."""
    assert_sound(release.data_dir)


@pytest.mark.slow
def test_spark_reads_the_log_and_the_tables_of_a_release(
    release: Release, spark: SparkSession
) -> None:
    """From journal and archive, each record once."""
    register(spark)

    def count(**options: str) -> Counter[str]:
        reader = spark.read.format("brokerd").options(**options)
        rows = reader.load(str(release.data_dir)).select("topic").collect()
        return Counter(row["topic"] for row in rows)

    records: Counter[str] = Counter()
    for place, shown in release.expected["admin"]["records"].items():
        records[place.rpartition("/")[0]] += len(shown)
    records["later"] -= 1  # it is due, and in the log once a broker has opened it
    assert count() == records
    for table in ("events", "deliveries", "hourly"):
        assert users(count(table=table)) == users(release.expected["rows"][table]), table


@pytest.mark.slow
def test_a_rollup_goes_on_with_the_archive_of_a_release(release: Release) -> None:
    """It takes the rest of the journal, and an outcome of a lease that the release gave."""
    data_dir, expected = release
    started = now()
    with serving(data_dir) as clients:
        append(clients)
        before = admin_view(clients, started)
        roll_up(data_dir, expected["facts"]["admin_key"])
        after = admin_view(clients, started)
    assert after["records"] == before["records"]
    assert after["archive"]["version"] > expected["admin"]["archive"]["version"]
    rows = archive_rows(data_dir)
    assert rows["deliveries"]["work"] == expected["rows"]["deliveries"]["work"] + 1
    table = DeltaTable(str(data_dir / "archive" / "deliveries")).to_pyarrow_table().to_pylist()
    (outcome,) = (one for one in table if one["owner"] == "worker-1" and one["offset"] == 0)
    assert outcome["first_lease_time"] < outcome["outcome_time"]
    assert outcome["first_lease_time"].isoformat() < started
    for topic in before["topics"]:
        if not topic["settings"]["compact"]:
            shown = [before["records"][f"{topic['name']}/{at}"] for at in partitions(topic)]
            assert rows["records"][topic["name"]] == sum(map(len, shown)), topic["name"]


def users(counts: dict[str, int]) -> dict[str, int]:
    """Counts by topic without those of the broker's own topics."""
    return {topic: count for topic, count in counts.items() if not topic.startswith("__brokerd.")}


def partitions(topic: dict[str, Any]) -> range:
    return range(len(topic["next_offsets"]))


def append(clients: Clients) -> None:
    """Append by two formats, and settle the record that a worker of the release has leased."""
    with clients.mamamia() as mamamia, clients.flymq() as flymq:
        mamamia.produce("work", NEW)
        flymq.produce("orders", NEW.encode(), partition=2)
        mamamia.settle("work", "billing", 0, "worker-1")


def assert_shown(
    shown: dict[str, Any], expected: dict[str, Any], sections: list[str] | None = None
) -> None:
    """Compare each section; objects may have fields that the release did not know."""
    for section in sections or expected:
        found = json.loads(json.dumps(shown[section]))
        if isinstance(found, dict):
            assert sorted(found) == sorted(expected[section]), section
        assert known(found, expected[section]) == expected[section], section


def known(shown: Any, expected: Any) -> Any:
    """What is shown without the fields of objects that nobody expects."""
    if isinstance(shown, dict) and isinstance(expected, dict):
        return {
            name: known(value, expected[name]) for name, value in shown.items() if name in expected
        }
    if isinstance(shown, list) and isinstance(expected, list) and len(shown) == len(expected):
        return [known(*pair) for pair in zip(shown, expected, strict=True)]
    return shown


def assert_sound(data_dir: Path) -> None:
    """Have brokerctl read every byte of the journal."""
    command = "from brokerd.cli.main import main; main()"
    arguments = ["--json", "--data-dir", str(data_dir), "wal", "verify"]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
