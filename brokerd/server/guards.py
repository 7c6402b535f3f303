# Tests: tests/test_guards.py
"""Authentication as configured: the guard of all listeners, and the first administrator.

With ``security.auth = "off"`` the broker lets every client in. Accounts can be created before
security is turned on.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from brokerd.broker import Broker
from brokerd.errors import BrokerdError, ConfigError, InvalidName, InvalidRequest
from brokerd.security import OPEN, OPEN_GUARD, Guard
from brokerd.security.access import ADMIN
from brokerd.security.accounts import Account
from brokerd.security.certificates import read_principals
from brokerd.security.directory import Policy
from brokerd.security.login import AccountGuard
from brokerd.server.certificate_log import CertificateLog
from brokerd.server.config import Config
from brokerd.server.sections import FORMATS

_log = Logger(namespace="brokerd")


def policy(config: Config) -> Policy:
    """Return the permissions without access lists."""
    return Policy(config.security.allow_anonymous, config.security.default_public)


def audit_keep_us(config: Config) -> int | None:
    """Return the retention of the audit trail; None: no trail."""
    if config.security.auth == "off" or not config.security.audit:
        return None
    return config.security.audit_seconds * 1_000_000


def make_guard(
    config: Config, broker: Broker, is_open: Callable[[], bool], certificate_log: CertificateLog
) -> Guard:
    """Make the guard of all listeners; it authenticates once ``is_open()`` is true.

    ``certificate_log`` logs certificates that match no account. Raises `ConfigError` for an invalid
    ``tls.principals``.
    """
    certificates = read_principals(config.tls.principals)
    if config.security.auth == "off":
        return OPEN_GUARD
    return AccountGuard(
        broker.accounts.directory,
        broker.accounts.passwords,
        broker.accounts.throttle,
        broker.audit.record,
        broker.time.monotonic_us,
        principals_of_listeners(config),
        certificates,
        config.blipmq.api_keys,
        is_open,
        certificate_log.add,
    )


def principals_of_listeners(config: Config) -> dict[str, str]:
    """Return the account of clients that have not logged in, by format; empty: anonymous."""
    return {name: getattr(config, name).principal for name in FORMATS}


async def prepare_accounts(config: Config, broker: Broker) -> None:
    """Create the first administrator if configured, and log security warnings.

    The broker has started and serves no client yet. Raises `ConfigError` for an invalid name or
    password.
    """
    accounts = broker.accounts
    if config.security.auth == "off":
        _log.info("security is off: every client may do everything", event_id="security-off")
        return
    name = config.security.admin_user
    if config.security.admin_password and name not in accounts.directory.accounts:
        await _make_admin(broker, name, config.security.admin_password[0])
    if not any(one.enabled and one.permissions & ADMIN for one in accounts.accounts()):
        _log.warn(
            "no enabled account has the role admin, so nobody can create accounts; {advice}",
            event_id="admin-missing",
            advice=_way_back(name, name in accounts.directory.accounts),
        )
    _log.info(
        "security is on: {accounts} accounts, {trail} audit trail",
        event_id="security-on",
        accounts=len(accounts.directory.accounts),
        trail="with an" if broker.audit.enabled else "without an",
    )
    for wire_format, principal in principals_of_listeners(config).items():
        if principal and principal not in accounts.directory.accounts:
            _log.warn(
                "{form}.principal is {principal}, and this account does not exist: clients of this "
                "format are anonymous until it does",
                form=wire_format,
                principal=principal,
                event_id="principal-unknown",
            )


def _way_back(name: str, is_there: bool) -> str:
    """Return the advice for a broker without an administrator, by whether `admin_user` exists."""
    if not is_there:
        return "set security.admin_password_file and start again"
    return (
        f"the account {name} exists, so it is not created again: start once with another name as "
        "security.admin_user, and security.admin_password_file"
    )


async def _make_admin(broker: Broker, name: str, password: str) -> None:
    made: Deferred[BrokerdError | None] = Deferred()

    def done(_: Account | None, error: BrokerdError | None) -> None:
        if error is None:
            broker.group_commit.when_all_durable(lambda: made.callback(None))
        else:
            made.callback(error)

    broker.accounts.create_account(OPEN, name, password, ("admin",), done)
    error = await made
    if isinstance(error, InvalidName | InvalidRequest):
        raise ConfigError(f"security.admin_user, security.admin_password: {error}")
    if error is None:
        _log.info(
            "created the account {name} with the role admin", event_id="admin-made", name=name
        )
    else:
        _log.error(
            "cannot create the account {name}: {reason}",
            event_id="admin-failed",
            name=name,
            reason=str(error),
        )
