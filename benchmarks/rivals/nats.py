# Tests: tests/test_compare.py
"""NATS JetStream: publish with its acknowledgement; pull and acknowledge (docs.nats.io, protocol).

An acknowledgement of a pulled message asks for an answer, so that it counts when it is done.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

from benchmarks.rivals.base import PRODUCE, PatternRole, Rival, RivalLoad, ask, producer
from brokerd.cli.bench.formats.base import LoadSpec
from brokerd.cli.bench.scenarios import Role, Tally
from brokerd.cli.credentials import Credentials

_CONNECT = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
_PRODUCED = re.compile(
    rb"MSG [^ ]+ 1  ?\d+\r\n(?:(?P<done>\{\"stream\"[^\r]*)|(?P<error>[^\r]*))\r\n"
    rb"|(?P<ping>PING)\r\n|-ERR (?P<refused>[^\r]*)\r\n"
)
_TAKEN = re.compile(
    rb"MSG [^ ]+ 1 (?P<ack>\$JS\.ACK[^ ]+) \d+\r\nx*\r\n"
    rb"|MSG [^ ]+ 1  ?(?P<done>0)\r\n\r\n"
    rb"|HMSG [^ ]+ 1 \d+ \d+\r\nNATS/1.0 (?P<none>\d+)[^\r]*\r\n(?:[^\r]+\r\n)*\r\n\r\n"
    rb"|(?P<ping>PING)\r\n|-ERR (?P<error>[^\r]*)\r\n"
)
_PONG = b"PONG\r\n"


def pub(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """Return a PUB that asks for an answer."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


class NatsLoad(RivalLoad):
    """Each topic is a stream with one subject and the pull consumer ``bench``."""

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        ask(sock, b"", b"\r\n")  # INFO
        hello = b"CONNECT %b\r\nPING\r\n" % json.dumps(_CONNECT).encode()
        ask(sock, hello, b"PONG\r\n")

    def make_topic(self, sock: socket.socket, topic: str) -> None:
        sock.sendall(b"SUB made 2\r\n")
        stream = {"name": topic, "subjects": [topic], "storage": "file", "num_replicas": 1}
        _make(sock, f"STREAM.CREATE.{topic}", stream)
        consumer = {
            "stream_name": topic,
            "config": {
                "durable_name": "bench",
                "ack_policy": "explicit",
                "deliver_policy": "all",
                "ack_wait": 60_000_000_000,
                "max_ack_pending": 100_000,
            },
        }
        _make(sock, f"CONSUMER.DURABLE.CREATE.{topic}.bench", consumer)

    def role(self, spec: LoadSpec, number: int) -> Role:
        inbox = f"inbox.{spec.topic}.{spec.worker}.{number}".encode()
        subscribe = b"SUB %b 1\r\n" % inbox
        if spec.scenario == PRODUCE:
            publish = pub(spec.topic.encode(), inbox, b"x" * spec.size)
            return producer(publish, spec.window, _PRODUCED, subscribe, _PONG)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{spec.topic}.bench".encode()
        pull = pub(subject, inbox, b'{"batch":1,"no_wait":true}')

        def taken(match: re.Match[bytes], tally: Tally) -> bytes | None:
            if match["ack"] is not None:
                return pub(match["ack"], inbox, b"+ACK")
            if match["done"] is not None:
                tally.settled += 1
            elif match["none"] is not None:
                tally.empty += 1
                return None
            else:
                tally.refused(match[0])
            return pull

        return PatternRole(pull, spec.window, _TAKEN, taken, subscribe, _PONG)


def _make(sock: socket.socket, subject: str, body: dict[str, Any]) -> None:
    request = pub(b"$JS.API." + subject.encode(), b"made", json.dumps(body).encode())
    answer = ask(sock, request, b"}\r\n")
    if b'"error"' in answer:
        raise OSError(f"{subject} was answered {answer!r}")


def _command(program: str, directory: Path, port: int) -> list[str]:
    config = directory / "nats.conf"
    sync = "sync_interval: always" if _can_sync(NATS.version()) else ""
    store = f"store_dir: {json.dumps(str(directory))}"
    config.write_text(f"listen: 127.0.0.1:{port}\njetstream {{\n{store}\n{sync}\n}}\n")
    return [program, "--config", str(config)]


def _can_sync(version: str) -> bool:
    """Return whether this version has ``sync_interval: always`` (2.10 and later)."""
    parts = [int(part) for part in version.split(".")[:2]]
    return parts >= [2, 10]


def _durability(version: str) -> str:
    if _can_sync(version):
        return "sync of the stream before the answer (sync_interval: always)"
    return "no sync before the answer: this version syncs every two minutes"


NATS = Rival(
    name="nats",
    program="nats-server",
    package="nats-server",
    version_command=("nats-server", "--version"),
    command=_command,
    durability=_durability,
    load=NatsLoad(),
)
