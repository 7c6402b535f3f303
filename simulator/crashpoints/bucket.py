# Tests: tests/simulator/test_bucket.py
"""The steps of the rollup, without Spark, on a simulated bucket: kills, and requests that fail.

The workload is that of `simulator.crashpoints.rollup`. A request fails in one of two ways: the
server refuses it, or it takes effect and the answer is lost. The run that meets the failure may end
with an error. The next run must complete the archive.
"""

from __future__ import annotations

import traceback
from itertools import count
from random import Random

from deltalake.exceptions import DeltaError
from obstore.exceptions import BaseError

from brokerd.archive.storage.address import ObjectAddress, place_of
from brokerd.errors import BrokerdError
from simulator.crashpoints.rollup import RollupScript, SealedLog
from simulator.machine.bucket import Request, SimBucket, lose_answer, refuse
from simulator.machine.tree_disk import TreeDisk

_numbers = count(1)


class BucketScript(RollupScript):
    """One play of the workload with the archive in a bucket."""

    def __init__(
        self,
        log: SealedLog | None = None,
        disk: TreeDisk | None = None,
        bucket: SimBucket | None = None,
        chance: Random | None = None,
    ) -> None:
        # Each play has a bucket of its own name, so that no cache takes an object for another's.
        address = ObjectAddress("s3", f"sim-{next(_numbers)}", "archive")
        super().__init__(log, disk, address, chance)
        self.bucket = bucket or SimBucket()
        self.bucket.now_ns = lambda: self.disk.now_ns

    def fork(self, chance: Random) -> BucketScript:
        """Return the state that a kill leaves at this moment."""
        return BucketScript(self.log, self.disk.fork(), self.bucket.fork(), chance)

    def digest(self) -> str:
        return f"{self.disk.digest()} {self.bucket.objects()}"

    def _replacements(self) -> dict[str, object]:
        return {
            **super()._replacements(),
            "brokerd.archive.storage.bucket._client": lambda *_bucket: self.bucket,
        }

    def _path_of(self, table: str) -> str:
        place = place_of(table)
        assert isinstance(place, ObjectAddress)
        return place.key

    def _archive_files(self) -> dict[str, bytes]:
        return self.bucket.objects()

    def _put(self, path: str, data: bytes) -> None:
        try:
            self.bucket.put(path, data)
        except BaseError as error:
            raise DeltaError(str(error)) from error


class _FailingScript(BucketScript):
    """A play in which one request fails. A run after a failed run must succeed."""

    def __init__(self, log: SealedLog, nth: int, is_lost: bool) -> None:
        super().__init__(log)
        self.found: list[str] = []
        """The faults."""
        self._left = nth
        self._is_lost = is_lost

    def _begin(self, request: Request) -> None:
        self._left -= 1
        if not self._left and not self._is_lost:
            refuse(request)

    def _end(self, request: Request) -> None:
        if not self._left and self._is_lost:
            lose_answer(request)

    def run_job(self) -> None:
        bucket = self.bucket
        quiet = bucket.enter, bucket.leave
        bucket.enter, bucket.leave = self._begin, self._end
        try:
            super().run_job()
        except (BrokerdError, OSError):
            if self._left > 0:
                raise
            bucket.enter, bucket.leave = quiet
            self.found += self.problems(self.acknowledged, is_complete=False)
            super().run_job()
        bucket.enter, bucket.leave = quiet
        self.found += self.problems(self.acknowledged, is_complete=True)


def requests_of(log: SealedLog) -> list[Request]:
    """Return the requests of a play without failures."""
    script, requests = BucketScript(log), list[Request]()
    script.bucket.enter = requests.append
    script.play()
    return requests


def fault_problems(log: SealedLog, nth: int, is_lost: bool) -> list[str]:
    """Return the faults of a play whose ``nth`` request is refused, or loses its answer."""
    script = _FailingScript(log, nth, is_lost)
    try:
        script.play()
    except Exception:
        return [traceback.format_exc()]  # any error: only the run with the failure may end so
    return script.found
