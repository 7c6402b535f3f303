# Tests: tests/test_compare.py
"""RabbitMQ quorum queues: a publish with its confirm (AMQP 0-9-1, www.rabbitmq.com/amqp-0-9-1).

Only ``produce``: AMQP has no answer to the acknowledgement of a message, so there are no pairs.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from struct import Struct

from benchmarks.rivals.base import PRODUCE, Rival, RivalLoad
from brokerd.cli.bench.formats.base import LoadSpec
from brokerd.cli.bench.scenarios import Role, Step, Tally
from brokerd.cli.credentials import Credentials

_FRAME = Struct(">BHI")
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END = 0xCE
_ACK = b"\x00\x3c\x00\x50"
"""Class and method of basic.ack; a delivery tag and a flag for all before it follow."""
_ACK_FIELDS = Struct(">QB")


def amqp_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return _FRAME.pack(kind, channel, len(payload)) + payload + bytes([_END])


def _method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    ids = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big")
    return amqp_frame(_METHOD, channel, ids + arguments)


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


class RabbitLoad(RivalLoad):
    """Each topic is a quorum queue of one node."""

    scenarios: tuple[str, ...] = (PRODUCE,)

    def consumes(self, scenario: str) -> bool:
        return False

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        sock.sendall(b"AMQP\x00\x00\x09\x01")
        _expect(sock, 10, 10)  # start
        login = _short(b"PLAIN") + _long(b"\x00guest\x00guest") + _short(b"en_US")
        sock.sendall(_method(0, 10, 11, _long(b"") + login))
        tune = _expect(sock, 10, 30)
        # The largest numbers of the server, and no heartbeats.
        sock.sendall(_method(0, 10, 31, tune[:6] + b"\x00\x00"))
        sock.sendall(_method(0, 10, 40, _short(b"/") + _short(b"") + b"\x00"))
        _expect(sock, 10, 41)  # open-ok
        sock.sendall(_method(1, 20, 10, _short(b"")))
        _expect(sock, 20, 11)  # channel open-ok
        sock.sendall(_method(1, 85, 10, b"\x00"))
        _expect(sock, 85, 11)  # confirm select-ok

    def make_topic(self, sock: socket.socket, topic: str) -> None:
        quorum = _short(b"x-queue-type") + b"S" + _long(b"quorum")
        durable = b"\x02"
        sock.sendall(
            _method(1, 50, 10, b"\x00\x00" + _short(topic.encode()) + durable + _long(quorum))
        )
        _expect(sock, 50, 11)  # declare-ok

    def role(self, spec: LoadSpec, number: int) -> Role:
        publish = _method(
            1, 60, 40, b"\x00\x00" + _short(b"") + _short(spec.topic.encode()) + b"\x00"
        )
        persistent = b"\x10\x00\x02"
        header = b"\x00\x3c\x00\x00" + spec.size.to_bytes(8, "big") + persistent
        body = amqp_frame(_BODY, 1, b"x" * spec.size)
        return PublishRole(publish + amqp_frame(_HEADER, 1, header) + body, spec.window)


class PublishRole:
    """Publishes; a confirm may answer several."""

    def __init__(self, request: bytes, window: int) -> None:
        self.tally = Tally()
        self._request = request
        self._window = window
        self._confirmed = 0
        """Publishes that are confirmed without a gap."""
        self._early: set[int] = set()
        """Confirmed ones after a gap."""
        self._stopped = False

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._request * self._window, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        before, at = self._confirmed + len(self._early), 0
        while len(data) - at >= _FRAME.size:
            kind, _, size = _FRAME.unpack_from(data, at)
            end = at + _FRAME.size + size + 1
            if end > len(data):
                break
            payload = data[at + _FRAME.size : end - 1]
            if kind == _METHOD and payload.startswith(_ACK):
                self._confirm(*_ACK_FIELDS.unpack_from(payload, len(_ACK)))
            elif kind != _HEARTBEAT:
                self.tally.refused(payload)
            at = end
        found = self._confirmed + len(self._early) - before
        self.tally.produced += found
        replies = 0 if self._stopped else found
        return Step(found, at, self._request * replies, replies)

    def _confirm(self, tag: int, is_multiple: int) -> None:
        if is_multiple:
            self._confirmed = max(self._confirmed, tag)
            self._early = {one for one in self._early if one > tag}
        else:
            self._early.add(tag)
        while self._confirmed + 1 in self._early:
            self._confirmed += 1
            self._early.discard(self._confirmed)


def _expect(sock: socket.socket, class_id: int, method_id: int) -> bytes:
    """Return the arguments of the next method, which must be this one. Raises OSError."""
    head = _exactly(sock, _FRAME.size)
    payload = _exactly(sock, _FRAME.unpack(head)[2] + 1)[:-1]
    found = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
    if found != (class_id, method_id):
        raise OSError(f"method {found} came in place of {(class_id, method_id)}: {payload!r}")
    return payload[4:]


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise OSError(f"the connection ended after {data!r}")
        data += part
    return data


def _environment(directory: Path, port: int) -> Mapping[str, str]:
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users.guest = true\nlog.console = false\n"
    )
    return {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(port + 1),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(port + 2),
    }


def _port_mapper(port: int) -> list[str]:
    """Return the command line of Erlang's port mapper, which would else stay as a daemon."""
    return ["epmd", "-port", str(port + 2), "-address", "127.0.0.1"]


RABBITMQ = Rival(
    name="rabbitmq",
    program="rabbitmq-server",
    package="rabbitmq-server",
    version_command=("rabbitmqctl", "version"),
    command=lambda program, directory, port: [program],
    durability=lambda version: "sync of the queue's log before the confirm",
    load=RabbitLoad(),
    environment=_environment,
    helper=_port_mapper,
    start_seconds=90.0,
    unlike={"acquire-settle": "AMQP has no answer to an acknowledgement"},
)
