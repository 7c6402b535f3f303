# Tests: tests/cli/test_restore_topic.py
"""``brokerctl archive restore-topic``: copy a topic of the archive into a new topic.

It reads the archive's files, and appends the records through the admin API of a running broker.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from brokerd.archive.storage.address import address
from brokerd.cli import output
from brokerd.cli.options import some
from brokerd.cli.server import NOT_FOUND, Answer, Refused, Server, server_of
from brokerd.errors import BrokerdError, ConfigError, install_text
from brokerd.server.config import Setting, load
from brokerd.values import ADMIN_RECORD_BYTES

if TYPE_CHECKING:
    from brokerd.archive.serve.archived_topic import ArchivedRecord, ArchivedTopic

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 << 20
STDOUT = "<stdout>"
"""The name of the file that click opens for ``-``."""
ENCODINGS = ("bytes", "text", "msgpack")
"""The names in the API of the numbers in the archive."""


class Copied(NamedTuple):
    """The result for one partition."""

    partition: int
    records: int
    first: int
    """The offset of the first record in the archive; -1 if there is none."""
    last: int
    skipped: int
    """Records that an earlier run copied."""


@click.command("restore-topic")
@click.option("--topic", required=True, help="The topic in the archive.")
@click.option("--into", required=True, help="The name of the new topic.")
@click.option("--topic-id", type=int, help="The topic's id, if several have had the name.")
@click.option("--version", type=int, help="A version of the table records. [default: the newest]")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The broker's TOML file.")
@click.option("--archive", help="A directory or s3://BUCKET/NAME: archive.uri.")
@click.option(
    "--offsets",
    "offsets_file",
    type=click.File("w"),
    help="Write the old and the new offsets here, as CSV; - is stdout: the rest goes to stderr.",
)
@click.option("--resume", is_flag=True, help="Go on with a copy that was interrupted.")
@click.pass_context
def restore_topic_command(
    context: click.Context,
    topic: str,
    into: str,
    topic_id: int | None,
    version: int | None,
    file: Path | None,
    archive: str | None,
    offsets_file: IO[str] | None,
    resume: bool,
) -> None:
    """Copy a topic of the archive into a new topic of a running broker.

    Keys, values, metadata and the order of each partition are kept. Offsets begin at 0 without
    holes. A record without a producer time gets its old append time, in microseconds, as one.
    """
    try:
        from brokerd.archive.serve.archived_topic import ArchivedTopic
    except ModuleNotFoundError as missing:
        raise BrokerdError(f"{missing.name} is not installed: {install_text('archive')}") from None
    data_dir = os.path.abspath(context.obj["data_dir"])
    options = [Setting("data_dir", data_dir, "--data-dir", True)]
    if archive is not None:
        options.append(Setting("archive.uri", archive, "--archive", True))
    config = load(file, os.environ, options=options).config
    root = address(config.archive.uri, Path(config.data_dir))
    server = server_of(context)
    found = ArchivedTopic(root, topic, topic_id, version)
    done = _new_topic(server, into, found.partitions, resume)
    copied = _copy(server, found, into, done, _Offsets(offsets_file))
    _show(context, found, into, copied, getattr(offsets_file, "name", "") == STDOUT)


def _new_topic(server: Server, into: str, partitions: int, resume: bool) -> list[int]:
    """Create the topic. Return the number of records that each of its partitions has.

    :raises ConfigError: the topic exists, or it cannot be resumed.
    """
    try:
        found = server.get("topics", into)
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        server.post("topics", name=into, partitions=partitions)
        return [0] * partitions
    if not resume:
        raise ConfigError(
            f"there is a topic {into!r} already: name a new one by --into, or go on with an "
            "interrupted copy by --resume"
        )
    ends: list[int] = found["next_offsets"]
    if len(ends) != partitions or any(found["start_offsets"]):
        raise ConfigError(
            f"topic {into!r} is no interrupted copy: it has {some(len(ends), 'partition')} "
            f"instead of {partitions}, or was trimmed; delete it, or name a new one"
        )
    return ends


class _Offsets:
    """Writes runs of offsets as CSV: partition, old offset, new offset, records."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file
        self._run = [-1, 0, 0, 0]
        if file is not None:
            file.write("partition,old_offset,new_offset,records\n")

    def add(self, partition: int, old: int, new: int) -> None:
        run = self._run
        if run[0] == partition and run[1] + run[3] == old and run[2] + run[3] == new:
            run[3] += 1
            return
        self.flush()
        self._run = [partition, old, new, 1]

    def flush(self) -> None:
        if self._file is not None and self._run[3]:
            self._file.write(",".join(map(str, self._run)) + "\n")


def _copy(
    server: Server, found: ArchivedTopic, into: str, done: list[int], offsets: _Offsets
) -> list[Copied]:
    """Append the records of all partitions, in order. Return a line for each."""
    copied: list[Copied] = []
    for partition, skipped in enumerate(done):
        first = last = -1
        count = 0
        for batch in _batches(_records(found, partition)):
            for at, record in enumerate(batch):
                offsets.add(partition, record.offset, count + at)
            if count < skipped <= count + len(batch):
                _check_last(server, into, partition, skipped - 1, batch[skipped - count - 1])
            rest = batch[max(0, skipped - count) :]
            if rest:
                _append(server, into, partition, rest, count + len(batch) - len(rest))
            first = batch[0].offset if first < 0 else first
            last = batch[-1].offset
            count += len(batch)
        if count < skipped:
            raise ConfigError(
                f"partition {partition} of topic {into!r} has {skipped:,} records, and the "
                f"archive has {count:,}: it is not a copy; delete it, or name a new one"
            )
        copied.append(Copied(partition, count, first, last, skipped))
    offsets.flush()
    return copied


def _check_last(
    server: Server, into: str, partition: int, offset: int, wanted: ArchivedRecord
) -> None:
    """Check that the last record of an interrupted copy is that of its place in the archive.

    :raises ConfigError: it is not. A removal from the archive would shift the places of the rest.
    """
    query = {"partition": partition, "offset": offset, "limit": 1}
    records = server.get("topics", into, "records", **query)["records"]
    shape = _shape(wanted, partition)
    if not records or (
        _bytes(records[0], "value") != wanted.value
        or _bytes(records[0], "key") != wanted.key
        or records[0]["producer_time"] != shape["producer_time"]
    ):
        raise ConfigError(
            f"the last record of partition {partition} of topic {into!r} is not the one at its "
            "place in the archive: the archive has changed since the copy began, or the record "
            f"expired. Delete topic {into!r} and begin again, or give the version of the first "
            "run by --version"
        )


def _bytes(shape: Answer, name: str) -> bytes | None:
    """Return the value or the key of a record of the API."""
    text, encoded = shape[name], shape[f"{name}_base64"]
    if encoded is not None:
        return base64.b64decode(encoded)
    return None if text is None else str(text).encode()


def _records(found: ArchivedTopic, partition: int) -> Iterator[ArchivedRecord]:
    for records in found.read(partition):
        yield from records


def _batches(records: Iterable[ArchivedRecord]) -> Iterator[list[ArchivedRecord]]:
    """Yield batches of at most `BATCH_RECORDS` and about `BATCH_BYTES`."""
    batch: list[ArchivedRecord] = []
    size = 0
    for record in records:
        one = len(record.value) + len(record.key or b"") + len(record.metadata or b"")
        if one > ADMIN_RECORD_BYTES:
            raise BrokerdError(
                f"the record at offset {record.offset} has {one} bytes; the API takes at most "
                f"{ADMIN_RECORD_BYTES}"
            )
        if batch and (len(batch) == BATCH_RECORDS or size + one > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += one
    if batch:
        yield batch


def _append(
    server: Server, into: str, partition: int, batch: list[ArchivedRecord], expected: int
) -> None:
    """Append records, and check their new offsets.

    :raises ConfigError: another program has written to the topic.
    """
    answer = server.post(
        "topics", into, "records", records=[_shape(record, partition) for record in batch]
    )
    first = answer["records"][0]["offset"]
    if first != expected:
        raise ConfigError(
            f"a record of partition {partition} got the offset {first} instead of {expected}: "
            f"another program writes to topic {into!r}; stop it, delete the topic, and begin again"
        )


def _shape(record: ArchivedRecord, partition: int) -> Answer:
    shape: dict[str, Any] = {
        "value_base64": _base64(record.value),
        "encoding": ENCODINGS[record.encoding],
        "partition": partition,
        "producer_time": record.producer_time,
    }
    if record.producer_time is None:
        shape["producer_time"] = record.append_time_us
    if record.key is not None:
        shape["key_base64"] = _base64(record.key)
    if record.metadata is not None:
        shape["metadata_base64"] = _base64(record.metadata)
    return shape


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _show(
    context: click.Context, found: ArchivedTopic, into: str, copied: list[Copied], err: bool
) -> None:
    """Print the result; on stderr if stdout has the offsets."""
    total = sum(one.records for one in copied)
    answer = {
        "into": into,
        "topic_id": found.topic_id,
        "version": found.version,
        "lsn": found.lsn,
        "records": total,
        "partitions": [one._asdict() for one in copied],
    }
    lines = [
        f"partition {one.partition}: {some(one.records, 'record')}"
        + (f", old offsets {one.first} to {one.last}" if one.records else "")
        + (f", {one.skipped:,} of them by an earlier run" if one.skipped else "")
        for one in copied
    ]
    lines.append(
        f"copied {some(total, 'record')} of topic id {found.topic_id} into {into}: version "
        f"{found.version} of the archive, the log up to LSN {found.lsn}"
    )
    output.show(context, answer, lines, err)
