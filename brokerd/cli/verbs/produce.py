# Tests: tests/cli/test_produce.py
"""``brokerctl produce``: records from an argument, a file or lines (docs/cli.rst)."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

import click

from brokerd.cli.options import duration, integer, setting
from brokerd.cli.server import Answer, Server, server_of
from brokerd.errors import BrokerdError, InvalidRequest
from brokerd.values import ADMIN_RECORD_BYTES

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 << 20
PLAIN_BYTES_MAX = 1 << 20
"""Longest text that is sent as JSON. Escaping can make text six times longer, so longer text is
sent as base64.
"""
LINE_END_BYTES = 2


@click.command("produce")
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--file", type=click.File("rb"), help="Read the value from here; - is stdin.")
@click.option("--lines", is_flag=True, help="Each line of the file, or of stdin, is a record.")
@click.option("--key", help="The record's key.")
@click.option("--partition", type=integer, help="Partition; default: by key, else round-robin.")
@click.option(
    "--ttl", type=setting(duration, none=0), help="Expire after this; 'none' or 0: never."
)
@click.option("--delay", type=duration, help="Deliver only after this.")
@click.option("--metadata", help="A JSON object.")
@click.option(
    "--as", "kind", type=click.Choice(["text", "bytes", "json"]), help="What the value is."
)
@click.pass_context
def produce_command(
    context: click.Context,
    topic: str,
    value: str | None,
    file: IO[bytes] | None,
    lines: bool,
    key: str | None,
    partition: int | None,
    ttl: list[Any] | None,
    delay: float | None,
    metadata: str | None,
    kind: str | None,
) -> None:
    """Append records to a topic; create the topic if it does not exist."""
    if ttl and ttl[0] and delay is not None and delay >= ttl[0]:
        raise click.UsageError(
            "--delay is not shorter than --ttl: the record would expire before it appears"
        )
    common = {
        "key": key,
        "partition": partition,
        "ttl_seconds": ttl[0] if ttl else None,
        "delay_seconds": delay,
        "metadata": _object(metadata),
    }
    common = {name: one for name, one in common.items() if one is not None}
    if (value is not None) + (file is not None or lines) != 1:
        raise click.UsageError("name a VALUE, or --file PATH, or --lines")
    server = server_of(context)
    if value is not None:
        batches = iter([[common | _value(value.encode(errors="surrogateescape"), kind)]])
    else:
        source = file if file is not None else sys.stdin.buffer
        values = _lines(source) if lines else iter([_whole(source)])
        batches = _batches(common | _value(one, kind) for one in values)
    _produce(context, server, topic, batches)


def _produce(
    context: click.Context, server: Server, topic: str, batches: Iterable[list[Answer]]
) -> None:
    """Send the batches; print each record's position, or the total.

    An error that ends it tells how many records are in.
    """
    as_json = context.obj["json"]
    done: list[Answer] = []
    count = 0
    try:
        for batch in batches:
            answer = server.post("topics", topic, "records", records=batch)
            count += len(batch)
            done = answer["records"]
            if as_json:
                click.echo(json.dumps({"topic": topic, "records": done}))
    except (BrokerdError, OSError, KeyboardInterrupt) as error:
        if not count:
            raise
        reason = str(error) or "interrupted"
        raise BrokerdError(f"{count} records are in; then: {reason}") from error
    if as_json:
        return
    if count == 1:
        (place,) = done
        click.echo(_place(place))
    else:
        click.echo(f"{count} records")


def _place(place: Answer) -> str:
    if "schedule_id" in place:
        return f"delayed, id {place['schedule_id']}"
    return f"partition {place['partition']} offset {place['offset']}"


def _object(text: str | None) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--metadata is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.BadParameter("--metadata must be a JSON object, such as '{\"a\": 1}'")
    return value


def _value(raw: bytes, kind: str | None) -> Answer:
    """Return the fields of a record for its value. Raises `InvalidRequest`."""
    if kind == "json":
        try:
            return {"value": json.loads(raw), "encoding": "msgpack"}
        except ValueError as error:
            raise InvalidRequest(f"a value is not JSON: {error}: {raw[:40]!r}") from None
    encoding = kind or "text"
    if encoding == "text":
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            if kind == "text":
                raise InvalidRequest(
                    f"a value is not UTF-8 text: {raw[:40]!r}; use --as bytes"
                ) from None
            encoding = "bytes"
        else:
            if len(raw) <= PLAIN_BYTES_MAX:
                return {"value": text}
    return {"value_base64": base64.b64encode(raw).decode(), "encoding": encoding}


def _whole(source: IO[bytes]) -> bytes:
    """Read a whole file; refuse one that is larger than a record may be."""
    value = source.read(ADMIN_RECORD_BYTES + 1)
    if len(value) > ADMIN_RECORD_BYTES:
        raise InvalidRequest(f"the file is longer than a record may be, {ADMIN_RECORD_BYTES} bytes")
    return value


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    """Iterate over lines without their line ends."""
    while line := source.readline(ADMIN_RECORD_BYTES + LINE_END_BYTES):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(value) > ADMIN_RECORD_BYTES:
            raise InvalidRequest(
                f"a line is longer than a record may be, {ADMIN_RECORD_BYTES} bytes"
            )
        yield value


def _batches(records: Iterable[Answer]) -> Iterator[list[Answer]]:
    """Group records into requests of up to `BATCH_RECORDS` and `BATCH_BYTES`; a larger record is
    alone.
    """
    batch: list[Answer] = []
    size = 0
    for record in records:
        record_bytes = len(json.dumps(record))
        if batch and (len(batch) == BATCH_RECORDS or size + record_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record_bytes
    if batch:
        yield batch
