"""The simulated bucket, and the rollup's steps on a bucket whose requests fail."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.bucket import BucketStore
from simulator.crashpoints.bucket import throttled_play
from simulator.crashpoints.rollup import JOURNAL, WHOLE, RollupScript, SealedLog, Steps
from simulator.crashpoints.sweep import Outcome, sweep
from simulator.machine.bucket import Request, SimBucket, lose_answer, refuse
from simulator.machine.crash import CrashModel

ADDRESS = ObjectAddress("s3", "bucket", "below")


def store_of(bucket: Any) -> BucketStore:
    return BucketStore(ADDRESS, bucket)


class TestSimBucket:
    def test_objects_have_the_time_of_the_last_put(self) -> None:
        bucket = SimBucket()
        bucket.now_ns = lambda: 5_000_000_000
        store = store_of(bucket)
        store.put("a/b", b"12")
        (entry,) = store.list()
        assert (entry.path, entry.size, entry.changed_ms) == ("a/b", 2, 5_000)
        assert store.names("") == {"a"}
        assert store.read("a/b", 10) == b"12"

    def test_a_fork_is_independent(self) -> None:
        bucket = SimBucket()
        store_of(bucket).put("a", b"1")
        twin = bucket.fork()
        store_of(twin).put("b", b"2")
        store_of(bucket).delete(["a"])
        assert bucket.objects() == {}
        assert twin.objects() == {"below/a": b"1", "below/b": b"2"}

    def test_a_refused_put_has_no_effect(self) -> None:
        bucket = SimBucket()
        bucket.enter = refuse
        with pytest.raises(ArchiveUnavailable, match="the server says SlowDown"):
            store_of(bucket).put("a", b"1")
        assert bucket.objects() == {}

    def test_a_put_whose_answer_is_lost_has_an_effect(self) -> None:
        bucket = SimBucket()
        bucket.leave = lose_answer
        with pytest.raises(ArchiveUnavailable, match="the server does not answer"):
            store_of(bucket).put("a", b"1")
        assert bucket.objects() == {"below/a": b"1"}

    def test_a_create_whose_answer_is_lost_is_recognised_by_its_content(self) -> None:
        bucket = SimBucket()

        def lose_puts(request: Request) -> None:
            if request.name == "put":
                lose_answer(request)

        bucket.leave = lose_puts
        assert store_of(bucket).put_if_absent("a", b"1")
        bucket.leave = lambda request: None
        assert not store_of(bucket).put_if_absent("a", b"2")


def slice_of(workload: str, every: int) -> Outcome:
    return sweep(workload, lambda number: number % every == 1, tuple(CrashModel))


@pytest.mark.parametrize(
    ("workload", "every"),
    [
        ("bucket", 100),
        ("requests", 100),
        ("throttled", 210),
        pytest.param("bucket", 10, marks=pytest.mark.slow),
        pytest.param("requests", 10, marks=pytest.mark.slow),
        pytest.param("throttled", 25, marks=pytest.mark.slow),
    ],
)
def test_a_run_completes_the_archive_after_a_kill_or_an_error(workload: str, every: int) -> None:
    """`python -m simulator.crashpoints` checks all points."""
    outcome = slice_of(workload, every)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.points >= 100
    assert {"put", "delete"} <= outcome.calls.keys()


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["bucket", "requests", "throttled"])
def test_journal_files_that_go_before_the_commit_are_found(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job, but the segments are deleted first."""
    run_job = RollupScript.run_job

    def delete_first(script: RollupScript, how: Steps = WHOLE) -> None:
        for path in script.disk.paths(JOURNAL):
            script.disk.unlink(path)
        run_job(script, how)

    monkeypatch.setattr(RollupScript, "run_job", delete_first)
    assert slice_of(workload, 25).findings


def test_a_throttled_bucket_fails_several_runs() -> None:
    """Each is repeated, and the archive is complete at the end."""
    play = throttled_play(SealedLog(), 137)
    assert play.failed_runs > 1
    assert play.throttling.failed >= play.failed_runs
    assert play.found == []
