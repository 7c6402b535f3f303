# Tests: tests/schemas/test_checker.py
"""The process that checks schemas: ``python -m brokerd.schemas.worker TEMPORARY_DIRECTORY``.

Standard input is a socket. A request or an answer is a length of four bytes, big-endian, and that
many bytes. The process ends when the stream ends. It limits its memory at the start, and its
processor time for each request.
"""

from __future__ import annotations

import resource
import shutil
import socket
import sys
import tempfile
from struct import Struct

import msgpack

from brokerd.schemas.checks import Checks
from brokerd.schemas.values import fault_text

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 2
"""Processor time of one request. The system counts whole seconds."""
FILE_BYTES = 16 << 20

LENGTH = Struct(">I")


def main() -> None:
    """Answer requests until the stream ends, then remove the temporary files."""
    tempfile.tempdir = sys.argv[1]
    try:
        _serve()
    finally:
        shutil.rmtree(sys.argv[1], ignore_errors=True)


def _serve() -> None:
    for limit, limit_value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (limit_value, limit_value))
    checks = Checks()
    with socket.socket(fileno=0) as stream:
        while True:
            header = receive(stream, LENGTH.size)
            if header is None:
                return
            request = receive(stream, LENGTH.unpack(header)[0])
            if request is None:
                return
            _limit_time()
            answer = _answer(checks, request)
            stream.sendall(LENGTH.pack(len(answer)) + answer)


def receive(stream: socket.socket, size: int) -> bytes | None:
    """Return ``size`` bytes; None if the stream ends before."""
    data = bytearray()
    while len(data) < size:
        part = stream.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _limit_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    end_seconds = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (end_seconds, resource.RLIM_INFINITY))


def _answer(checks: Checks, request: bytes) -> bytes:
    """Return the answer; for an unexpected exception of a package, one with its name."""
    try:
        return checks.answer(request)
    except Exception as error:
        reason = (
            "it takes more memory than it may" if isinstance(error, MemoryError) else repr(error)
        )
        text = fault_text(f"the schema check was given up: {reason}")
        failed: bytes = msgpack.packb(["SchemaCheckFailed", [text]])
        return failed


if __name__ == "__main__":
    main()
