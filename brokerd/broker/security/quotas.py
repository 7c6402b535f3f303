# Tests: tests/protocols/test_quotas.py, tests/admin/test_quota_calls.py
"""The quotas of the broker: kept in the journal with the accounts, and metered by connection.

A connection belongs to up to three meters: of its account (of its address, without one), of its
address if that has a quota, and of its listener. An account or address without a quota of its own
has the default's limits, each for itself.

Quotas have lasting meters, and there are at most `QUOTAS_MAX`. A meter by default lives as long as
its connections, and is kept after them, so that a client cannot drop its debt by a new connection.
The latest `KEPT_METERS` are kept. So memory and metrics are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from brokerd.broker.clock import BrokerTime, Clock
from brokerd.broker.security.quota_waits import QuotaWaits
from brokerd.errors import LimitExceeded
from brokerd.security import ADMIN, Access
from brokerd.security.audit import EventType, network_of
from brokerd.security.directory import Directory
from brokerd.security.quotas import (
    ACCOUNT,
    ADDRESS,
    DEFAULT,
    DEFAULT_NAME,
    LISTENER,
    Meter,
    Quota,
    address_quota,
    check_key,
    check_quota,
)
from brokerd.values import Format

QUOTAS_MAX = 1_000
KEPT_METERS = 10_000
"""Meters by default that are kept without connections: of the latest accounts and addresses."""
LISTENERS = tuple(one.name.lower() for one in Format if one is not Format.UNKNOWN)

Key = tuple[str, str]


class Quotas:
    """All quotas and their meters.

    ``table`` is empty while there is no quota; then connections are not metered. ``change`` applies
    a change of the quotas durably: see `Accounts.change_quota`. Requests wait on ``clock``, by
    monotonic time of ``time``.
    """

    def __init__(
        self,
        directory: Directory,
        change: Callable[[Access, EventType, Quota, bool], None],
        clock: Clock,
        time: BrokerTime,
    ) -> None:
        self._directory = directory
        self._change = change
        self.waits = QuotaWaits(
            clock, lambda: time.monotonic_us() / 1e6, lambda: directory.quotas_version
        )
        self.table: dict[Key, Quota] = directory.quotas
        self._meters: dict[Key, Meter] = {}
        """Meters of the quotas, except that of the default."""
        self._by_default: WeakValueDictionary[Key, Meter] = WeakValueDictionary()
        self._kept: OrderedDict[Key, Meter] = OrderedDict()
        """Some of the meters by default, the latest connection last."""
        self._version = 0

    @property
    def version(self) -> int:
        """Grows with each change of a quota."""
        return self._directory.quotas_version

    # -- changes ------------------------------------------------------------------------------

    def quotas(self) -> list[Quota]:
        """Return all quotas, sorted."""
        return [self.table[key] for key in sorted(self.table)]

    def put(self, by: Access, quota: Quota) -> Quota:
        """Set a quota, and return it as it is stored.

        Raises `InvalidName`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        by.require_server(ADMIN)
        quota = check_quota(quota, LISTENERS)
        if quota.key not in self.table and len(self.table) >= QUOTAS_MAX:
            raise LimitExceeded(f"there are {QUOTAS_MAX} quotas already, which is the limit")
        self._change(by, EventType.QUOTA_SET, quota, True)
        return quota

    def find(self, kind: str, name: str) -> Quota | None:
        """Return a quota; its address may have any form. Raises `InvalidName`.

        An earlier version may have stored a name that is not valid now: that name finds its quota.
        """
        return self.table.get((kind, name)) or self.table.get(check_key(kind, name, LISTENERS))

    def lacks_account(self, quota: Quota) -> bool:
        """Return whether the quota is of an account that does not exist now."""
        return quota.kind == ACCOUNT and quota.name not in self._directory.accounts

    def delete(self, by: Access, kind: str, name: str) -> bool:
        """Delete a quota and return whether it existed.

        Raises `InvalidName`, `NoSpace` or `Congested`.
        """
        by.require_server(ADMIN)
        quota = self.find(kind, name)
        if quota is None:
            return False
        self._change(by, EventType.QUOTA_DELETED, quota, False)
        return True

    # -- meters -------------------------------------------------------------------------------

    def meters_of(self, wire_format: str, address: str, account: str) -> tuple[Meter, ...]:
        """Return the meters of a connection."""
        self._follow()
        table = self.table
        by_address = address_quota(
            [quota for quota in table.values() if quota.kind == ADDRESS], address
        )
        own = table.get((ACCOUNT, account)) if account else by_address
        found = [quota for quota in (own, table.get((LISTENER, wire_format))) if quota is not None]
        if account and by_address is not None:
            found.append(by_address)
        meters = [self.meter(quota) for quota in found]
        default = table.get((DEFAULT, DEFAULT_NAME))
        if own is None and default is not None:
            meters.append(self._default_meter(default, account, address))
        return tuple(meters)

    def meter(self, quota: Quota) -> Meter:
        """Return the meter of a quota; of the default quota the sum of its present meters."""
        self._follow()
        if quota.kind == DEFAULT:
            return self._default_sum(quota)
        meter = self._meters.get(quota.key)
        if meter is None:
            meter = self._meters[quota.key] = Meter(quota, quota.name)
        return meter

    def _default_meter(self, default: Quota, account: str, address: str) -> Meter:
        key = (ACCOUNT, account) if account else (ADDRESS, network_of(address))
        meter = self._by_default.get(key)
        if meter is None:
            meter = self._by_default[key] = Meter(default, key[1])
        self._kept[key] = meter
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_METERS:
            self._kept.popitem(last=False)
        return meter

    def _default_sum(self, quota: Quota) -> Meter:
        total = Meter(quota, quota.name)
        for meter in self._by_default.values():
            total.add(meter)
        return total

    def _follow(self) -> None:
        """Let the meters follow changes of their quotas."""
        if self._version == self.version:
            return
        self._version = self.version
        for key, meter in list(self._meters.items()):
            if key in self.table:
                meter.change(self.table[key])
            else:
                del self._meters[key]
        default = self.table.get((DEFAULT, DEFAULT_NAME))
        for meter in self._by_default.values():
            meter.change(default or replace(meter.quota, requests=0, bytes_in=0, bytes_out=0))

    def status(self) -> list[dict[str, object]]:
        """Return limits and use of each quota."""
        return [
            {
                "kind": quota.kind,
                "name": quota.name,
                "limits": quota.limits(),
                **self.meter(quota).counts(),
            }
            for quota in self.quotas()
        ]
