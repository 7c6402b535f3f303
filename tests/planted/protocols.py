# Tests: tests/simulator/test_planted.py
"""Bugs of the wire formats: ``brokerd/protocols``."""

from __future__ import annotations

from .bug import Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- writing -------------------------------------------------------------------------------
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
    # -- delays, expiry, resends ----------------------------------------------------------------
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
    # -- other formats -------------------------------------------------------------------------
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
    # -- administration ------------------------------------------------------------------------
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
        "delays-ten-times-as-long",
        "a delay of FlyMQ may be ten times as long as the limit",
        "protocols/flymq/delayed.py",
        ("    if delay_ms > most_ms:\n", "    if delay_ms > 10 * most_ms:\n"),
        tests="protocols/test_flymq_delayed.py",
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
            "self._sent_us) > limits.idle_us:",
            "self._sent_us) > 10 * limits.idle_us:",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "idle-while-it-waits",
        "a connection that waits for an answer counts as idle",
        "protocols/base/connection.py",
        (
            "        if self._queue:  # the peer waits for answers\n"
            "            self._busy_us = now_us\n"
            "        elif limits.idle_us",
            "        if limits.idle_us",
        ),
        tests="protocols/test_connection.py",
    ),
    bug(
        "login-ten-times-as-late",
        "a client without permissions has ten times its time for a login",
        "protocols/base/connection.py",
        ("open_us > limits.login_us and", "open_us > 10 * limits.login_us and"),
        tests="protocols/test_strangers.py",
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
        "runs-pass-the-quota",
        "runs of like requests do not count against quotas",
        "protocols/base/framing.py",
        (
            "if len(frames) >= RUN_FRAMES_MIN and not self.quotas:",
            "if len(frames) >= RUN_FRAMES_MIN:",
        ),
        tests="protocols/test_quotas.py",
    ),
    # -- limits of the group commit, answers in parts ------------------------------------------
    bug(
        "small-parts-come-later",
        "a large part of an answer is sent before the small parts in front of it",
        "protocols/base/transport.py",
        (
            '        if small:\n            yield b"".join(small)\n'
            "            small.clear()\n        yield part\n",
            "        yield part\n",
        ),
        tests="protocols/test_transport.py",
    ),
    bug(
        "part-cut-twice",
        "a part of an answer that is sent in two pieces lacks a byte",
        "protocols/base/transport.py",
        ("= parts[count], sent - done", "= parts[count], sent - done + 1"),
        tests="protocols/test_transport.py",
    ),
)
