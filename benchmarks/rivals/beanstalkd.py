# Tests: tests/test_compare.py
"""beanstalkd: put, and reserve with delete (doc/protocol.txt of the project)."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from benchmarks.rivals.base import PRODUCE, PatternRole, Rival, RivalLoad, ask, producer
from brokerd.cli.bench.formats.base import LoadSpec, LoadTarget, TargetSpec
from brokerd.cli.bench.scenarios import Role, Tally
from brokerd.cli.credentials import Credentials

_TUBE = "bench"
_PRODUCED = re.compile(rb"(?P<done>INSERTED) \d+\r\n|([A-Z_]+)[^\r]*\r\n")
_RESERVE = b"reserve-with-timeout 0\r\n"
_TAKEN = re.compile(
    rb"RESERVED (?P<id>\d+) \d+\r\nx*\r\n|(?P<done>DELETED)\r\n|(?P<none>TIMED_OUT)\r\n"
    rb"|(?P<error>(?!RESERVED)[A-Z_]+)[^\r]*\r\n"
)


class BeanstalkdLoad(RivalLoad):
    """All messages are in one tube, which `prepare` empties by a new server for each run."""

    def prepare(self, target: TargetSpec) -> LoadTarget:
        super().prepare(target)
        return LoadTarget(_TUBE)

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        name = _TUBE.encode()
        ask(sock, b"use %b\r\n" % name, b"USING %b\r\n" % name)
        ask(sock, b"watch %b\r\n" % name, b"WATCHING 2\r\n")
        ask(sock, b"ignore default\r\n", b"WATCHING 1\r\n")

    def role(self, spec: LoadSpec, number: int) -> Role:
        if spec.scenario == PRODUCE:
            put = b"put 0 0 600 %d\r\n%b\r\n" % (spec.size, b"x" * spec.size)
            return producer(put, spec.window, _PRODUCED)

        def taken(match: re.Match[bytes], tally: Tally) -> bytes | None:
            if match["id"] is not None:
                return b"delete %b\r\n" % match["id"]
            if match["done"] is not None:
                tally.settled += 1
            elif match["none"] is not None:
                tally.empty += 1
                return None
            else:
                tally.refused(match[0])
            return _RESERVE

        return PatternRole(_RESERVE, spec.window, _TAKEN, taken)


def _command(program: str, directory: Path, port: int) -> list[str]:
    return [program, "-l", "127.0.0.1", "-p", str(port), "-b", str(directory), "-f0"]


BEANSTALKD = Rival(
    name="beanstalkd",
    program="beanstalkd",
    package="beanstalkd",
    version_command=("beanstalkd", "-v"),
    command=_command,
    durability=lambda version: "fsync of its binlog after each write (-f0); a reserve writes none",
    load=BeanstalkdLoad(),
    unlike={"acquire-settle": "a reserve is not written to disk"},
)
