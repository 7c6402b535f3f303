# Tests: tests/groups/test_model.py
"""The lease store once more, as simple as possible.

A record is an object, a search is a scan, and every command first ends lapsed leases. It is slow on
purpose; read it beside docs/leases.rst.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from brokerd.errors import LeaseLost, NotLeaseOwner, UnknownOffset
from brokerd.groups import DeadLetter, GroupSettings, Lease
from brokerd.values import Grant


@dataclass
class Record:
    """One record: ``state`` is open, leased, settled or dead."""

    state: str = "open"
    grants: int = 0
    failures: int = 0
    touched: bool = False
    failure_counted: bool = False
    token: int | None = None
    owner: str = ""
    duration_us: int = 0
    deadline_us: int = 0
    ready_at_us: int = 0
    reason: str = ""
    first_us: int | None = None
    last_us: int = 0
    key: int = 0


class Model:
    """The rules of LeaseStore without its speed."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.records: list[Record] = []
        self.token = 0
        self.committed = -1
        self.paused = False

    # The partition grows

    def produce(self, keys: list[int]) -> None:
        self.records.extend(Record(key=key) for key in keys)

    # Commands

    def acquire(
        self,
        now_us: int,
        owner: str,
        duration_us: int,
        limit: int,
        gone: Container[int] = (),
        stop: int | None = None,
        hole: range = range(0),
    ) -> list[Grant]:
        """Lease records and return their grants.

        Records in ``gone`` are removed, those in ``hole`` together. Records from ``stop`` on stay.
        """
        self.lapse(now_us)
        duration_us = max(duration_us, 0)
        granted: list[Grant] = []
        for offset, record in enumerate(self.records):
            if len(granted) >= limit or self.paused:
                break
            if record.state != "open" or record.ready_at_us > now_us or self._must_wait(offset):
                continue
            if offset in hole:
                self.settle_range(offset, hole.stop)
                continue
            if offset in gone:
                record.state = "settled"
                record.touched = True
                continue
            if offset == stop:
                break
            self.token += 1
            record.state = "leased"
            record.touched = True
            record.grants += 1
            record.first_us = now_us if record.first_us is None else record.first_us
            record.failure_counted = False
            record.token = self.token
            record.owner = owner
            lasts_us = duration_us
            if self.settings.lease_doubling:
                longest_us = max(duration_us, self.settings.backoff_max_us)
                lasts_us = min(duration_us * 2 ** (record.grants - 1), longest_us)
            self._run(record, now_us, lasts_us)
            granted.append(Grant(offset, self.token, record.grants, record.failures, lasts_us))
        return granted

    def settle(
        self,
        now_us: int,
        offset: int,
        success: bool,
        owner: str | None,
        token: int | None,
        delay_us: int | None,
        reason: str,
    ) -> bool:
        self.lapse(now_us)
        record = self._assigned(offset)
        if record.state == "leased":
            self._check_holder(record, owner, token)
        elif record.state in ("settled", "dead"):
            return False
        elif token is not None and token != record.token:
            raise LeaseLost
        if success:
            record.touched = True
            record.state = "settled"
            return True
        if record.failure_counted:
            return False
        record.touched = True
        record.failures += 1
        record.first_us = now_us if record.first_us is None else record.first_us
        record.failure_counted = True
        self._come_back(now_us, record, record.failures, reason, delay_us)
        return True

    def settle_leased(self, now_us: int, offset: int, owner: str | None, token: int | None) -> None:
        self.lapse(now_us)
        record = self._leased(offset, owner, token)
        record.state = "settled"

    def extend(
        self, now_us: int, offset: int, duration_us: int, owner: str | None, token: int | None
    ) -> int:
        self.lapse(now_us)
        record = self._leased(offset, owner, token)
        self._run(record, now_us, max(duration_us, 0))
        return record.duration_us

    def release(
        self, now_us: int, offset: int, owner: str | None, token: int | None, delay_us: int
    ) -> None:
        self.lapse(now_us)
        record = self._leased(offset, owner, token)
        record.state = "open"
        record.ready_at_us = now_us + max(delay_us, 0)

    def release_owner(self, now_us: int, owner: str) -> int:
        self.lapse(now_us)
        held = [r for r in self.records if r.state == "leased" and r.owner == owner]
        for record in held:
            record.state = "open"
            record.ready_at_us = now_us
        return len(held)

    def dead_letter(self, now_us: int, offset: int, reason: str) -> bool:
        self.lapse(now_us)
        record = self._assigned(offset)
        if record.state in ("settled", "dead"):
            return False
        record.touched = True
        self._die(now_us, record, reason)
        return True

    def replay_dead(self, first: int, end: int, reason: str, before_us: int | None) -> int:
        chosen = self._dead(first, end, reason, before_us)
        for offset in chosen:
            self.records[offset] = Record(touched=True, key=self.records[offset].key)
        return len(chosen)

    def purge_dead(self, first: int, end: int, reason: str, before_us: int | None) -> int:
        chosen = self._dead(first, end, reason, before_us)
        for offset in chosen:
            self.records[offset].state = "settled"
        return len(chosen)

    def settle_range(self, first: int, end: int) -> None:
        for record in self.records[max(first, 0) : max(end, 0)]:
            record.touched = True
            if record.state != "dead":
                record.state = "settled"

    def seek(self, floor: int) -> None:
        for offset, record in enumerate(self.records):
            if offset < floor:
                if record.state != "dead":
                    record.state = "settled"
                record.touched = True
            elif record.state in ("settled", "dead"):
                self.records[offset] = Record(key=record.key)
            else:
                record.state = "open"
                record.ready_at_us = 0

    def configure(self, settings: GroupSettings) -> None:
        if settings.key_ordered != self.settings.key_ordered:
            for record in self.records:
                if record.state == "leased":
                    record.state = "open"
                record.ready_at_us = 0
        self.settings = settings

    def delete(self) -> None:
        self.records = [Record(key=record.key) for record in self.records]
        self.committed = -1
        self.paused = False

    def resume(self, now_us: int) -> None:
        for record in self.records:
            if record.state == "leased":
                self._run(record, now_us, record.duration_us)

    def lapse(self, now_us: int) -> None:
        """End every lease whose deadline has passed."""
        for record in self.records:
            if record.state == "leased" and now_us > record.deadline_us:
                counted = record.grants if self.settings.attempts == "grants" else 0
                began_us = record.deadline_us + (1 if record.duration_us <= 0 else 0)
                self._come_back(record.deadline_us, record, counted, "", None, began_us)

    # What can be seen

    def floor(self) -> int:
        for offset, record in enumerate(self.records):
            if record.state not in ("settled", "dead"):
                return offset
        return len(self.records)

    def lag(self) -> int:
        return sum(r.state not in ("settled", "dead") for r in self.records)

    def leases(self) -> list[Lease]:
        return [
            Lease(
                o,
                r.deadline_us,
                r.owner,
                r.token or 0,
                r.grants,
                r.failures,
                r.duration_us,
                r.first_us or 0,
            )
            for o, r in enumerate(self.records)
            if r.state == "leased"
        ]

    def ready(self, now_us: int) -> list[int]:
        return [o for o, r in self._returned() if r.ready_at_us <= now_us]

    def delayed(self, now_us: int) -> list[int]:
        return [o for o, r in self._returned() if r.ready_at_us > now_us]

    def dead_letters(self) -> list[DeadLetter]:
        return [
            DeadLetter(o, r.reason, r.grants, r.failures, r.first_us or 0, r.last_us)
            for o, r in enumerate(self.records)
            if r.state == "dead"
        ]

    def attempts(self) -> dict[int, tuple[int, int]]:
        """Return (grants, failures) of the unsettled records with any of either."""
        return {
            offset: (record.grants, record.failures)
            for offset, record in enumerate(self.records)
            if record.state != "settled" and (record.grants or record.failures)
        }

    def next_due_us(self, now_us: int) -> int | None:
        return min(
            [lease.deadline_us + 1 for lease in self.leases()]
            + [self.records[offset].ready_at_us for offset in self.delayed(now_us)],
            default=None,
        )

    # Parts

    def _must_wait(self, offset: int) -> bool:
        """Return whether a record of the same key is leased, or a lower one is open."""
        key = self.records[offset].key
        if not self.settings.key_ordered or not key:
            return False
        same = [(o, record.state) for o, record in enumerate(self.records) if record.key == key]
        return any(state == "leased" or (state == "open" and o < offset) for o, state in same)

    def _dead(self, first: int, end: int, reason: str, before_us: int | None) -> list[int]:
        """Return the dead letters of a range, perhaps of one reason, perhaps only older ones."""
        return [
            offset
            for offset, record in enumerate(self.records)
            if record.state == "dead"
            and first <= offset < end
            and reason in ("", record.reason)
            and (before_us is None or record.last_us < before_us)
        ]

    def _die(self, when_us: int, record: Record, reason: str) -> None:
        record.state = "dead"
        record.reason = reason
        record.last_us = when_us
        record.first_us = when_us if record.first_us is None else record.first_us

    def _returned(self) -> list[tuple[int, Record]]:
        return [(o, r) for o, r in enumerate(self.records) if r.state == "open" and r.touched]

    def _run(self, record: Record, now_us: int, duration_us: int) -> None:
        record.duration_us = duration_us
        record.deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1

    def _come_back(
        self,
        when_us: int,
        record: Record,
        attempts: int,
        reason: str,
        delay_us: int | None,
        not_before_us: int = 0,
    ) -> None:
        """End an attempt of the record by failure or lapse; ``attempts`` includes this one."""
        if self.settings.attempts == "grants":
            attempts = record.grants
        if attempts >= self.settings.max_attempts:
            self._die(max(when_us, not_before_us), record, reason or "max_attempts")
            return
        record.state = "open"
        if delay_us is None:
            delay_us = 0
            if record.failures:
                delay_us = self.settings.backoff_base_us * 2 ** (record.failures - 1)
                delay_us = min(delay_us, self.settings.backoff_max_us)
        record.ready_at_us = when_us + max(delay_us, 0)

    def _assigned(self, offset: int) -> Record:
        if not 0 <= offset < len(self.records):
            raise UnknownOffset
        return self.records[offset]

    def _leased(self, offset: int, owner: str | None, token: int | None) -> Record:
        if not 0 <= offset < len(self.records) or self.records[offset].state != "leased":
            raise LeaseLost
        self._check_holder(self.records[offset], owner, token)
        return self.records[offset]

    def _check_holder(self, record: Record, owner: str | None, token: int | None) -> None:
        if owner is not None and owner != record.owner:
            raise NotLeaseOwner
        if token is not None and token != record.token:
            raise LeaseLost
