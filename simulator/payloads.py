# Tests: tests/simulator/test_payloads.py
"""Convert payloads between MessagePack and formats that have bytes only.

A history has payloads in MessagePack. A value of bytes is a payload of the kind bin. In the other
direction a bin is shown as its bytes, a str as its UTF-8, and everything else as its MessagePack.
The rules are written from docs/cross-format.rst, without the broker's own code.
"""

from __future__ import annotations

HEADS = {0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5}
"""First byte of a bin or a str -> length of its header."""
FIXSTR = range(0xA0, 0xC0)


def value_of(payload: bytes) -> bytes:
    """Convert a payload to bytes."""
    first = payload[0] if payload else 0
    if first in FIXSTR:
        return payload[1:]
    return payload[HEADS.get(first, 0) :]


def payload_of(value: bytes) -> bytes:
    """Convert bytes to a payload, a bin."""
    size = len(value)
    for head, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if size < 1 << (8 * width):
            return bytes([head]) + size.to_bytes(width, "big") + value
    raise ValueError(f"{size} bytes are more than a bin can have")
