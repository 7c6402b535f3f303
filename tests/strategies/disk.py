# Tests: tests/simulator/test_disk.py
"""Strategies for disks: sequences of valid and invalid calls on a few files of one directory."""

from __future__ import annotations

from hypothesis import strategies as st

Step = tuple[str, tuple[object, ...]]
"""The name of a call and its arguments.

A handle is a number: the nth file opened so far, modulo their count.
"""

names = st.sampled_from(["x", "y", "z"])
handles = st.integers(0, 5)
positions = st.one_of(st.sampled_from([0, 511, 512, 1024]), st.integers(0, 1500))
contents = st.builds(
    lambda byte, size: bytes([byte]) * size, st.integers(1, 255), st.integers(0, 1300)
)

creates = st.tuples(st.just("create"), st.tuples(names))
writes = st.tuples(st.just("pwrite"), st.tuples(handles, contents, positions))
truncates = st.tuples(st.just("truncate"), st.tuples(handles, positions))
syncs = st.tuples(st.just("sync"), st.tuples(handles))
directory_syncs = st.tuples(st.just("sync_directory"), st.just(()))
renames = st.tuples(st.just("rename"), st.tuples(names, names))
unlinks = st.tuples(st.just("unlink"), st.tuples(names))
looks = st.one_of(
    st.tuples(st.just("open"), st.tuples(names, st.booleans())),
    st.tuples(st.just("pread"), st.tuples(handles, st.integers(0, 3000), positions)),
    st.tuples(st.just("size"), st.tuples(handles)),
    st.tuples(st.just("close"), st.tuples(handles)),
    st.tuples(st.just("list"), st.just(())),
)

changes = st.one_of(creates, writes, writes, truncates, renames, unlinks)
"""Steps that change files or names, without syncs."""

steps = st.one_of(changes, looks, syncs, directory_syncs)
