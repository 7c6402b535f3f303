"""Data frames of the rollup over an archive in a directory, with settings of other people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.archive.making import damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

local_frames = pytest.importorskip("brokerd.archive.cluster.local_frames", reason="needs pyspark")

SETTINGS = {
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.maxRecordsPerFile": "10",
}
"""Settings that an operator may have in ``spark-defaults.conf``, which ``spark-submit`` reads."""


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    for name, text in SETTINGS.items():
        spark.conf.set(name, text)
    yield spark
    for name in SETTINGS:
        spark.conf.unset(name)


def test_settings_of_the_session_lose_no_rows(session: SparkSession, tmp_path: Path) -> None:
    """A part of the rows would be counted, or would show that a tombstone is alone."""
    frames = local_frames.LocalFrames(session, tmp_path)
    files = [
        frames.stage(session.range(at, at + 5_000).coalesce(1), f"part-{at}", "")[0]
        for at in (0, 5_000)
    ]
    assert [file.rows for file in files] == [5_000, 5_000]
    paths = [file.path for file in files]
    assert frames.read_staged("id long", "", paths).count() == 10_000
    column = pq.read_metadata(tmp_path / paths[0]).row_group(0).column(0)
    damage(tmp_path / paths[0], column.data_page_offset + column.total_compressed_size - 1)
    with pytest.raises(Exception, match=r"(?i)checksum|crc"):
        frames.read_staged("id long", "", paths).collect()
    (tmp_path / paths[0]).unlink()
    with pytest.raises(Exception, match="PATH_NOT_FOUND"):
        frames.read_staged("id long", "", paths).collect()
