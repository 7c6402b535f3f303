"""A broker that listens for FlyMQ with security on, and accounts on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.protocols.flymq.connection import FlymqSettings
from brokerd.security import OPEN
from brokerd.security.accounts import AccessList
from brokerd.security.login import AccountGuard
from brokerd.security.passwords import Passwords
from brokerd.worker_pool import run_inline
from tests.protocols.flymq_desk import FlymqClient, FlymqHouse

PEOPLE = {
    "root": ("admin",),
    "pat": ("producer",),
    "carl": ("consumer",),
    "gus": ("guest",),
}
"""Accounts and their roles. Every password is `PASSWORD`."""
PASSWORD = "sesame"
AUDITED = BrokerSettings(audit_keep_us=10**12)


class Threads:
    """The pool that hashes passwords: at once, or when the test calls `finish`."""

    def __init__(self) -> None:
        self.waits = False
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Any, done: Any) -> None:
        if self.waits:
            self.waiting.append(lambda: run_inline(work, done))
        else:
            run_inline(work, done)

    def finish(self) -> None:
        """Hash the waiting passwords."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()


class GuardedHouse(FlymqHouse):
    """A broker with the accounts `PEOPLE`; connections begin as ``principal``."""

    def __init__(
        self, flymq: FlymqSettings | None = None, principal: str = "", **rest: Any
    ) -> None:
        super().__init__(flymq, **{"settings": AUDITED, **rest})
        self.threads = Threads()
        accounts = self.broker.accounts
        accounts.passwords = Passwords(self.threads.submit, os.urandom)
        if not accounts.accounts():
            for name, roles in PEOPLE.items():
                accounts.create_account(OPEN, name, PASSWORD, roles, _made)
        self.flymq_factory.guard = AccountGuard(
            accounts.directory,
            accounts.passwords,
            accounts.throttle,
            self.broker.audit.record,
            self.broker.time.monotonic_us,
            {"flymq": principal},
            {},
        )
        self.run()

    def log_in(self, name: str) -> FlymqClient:
        """Return a new connection with a login."""
        client = self.client()
        (answer,) = client.ask(flymq.Auth(name, PASSWORD))
        assert isinstance(answer, flymq.LoggedIn), answer
        return client

    def log_in_at_once(self, name: str) -> FlymqClient:
        """Log in, even if other passwords wait."""
        self.threads.waits = False
        return self.log_in(name)

    def grant(self, topic: str, *users: str, public: bool = False, prefix: bool = False) -> None:
        """Let these users read and write a topic."""
        granted = AccessList(topic, prefix, public, dict.fromkeys(users, 3))
        self.broker.accounts.set_access_list(OPEN, granted)
        self.run()

    def update(self, name: str, **changes: Any) -> None:
        self.broker.accounts.update_account(OPEN, name, **changes)
        self.run()


def _made(account: object, error: Exception | None) -> None:
    assert error is None, error
