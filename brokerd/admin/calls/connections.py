# Tests: tests/admin/test_connection_calls.py
"""The API's calls about connections to the listeners of wire formats: list and close."""

from __future__ import annotations

from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.shapes.common import seconds_of
from brokerd.admin.shapes.connections import (
    Closed,
    ConnectionList,
    ConnectionQuery,
    ConnectionShape,
)
from brokerd.broker.connections import ConnectionInfo, OpenConnection
from brokerd.security import ADMIN, MONITOR
from brokerd.security.audit import EventType

EXAMINED_MAX = 5_000
"""Most connections that one request examines, in some milliseconds."""


def list_connections(call: Call) -> ConnectionList:
    """Return a page of the open connections that match, oldest first."""
    query: ConnectionQuery = call.query
    now_us = call.broker.time.monotonic_us()
    page: list[ConnectionShape] = []
    for number, (one, connection) in enumerate(call.broker.connections.from_id(query.first_id)):
        if number == EXAMINED_MAX or len(page) == query.limit:
            return ConnectionList(page, one)
        info = connection.info(now_us)
        if _matches(info, query):
            page.append(_shape(one, info))
    return ConnectionList(page, None)


def _matches(info: ConnectionInfo, query: ConnectionQuery) -> bool:
    return (
        query.format in (None, info.wire_format)
        and query.user in (None, info.user)
        and query.address in (None, info.address)
    )


def _shape(connection_id: int, info: ConnectionInfo) -> ConnectionShape:
    return ConnectionShape(
        id=connection_id,
        format=info.wire_format,
        address=info.address,
        port=info.port,
        user=info.user,
        tls=info.tls,
        open_seconds=seconds_of(info.open_us),
        idle_seconds=seconds_of(info.idle_us),
        requests=info.requests,
        unread_bytes=info.unread_bytes,
        holds=info.holds,
    )


async def close_connection(call: Call) -> Closed:
    """Close a connection at once. Raises `NotFound` if it is not open."""
    connection_id = call.number("connection_id")
    info = _existing(call, connection_id).info(call.broker.time.monotonic_us())

    def close() -> None:
        _existing(call, connection_id).abort()

    where = info.address if info.port is None else f"{info.address} port {info.port}"
    await call.carry_out(
        EventType.CONNECTION_CLOSED, close, str(connection_id), peer=where, closed_user=info.user
    )
    return Closed(connection_id)


def _existing(call: Call, connection_id: int) -> OpenConnection:
    connection = call.broker.connections.find(connection_id)
    if connection is None:
        raise NotFound(f"there is no connection {connection_id}: it is closed, or never existed")
    return connection


ROUTES = [
    Route(
        "GET",
        "/connections",
        MONITOR,
        "List open connections, oldest first",
        list_connections,
        ConnectionList,
        query=ConnectionQuery,
    ),
    Route(
        "DELETE",
        "/connections/{connection_id}",
        ADMIN,
        "Close a connection",
        close_connection,
        Closed,
    ),
]
