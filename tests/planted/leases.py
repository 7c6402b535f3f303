# Tests: tests/simulator/test_planted.py
"""Bugs of leases, delays and subscriptions."""

from __future__ import annotations

from .bug import KEPT_PLAN, Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- leases --------------------------------------------------------------------------------
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
            "            self._firing = False\n            if heap := self._first():\n",
            "            self._firing = False\n"
            "            if (heap := self._first()) and self._call is None:\n",
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
    # -- groups: order, pauses, dead letters ----------------------------------------------------
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
    # -- topics and segments --------------------------------------------------------------------
    bug(
        "seek-below-the-start",
        "a seek to the start goes to offset 0, whatever was removed",
        "broker/leases/group_admin.py",
        ("    first = partition.start_offset\n", "    first = 0\n"),
        ("            group_partition.settle_gaps()\n", ""),
        tests="broker/test_group_admin.py broker/test_retention.py broker/test_sweep_model.py",
    ),
    # -- other formats -------------------------------------------------------------------------
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
    # -- logins, limits and defaults -----------------------------------------------------------
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
)
