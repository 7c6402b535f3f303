# Tests: tests/spark/test_sink_spark.py
"""What Spark calls to write rows: ``df.write`` and ``df.writeStream``.

Spark makes a writer in a Python process on the driver's machine and pickles it for the tasks. For
the commit of a micro-batch it makes another one. So a writer keeps nothing but options, and a task
tells the commit what it staged by its message.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from brokerd.archive.cluster.shipping import package
from brokerd.client.mamamia import MamamiaClient
from brokerd.errors import BrokerdError
from brokerd.spark.errors import hide_traceback
from brokerd.spark.options import BadOption
from brokerd.spark.read.row_format import VersionMismatch
from brokerd.spark.sink.blocks import Block, blocks_of
from brokerd.spark.sink.columns import check_columns, messages_of
from brokerd.spark.sink.commit import abort_epoch, commit_epoch, send_directly
from brokerd.spark.sink.options import SinkOptions, batch_options, stream_options
from brokerd.spark.sink.sender import Sender
from brokerd.spark.sink.staging import StagedFile, Staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"
"""Local properties of the tasks of a stream, which Spark sets."""
TIMEOUT = 60.0
"""Seconds that an answer of the broker may take."""
_WRITE = "write-"
_QUERY = "query-"

Messages = Sequence[WriterCommitMessage | None]


class NoQuery(BrokerdError):
    """Spark does not tell a task which micro-batch it belongs to."""


class Staged(WriterCommitMessage):
    """What one task staged. It is pickled."""

    def __init__(self, query_id: str, file: StagedFile | None) -> None:
        self.query_id = query_id
        self.file = file


class _Task:
    """What the tasks of all writes share. It is pickled."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._package = package()

    def _blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Block]:
        """Yield the rows of a task as blocks. Raises `VersionMismatch` and `BadRow`."""
        if package() != self._package:
            raise VersionMismatch(
                f"an executor has brokerd {package()}, and brokerd {self._package} planned the "
                "write: send the latter with --py-files (docs/spark-cluster.rst)"
            )
        options = self._options
        messages = (one for batch in batches for one in messages_of(batch, options.topic))
        return blocks_of(messages, options.batch_bytes, options.batch_records)


class BatchSink(_Task, DataSourceArrowWriter):
    """Writes a DataFrame: directly from its tasks, or once for each ``writeId``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        with hide_traceback():
            blocks = self._blocks(iterator)
            if options.staging is None:
                with _sender(options, f"spark-write-{uuid.uuid4().hex}") as sender:
                    send_directly(sender, blocks, options.in_flight)
                return Staged("", None)
            return Staged("", self._staging().stage(0, blocks))

    def commit(self, messages: Messages) -> None:
        with hide_traceback():
            if self._options.staging is not None:
                staging = self._staging()
                _commit(staging, self._options, 0, _files(messages))
                manifest = staging.manifest(0)
                staging.delete(() if manifest is None else manifest.files)

    def abort(self, messages: Messages) -> None:
        with hide_traceback():
            if self._options.staging is not None:
                abort_epoch(self._staging(), 0, _files(messages))

    def _staging(self) -> Staging:
        assert self._options.staging is not None
        return Staging(self._options.staging, f"{_WRITE}{self._options.write_id}")


class StreamSink(_Task, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each of them once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with hide_traceback():
            query_id, epoch = _micro_batch()
            staging = self._staging(query_id)
            return Staged(query_id, staging.stage(epoch, self._blocks(iterator)))

    def commit(self, messages: Messages, batchId: int) -> None:
        with hide_traceback():
            query_id = _query_id(messages)
            if query_id is not None:
                _commit(self._staging(query_id), self._options, batchId, _files(messages))

    def abort(self, messages: Messages, batchId: int) -> None:
        with hide_traceback():
            query_id = _query_id(messages)
            if query_id is not None:
                abort_epoch(self._staging(query_id), batchId, _files(messages))

    def _staging(self, query_id: str) -> Staging:
        assert self._options.staging is not None
        return Staging(self._options.staging, f"{_QUERY}{query_id}")


def batch_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """Return the writer of ``df.write``. Check everything that needs no broker."""
    return BatchSink(_checked(batch_options(given), schema, overwrite, "mode('append')"))


def stream_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """Return the writer of ``df.writeStream``. Check everything that needs no broker."""
    return StreamSink(_checked(stream_options(given), schema, overwrite, "outputMode('append')"))


def _checked(options: SinkOptions, schema: StructType, overwrite: bool, mode: str) -> SinkOptions:
    if overwrite:
        raise BadOption(f"the sink only appends, because a log is never overwritten: use {mode}")
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_columns(columns, options.topic)
    if options.tls is not None:
        options.tls.context()
    return options


def _micro_batch() -> tuple[str, int]:
    """Return the query and the micro-batch of this task."""
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
    epoch = context.getLocalProperty(EPOCH) if context is not None else None
    if not query_id or not epoch or not epoch.isdigit():
        raise NoQuery(
            f"this Spark does not tell a task its query and micro-batch ({QUERY_ID}, {EPOCH}): the "
            "sink is tested with Spark 4.3"
        )
    return query_id, int(epoch)


def _query_id(messages: Messages) -> str | None:
    """Return the query of some tasks, or None without a task."""
    return next((one.query_id for one in messages if isinstance(one, Staged)), None)


def _files(messages: Messages) -> list[StagedFile]:
    """Return the files of the tasks that succeeded, in the order of the tasks."""
    staged = [one.file for one in messages if isinstance(one, Staged)]
    return [file for file in staged if file is not None]


def _commit(
    staging: Staging, options: SinkOptions, epoch: int, files: Sequence[StagedFile]
) -> None:
    with _sender(options, f"spark-{staging.identity()}") as sender:
        lanes, fails = options.in_flight, options.fail_on_forgotten
        commit_epoch(staging, sender, epoch, files, lanes, fails)


@contextmanager
def _sender(
    options: SinkOptions,
    producer: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Sender]:
    """Yield a sender with a connection of its own, which opens when it is used."""
    tls = options.tls
    client = MamamiaClient(
        options.server,
        timeout=min(TIMEOUT, options.retry_seconds),
        ssl_context=None if tls is None else tls.context(),
        server_hostname=None if tls is None else tls.server_name or None,
    )
    with client:
        yield Sender(client, options.server, producer, options.retry_seconds, clock, sleep)
