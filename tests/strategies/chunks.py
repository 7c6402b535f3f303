"""The pieces in which bytes may arrive."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 1_000_000), max_size=10)
"""Where a stream is cut, for `chunkings`."""


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    """The same bytes, cut at these places; a place may lie beyond their end."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


def chunkings(data: bytes, cuts: list[int]) -> list[list[bytes]]:
    """All at once, cut at these places, and byte by byte."""
    return [[data], chunked(data, cuts), [data[at : at + 1] for at in range(len(data))]]
