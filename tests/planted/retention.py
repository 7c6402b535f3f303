# Tests: tests/simulator/test_planted.py
"""Bugs of the removal of records, and of what broker and archive tell each other."""

from __future__ import annotations

from .bug import KEPT_PLAN, Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- the end of the log ----------------------------------------------------------------------
    bug(
        "bounds-before-the-sync",
        "state/bounds is written before the log that it tells of is synced",
        "broker/archive/bounds_writer.py",
        (
            "lambda: self._wal.when_synced(lambda error: self._submit(writing, error))",
            "lambda: self._submit(writing, None)",
        ),
        tests="broker/test_bounds.py broker/test_log_end.py",
    ),
    # -- delays, expiry, resends ----------------------------------------------------------------
    bug(
        "roll-up-by-broker-time",
        "the bounds give the rollup broker time, which may be ahead",
        "broker/archive/bounds_writer.py",
        (
            "            time_us=self._time.removal_us(),",
            "            time_us=self._time.time_us(),",
        ),
        tests="broker/test_bounds.py",
    ),
    # -- topics and segments --------------------------------------------------------------------
    bug(
        "sweep-too-early",
        "segments are deleted although only the newest snapshot, or none, is past them",
        "broker/retention/segment_cleaner.py",
        (
            "        ready = [one for one in found if one.segment.end_lsn <= basis.snapshot_lsn]",
            "        ready = [one for one in found if one.segment.end_lsn > 0]",
        ),
        tests="broker/test_retention.py",
    ),
    bug(
        "sweep-what-is-open",
        "a segment is deleted when all but its last three records are removed",
        "broker/retention/segment_cleaner.py",
        (
            "        starts, topic_ids = dict(self._state.starts), set(self._state.by_id)",
            "        starts, topic_ids = "
            "{key: start + 3 for key, start in self._state.starts.items()}, set(self._state.by_id)",
        ),
        tests="broker/test_retention.py",
    ),
    bug(
        "retain-by-a-jump",
        "retention goes by broker time, which may be ahead",
        "broker/retention/retention.py",
        (
            "        time_us = self._time.removal_us()",
            "        time_us = self._time.time_us()",
        ),
        tests="broker/test_retention.py",
    ),
    bug(
        "hold-passed-over",
        "retention does not wait for a named stream that holds",
        "broker/retention/retention.py",
        ("                start = start if held is None else min(start, held)\n", ""),
        tests="broker/test_stream_holds.py",
    ),
    bug(
        "hold-not-in-the-bounds",
        "the archive may compact records that a named stream holds",
        "broker/archive/bounds.py",
        ("            bound = min(bound, held)\n", "            pass\n"),
        tests="broker/test_stream_holds.py",
    ),
    bug(
        "delete-before-the-mark",
        "segments are deleted before it is durable that records may be missing from the log",
        "broker/retention/archived_segment_cleaner.py",
        (
            "            if news:\n",
            "            if news < 0:\n",
        ),
        tests="broker/test_segment_cleaner.py",
    ),
    bug(
        "delete-before-the-bounds",
        "segments that create topics are deleted before the bounds have their names",
        "broker/retention/segment_cleaner.py",
        ("        return self._bounds.lsn\n", "        return end_lsn\n"),
        tests="broker/test_segment_cleaner.py",
    ),
    bug(
        "hole-delivered",
        "where the archive has no record any more, an empty one is given out",
        "broker/archive/chunks.py",
        (
            "rows.expires_at_us or [0] * len(offsets), REMOVED)",
            "rows.expires_at_us or [0] * len(offsets), 0)",
        ),
        tests="broker/test_holes.py",
    ),
    bug(
        "archive-seen-long-ago",
        "segments are deleted because of an archive that cannot be found any more",
        "broker/archive/refresher.py",
        ("return self.last_view if self.error is None else None", "return self.last_view"),
        tests=f"broker/test_archive_pin.py {KEPT_PLAN}[older-archive]",
    ),
    bug(
        "bound-above-dead-letters",
        "records may be compacted that are dead letters",
        "broker/archive/bounds.py",
        ("    if not position.dead:\n", "    if position.floor >= 0:\n"),
        tests="broker/test_bounds.py",
    ),
    bug(
        "bound-of-one-group",
        "of the groups of a topic the last one says what may be compacted",
        "broker/archive/bounds.py",
        (
            "bounds[index] = min(bounds[index], offset)",
            "bounds[index] = offset",
        ),
        tests="broker/test_bounds.py",
    ),
    bug(
        "pin-goes-back",
        "the pin forgets segments that were deleted before",
        "broker/archive/pin.py",
        (
            "        lsn = max(pin.lsn, 0 if self._pin is None else self._pin.lsn)",
            "        lsn = pin.lsn",
        ),
        tests="broker/test_archive_pin.py",
    ),
    # -- logins, limits and defaults -----------------------------------------------------------
    bug(
        "letters-hold-nothing",
        "dead letters do not hold back retention",
        "broker/retention/retention.py",
        (
            "        for group in list(partition.topic.groups.values()) if keep_us else ():\n",
            "        for group in ():\n",
        ),
        tests="broker/test_retention.py",
    ),
    bug(
        "retention-halved",
        "records are removed after half of their retention",
        "broker/retention/limits.py",
        (
            "oldest_us = time_us - (limits.retention_us or 0)",
            "oldest_us = time_us - (limits.retention_us or 0) // 2",
        ),
        tests="broker/test_retention.py",
    ),
)
