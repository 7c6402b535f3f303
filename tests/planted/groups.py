# Tests: tests/simulator/test_planted.py
"""Bugs of the lease store: ``brokerd/groups``."""

from __future__ import annotations

from .bug import Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- snapshots -----------------------------------------------------------------------------
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
        "count-failure-twice",
        "a failure that is told again counts again",
        "groups/state.py",
        (
            "self._return_record(offset, attempts, True, now_us",
            "self._return_record(offset, attempts, False, now_us",
        ),
        tests="groups/test_store.py",
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
    # -- other formats -------------------------------------------------------------------------
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
)
