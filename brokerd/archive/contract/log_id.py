# Tests: tests/broker/test_log_id.py
"""The file ``state/log_id``: names the log, so that a log never uses the archive of another log.

docs/wal-format.rst, section "Log id", has the layout.
"""

from __future__ import annotations

import re

from xxhash import xxh3_64_hexdigest

from brokerd.errors import DamagedData

FILE_NAME = "log_id"
FILE_BYTES_MAX = 1024

_LINE = re.compile(rb"brokerd log ([0-9a-f]{32}) ([0-9a-f]{16})\n")


def encode_log_id(text: str) -> bytes:
    """Encode the file."""
    return f"brokerd log {text} {xxh3_64_hexdigest(text.encode())}\n".encode()


def decode_log_id(data: bytes) -> str:
    """Decode the file. Returns 32 hexadecimal digits. Raises DamagedData."""
    match = _LINE.fullmatch(data)
    if match is None or xxh3_64_hexdigest(match[1]).encode() != match[2]:
        raise DamagedData(f"{FILE_NAME} is not as a broker wrote it")
    return match[1].decode()
