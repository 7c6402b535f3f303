# Tests: tests/test_compare.py
"""Redis Streams: XADD, and XREADGROUP with XACK (RESP2, redis.io/docs/reference/protocol-spec)."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from benchmarks.rivals.base import PRODUCE, PatternRole, Rival, RivalLoad, ask, producer
from brokerd.cli.bench.formats.base import LoadSpec
from brokerd.cli.bench.scenarios import Role, Tally

_PRODUCED = re.compile(rb"\$(?P<done>\d+)\r\n[\d-]+\r\n|-([^\r]*)\r\n")
_TAKEN = re.compile(
    rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*1\r\n\*2\r\n\$\d+\r\n(?P<id>[\d-]+)\r\n"
    rb"\*2\r\n\$1\r\nv\r\n\$\d+\r\n[^\r]*\r\n"
    rb"|:(?P<done>\d+)\r\n|(?P<none>\*-1|\$-1|\*0)\r\n|-(?P<error>[^\r]*)\r\n"
)


def resp(*words: bytes) -> bytes:
    """Return a command."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class RedisLoad(RivalLoad):
    """Each topic is a stream with the consumer group ``bench``."""

    def make_topic(self, sock: socket.socket, topic: str) -> None:
        made = ask(
            sock, resp(b"XGROUP", b"CREATE", topic.encode(), b"bench", b"0", b"MKSTREAM"), b"\r\n"
        )
        if not made.startswith(b"+OK"):
            raise OSError(f"XGROUP CREATE answered {made!r}")

    def role(self, spec: LoadSpec, number: int) -> Role:
        topic = spec.topic.encode()
        if spec.scenario == PRODUCE:
            add = resp(b"XADD", topic, b"*", b"v", b"x" * spec.size)
            return producer(add, spec.window, _PRODUCED)
        consumer = f"{spec.worker}-{number}".encode()
        read = resp(
            *(b"XREADGROUP", b"GROUP", b"bench", consumer, b"COUNT", b"1", b"STREAMS", topic, b">")
        )

        def taken(match: re.Match[bytes], tally: Tally) -> bytes | None:
            message_id = match["id"]
            if message_id is not None:
                return resp(b"XACK", topic, b"bench", message_id)
            if match["done"] == b"1":
                tally.settled += 1
            elif match["none"] is not None:
                tally.empty += 1
                return None
            else:
                tally.refused(match[0])
            return read

        return PatternRole(read, spec.window, _TAKEN, taken)


def _command(program: str, directory: Path, port: int) -> list[str]:
    return [
        *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)),
        *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"),
    ]


REDIS = Rival(
    name="redis",
    program="redis-server",
    package="redis-server",
    version_command=("redis-server", "--version"),
    command=_command,
    durability=lambda version: "fsync of the append-only file before the answer (always)",
    load=RedisLoad(),
)
