"""The division of bytes into chunks as they may arrive."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 1_000_000), max_size=10)
"""Places where `chunkings` cuts a stream."""


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the bytes, cut at these places; places beyond the end wrap around."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


def chunkings(data: bytes, cuts: list[int]) -> list[list[bytes]]:
    """Return the bytes in one piece, cut at these places, and byte by byte."""
    return [[data], chunked(data, cuts), [data[at : at + 1] for at in range(len(data))]]
