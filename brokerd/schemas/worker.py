# Tests: tests/schemas/test_checker.py
"""The process that looks at schemas: ``python -m brokerd.schemas.worker TEMPORARY_DIRECTORY``.

Standard input is a socket. A question or an answer is four bytes of length, big-endian, and so many
bytes; the process ends with the stream. Its memory is limited from the beginning, its processor
time with each question anew.
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
"""Of one question; the system counts whole seconds."""
FILE_BYTES = 16 << 20

LENGTH = Struct(">I")


def main() -> None:
    """Answer questions until there are no more, and leave no files."""
    tempfile.tempdir = sys.argv[1]
    try:
        _serve()
    finally:
        shutil.rmtree(sys.argv[1], ignore_errors=True)


def _serve() -> None:
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    checks = Checks()
    with socket.socket(fileno=0) as stream:
        while True:
            head = received(stream, LENGTH.size)
            if head is None:
                return
            question = received(stream, LENGTH.unpack(head)[0])
            if question is None:
                return
            _limit_time()
            answer = _answer(checks, question)
            stream.sendall(LENGTH.pack(len(answer)) + answer)


def received(stream: socket.socket, size: int) -> bytes | None:
    """So many bytes; None if the stream ends before."""
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


def _answer(checks: Checks, question: bytes) -> bytes:
    """The answer, or what a package raised that it should not have, by its name."""
    try:
        return checks.answer(question)
    except Exception as error:
        why = "it takes more memory than it may" if isinstance(error, MemoryError) else repr(error)
        text = fault_text(f"the schema check was given up: {why}")
        failed: bytes = msgpack.packb(["SchemaCheckFailed", [text]])
        return failed


if __name__ == "__main__":
    main()
