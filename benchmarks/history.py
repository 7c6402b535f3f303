"""Time of ``brokerctl explain`` in a journal of many events: the search for one record.

    python -m benchmarks.history [--events N] [--entry-events N] [--archive]

It writes segments of 64 MiB with the events of one group of one partition, in entries of
``--entry-events`` each, and searches them for three records, without and with event indexes.
``--archive`` writes the same events to a table ``events`` instead. The page cache has the files.
Times are processor time of this process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from brokerd.archive.contract.layout import EVENTS, ROLLUP_APP, Range, arrow_schema
from brokerd.archive.contract.view import EventPlace
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.parquet.writer import FileWriter
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.cli.bench.machine import describe
from brokerd.wal import SegmentStatus
from brokerd.wal.disk import RealDisk
from brokerd.wal.event_indexes import EventIndexes
from brokerd.wal.read.event_scan import EventScan, LoadIndex, SegmentSpan
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    EventKind,
    SegmentHeader,
    encode_frame,
    encode_group_events,
    encode_segment_header,
)

SEGMENT_BYTES = 64 << 20
FRAME_EVENTS = 5_000
FILE_ROWS = 1_000_000
LOG_ID = "0" * 32


def bodies(events: int, each: int) -> Iterator[bytes]:
    """Yield bodies of entries: each record is leased, then settled."""
    kinds = (EventKind.LEASED, EventKind.SETTLED)
    for first in range(0, events, each):
        rows = [
            (kinds[number & 1], number >> 1, 30_000_000, number, 1, "worker-1", "")
            for number in range(first, min(first + each, events))
        ]
        yield encode_group_events("billing", rows)


def write(directory: Path, events: int, each: int) -> list[SegmentSpan]:
    """Write the segments; return them."""
    spans: list[SegmentSpan] = []
    first_lsn, parts, size = 0, [b""], SEGMENT_HEADER_BYTES
    segment_id = os.urandom(16)

    def end() -> None:
        nonlocal first_lsn, size, segment_id
        parts[0] = encode_segment_header(SegmentHeader(segment_id, first_lsn, size, 0))
        name = f"{first_lsn:020d}.wal"
        (directory / name).write_bytes(b"".join(parts))
        spans.append(SegmentSpan(name, segment_id, first_lsn, SEGMENT_HEADER_BYTES, size))
        first_lsn, size, segment_id = first_lsn + size, SEGMENT_HEADER_BYTES, os.urandom(16)
        parts[1:] = []

    entries: list[Entry] = []
    for number, body in enumerate(bodies(events, each), 1):
        entries.append(Entry(EntryKind.GROUP_EVENTS, 1, 0, 0, each, body))
        if len(entries) * each >= FRAME_EVENTS or number * each >= events:
            frame = encode_frame(entries, first_lsn + size, segment_id, 0, number)
            parts.append(frame)
            size += len(frame)
            entries.clear()
            if size >= SEGMENT_BYTES:
                end()
    if len(parts) > 1:
        end()
    return spans


def write_archive(root: Path, events: int) -> DeltaArchive:
    """Write the events to the archive; return it. Files have a million rows."""
    ensure_tables(root, LOG_ID, 0)
    table = Table(root, EVENTS, LOG_ID)
    schema = arrow_schema(EVENTS)
    for first in range(0, events, FILE_ROWS):
        rows = np.arange(first, min(first + FILE_ROWS, events))
        count = len(rows)
        columns = {
            "topic": np.full(count, "orders"),
            "topic_id": np.full(count, 1),
            "partition": np.full(count, 0),
            "group_name": np.full(count, "billing"),
            "lsn": rows,
            "seq": np.full(count, 0),
            "time": rows,
            "kind": np.where(rows % 2, "SETTLED", "LEASED"),
            "offset": rows // 2,
            "amount": np.full(count, 30_000_000),
            "token": rows,
            "count": np.full(count, 1),
            "owner": np.full(count, "worker-1"),
            "reason": np.full(count, None),
        }
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        writer = FileWriter(root / EVENTS.name, EVENTS, LOG_ID, [Range(0, 0, first, first + count)])
        writer.write(batch)
        table.commit([add_file(writer.close())], (), {ROLLUP_APP: first + count}, now_ms=0)
    return DeltaArchive(root, LOG_ID)


def search_archive(root: Path, events: int) -> None:
    """Search the archive for three records."""
    view = write_archive(root, events).refresh()
    assert view is not None
    last = events // 2 - 1
    for offset in (0, last // 2, last):
        began = time.process_time()
        place: EventPlace | None = EventPlace()
        found, longest = 0, 0.0
        while place is not None:
            step_began = time.process_time()
            part = view.events(1, 0, offset, 0, place)
            found, place = found + len(part.events), part.next
            longest = max(longest, time.process_time() - step_began)
        report(offset, found, time.process_time() - began, longest)


def report(offset: int, found: int, seconds: float, longest: float) -> None:
    print(f"offset {offset}: {found} events, {seconds:.2f} s, slice {longest * 1e3:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--entry-events", type=int, default=100)
    parser.add_argument("--archive", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(describe(Path(directory)).text())
        if given.archive:
            search_archive(Path(directory), given.events)
            return
        spans = write(Path(directory), given.events, given.entry_events)
        size = sum(span.end for span in spans)
        print(f"{given.events} events, {size >> 20} MiB in {len(spans)} segments")
        search(directory, spans, given.events)
        indexes = build(directory, spans)
        search(directory, spans, given.events, indexes.load)


def build(directory: str, spans: list[SegmentSpan]) -> EventIndexes:
    """Make the event indexes of all segments."""
    path = os.path.join(directory, "event-index")
    indexes = EventIndexes(RealDisk(), directory, path)
    began, longest = time.process_time(), 0.0
    for span in spans:
        work = indexes.build(
            SegmentStatus(
                span.name, span.first_lsn, span.first_lsn + span.end, 0, True, span.segment_id, 0
            )
        )
        is_written = False
        while not is_written:
            step_began = time.process_time()
            is_written = work.step()
            longest = max(longest, time.process_time() - step_began)
    seconds = time.process_time() - began
    size = sum(file.stat().st_size for file in Path(path).iterdir())
    print(f"event indexes: {size >> 10} KiB, {seconds:.1f} s, slice {longest * 1e3:.0f} ms")
    return indexes


def search(
    directory: str,
    spans: list[SegmentSpan],
    events: int,
    load_index: LoadIndex = lambda segment_id, first_lsn, end_lsn: None,
) -> None:
    """Search the segments for three records."""
    last = events // 2 - 1
    for offset in (0, last // 2, last):
        began = time.process_time()
        scan = EventScan(RealDisk(), directory, 1, 0, offset, spans, load_index=load_index)
        found, longest = 0, 0.0
        while not scan.done:
            step_began = time.process_time()
            found += len(scan.step())
            longest = max(longest, time.process_time() - step_began)
        report(offset, found, time.process_time() - began, longest)
        print(f"  {scan.bytes_read >> 10} KiB read")


if __name__ == "__main__":
    main()
