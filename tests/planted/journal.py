# Tests: tests/simulator/test_planted.py
"""Bugs of the journal and its bytes on disk: ``brokerd/wal`` and ``brokerd/walformat``."""

from __future__ import annotations

from .bug import Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- writing -------------------------------------------------------------------------------
    bug(
        "skip-fsync",
        "a commit is written and not synced",
        "wal/write/commit.py",
        ("        if sync or write.spare is not None:", "        if write.spare is not None:"),
        tests="wal/test_log.py",
    ),
    bug(
        "ignore-failed-sync",
        "a commit that failed counts as durable",
        "wal/log.py",
        (
            '        if error is not None:\n            self.fail("writing to the log',
            "        if error is not None and not isinstance(error, OSError):\n"
            '            self.fail("writing to the log',
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "skip-directory-fsync",
        "the name of a new segment is not synced",
        "wal/write/commit.py",
        (
            "os.path.join(path, write.name))\n            disk.sync_directory(path)",
            "os.path.join(path, write.name))",
        ),
        tests="wal/test_log.py",
    ),
    bug(
        "newer-segment-first",
        "without fsync, a segment may survive that follows one which did not",
        "wal/write/commit.py",
        ("            write.before.sync()", "            write.before.size()"),
        tests="wal/test_log.py",
    ),
    bug(
        "swap-frames",
        "the frames of one commit are written in the wrong order",
        "wal/write/commit.py",
        (
            "        parts += frame_parts(frame.entries, lsn, segment_id, last_synced, "
            "frame.time_us, salt)",
            "        parts[:0] = frame_parts(frame.entries, lsn, segment_id, last_synced, "
            "frame.time_us, salt)",
        ),
        tests="wal/test_log.py",
    ),
    # -- recovery ------------------------------------------------------------------------------
    bug(
        "recovery-off-by-one",
        "the first frame after a snapshot is not applied",
        "wal/recovery/startup.py",
        (
            "            if frame.lsn >= self._from_lsn:",
            "            if frame.lsn > self._from_lsn:",
        ),
        tests="wal/test_recover.py",
    ),
    bug(
        "no-rewrite",
        "what a failed sync may have left in the page cache only is not written again",
        "wal/recovery/startup.py",
        (
            "    rewrite(file, start, end)\n",
            "",
        ),
        tests="wal/test_recover.py",
    ),
    bug(
        "no-sync-of-rewrite",
        "what is written again is not synced",
        "wal/segment.py",
        (
            "        file.truncate(segment.position)\n    file.sync()\n",
            "        file.truncate(segment.position)\n",
        ),
        tests="wal/test_deletion.py",
    ),
    bug(
        "tear-off-by-one",
        "a tear right behind the last synced position is taken for damage",
        "wal/recovery/segment_replay.py",
        (
            "        return self._claim > self._segment.first_lsn + position",
            "        return self._claim >= self._segment.first_lsn + position",
        ),
        tests="wal/test_recover.py",
    ),
    bug(
        "accept-torn-frame",
        "the sound entries of a torn frame count",
        "wal/recovery/segment_replay.py",
        (
            "                if self._is_torn(item.position, item.problem):\n"
            "                    break\n",
            "                if self._is_torn(item.position, item.problem):\n"
            "                    yield self._accept(item)\n"
            "                    break\n",
        ),
        tests="wal/test_recover.py",
    ),
    bug(
        "no-checksum-in-recovery",
        "the checksums of entries are not verified at the start",
        "wal/read/scanner.py",
        (
            "Entry(*header[:5], entry_body(data, header, position))",
            "Entry(*header[:5], entry_body(data, header, position, verify=False))",
        ),
        tests="wal/test_recover.py",
    ),
    bug(
        "no-checksum-in-read",
        "the checksums of batches are not verified when they are read from disk",
        "wal/read/reader.py",
        (
            "                body = entry_body(data, header, position)",
            "                body = entry_body(data, header, position, verify=False)",
        ),
        tests="wal/test_reader.py",
    ),
    bug(
        "index-off-by-one",
        "an index file loses the last batch of each partition of its segment",
        "walformat/index.py",
        (
            "        return Rows(*(column[row : row + rows] for column in self._columns))",
            "        return Rows(*(column[row : row + rows - 1] for column in self._columns))",
        ),
        tests="wal/test_reader.py",
    ),
    # -- the end of the log ----------------------------------------------------------------------
    bug(
        "end-by-index-ignored",
        "a last segment that was cut passes for a torn write, whatever its index says",
        "wal/recovery/directory.py",
        (
            "        own = [index for index in indexes if self._is_own(index)]",
            "        own = [index for index in indexes[:0] if self._is_own(index)]",
        ),
        tests="wal/test_cut_short.py",
    ),
    bug(
        "missing-tail-ignored",
        "an index without its segment does not tell that the segment is missing",
        "wal/recovery/directory.py",
        (
            "        later = [index for index in indexes if self._is_later(index)]",
            "        later = [index for index in indexes[:0] if self._is_later(index)]",
        ),
        tests="wal/test_cut_short.py",
    ),
    bug(
        "end-by-snapshot-ignored",
        "a log that ends before its newest snapshot is not reported",
        "wal/recovery/directory.py",
        ("    elif align(end_lsn) < reached_lsn:", "    elif align(end_lsn) < first:"),
        tests="broker/test_log_end.py wal/test_cut_short.py wal/test_recover.py",
    ),
    bug(
        "end-by-bounds-ignored",
        "a log that ends before state/bounds is not reported",
        "wal/recovery/known_end.py",
        ("            bounds.synced_lsn,\n", "            0,\n"),
        tests="broker/test_log_end.py",
    ),
    bug(
        "another-segment-accepted",
        "a file of another segment passes for the last one",
        "wal/recovery/directory.py",
        (
            "    if found.header is None:\n        return\n",
            "    if found.header is None or found.is_last:\n        return\n",
        ),
        tests="broker/test_log_end.py wal/test_cut_short.py",
    ),
    bug(
        "bounds-of-another-log",
        "the bounds of another log prove the end of this one",
        "wal/recovery/known_end.py",
        (
            "            if decode_log_id(data) != bounds.log_id:",
            "            if not decode_log_id(data):",
        ),
        tests="broker/test_log_end.py",
    ),
    # -- memory that runs out -------------------------------------------------------------------
    bug(
        "error-without-a-text",
        "an allocation that failed without a text is not tried again, and nobody knows",
        "wal/write/allocation.py",
        (
            'getattr(error, "strerror", None) or error_text(error)',
            'getattr(error, "strerror", None) or str(error)',
        ),
        (
            "        if self.error is not None:\n            self.error = None\n",
            "        if self.error:\n            self.error = None\n",
        ),
        tests="wal/test_log.py",
    ),
    # -- snapshots -----------------------------------------------------------------------------
    bug(
        "unsynced-snapshot",
        "a snapshot gets its name before it is synced",
        "wal/snapshot.py",
        (
            "            size = self._write(file, start_lsn, chunks)\n            file.sync()\n",
            "            size = self._write(file, start_lsn, chunks)\n",
        ),
        tests="wal/test_snapshot.py",
    ),
    bug(
        "delete-for-an-unsynced-snapshot",
        "segments are deleted for a snapshot whose name a killed process did not sync",
        "wal/snapshot.py",
        (
            "        if not self._durable_names.issuperset(names):\n"
            "            self._sync_names()\n",
            "",
        ),
        tests="wal/test_snapshot.py",
    ),
    # -- topics and segments --------------------------------------------------------------------
    bug(
        "archive-not-asked",
        "segments are deleted whatever the archive has got to, and whatever it knows",
        "wal/deletion/coverage.py",
        (
            "        if segment.end_lsn > coverage.archived_lsn:",
            "        if segment.end_lsn < 0:",
        ),
        (
            "            if not coverage.covers(topic_id, partition, first, end):",
            "            if end < first:",
        ),
        tests="wal/test_deletion.py",
    ),
    bug(
        "delete-for-the-newest-snapshot",
        "segments that the archive has are deleted although the older snapshot needs them",
        "wal/deletion/coverage.py",
        (
            "        elif segment.end_lsn > coverage.snapshot_lsn:",
            "        elif coverage.snapshot_lsn < 0:",
        ),
        tests="broker/test_segment_cleaner.py",
    ),
    # -- event indexes -------------------------------------------------------------------------
    bug(
        "event-index-lacks-the-end",
        "an event index lacks the events of the last chunk",
        "walformat/event_index.py",
        (
            "        self._end_chunk()\n        partitions = [",
            "        partitions = [",
        ),
        tests="wal/test_event_index.py",
    ),
    # -- questions about events ----------------------------------------------------------------
    bug(
        "explain-without-dead-letters",
        "an explanation does not show that a record became a dead letter",
        "wal/read/event_scan.py",
        (
            "                self._dead[group] = reason\n            return True",
            "                self._dead[group] = reason\n            return kind != EventKind.DEAD",
        ),
        tests="wal/test_event_scan.py",
    ),
    bug(
        "explain-passes-over-a-topic",
        "an explanation lacks events of the archive for the last topic of a row group",
        "archive/serve/event_search.py",
        ("topics[0] <= topic_id <= topics[1]", "topics[0] <= topic_id < topics[1]"),
        tests="archive/test_event_search.py",
    ),
    bug(
        "explain-hides-a-gap",
        "an explanation does not tell that the events of a deleted segment are missing",
        "wal/read/event_scan.py",
        (
            "if lsn is not None and lsn < span.first_lsn",
            "if lsn is not None and lsn > span.first_lsn",
        ),
        tests="wal/test_event_scan.py",
    ),
)
