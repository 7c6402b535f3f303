# Tests: tests/simulator/test_planted.py
"""Plant bugs in copies of the broker, one at a time, and report which search finds each how fast.

python -m tests.planted
python -m tests.planted --only skip-fsync --only reuse-offset --seeds 300 --jobs 2

Each bug is a slip of a line or two, at a named line, that start-up and the first answers do not
reveal. The copy holds ``brokerd/``, ``simulator/`` and ``tests/`` from the working tree; nothing
else is touched. Each of the `SEARCHES` runs on the copy until it finds something. A copy without
the bug must then pass at the same seed, point or test. docs/simulator.rst, section "Planted bugs",
keeps the printed table.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 300
TIMEOUT_SECONDS = 1_200
KEPT_PLAN = "simulator/test_run.py::test_what_was_found_once_stays_mended"


class Edit(NamedTuple):
    """Replaces ``old``, which must be exactly once in ``file``, by ``new``."""

    file: str
    old: str
    new: str


class Bug(NamedTuple):
    """One planted bug."""

    name: str
    means: str
    """The fault that it causes in the broker."""
    edits: tuple[Edit, ...]
    tests: str = ""
    """Files below ``tests/`` in which the search "suite" looks for it."""


def bug(name: str, means: str, file: str, *changes: tuple[str, str], tests: str = "") -> Bug:
    edits = tuple(Edit(f"brokerd/{file}", old, new) for old, new in changes)
    return Bug(name, means, edits, tests)


BUGS = (
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
    bug(
        "answer-before-commit",
        "answers leave as soon as they are made",
        "protocols/base/connection.py",
        (
            "            if ticket is None or ticket > durable:",
            "            if ticket is None:",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "answer-with-the-commit-before",
        "answers leave one commit too early",
        "broker/group_commit.py",
        (
            "            self._schedule()\n            return self._wal.next_ticket\n",
            "            self._schedule()\n            return self._wal.next_ticket - 1\n",
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "topics-in-between",
        "entries of topics come after other kinds in a frame",
        "broker/group_commit.py",
        (
            "entries = sorted(self._entries, key=_comes_after_topics)",
            "entries = list(self._entries)",
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "reuse-offset",
        "the second of several small batches begins at the offset of the first",
        "broker/group_commit.py",
        (
            "_batch(partition, partition.framed_end + start, len(part.values), body)",
            "_batch(partition, partition.framed_end, len(part.values), body)",
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "lose-last-of-batch",
        "the last record of a small batch is not journaled",
        "broker/group_commit.py",
        (
            " else c[start:stop] for c in columns",
            " else c[start : stop - 1] for c in columns",
        ),
        tests="broker/test_broker.py",
    ),
    bug(
        "admit-one-by-one",
        "the partitions of a batch are admitted one by one: a refused batch may be half stored",
        "protocols/mamamia/produce_batch.py",
        (
            "        else:\n"
            "            broker.group_commit.admit(self._size, max(1, len(self._rows)))\n",
            "        elif not self._rows:\n            broker.group_commit.admit(self._size)\n",
        ),
        (
            "            offset = broker.appender.append_rows(",
            "            broker.group_commit.admit(rows.size)\n"
            "            offset = broker.appender.append_rows(",
        ),
        tests="protocols/test_mamamia.py",
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
        "chunk-off-by-one",
        "the first frame after a group's piece of a snapshot is not applied to it",
        "broker/model/state.py",
        (
            "        if frame.lsn >= self._replay.fresh_from.get(group_partition, 0):",
            "        if frame.lsn > self._replay.fresh_from.get(group_partition, -1):",
        ),
    ),
    bug(
        "apply-events-twice",
        "events that a group's piece of a snapshot holds already are applied again",
        "broker/model/snapshotter.py",
        (
            "group_partition, self._captured_lsn, self._time.monotonic_us(), self._time.time_us()",
            "group_partition, self._start_lsn, self._time.monotonic_us(), self._time.time_us()",
        ),
        tests="broker/test_snapshotter.py",
    ),
    bug(
        "old-next-offset",
        "a partition goes on from the offset that the snapshot tells, whatever came after it",
        "broker/model/state.py",
        (
            "            partition.restore(max(partition.next_offset, entry.base_offset + "
            "entry.count))",
            "            partition.restore(partition.next_offset or entry.base_offset + "
            "entry.count)",
        ),
        (
            "        if partition is not None and next_offset > partition.next_offset:",
            "        if partition is not None and not partition.next_offset:",
        ),
        tests="broker/test_state.py",
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
        "bounds-before-the-sync",
        "state/bounds is written before the log that it tells of is synced",
        "broker/archive/bounds_writer.py",
        (
            "lambda: self._wal.when_synced(lambda error: self._submit(writing, error))",
            "lambda: self._submit(writing, None)",
        ),
        tests="broker/test_bounds.py broker/test_log_end.py",
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
    bug(
        "half-a-change-stays",
        "a connection that runs out of memory within the broker is closed, and the broker goes on",
        "server/memory_errors.py",
        ("        if path.startswith(_STATE):\n            return False\n", ""),
        tests="test_memory_errors.py",
    ),
    # -- snapshots -----------------------------------------------------------------------------
    bug(
        "early-snapshot",
        "a snapshot is written before the log that it relies on is durable",
        "broker/model/snapshotter.py",
        (
            "        elif not self._writing and self._wal.durable_lsn >= self._captured_lsn:",
            "        elif not self._writing:",
        ),
        tests="broker/test_snapshotter.py",
    ),
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
        "drop-attempts",
        "a snapshot forgets the failures of leased records",
        "groups/snapshot.py",
        (
            "owner_indexes, *columns, firsts)",
            "owner_indexes, *columns[:2], [0] * len(rows), columns[3], firsts)",
        ),
        tests="broker/test_pages_model.py",
    ),
    bug(
        "forget-last-token",
        "a snapshot forgets the last token of a group",
        "groups/snapshot_decode.py",
        ("        state._token = token\n", ""),
        tests="groups/test_snapshot.py",
    ),
    bug(
        "forget-delay",
        "a snapshot forgets what waits, and makes it ready",
        "groups/snapshot.py",
        (
            "        if self.delays:\n            yield from _block_sections(Section.DELAYED, "
            "shift_times(self.delays, -self.now_us))\n",
            "",
        ),
        tests="groups/test_snapshot.py",
    ),
    bug(
        "forget-reason",
        "a snapshot forgets why records are dead",
        "groups/snapshot.py",
        ("_json([[reason] for reason in part])", '_json([[""] for _ in part])'),
        tests="groups",
    ),
    bug(
        "forget-settled",
        "a snapshot forgets what is settled above the floor",
        "groups/snapshot.py",
        (
            "        yield from _set_sections(\n            self.settled, Section.SETTLED, "
            "Section.SETTLED_FULL, Section.SETTLED_RUNS\n        )\n",
            "        yield from _run_sections(Section.SETTLED_RUNS, self.settled.runs)\n",
        ),
        tests="groups/test_snapshot.py",
    ),
    # -- leases --------------------------------------------------------------------------------
    bug(
        "wall-clock-leases",
        "leases and timers run on the wall clock",
        "broker/clock.py",
        (
            "        return int(self._monotonic() * 1_000_000)",
            "        return int(self._wall() * 1_000_000)",
        ),
        tests="broker/test_clock.py",
    ),
    bug(
        "old-deadline",
        "after a start a lease has what was left of it, not its full duration",
        "groups/operations.py",
        (
            "            _, owner, token, grants, failures, duration_us, _ = row\n"
            "            deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1\n",
            "            deadline_us, owner, token, grants, failures, duration_us, _ = row\n",
        ),
        tests="groups/test_store.py",
    ),
    bug(
        "drop-delay-in-replay",
        "at a start, what failed before does not wait any longer",
        "broker/model/state.py",
        (
            "                    store.apply(event, now_us)",
            "                    store.apply(event, 0)",
        ),
        tests="broker/test_broker.py",
    ),
    bug(
        "late-timer",
        "what one group_partition has next hides what another has earlier, until something else "
        "stirs it",
        "broker/leases/timers.py",
        (
            "        if not self._firing and (self._call is None or due_us < self._call_us):",
            "        if self._call is None or due_us < self._call_us:",
        ),
        (
            "            self._firing = False\n            if self._heap:\n",
            "            self._firing = False\n            if self._heap and self._call is None:\n",
        ),
        tests=f"{KEPT_PLAN}[late-timer]",
    ),
    bug(
        "late-delay",
        "after the wall clock was set back and a start, what failed waits too long",
        "broker/leases/service.py",
        (
            "group_partition.resume(now_us, self._state.behind_us)",
            "group_partition.resume(now_us, 0)",
        ),
        tests="broker/test_broker.py",
    ),
    bug(
        "count-failure-twice",
        "a failure that is told again counts again",
        "groups/state.py",
        (
            "self._return_record(offset, attempts, True, now_us",
            "self._return_record(offset, attempts, False, now_us",
        ),
        tests="groups/test_store.py",
    ),
    # -- connections and stopping --------------------------------------------------------------
    bug(
        "overtake",
        "a late answer overtakes the answers before it",
        "protocols/base/connection.py",
        (
            "        self._enqueue()\n        place = QueuedAnswers(None, [], 1, 0)",
            "        place = QueuedAnswers(None, [], 1, 0)",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "close-before-answers",
        "a clean stop closes connections that are owed answers",
        "protocols/base/connection.py",
        (
            "        if self._queue or not self.ending or self.gone or "
            "self._closing_since_us is not None:",
            "        if not self.ending or self.gone or self._closing_since_us is not None:",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "stop-before-cut",
        "a clean stop does not hand to the log what has gathered",
        "broker/group_commit.py",
        (
            "        if not self._wal.failed:\n            self.append_frame()\n",
            "        if not self._wal.failed:\n",
        ),
        tests="broker/test_group_commit.py",
    ),
    # -- groups: order, pauses, dead letters ----------------------------------------------------
    bug(
        "key-freed-too-early",
        "a key is free as soon as its record is not leased any more, although it came back",
        "groups/key_order.py",
        (
            "        return key in self._front\n",
            "        return key in self._front and self._is_leased(self._front[key])\n",
        ),
        tests="groups/test_key_order.py",
    ),
    bug(
        "forget-keys",
        "a snapshot forgets the keys of leased records and of those that came back",
        "groups/snapshot.py",
        (
            "        {} if state._order is None else freeze_table(state._order.keys),",
            "        {} if state._order is None else dict.fromkeys(state._order.keys, 0),",
        ),
        tests="groups/test_model.py",
    ),
    bug(
        "forget-pause",
        "a snapshot forgets that a group is paused",
        "groups/snapshot.py",
        ("            self.paused,\n", "            False,\n"),
        tests="groups/test_model.py",
    ),
    bug(
        "replay-not-atomic",
        "the dead letters of each partition are replayed in a frame of their own",
        "broker/leases/group_admin.py",
        (
            "            before = len(group_partition.store.events)\n            count += take(",
            "            self._leases._group_commit.end_frame_early()\n"
            "            before = len(group_partition.store.events)\n            count += take(",
        ),
        tests=f"{KEPT_PLAN}[replay-in-two-frames]",
    ),
    bug(
        "old-tokens-again",
        "a group that is made again gives the tokens of the one that was deleted",
        "broker/model/state.py",
        (
            "        self.token_base = max(self.token_base, last_token([group]))\n"
            "        group.topic.groups.pop",
            "        group.topic.groups.pop",
        ),
        tests="broker/test_group_admin.py",
    ),
    # -- delays, expiry, resends ----------------------------------------------------------------
    bug(
        "fire-in-two-frames",
        "a scheduled message is settled in another frame than it is stored in",
        "broker/delayed/delivery.py",
        (
            "        self._settle(group_partition, offset)\n        self._counters.delivered += 1",
            "        self._group_commit.end_frame_early()\n"
            "        self._settle(group_partition, offset)\n        self._counters.delivered += 1",
        ),
        tests="broker/test_schedule.py",
    ),
    bug(
        "cancel-in-memory",
        "a cancelled message is not journaled as such",
        "broker/delayed/schedule.py",
        (
            "        self._leases.add_new_events(group_partition, before)\n        if settled:",
            "        if settled:",
        ),
        tests="broker/test_pages_model.py",
    ),
    bug(
        "cancel-answered-early",
        "a CANCEL is answered before it is durable",
        "protocols/mamamia/connection.py",
        (
            "        self.answers.append(cancelled(was_cancelled))",
            "        self.answer_at_once(cancelled(was_cancelled))",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "expire-after-a-jump",
        "records expire by broker time, which may be ahead",
        "broker/records/fetch.py",
        (
            "        return self._time.removal_us()",
            "        return self._time.time_us()",
        ),
        tests="broker/test_fetch.py",
    ),
    bug(
        "trust-at-once",
        "a wall clock that jumped is trusted at the next look, not after the grace",
        "broker/clock.py",
        (
            "        elif now_us - self._steady_since_us >= self._settings.grace_us:",
            "        elif now_us - self._steady_since_us >= 0:",
        ),
        tests="broker/test_clock.py",
    ),
    bug(
        "forget-the-clock",
        "the log does not say that broker time is ahead, so a start trusts a wrong clock",
        "broker/group_commit.py",
        ("        if clock:  # it fits", "        if clock is None:  # it fits"),
        tests=f"broker/test_clock.py {KEPT_PLAN}[wrong-clock]",
    ),
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
    bug(
        "start-by-a-wrong-clock",
        "after a start broker time goes back to a wall clock that is behind",
        "broker/clock.py",
        (
            "        self._offset_us = max(wall_us, time_us) - now_us\n",
            "        self._offset_us = wall_us - now_us\n",
        ),
        tests="broker/test_clock.py",
    ),
    bug(
        "jump-back-not-noticed",
        "only jumps forward make the wall clock wait for the grace",
        "broker/clock.py",
        (
            "        if abs(wall_us - self._steady_us) > tolerance_us:",
            "        if wall_us - self._steady_us > tolerance_us:",
        ),
        tests="broker/test_clock.py",
    ),
    bug(
        "removal-by-the-wall-clock",
        "the time for removal is the wall clock, however far it has jumped",
        "broker/clock.py",
        (
            "        ahead_us = self._offset_us - min(wall_us, self._trusted_us)",
            "        ahead_us = self._offset_us - wall_us",
        ),
        tests="broker/test_clock.py",
    ),
    bug(
        "fire-the-expired",
        "a scheduled message that expired before it was due is stored, and never expires",
        "broker/delayed/delivery.py",
        (
            "            if self._expiry.is_past(message.expires_at_us):",
            "            if message.expires_at_us < 0:",
        ),
        ("            expires_at_us or (0 if forever else None),\n", "            0,\n"),
        tests="broker/test_schedule.py",
    ),
    bug(
        "forget-producers",
        "a snapshot forgets which batches may be sent again",
        "broker/producers.py",
        ("        context.state.captures.append(self._captures)\n", ""),
        tests="broker/test_producers.py",
    ),
    bug(
        "resend-stored-again",
        "only the newest batch of a producer is known when it is sent again",
        "broker/producers.py",
        (
            "        for remembered, packed in batches:",
            "        for remembered, packed in batches[-1:]:",
        ),
        ("        if batches and sequence < batches[-1][0]:", "        if sequence < 0:"),
        tests="broker/test_producers.py",
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
        ("        start = start if held is None else min(start, held)\n", ""),
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
        "mark-ignored-at-the-start",
        "a start forgets that the log says which records are in the archive",
        "broker/model/state.py",
        (
            'self.archive(self._partition_given(entry, fields["offset"]), fields["offset"])',
            'self.archive(self._partition_given(entry, fields["offset"]), 0)',
        ),
        tests="broker/test_cold.py",
    ),
    bug(
        "forget-the-mark",
        "a snapshot forgets below which offsets records are in the archive alone",
        "broker/model/snapshot_capture.py",
        ("p.index: p.archived_end for p in topic.partitions if p.archived_end", ""),
        tests="broker/test_archive_pin.py",
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
        "away-is-damaged",
        "records of an archive that is out of reach count as lost",
        "broker/records/cold_reader.py",
        (
            "            return error  # `ArchiveReader` reports it\n",
            "            error = DamagedData(str(error))\n",
        ),
        tests="broker/test_cold.py",
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
        "bound-at-the-commit",
        "the commit of a group that has leased records says what may be compacted",
        "broker/status/overview.py",
        (
            "        if found.leased or found.ready or found.delayed or found.dead:\n"
            "            return None\n",
            "",
        ),
        (
            " or found.last_token > self._state.token_base:",
            " or found.last_token < 0:",
        ),
        tests="broker/test_bounds.py",
    ),
    bug(
        "seek-without-new-bounds",
        "after a seek the rollup goes on with the bounds from before",
        "broker/wiring.py",
        (
            "            self.bounds.changed()\n",
            "            self.bounds.status()\n",
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
    bug(
        "another-archive-accepted",
        "an archive without the deleted segments is accepted in place of the one that has them",
        "archive/contract/pairing.py",
        ("    if table.archive_id != pin.archive_id:", "    if not table.archive_id:"),
        tests="archive/test_pairing.py broker/test_archive_pin.py",
    ),
    bug(
        "older-log-accepted",
        "a log that is older than its archive is rolled up",
        "archive/contract/pairing.py",
        ("    if table.lsn > end_lsn:", "    if end_lsn < 0:"),
        tests="archive/test_pairing.py",
    ),
    bug(
        "seek-below-the-start",
        "a seek to the start goes to offset 0, whatever was removed",
        "broker/leases/group_admin.py",
        ("    first = partition.start_offset\n", "    first = 0\n"),
        ("            group_partition.settle_gaps()\n", ""),
        tests="broker/test_group_admin.py broker/test_retention.py broker/test_sweep_model.py",
    ),
    Bug(
        "new-group-below-the-start",
        "a group that comes later begins with records that were removed",
        (
            Edit(
                "brokerd/broker/model/topics.py",
                "        store.settle_gap(0, self.partition.start_offset)\n",
                "",
            ),
        ),
        "broker/test_group_admin.py broker/test_retention.py",
    ),
    # -- the rollup: tests/archive finds these ---------------------------------------------------
    bug(
        "compact-beside-unreadable",
        "a tombstone goes while a file that may hold its key cannot be opened",
        "archive/maintain/clean.py",
        ("self._old_us())\n            - self._blocked,", "self._old_us()),"),
        tests="archive/test_clean.py::test_a_deleted_key_does_not_return_with_a_file",
    ),
    bug(
        "unsynced-bucket-directory",
        "a file is committed whose directory has an entry that was never synced",
        "archive/storage/local.py",
        ("        while directory != self._root:\n", "        while directory == self._root:\n"),
        tests="archive/test_writer.py",
    ),
    bug(
        "unsynced-file-of-records",
        "a file of the archive is committed before its bytes are synced",
        "archive/storage/local.py",
        ("        with self._named():\n            self._file.sync()\n", ""),
        tests="archive/test_writer.py archive/test_store.py",
    ),
    bug(
        "unsynced-commit",
        "a commit of the archive gets its name before its bytes are synced",
        "archive/storage/local.py",
        (
            "                self._write(temporary, data, True)\n",
            "                self._write(temporary, data, False)\n",
        ),
        tests="archive/test_store.py archive/test_log_files.py",
    ),
    bug(
        "maintain-after-a-conflict",
        "a job that another one overtook goes on with its own bounds",
        "archive/job.py",
        (
            "        except TableConflict:\n            raise\n        except BrokerdError",
            "        except BrokerdError",
        ),
        tests="archive/test_job.py::test_a_job_of_a_copy_stops_when_another_one_is_faster",
    ),
    bug(
        "paired-once",
        "log and archive are not compared again before records are removed",
        "archive/job.py",
        (
            "            check_pairing(job.data_dir, job.root, run.bounds, run.tables)\n"
            "            report.steps.append(step(run))",
            "            report.steps.append(step(run))",
        ),
        tests="archive/test_job.py::test_a_job_of_a_copy_stops_when_the_archive_goes_ahead",
    ),
    bug(
        "error-of-a-moment-is-final",
        "a task is not tried again after an error of a disk or a server",
        "archive/cluster/attempts.py",
        ("and _attempts_left() > 0:", "and _attempts_left() > 3:"),
        tests="archive/test_runner.py",
    ),
    bug(
        "commit-over-another",
        "a commit takes the version that another process has just committed",
        "archive/delta/table.py",
        (
            'if self._store.put_if_absent(f"{COMMITS}/{commit_name(newest.version + 1)}", data):\n',
            'if not self._store.put(f"{COMMITS}/{commit_name(newest.version + 1)}", data):\n',
        ),
        tests="archive/test_table.py",
    ),
    bug(
        "lot-committed-twice",
        "a lot is added although another process has added it",
        "archive/delta/table.py",
        ("            if was != now:\n", "            if was > now:\n"),
        tests="archive/test_table.py archive/test_job.py",
    ),
    bug(
        "replace-what-is-gone",
        "a file is rewritten that another process has removed: its records are there twice",
        "archive/delta/table.py",
        ("        if path not in live:\n", "        if path in added:\n"),
        tests="archive/test_table.py",
    ),
    bug(
        "unproved-checkpoint",
        "a checkpoint that is incomplete or damaged is read",
        "archive/delta/log_reader.py",
        (
            "    return checkpoint if found == encode_sum(version, checkpoint) else None",
            "    return checkpoint if found else None",
        ),
        tests="archive/test_checkpoints.py archive/test_log_files.py",
    ),
    bug(
        "unsynced-checkpoint",
        "commits are deleted for a checkpoint that is not synced",
        "archive/delta/checkpoints.py",
        (
            "    for made in (path, _HINT):\n        store.sync_file(made)\n"
            "    store.sync_directory(COMMITS)\n",
            "",
        ),
        tests="archive/test_checkpoints.py",
    ),
    bug(
        "commit-not-verified",
        "a damaged commit counts",
        "archive/delta/log_files.py",
        (
            '(signature and signature != xxh3_64_hexdigest(data.partition(b"\\n")[2]))',
            "(signature and not data)",
        ),
        tests="archive/test_log_files.py",
    ),
    bug(
        "vacuum-for-the-newest",
        "vacuum deletes files that a reader of an older version needs",
        "archive/delta/vacuum.py",
        (
            "    kept = {*live, *_removed_since(store, log, cutoff_ms)}",
            "    kept = set(live)",
        ),
        tests="archive/test_vacuum.py",
    ),
    bug(
        "log-cut-by-the-newest",
        "commits are deleted for a checkpoint that is younger than the versions to keep",
        "archive/delta/checkpoints.py",
        (
            "        if made_ms < cutoff_ms and read_checkpoint",
            "        if made_ms and read_checkpoint",
        ),
        tests="archive/test_vacuum.py archive/test_checkpoints.py",
    ),
    bug(
        "conflict-with-a-lock",
        "two jobs of different data directories work on one archive at a time",
        "archive/job.py",
        ("        with archive_lock(job.root):\n", "        if archive_lock(job.root):\n"),
        tests="archive/test_job.py::test_a_copy_and_its_original_do_not_use_the_archive_at_once",
    ),
    # -- other formats -------------------------------------------------------------------------
    bug(
        "fetch-the-undurable",
        "a fetch shows records whose commit is under way",
        "broker/records/fetch.py",
        ("chunk.durable_end(reader.group_commit.durable_ticket),", "chunk.end,"),
        tests="broker/test_fetch.py",
    ),
    bug(
        "fetch-loses-the-last",
        "a fetch that meets its limit within a chunk goes on one record too late",
        "broker/records/fetch.py",
        (
            "                self._offset = part.offsets[fit]\n",
            "                self._offset = part.offsets[fit] + 1\n",
        ),
        tests="broker/test_audit.py",
    ),
    bug(
        "commit-moves-the-floor",
        "a committed offset settles what lies below it",
        "broker/leases/group_admin.py",
        (
            "group_partition.store.commit_offset(offset),\n",
            "(group_partition.store.commit_offset(offset), group_partition.store.seek(offset)),\n",
        ),
        tests="broker/test_group_admin.py",
    ),
    bug(
        "forget-commits",
        "a snapshot forgets committed offsets",
        "groups/snapshot.py",
        (
            "            self.token,\n            self.committed,\n",
            "            self.token,\n            -1,\n",
        ),
        tests="groups/test_snapshot.py",
    ),
    bug(
        "rustlog-group-goes-back",
        "a fetch for a group begins at the lower one of its commit and what was asked for",
        "protocols/rustlog/connection.py",
        ("offset = max(offset, committed)", "offset = min(offset, committed)"),
        tests="protocols/test_rustlog.py",
    ),
    bug(
        "rustlog-batch-one-by-one",
        "the records of a batch are admitted one by one: a refused one may be half stored",
        "protocols/rustlog/connection.py",
        (
            "            base_offset = self.broker.appender.produce_values(partition, records, "
            "Format.RUSTLOG)\n",
            "            base_offset = partition.next_offset\n"
            "            for record in records:\n"
            "                self.broker.appender.produce_values(\n"
            "                    partition, [record], Format.RUSTLOG\n"
            "                )\n",
        ),
        tests="protocols/test_rustlog.py protocols/test_rustlog_refusals.py",
    ),
    bug(
        "mega-early-answer",
        "a PRODUCE is answered before it is durable",
        "protocols/mega/connection.py",
        ("self.answers.append(produced(", "self.answer_at_once(produced("),
        tests="protocols/test_mega.py",
    ),
    bug(
        "flymq-early-commit",
        "a COMMIT is answered before it is durable",
        "protocols/flymq/connection.py",
        ("self.answers.append(groups.commit(", "self.answer_at_once(groups.commit("),
        tests="protocols/test_flymq_groups.py",
    ),
    bug(
        "transaction-topic-by-topic",
        "each topic of a transaction is appended a little later than the one before",
        "broker/transactions.py",
        (
            "                self._appender.append_values(partition, values, producer_format)\n",
            "                self._clock.callLater(\n"
            "                    0.02 * parts.index(part),\n"
            "                    self._appender.append_values,\n"
            "                    partition,\n"
            "                    values,\n"
            "                    producer_format,\n"
            "                )\n",
        ),
        tests="broker/test_transactions.py",
    ),
    bug(
        "settle-then-fire",
        "a scheduled message is settled in a frame of its own before it is stored",
        "broker/delayed/delivery.py",
        (
            "        self._group_commit.admit(size + DELIVERY_FRAME_BYTES)\n",
            "        self._group_commit.admit(size + DELIVERY_FRAME_BYTES)\n"
            "        self._settle(group_partition, offset)\n"
            "        self._group_commit.end_frame_early()\n",
        ),
        (
            "        self._settle(group_partition, offset)\n"
            "        self._counters.delivered += 1\n",
            "        self._counters.delivered += 1\n",
        ),
        tests="broker/test_schedule.py",
    ),
    bug(
        "flymq-filter-repeats",
        "a fetch with a filter that has all it wants begins with the last of them the next time",
        "protocols/flymq/filtered_fetch.py",
        (
            "            self._is_full = True\n            self._offset = record.offset + 1",
            "            self._is_full = True\n            self._offset = record.offset",
        ),
        tests="protocols/test_flymq_filtered_fetch.py",
    ),
    bug(
        "blipmq-early-pong",
        "a PONG leaves before what was published is durable",
        "protocols/blipmq/connection.py",
        ("self._answer(encode(Pong(", "self.answer_at_once(encode(Pong("),
        tests="protocols/test_blipmq.py",
    ),
    bug(
        "blipmq-early-delivery",
        "a delivery leaves before its lease, or the end of its message, is durable",
        "protocols/blipmq/poll.py",
        (
            "            self.answer(head, message)\n",
            "            self.answer_at_once(head, message)\n",
        ),
        tests="protocols/test_blipmq_poll.py",
    ),
    bug(
        "flight-never-doubles",
        "a message is in flight for as long at its second delivery as at its first",
        "broker/subscriptions.py",
        ("lease_doubling=True", "lease_doubling=False"),
        tests="broker/test_subscriptions.py",
    ),
    bug(
        "one-delivery-more",
        "a message is delivered once more than allowed",
        "broker/subscriptions.py",
        ("max_attempts=max(1, max_deliveries)", "max_attempts=max(1, max_deliveries) + 1"),
        tests="broker/test_subscriptions.py",
    ),
    bug(
        "subscription-id-again",
        "after a start the last id is given again, in another topic",
        "broker/subscriptions.py",
        (
            "max(self._next_id, subscription_id + 1)",
            "max(self._next_id, subscription_id)",
        ),
        tests="broker/test_subscriptions.py",
    ),
    # -- administration ------------------------------------------------------------------------
    bug(
        "revoked-key-goes-on",
        "a login goes on when its key is revoked",
        "security/principal.py",
        (
            "            or (bool(self.key_id) and self.key_id not in self._directory.keys)\n",
            "",
        ),
        tests="security/test_principal.py",
    ),
    bug(
        "permissions-from-the-cache",
        "a change of accounts or lists leaves the cached permissions",
        "security/directory.py",
        ("        self.version += 1\n        self._cache.clear()", "        self.version += 1"),
        tests="security/test_directory.py",
    ),
    bug(
        "disabled-account-goes-on",
        "a disabled account keeps its permissions",
        "security/principal.py",
        ("            or (account is not None and not account.enabled)\n", ""),
        tests="security/test_principal.py",
    ),
    bug(
        "snapshot-without-quotas",
        "snapshots have no quotas",
        "broker/security/entries.py",
        ("            *directory.quotas.values(),\n", ""),
        tests="broker/test_security_entries.py",
    ),
    bug(
        "snapshot-without-modes",
        "snapshots have schemas without their mode and last number",
        "broker/schemas/entries.py",
        ("[*current.versions.values(), current]", "[*current.versions.values()]"),
        tests="broker/test_schemas_registry.py",
    ),
    bug(
        "number-of-a-schema-again",
        "the number of the last deleted version is given again",
        "broker/schemas/registry.py",
        (
            "number = 1 if current is None else current.last + 1",
            "number = 1 if current is None else current.latest.version + 1",
        ),
        tests="broker/test_schemas_registry.py",
    ),
    bug(
        "compatible-with-the-first",
        "a new schema is compared with the oldest version in place of the latest",
        "schemas/checks.py",
        ("older if mode.transitive else older[:1]", "older if mode.transitive else older[-1:]"),
        tests="schemas/test_checks.py",
    ),
    bug(
        "quota-at-half-price",
        "each request takes half of its share of a quota",
        "security/quotas.py",
        ("now_seconds) + 1 / quota.requests", "now_seconds) + 0.5 / quota.requests"),
        tests="security/test_quotas.py",
    ),
    bug(
        "bytes-at-half-price",
        "each produce takes half of its bytes of a quota",
        "security/quotas.py",
        ("now_seconds) + size / quota.bytes_in", "now_seconds) + size / quota.bytes_in / 2"),
        tests="security/test_quotas.py",
    ),
    bug(
        "run-without-permission",
        "a run of PRODUCE requests is carried out without the permission",
        "protocols/mamamia/connection.py",
        ("            or not self.access.may(WRITE, topic_name)\n", ""),
        tests="protocols/test_denials.py",
    ),
    bug(
        "publish-run-without-permission",
        "a run of PUBLISH frames is carried out without the permission",
        "protocols/blipmq/connection.py",
        ("            or not self.access.may(WRITE, topic_name)\n", ""),
        tests="protocols/test_denials.py",
    ),
    bug(
        "poll-without-permission",
        "a subscription is polled without the permission",
        "protocols/blipmq/poll.py",
        ("            self.access.require(READ, found[1].topic.name)\n", "            pass\n"),
        tests="protocols/test_denials.py",
    ),
    bug(
        "rustlog-read-without-permission",
        "a Fetch needs no permission",
        "protocols/rustlog/connection.py",
        (
            "        self.access.require(READ, topic_name)\n        dialect = self._dialect\n",
            "        dialect = self._dialect\n",
        ),
        tests="protocols/test_denials.py cross/test_permissions.py",
    ),
    bug(
        "mega-run-without-permission",
        "a run of CONSUME requests is answered without the permission",
        "protocols/mega/connection.py",
        (
            "if partition is None or not self.access.may(READ, topic_name):",
            "if partition is None:",
        ),
        tests="protocols/test_denials.py",
    ),
    bug(
        "transaction-without-permission",
        "a transaction is committed after the permission was revoked",
        "protocols/flymq/transactions.py",
        ("            access.require(WRITE, topic)\n", "            pass\n"),
        tests="protocols/test_denials.py",
    ),
    bug(
        "list-of-hidden-topics",
        "ListTopics shows topics on which the client has no permission",
        "protocols/rustlog/topic_list.py",
        ("topic is not None and access.may(ANY, topic.name)", "topic is not None"),
        tests="protocols/test_denials.py",
    ),
    bug(
        "transaction-for-ever",
        "a transaction is open ten times as long as allowed",
        "broker/transactions.py",
        (
            "transaction.end_seconds = self._clock.seconds() + self._timeout_us / 1e6",
            "transaction.end_seconds = self._clock.seconds() + self._timeout_us / 1e5",
        ),
        tests="broker/test_transactions.py",
    ),
    bug(
        "reference-group-goes-on",
        "by the reference's rules a fetch begins at the higher one of its commit and its offset",
        "protocols/rustlog/connection.py",
        (
            "                offset = committed\n",
            "                offset = max(offset, committed)\n",
        ),
        tests="protocols/test_rustlog.py",
    ),
    bug(
        "messages-live-half-as-long",
        "messages of BlipMQ expire after half of their time",
        "protocols/blipmq/connection.py",
        ("broker.appender.expiry_us(ttl_us) if", "broker.appender.expiry_us(ttl_us // 2) if"),
        tests="protocols/test_blipmq.py",
    ),
    bug(
        "clock-set-an-hour-ahead",
        "an operator sets broker time to an hour after the wall clock",
        "broker/clock.py",
        (
            "        self._offset_us = self._wall_us() - now_us\n        self._trust(",
            "        self._offset_us = self._wall_us() - now_us + 36 * 10**8\n        self._trust(",
        ),
        tests="broker/test_clock.py broker/test_clock_admin.py",
    ),
    bug(
        "looks-back-too-far",
        "a subscription begins twice as long in the past",
        "protocols/blipmq/connection.py",
        (
            "broker.time.time_us() - self._settings.look_back_us, found",
            "broker.time.time_us() - 2 * self._settings.look_back_us, found",
        ),
        tests="protocols/test_blipmq.py",
    ),
    bug(
        "looks-back-too-short",
        "a subscription begins half as long in the past",
        "protocols/blipmq/connection.py",
        (
            "broker.time.time_us() - self._settings.look_back_us, found",
            "broker.time.time_us() - self._settings.look_back_us // 2, found",
        ),
        tests="protocols/test_blipmq.py",
    ),
    # -- logins, limits and defaults -----------------------------------------------------------
    bug(
        "old-password-goes-on",
        "a connection keeps its permissions when the password of its account changes",
        "security/principal.py",
        (
            "            or (bool(self._password) and account is not None and account.password != "
            "self._password)\n",
            "",
        ),
        tests="security/test_principal.py",
    ),
    bug(
        "account-comes-back",
        "a connection of a deleted account has the permissions of a later one of its name",
        "security/principal.py",
        (
            "account is None or account.account_id != self._account_id",
            "account is None",
        ),
        tests="security/test_principal.py",
    ),
    bug(
        "disabled-account-logs-in",
        "a right password logs in to a disabled account",
        "security/login.py",
        ("        if not current.enabled:\n", "        if False:\n"),
        tests="security/test_login.py",
    ),
    bug(
        "failed-login-is-a-login",
        "a connection of BlipMQ with a wrong key counts as logged in",
        "protocols/blipmq/connection.py",
        (
            "            self._nack(frame, Code.UNAUTHORIZED, WRONG_KEY)\n            return\n",
            "            self._nack(frame, Code.UNAUTHORIZED, WRONG_KEY)\n"
            "            self._authenticated = True\n            return\n",
        ),
        tests="protocols/test_blipmq.py",
    ),
    bug(
        "list-does-not-replace-public",
        "a topic with an access list is public by default, too",
        "security/directory.py",
        (
            "return any(one.public for one in lists) if lists else self.policy.default_public",
            "return any(one.public for one in lists) or self.policy.default_public",
        ),
        tests="security/test_directory.py",
    ),
    bug(
        "letters-hold-nothing",
        "dead letters do not hold back retention",
        "broker/retention/retention.py",
        ("        for group in groups if keep_us else ():\n", "        for group in ():\n"),
        tests="broker/test_retention.py",
    ),
    bug(
        "one-subscription-more",
        "there may be one subscription more than the limit",
        "broker/subscriptions.py",
        (
            "if len(self._known) >= self.subscriptions_max:",
            "if len(self._known) > self.subscriptions_max:",
        ),
        tests="broker/test_subscriptions.py",
    ),
    bug(
        "delays-ten-times-as-long",
        "a delay of FlyMQ may be ten times as long as the limit",
        "protocols/flymq/delayed.py",
        ("    if delay_ms > most_ms:\n", "    if delay_ms > 10 * most_ms:\n"),
        tests="protocols/test_flymq_delayed.py",
    ),
    bug(
        "default-ttl-halved",
        "records of topics without their own time to live expire after half of it",
        "broker/records/append.py",
        ("            ttl_us = self._ttl_us\n", "            ttl_us = self._ttl_us // 2\n"),
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
    # -- connections ---------------------------------------------------------------------------
    bug(
        "one-connection-more",
        "there may be one connection more than the limit",
        "protocols/base/factory.py",
        ("        if count >= limits.connections:\n", "        if count > limits.connections:\n"),
        tests="protocols/test_connection.py",
    ),
    bug(
        "idle-ten-times-as-long",
        "a connection may be idle for ten times the limit",
        "protocols/base/connection.py",
        (
            "now_us - self._last_data_us > limits.idle_us:",
            "now_us - self._last_data_us > 10 * limits.idle_us:",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "idle-while-it-waits",
        "a connection that waits for an answer counts as idle",
        "protocols/base/connection.py",
        (
            "        if self._queue:  # the peer waits for answers\n"
            "            self._last_data_us = now_us\n"
            "        elif limits.idle_us",
            "        if limits.idle_us",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "silence-is-a-byte",
        "a connection that never sent a byte stays",
        "protocols/base/connection.py",
        ("self._last_data_us = self._made_us - 1  #", "self._last_data_us = self._made_us  #"),
        tests="protocols/test_connection.py",
    ),
    bug(
        "quota-closes-open-connections",
        "a first quota of connections closes open ones",
        "protocols/base/connection.py",
        ("        elif self._metered is None:\n", "        elif False:\n"),
        tests="protocols/test_quotas.py",
    ),
    bug(
        "quota-of-one-connection-more",
        "a quota of connections lets one more in",
        "security/quotas.py",
        (
            "return 0 < self.quota.connections <= self.connections",
            "return 0 < self.quota.connections < self.connections",
        ),
        tests="protocols/test_quotas.py",
    ),
    bug(
        "runs-pass-the-quota",
        "runs of like requests do not count against quotas",
        "protocols/base/framing.py",
        (
            "if len(frames) >= RUN_FRAMES_MIN and not self.quotas:",
            "if len(frames) >= RUN_FRAMES_MIN:",
        ),
        tests="protocols/test_quotas.py",
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
    bug(
        "event-index-outlives-its-segment",
        "the index of a removed segment stays",
        "broker/status/event_indexer.py",
        ("for first_lsn in names - first_lsns:", "for first_lsn in ():"),
        tests="broker/test_event_indexer.py",
    ),
    # -- limits of the group commit, answers in parts ------------------------------------------
    bug(
        "small-requests-always-pass",
        "small requests pass those that wait for the log without a limit",
        "broker/group_commit.py",
        (
            "if size > SMALL_REQUEST_BYTES or self._passed_bytes + counted > self._passing_bytes:",
            "if size > SMALL_REQUEST_BYTES:",
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "passed-bytes-stay",
        "a commit does not let small requests pass again",
        "broker/group_commit.py",
        (
            "        self._passed_bytes = self._passed_end = 0\n        uncommitted",
            "        uncommitted",
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "overtaken-for-ever",
        "new requests pass large ones that wait for the log",
        "broker/group_commit.py",
        (
            "waits_behind = bool(self._congested) and not self._is_retrying",
            "waits_behind = False",
        ),
        tests="broker/test_group_commit.py",
    ),
    bug(
        "small-parts-come-later",
        "a large part of an answer is sent before the small parts in front of it",
        "protocols/base/transport.py",
        (
            '        if small:\n            send(transport, b"".join(small))\n'
            "            small.clear()\n        send(transport, part)\n",
            "        send(transport, part)\n",
        ),
        tests="protocols/test_transport.py",
    ),
    bug(
        "part-cut-twice",
        "a part of an answer that is sent in two pieces lacks a byte",
        "protocols/base/transport.py",
        ("memoryview(part)[cut:]", "memoryview(part)[cut + 1 :]"),
        tests="protocols/test_transport.py",
    ),
)


class Planted(Exception):
    """A bug does not fit the source; the list needs a change."""


def plant(one: Bug, root: Path) -> None:
    """Plant a bug in the files under ``root``. Raises Planted."""
    for edit in one.edits:
        path = root / edit.file
        path.write_text(changed(path.read_text(), edit))


def changed(text: str, edit: Edit) -> str:
    """Return ``text`` with the edit made. Raises Planted unless it fits exactly once."""
    count = text.count(edit.old)
    if count != 1:
        raise Planted(f"{edit.file} holds {count} places, not one, for {edit.old!r}: mend the list")
    return text.replace(edit.old, edit.new)


def line_of(edit: Edit, root: Path = ROOT) -> int:
    """Return the number of the first line that the edit changes."""
    before, _, _ = (root / edit.file).read_text().partition(edit.old)
    pairs = enumerate(zip_longest(edit.old, edit.new))
    same = next(at for at, (old, new) in pairs if old != new)
    return before.count("\n") + edit.old.count("\n", 0, same) + 1


def places(one: Bug) -> str:
    """Return the files and lines of a bug as text."""
    return ", ".join(f"{edit.file.removeprefix('brokerd/')}:{line_of(edit)}" for edit in one.edits)


def copy_tree(target: Path) -> None:
    """Copy the package, the simulator and the tests: all files that git does not ignore."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "brokerd",
        "simulator",
        "tests",
        "pyproject.toml",
    ]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


# -- searching -------------------------------------------------------------------------------------


class Search(NamedTuple):
    """A program that looks for bugs, and the pattern of its output about the first one."""

    name: str
    stages: tuple[str, ...]
    """Arguments of Python's ``-m``, one run after the other.

    ``{seeds}``, ``{jobs}`` and ``{tests}`` are replaced.
    """
    again: str
    """Arguments that repeat one finding, at ``{where}``."""
    found: re.Pattern[str]


SEARCHES = (
    Search(
        "simulator",
        ("simulator --seeds 0..{seeds} --jobs {jobs}",),
        "simulator --seeds {where} --jobs 1",
        re.compile(r"seed (?P<where>\d+): (?P<what>.+?):"),
    ),
    Search(
        "crash points",
        tuple(
            f"simulator.crashpoints --jobs {{jobs}} --model {model}"
            for model in ("tear", "drop", "reorder", "keep")
        ),
        "simulator.crashpoints --only {where}",
        re.compile(r"(?P<where>[a-z]+:\d+) \(.*?\), \w+: (?P<what>.+)"),
    ),
    Search(
        "suite",
        ("pytest -q -x -p no:cacheprovider --tb=no {tests}",),
        "pytest -q -p no:cacheprovider --tb=no {where}",
        re.compile(
            r"(?P<what>FAILED|ERROR) (?P<where>tests/\S+?\.py(?:::\w+)*(?:\[.*?\](?= - |$))?)"
        ),
    ),
    Search(
        "flips",
        ("simulator.flips --jobs {jobs}",),
        "simulator.flips --file {where} --jobs 1",
        re.compile(r"[\w ,]+: \S*?(?P<where>[^/ ]+) at \d+ \^ \w+, .*?: (?P<what>[A-Z ]+):"),
    ),
)
"""The suite runs a bug's own test files. Flips take long: they run only for bugs that no other
search has found.
"""


class Catch(NamedTuple):
    """The end of a search. ``what`` is empty if it found nothing."""

    what: str
    where: str
    seconds: float
    is_proof: bool = True
    """Whether the tree without the bug passes at the same place."""


def hunt(search: Search, root: Path, sound: Path, seeds: int, jobs: int, tests: str = "") -> Catch:
    """Run a search on the tree at ``root`` until it finds something or ends; return the result.

    A finding that the tree at ``sound`` has, too, does not count as a proof.
    """
    began = time.monotonic()
    catch = Catch("", "", 0.0)
    for stage in search.stages:
        arguments = stage.format(seeds=seeds - 1, jobs=jobs, tests=tests).split()
        catch = _run(search, root, arguments)
        if catch.what:
            break
    catch = catch._replace(seconds=time.monotonic() - began)
    if not catch.where:
        return catch
    arguments = [part.format(where=catch.where) for part in search.again.split()]
    without = _run(search, sound, arguments)
    return catch._replace(is_proof=not without.what)


def _run(search: Search, root: Path, arguments: Sequence[str]) -> Catch:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(TIMEOUT_SECONDS, _end, [process])
    timer.start()
    try:
        return _read(search, process)
    finally:
        timer.cancel()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """SIGKILL a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(search: Search, process: subprocess.Popen[str]) -> Catch:
    assert process.stdout is not None, "it is a pipe"
    last = ""
    for line in process.stdout:
        match = search.found.match(line)
        if match is not None:
            return Catch(match["what"].strip(), match["where"], 0.0)
        last = line.strip() or last
    if process.wait() != 0:  # also when it went on for ever and was ended
        return Catch(f"it ended with {process.returncode}: {last}", "", 0.0)
    return Catch("", "", 0.0)


# -- the table -------------------------------------------------------------------------------------


class Result(NamedTuple):
    """The results of the searches for one bug, by name of the search."""

    bug: Bug
    catches: dict[str, Catch]

    @property
    def caught(self) -> bool:
        return any(catch.what and catch.is_proof for catch in self.catches.values())


def try_out(
    one: Bug, searches: Iterable[Search], seeds: int, jobs: int, *, first: bool = False
) -> Result:
    """Plant a bug in a copy of the tree and search for it.

    :param first: stop after the first search that finds it. The tests named in the list come first:
        they take seconds.
    """
    if first:
        searches = sorted(searches, key=lambda search: search.name != "suite")
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        root, sound = Path(directory, "planted"), Path(directory, "sound")
        copy_tree(root)
        shutil.copytree(root, sound)
        plant(one, root)
        catches: dict[str, Catch] = {}
        for search in searches:
            if search.name == "suite" and not one.tests:
                continue
            is_found = any(catch.what and catch.is_proof for catch in catches.values())
            if is_found and (first or search is SEARCHES[-1]):
                continue
            tests = " ".join(f"tests/{name}" for name in one.tests.split())
            catches[search.name] = hunt(search, root, sound, seeds, jobs, tests)
    return Result(one, catches)


def cell(catch: Catch | None) -> str:
    """Return the cell of the table for one search."""
    if catch is None:
        return ""
    if not catch.what:
        return f"not in {catch.seconds:.0f} s"
    if not catch.is_proof:
        return f"{catch.where} fails without the bug too"
    where = f", {catch.where}" if catch.where else ""
    return f"{catch.what[:60].strip()}{where}, {catch.seconds:.0f} s"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of a table in reStructuredText."""
    rows = [["bug", "line", *(search.name for search in SEARCHES)]]
    for result in results:
        cells = [cell(result.catches.get(search.name)) for search in SEARCHES]
        rows.append([result.bug.name, places(result.bug), *cells])
    yield ".. list-table::"
    yield "   :header-rows: 1"
    yield ""
    for row in rows:
        yield from (
            f"   {'* -' if n == 0 else '  -'} {text}".rstrip() for n, text in enumerate(row)
        )


def chosen(names: Sequence[str] | None, known: Sequence[str], what: str) -> list[str]:
    """Return ``names``, or all known ones. Raises SystemExit for an unknown one."""
    for name in names or ():
        if name not in known:
            raise SystemExit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return list(names or known)


def main(given: list[str]) -> int:
    """Run the command and return the exit code: 1 if a bug was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", metavar="NAME", help="only this bug")
    parser.add_argument("--search", action="append", metavar="NAME", help="only this search")
    parser.add_argument("--first", action="store_true", help="one search that finds it is enough")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds are tried")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(given)
    names = chosen(options.only, [one.name for one in BUGS], "bug")
    wanted = chosen(options.search, [search.name for search in SEARCHES], "search")
    searches = [search for search in SEARCHES if search.name in wanted]
    results: list[Result] = []
    for one in BUGS:
        if one.name in names:
            result = try_out(one, searches, options.seeds, options.jobs, first=options.first)
            results.append(result)
            told = (f"{name}: {cell(catch)}" for name, catch in result.catches.items())
            print(f"{one.name}: {'; '.join(told)}", flush=True)
    print()
    print("\n".join(table(results)))
    missed = [result.bug.name for result in results if not result.caught]
    print(f"\n{len(results)} bugs, {len(missed)} not caught: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
