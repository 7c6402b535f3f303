# Tests: tests/broker/test_append.py
"""Bytes that records take in a frame of the log, for admission (`GroupCommit.admit`)."""

from __future__ import annotations

from collections.abc import Sequence

RECORD_FRAME_BYTES = 64
"""Upper bound of a record's columns in a frame, without value, key and metadata."""


def record_frame_bytes(
    value: bytes, key: bytes | None = None, metadata: bytes | None = None
) -> int:
    """Return an upper bound of a record's bytes in a frame."""
    size = len(value) + RECORD_FRAME_BYTES
    if key is not None:
        size += len(key)
    if metadata is not None:
        size += len(metadata)
    return size


def values_frame_bytes(values: Sequence[bytes]) -> int:
    """Return an upper bound of the bytes in a frame of records without key and metadata."""
    return sum(map(len, values)) + len(values) * RECORD_FRAME_BYTES
