# Tests: tests/admin/test_stream_calls.py
"""The API's calls about named streams (docs/broker.rst, Named streams)."""

from __future__ import annotations

from functools import partial
from typing import Any

from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.shapes.common import PAGE_PARTITIONS, Deleted, Page, seconds_of, time_of
from brokerd.admin.shapes.streams import (
    StreamDetails,
    StreamList,
    StreamPosition,
    StreamShape,
    TopicOffsets,
)
from brokerd.broker.streams import Lag, Stream, StreamReport
from brokerd.errors import InvalidRequest
from brokerd.security import ADMIN, MONITOR

TOPICS_SHOWN = 1_000
"""Most topics in the description of a stream."""


def list_streams(call: Call) -> StreamList:
    """Return a page of streams, with the lags that the last status counted."""
    query: Page = call.query
    streams = call.broker.streams
    streams.count_lags()
    page, following = query.select(streams.all(), 1)
    return StreamList(
        [StreamShape(**_fields(call, one, streams.known_lag(one))) for one in page], following
    )


async def describe_stream(call: Call) -> StreamDetails:
    """Return a stream with its lag and positions. Raises `NotFound`."""
    lag = await call.broker.streams.count_lag(_existing(call), call.pace())
    stream = _existing(call)  # it may have reported, or be dropped, meanwhile
    positions: list[TopicOffsets] = []
    partitions = 0
    for topic_id, offsets in stream.offsets.items():
        topic = call.broker.topics.find_id(topic_id)
        if topic is None:
            continue
        partitions += len(offsets)
        if len(positions) == TOPICS_SHOWN or (positions and partitions > PAGE_PARTITIONS):
            break
        ends = [partition.next_offset for partition in topic.partitions]
        positions.append(TopicOffsets(topic.name, topic_id, list(offsets), ends))
    return StreamDetails(**_fields(call, stream, lag), positions=positions)


async def report_position(call: Call) -> StreamShape:
    """Keep the position of a stream. Raises as `Streams.report`."""
    position: StreamPosition = call.body
    report = StreamReport(
        call.path["stream"],
        position.log_id,
        position.lsn,
        None if position.topics is None else tuple(position.topics),
        {_topic_id(text): offsets for text, offsets in position.offsets.items()},
        position.holds,
    )
    streams = call.broker.streams
    stream = await call.when_admitted(partial(streams.report, call.access, report))
    return StreamShape(**_fields(call, stream, streams.known_lag(stream)))


async def drop_stream(call: Call) -> Deleted:
    """Forget a stream. Raises `NotFound`."""
    _existing(call)
    name = call.path["stream"]
    await call.when_admitted(partial(call.broker.streams.drop, call.access, name))
    return Deleted(name)


def _existing(call: Call) -> Stream:
    stream = call.broker.streams.find(call.path["stream"])
    if stream is None:
        raise NotFound(f"there is no stream {call.path['stream']!r}; its first report creates it")
    return stream


def _topic_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidRequest(f"offsets: a topic id must be a number, not {text[:40]!r}")
    return int(text)


def _fields(call: Call, stream: Stream, lag: Lag | None) -> dict[str, Any]:
    names = stream.topics.names
    return {
        "name": stream.name,
        "owner": stream.owner,
        "topics": None if names is None else list(names),
        "lsn": stream.lsn,
        "lag_records": None if lag is None else lag.records,
        "lag_bytes": None if lag is None else lag.bytes,
        "holds": stream.holds,
        "hold_dropped": stream.hold_dropped,
        "created": time_of(stream.created_us),
        "reported": time_of(stream.reported_us),
        "silent_seconds": seconds_of(call.broker.streams.silent_us(stream)),
    }


STREAM = "/streams/{stream}"
ROUTES = [
    Route(
        "GET",
        "/streams",
        MONITOR,
        "List named streams with their lag, by name",
        list_streams,
        StreamList,
        query=Page,
    ),
    Route(
        "GET",
        STREAM,
        MONITOR,
        "Show a named stream with its positions",
        describe_stream,
        StreamDetails,
    ),
    Route(
        "PUT",
        f"{STREAM}/position",
        0,
        "Report the position of a stream",
        report_position,
        StreamShape,
        body=StreamPosition,
    ),
    Route("DELETE", STREAM, ADMIN, "Forget a named stream", drop_stream, Deleted),
]
