# Tests: tests/spark/test_sink_columns.py
"""The columns that the sink writes, and the messages made of their rows. No pyspark.

The columns are those of Spark's sink for Kafka: ``key``, ``value``, ``headers``, ``topic``,
``partition``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.client.packing import check_size, packed_metadata
from brokerd.codecs.mamamia import BatchMessage, ProduceBatch
from brokerd.errors import BrokerdError, RecordTooLarge, escaped
from brokerd.values import MAX_NAME_BYTES, MAX_PARTITIONS, RESERVED_PREFIX, Encoding

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
}
"""The types that each column may have, as Spark writes them (``simpleString``)."""
RECORD_BYTES = 64
"""What a record takes in a batch besides its value, key and headers, at most."""
_LARGE = 1 << 20
"""Records from this size on are checked for the limit of a frame."""


class BadColumns(BrokerdError):
    """The columns of a DataFrame are not those of the sink."""


class BadRow(BrokerdError):
    """A row has a value that no record can have."""


class Message(NamedTuple):
    """A row as a message for a topic."""

    topic: str
    message: BatchMessage
    size: int
    """About how many bytes it takes in a batch."""


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Check the columns of a DataFrame before anything is written.

    :param columns: their names and types, as Spark writes them.
    :param topic: the option ``topic``.
    :raises BadColumns: the text names the column and the allowed types.
    """
    names = [name for name, _ in columns]
    for name, kind in columns:
        allowed = TYPES.get(name)
        if allowed is None:
            raise BadColumns(
                f"the sink cannot write the column {escaped(name)!r}: select only "
                f"{', '.join(TYPES)}, for example by selectExpr('to_json(struct(*)) AS value')"
            )
        if names.count(name) > 1:
            raise BadColumns(f"the column {name} is there twice: select it once")
        if kind not in allowed:
            raise BadColumns(
                f"the column {name} has the type {kind}: cast it to {' or '.join(allowed)}"
            )
    if "value" not in names:
        raise BadColumns("the column value is missing: it is the payload of a record")
    if topic is None and "topic" not in names:
        raise BadColumns("no topic is given: set the option topic, or add a column topic")


def check_topic(topic: str) -> None:
    """Raise `BadRow` if the broker has no such names of topics."""
    if not 0 < len(topic.encode()) <= MAX_NAME_BYTES:
        raise BadRow(
            f"a topic has 1 to {MAX_NAME_BYTES} bytes of UTF-8, not {len(topic.encode())}: "
            f"{escaped(topic[:32])!r}"
        )
    if escaped(topic) != topic:
        raise BadRow(f"the topic {escaped(topic)!r} has control characters: choose another name")
    if topic.startswith(RESERVED_PREFIX):
        raise BadRow(f"the topic {topic!r} is the broker's own: choose another name")


def messages_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Message]:
    """Yield the rows of a batch as messages, in their order.

    :param topic: the option ``topic``, which overrides the column.
    :raises BadRow: the text names the column and the value.
    """
    rows = batch.num_rows
    names = batch.schema.names
    none = [None] * rows
    values, encoding = _binary(batch, "value")
    keys, _ = _binary(batch, "key") if "key" in names else (none, 0)
    headers = batch["headers"].to_pylist() if "headers" in names else none
    partitions = batch["partition"].to_pylist() if "partition" in names else none
    topics = [topic] * rows if topic is not None else batch["topic"].to_pylist()
    checked = {topic}
    for name, value, key, header, partition in zip(
        topics, values, keys, headers, partitions, strict=True
    ):
        if name not in checked:
            check_topic(name)
            checked.add(name)
        elif name is None:
            raise BadRow("a row has no topic: the column topic is null, and no option topic is set")
        if partition is not None and not 0 <= partition < MAX_PARTITIONS:
            raise BadRow(
                f"a row for the topic {name!r} has the partition {partition}: give null, or 0 to "
                f"{MAX_PARTITIONS - 1}"
            )
        metadata = packed_metadata(_headers(header, name)) if header else None
        value = b"" if value is None else value
        message = BatchMessage(value, encoding, metadata, key, partition)
        size = RECORD_BYTES + len(value) + len(key or b"") + len(metadata or b"")
        if size > _LARGE:
            _check_size(name, message)
        yield Message(name, message, size)


def _binary(batch: pa.RecordBatch, name: str) -> tuple[list[Any], int]:
    """Return the values of a column as bytes, and their encoding."""
    import pyarrow as pa

    column = batch[name]
    if pa.types.is_string(column.type):
        return column.cast(pa.binary()).to_pylist(), Encoding.TEXT
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary()).to_pylist(), Encoding.TEXT
    return column.to_pylist(), Encoding.BYTES


def _headers(headers: list[Any], topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for header in headers:
        name = None if header is None else header["key"]
        if name is None:
            raise BadRow(f"a row for the topic {topic!r} has a header without a key")
        if name in found:
            raise BadRow(
                f"a row for the topic {topic!r} has the header {escaped(name)!r} twice: a record "
                "keeps one value of each name"
            )
        found[name] = header["value"]
    return found


def _check_size(topic: str, message: BatchMessage) -> None:
    try:
        check_size(ProduceBatch(topic, (message,), "p" * MAX_NAME_BYTES, (1 << 63) - 1))
    except RecordTooLarge as error:
        raise BadRow(f"a row for the topic {topic!r} is too large: {error}") from None
