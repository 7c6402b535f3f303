"""The benchmark of claims, and the formula of docs/limits.rst against the memory of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.claims import MIB, cases, run_case, unfinished
from brokerd.codecs.mamamia import FrameReader

PEERS = 80
CONNECTION_BYTES = 200 << 10
SLACK_BYTES = 24 * MIB
"""The run of one connection, its answers, and what the allocator keeps."""


def test_an_unknown_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no case 'unread-kafka'"):
        run_case("unread-kafka", tmp_path, 1, 1)


def test_an_unfinished_frame_lacks_its_last_byte() -> None:
    reader = FrameReader()
    assert reader.feed(unfinished(0)) == [] and reader.error is None
    assert len(reader.feed(b"x")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", [*cases()])
def test_the_memory_of_a_broker_stays_within_the_formula(case: str, tmp_path: Path) -> None:
    """80 clients could claim 320 MiB and more; the budget is 64 MiB."""
    found = run_case(case, tmp_path, PEERS, 4, ["limits.memory=64MiB"])
    assert found.limit_bytes == 48 * MIB
    taken = found.peak_bytes - found.rest_bytes
    assert taken < found.limit_bytes + PEERS * CONNECTION_BYTES + SLACK_BYTES
    assert found.left_bytes - found.rest_bytes < SLACK_BYTES
    assert found.probes > 1
