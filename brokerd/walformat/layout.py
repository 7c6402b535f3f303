# Tests: tests/test_walformat.py
"""The version, errors and alignment that all parts of the format share."""

from __future__ import annotations

Bytes = bytes | bytearray | memoryview

FORMAT_VERSION = 1
ALIGNMENT = 8
"""Frames and entries begin at multiples of this, and columns within a body."""

PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""The zeros to append, by length modulo `ALIGNMENT`."""


def align(position: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return position + -position % ALIGNMENT


class FormatError(ValueError):
    """Bytes that do not follow the layout: damage, or another kind of file."""


class UnsupportedFormat(FormatError):
    """Sound bytes of a newer version, of an unknown kind, or with a flag that is not known."""
