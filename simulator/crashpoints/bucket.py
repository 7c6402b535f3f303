# Tests: tests/simulator/test_bucket.py
"""The steps of the rollup, without Spark, on a simulated bucket: kills, and requests that fail.

The workload is that of `simulator.crashpoints.rollup`. A request fails in one of two ways: the
server refuses it, or it takes effect and the answer is lost. The run that meets the failure may end
with an error. The next run must complete the archive. A throttled bucket fails many requests, over
several runs. The first run that ends without an error must complete the archive.
"""

from __future__ import annotations

import traceback
from itertools import count
from random import Random
from typing import NamedTuple

from deltalake.exceptions import DeltaError
from obstore.exceptions import BaseError

from brokerd.archive.storage.address import ObjectAddress, place_of
from brokerd.errors import BrokerdError
from simulator.crashpoints.rollup import WHOLE, RollupScript, SealedLog, Steps
from simulator.machine.bucket import CHANGING, Request, SimBucket, lose_answer, refuse
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

    def run_job(self, how: Steps = WHOLE) -> None:
        bucket = self.bucket
        quiet = bucket.enter, bucket.leave
        bucket.enter, bucket.leave = self._begin, self._end
        try:
            super().run_job(how)
        except (BrokerdError, OSError):
            if self._left > 0:
                raise
            bucket.enter, bucket.leave = quiet
            self.found += self.problems(self.acknowledged, is_complete=False)
            super().run_job(how)
        bucket.enter, bucket.leave = quiet
        self.found += self.problems(self.acknowledged, is_complete=True)


class Throttle(NamedTuple):
    """A time in which the bucket fails requests, counted in requests."""

    first: int
    """The first request that may fail, from 1."""
    requests: int
    share: float
    """The probability that a request fails."""
    lost: float
    """The probability that a failed change takes effect and its answer is lost."""


def draw_throttle(chance: Random, first: int) -> Throttle:
    """Draw a time that begins at a request. The more requests fail, the shorter it is."""
    share = chance.choice((0.05, 0.2, 0.5, 1.0))
    return Throttle(first, int(chance.randrange(10, 60) / share), share, chance.choice((0, 0.3, 1)))


class Throttling:
    """Fails requests of a bucket between `begin` and `end`."""

    def __init__(self, bucket: SimBucket, throttle: Throttle, chance: Random) -> None:
        self.failed = 0
        """The number of failed requests."""
        self._bucket = bucket
        self._throttle = throttle
        self._chance = chance
        self._count = 0
        self._is_lost = False

    def begin(self) -> None:
        self._bucket.enter, self._bucket.leave = self._enter, self._leave

    def end(self) -> None:
        self._bucket.enter, self._bucket.leave = _nothing, _nothing

    def _enter(self, request: Request) -> None:
        self._count += 1
        first, requests, share, lost = self._throttle
        if not first <= self._count < first + requests or self._chance.random() >= share:
            return
        self.failed += 1
        self._is_lost = request.name in CHANGING and self._chance.random() < lost
        if not self._is_lost:
            refuse(request)

    def _leave(self, request: Request) -> None:
        if self._is_lost:
            self._is_lost = False
            lose_answer(request)


class _ThrottledScript(BucketScript):
    """A play with a throttled bucket. Each run is repeated until it ends without an error."""

    def __init__(self, log: SealedLog, throttle: Throttle, chance: Random) -> None:
        super().__init__(log)
        self.found: list[str] = []
        """The faults."""
        self.failed_runs = 0
        self.throttling = Throttling(self.bucket, throttle, chance)

    def run_job(self, how: Steps = WHOLE) -> None:
        while not self._has_run(how):
            self.failed_runs += 1
            self.found += self.problems(self.acknowledged, is_complete=False)
        self.found += self.problems(self.acknowledged, is_complete=True)

    def _has_run(self, how: Steps) -> bool:
        """Run the job; return False if it ended with an error because requests failed."""
        throttling, before = self.throttling, self.throttling.failed
        throttling.begin()
        try:
            super().run_job(how)
        except (BrokerdError, OSError):
            if throttling.failed == before:
                raise
            return False
        finally:
            throttling.end()
        return True


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


def throttled_play(log: SealedLog, first: int) -> _ThrottledScript:
    """Play with a bucket that is throttled from a request on. The number draws how and how long.

    Raises the error of a run that met no failed request.
    """
    chance = Random(f"throttled/{first}")
    script = _ThrottledScript(log, draw_throttle(chance, first), chance)
    script.play()
    return script


def throttled_problems(log: SealedLog, first: int) -> list[str]:
    """Return the faults of a play with a bucket that is throttled from a request on."""
    try:
        return throttled_play(log, first).found
    except Exception:
        return [traceback.format_exc()]  # any error: only a run with failed requests may end so


def _nothing(request: Request) -> None: ...
