# Tests: tests/security/test_login.py
"""The guard with security on: listeners, certificates, passwords and keys authenticate clients.

Neither the answer nor the duration of a failed login reveals whether an account exists. A password
is hashed for every name, and only the right password gets the answer that the account is disabled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest

from brokerd.errors import (
    BrokerdError,
    LoginFailed,
    LoginThrottled,
    ShuttingDown,
    TooManyLogins,
)
from brokerd.security.access import Access
from brokerd.security.accounts import PASSWORD_BYTES_MAX, Account
from brokerd.security.attempts import PasswordAttempt
from brokerd.security.audit import Actor, logged_in, login_failed, login_refused, network_of
from brokerd.security.certificates import mapping_problem, principal_of
from brokerd.security.directory import Directory
from brokerd.security.guard import Guard, LoginDone
from brokerd.security.keys import digest_of, find_key, key_id_of
from brokerd.security.passwords import Passwords
from brokerd.security.principal import Principal, Record
from brokerd.security.throttle import BUCKETS_MAX, Throttle


class AccountGuard(Guard):
    """Authenticates the accounts of the directory.

    :param principals: wire format -> principal of its clients; default: anonymous.
    :param certificates: subject -> account, from `read_principals`.
    :param blipmq_keys: keys of the principal of ``blipmq``.
    :param record: writes logins and denials into the audit trail.
    :param now_us: a monotonic clock.
    :param is_open: whether the accounts are known: after the replay.
    :param log_certificate: called with format, peer, subject and reason for each certificate
        without an account.
    """

    auth = True

    def __init__(
        self,
        directory: Directory,
        passwords: Passwords,
        throttle: Throttle,
        record: Record,
        now_us: Callable[[], int],
        principals: Mapping[str, str],
        certificates: Mapping[str, str],
        blipmq_keys: Iterable[str] = (),
        is_open: Callable[[], bool] = lambda: True,
        log_certificate: Callable[[str, str, str, str], None] = lambda *_: None,
    ) -> None:
        self._directory = directory
        self._passwords = passwords
        self._throttle = throttle
        self._record = record
        self._now_us = now_us
        self._is_open = is_open
        self._log_certificate = log_certificate
        self._principals = principals
        self._certificates = certificates
        self._networks: OrderedDict[str, None] = OrderedDict()
        """Networks with a successful login, latest last."""
        self.accept_blipmq_keys(blipmq_keys)

    def accept_blipmq_keys(self, keys: Iterable[str]) -> None:
        self._blipmq_digests = [digest_of(key) for key in keys]

    @property
    def version(self) -> int:
        return self._directory.version

    def begin(self, wire_format: str, peer: str) -> Access:
        self._check_open()
        name = "" if wire_format == "blipmq" else self._principals.get(wire_format, "")
        return self._principal(name, wire_format, peer)

    def by_certificate(self, wire_format: str, peer: str, subject: str, common_name: str) -> Access:
        self._check_open()
        name = principal_of(self._certificates, subject, common_name)
        if not name:
            self._log_certificate(
                wire_format, peer, subject, mapping_problem(self._certificates, subject)
            )
            return self.begin(wire_format, peer)
        access = self._principal(name, wire_format, peer)
        if access.is_known:
            self._accept(access, "certificate")
        else:
            is_there = name in self._directory.accounts
            reason = (
                f"the account {name} is disabled" if is_there else f"there is no account {name}"
            )
            self._log_certificate(wire_format, peer, subject, reason)
            self._record(login_failed(access.actor, "certificate", "no account, or disabled"))
        return access

    def log_in(
        self, wire_format: str, peer: str, name: str, password: str, done: LoginDone
    ) -> None:
        actor = Actor(name, peer, wire_format)
        try:
            self._check_open()
            attempt = PasswordAttempt(self._passwords, self._throttle, self._now_us, peer, name)
        except (LoginThrottled, ShuttingDown) as error:
            self._record_unchecked(actor, "password", error)
            done(None, error)
            return
        account = self._directory.accounts.get(name)

        def checked(is_right: bool | None, error: BrokerdError | None) -> None:
            if is_right is None:
                self._record_unchecked(actor, "password", error)
                done(None, error)
            else:
                done(*self._outcome(actor, account, is_right, attempt))

        is_long = len(password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX
        attempt.check(
            account.password if account is not None else "",
            "" if is_long else password,
            checked,
        )

    def may_skip_check(self, wire_format: str, peer: str, name: str) -> bool:
        try:
            return self._throttle.may_skip_check(peer, self._now_us())
        except LoginThrottled as error:
            self._record_unchecked(Actor(name, peer, wire_format), "password", error)
            raise

    def _outcome(
        self, actor: Actor, account: Account | None, is_right: bool, attempt: PasswordAttempt
    ) -> tuple[Access | None, BrokerdError | None]:
        """Return the result of a login after its password was checked against ``account``."""
        current = self._directory.accounts.get(actor.user)
        if current is None or account is None or current.password != account.password:
            is_right = False
        if current is None or not is_right:
            attempt.failed()
            return None, self._failed(actor, "password", "invalid username or password")
        if not current.enabled:
            attempt.failed()
            return None, self._failed(actor, "password", "user account is disabled")
        attempt.succeeded()
        access = self._principal(
            actor.user, actor.wire_format, actor.client_ip, password=current.password
        )
        return self._accept(access, "password"), None

    def log_in_with_key(self, wire_format: str, peer: str, key: str) -> Access:
        self._check_open()
        key_id = key_id_of(key)
        found = find_key(self._directory.keys, key)
        owner = None if found is None else self._directory.accounts.get(found.owner)
        if owner is not None and owner.enabled:
            # Checked before the throttle: 32 random bytes cannot be guessed, and wrong keys of
            # other clients behind the same address must not block this one.
            return self._accept(
                self._principal(owner.name, wire_format, peer, key_id=key_id), "key"
            )
        now_us = self._now_us()
        try:
            attempt = self._throttle.admit(peer, None, now_us)
            may_begin = self._throttle.begin(attempt, now_us)
            self._throttle.end(attempt)
            if not may_begin:
                raise TooManyLogins
        except LoginThrottled as error:
            self._record_unchecked(Actor("", peer, wire_format), "key", error, key_id)
            raise
        if found is None and wire_format == "blipmq" and self._is_blipmq_key(key):
            access = self._principal(self._principals.get(wire_format, ""), wire_format, peer)
            return self._accept(access, "key")
        self._throttle.failed(attempt, now_us)
        actor = Actor("" if found is None else found.owner, peer, wire_format)
        raise self._failed(actor, "key", "invalid API key", key_id)

    def _is_blipmq_key(self, key: str) -> bool:
        digest = digest_of(key)
        found = False
        for known in self._blipmq_digests:
            found |= compare_digest(digest, known)
        return found

    def _check_open(self) -> None:
        if not self._is_open():
            raise ShuttingDown("the broker is starting; try again later")

    def _record_unchecked(
        self, actor: Actor, action: str, error: BrokerdError | None, key_id: str = ""
    ) -> None:
        """Record a login that was refused without a check."""
        if isinstance(error, TooManyLogins):
            self._record(login_refused(actor, action, "too many logins at once", key_id))
        elif isinstance(error, LoginThrottled):
            self._record(login_failed(actor, action, "throttled", key_id))

    def _accept(self, access: Access, action: str) -> Access:
        self._record(logged_in(access.actor, action, access.key_id))
        network = network_of(access.actor.client_ip)
        self._networks[network] = None
        self._networks.move_to_end(network)
        if len(self._networks) > BUCKETS_MAX:
            self._networks.popitem(last=False)
        return access

    def knows(self, network: str) -> bool:
        return network in self._networks

    def _failed(self, actor: Actor, action: str, reason: str, key_id: str = "") -> LoginFailed:
        self._record(login_failed(actor, action, reason, key_id))
        return LoginFailed(reason)

    def _principal(
        self, name: str, wire_format: str, peer: str, key_id: str = "", password: str = ""
    ) -> Principal:
        return Principal(self._directory, self._record, name, wire_format, peer, key_id, password)
