# Tests: tests/simulator/test_planted.py
"""Bugs of the other rooms of the broker: commits, topics, records, clock, status, memory."""

from __future__ import annotations

from .bug import KEPT_PLAN, Bug, Edit, bug

BUGS: tuple[Bug, ...] = (
    # -- writing -------------------------------------------------------------------------------
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
    # -- recovery ------------------------------------------------------------------------------
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
    # -- memory that runs out -------------------------------------------------------------------
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
        "drop-delay-in-replay",
        "at a start, what failed before does not wait any longer",
        "broker/model/state.py",
        (
            "                    store.apply(event, now_us)",
            "                    store.apply(event, 0)",
        ),
        tests="broker/test_broker.py",
    ),
    # -- connections and stopping --------------------------------------------------------------
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
    # -- administration ------------------------------------------------------------------------
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
        "clock-set-an-hour-ahead",
        "an operator sets broker time to an hour after the wall clock",
        "broker/clock.py",
        (
            "        self._offset_us = self._wall_us() - now_us\n        self._trust(",
            "        self._offset_us = self._wall_us() - now_us + 36 * 10**8\n        self._trust(",
        ),
        tests="broker/test_clock.py broker/test_clock_admin.py",
    ),
    # -- logins, limits and defaults -----------------------------------------------------------
    bug(
        "default-ttl-halved",
        "records of topics without their own time to live expire after half of it",
        "broker/records/append.py",
        ("            ttl_us = self._ttl_us\n", "            ttl_us = self._ttl_us // 2\n"),
        tests="broker/test_retention.py",
    ),
    # -- event indexes -------------------------------------------------------------------------
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
)
