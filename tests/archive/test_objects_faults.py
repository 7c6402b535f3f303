"""An archive in a bucket behind a network that loses requests and answers: nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from brokerd.archive.contract.layout import RECORDS, Range
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.parquet.writer import verify_written
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.archive.storage import bucket as store_object
from brokerd.archive.storage.address import ObjectAddress
from tests.archive.adding import LOG_ID, NOW_MS, write_records
from tests.archive.flaky import FAULTS, Flaky, proxy
from tests.archive.s3 import bucket, s3_server
from tests.archive.test_delta_archive import read_all, record

__all__ = ["bucket", "s3_server"]

pytestmark = pytest.mark.slow

WRITERS = (1, 2, 3)
LOTS = 4
ROWS = 20


class Writer(threading.Thread):
    """Takes lot after lot into the archive, each until it is there, as job after job would."""

    def __init__(self, root: ObjectAddress, topic_id: int) -> None:
        super().__init__()
        self._root = root
        self._topic_id = topic_id
        self._app = f"app-{topic_id}"
        self.seen: Counter[str] = Counter()
        """What went wrong."""

    def run(self) -> None:
        for lot in range(LOTS):
            while not self._is_done(lot):
                pass

    def _is_done(self, lot: int) -> bool:
        try:
            table = Table(self._root, RECORDS, LOG_ID)
            if table.transaction(self._app) <= lot:
                self._take(table, Range(self._topic_id, 0, lot * ROWS, lot * ROWS + ROWS), lot)
            return True
        except (ArchiveUnavailable, TableConflict) as error:
            self.seen[type(error).__name__] += 1
            return False

    def _take(self, table: Table, covered: Range, lot: int) -> None:
        rows = [record(self._topic_id, 0, at) for at in range(covered.first, covered.end)]
        info = write_records(table, [covered], rows)
        verify_written(table.path, info)
        table.commit([add_file(info)], (), {self._app: lot + 1}, now_ms=NOW_MS)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_lot_is_there_once_whatever_the_network_does(
    bucket: ObjectAddress, s3_server: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Three commit at once; requests, answers, and answers to commits get lost."""
    ensure_tables(bucket, LOG_ID, NOW_MS)
    monkeypatch.setattr(store_object, "RETRIES", 1)
    flaky = Flaky(seed, 0.2)
    with proxy(s3_server, flaky) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        writers = [Writer(bucket, topic_id) for topic_id in WRITERS]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        flaky.calm = True
        table = Table(bucket, RECORDS, LOG_ID)
        assert table.files["rows"].to_pylist() == [ROWS] * (LOTS * len(WRITERS))
        view = DeltaArchive(bucket, LOG_ID).refresh()
        assert view is not None
        for topic_id in WRITERS:
            wanted = {at: f"{topic_id}/0/{at}".encode() for at in range(LOTS * ROWS)}
            assert read_all(view, topic_id, 0) == wanted
    assert set(flaky.seen) == set(FAULTS)
    assert sum((writer.seen for writer in writers), Counter()).total() > 0
