# Tests: tests/simulator/test_planted.py
"""Bugs of accounts, permissions, quotas and schemas."""

from __future__ import annotations

from .bug import Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- the audit trail -----------------------------------------------------------------------
    bug(
        "audit-event-without-a-principal",
        "the audit event of a change by the admin API does not say who made it",
        "admin/http/routing.py",
        (
            "        actor = self.access.actor\n",
            "        actor = self.access.actor._replace(user='')\n",
        ),
        tests="admin/test_audit_calls.py",
    ),
    bug(
        "audit-page-skips-an-event",
        "the next page of an audit search begins an event too late",
        "broker/security/audit_search.py",
        (
            "next_before = self._events[-1].event_id",
            "next_before = self._events[-1].event_id - 1",
        ),
        tests="broker/test_audit.py",
    ),
    bug(
        "resumed-without-an-event",
        "the resumption of a group has no audit event",
        "admin/http/routing.py",
        (
            "            lambda: self.broker.audit.carry_out(",
            "            change if kind is EventType.GROUP_RESUMED else "
            "lambda: self.broker.audit.carry_out(",
        ),
        tests="admin/test_audit_calls.py",
    ),
    bug(
        "refused-change-has-an-event",
        "a change that is refused has an audit event, too",
        "broker/security/audit.py",
        (
            "            result = change()\n",
            "            try:\n"
            "                result = change()\n"
            "            finally:\n"
            "                self._append(audit_event)\n"
            "            return result\n",
        ),
        tests="broker/test_audit.py",
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
        "answers-at-half-price",
        "each answer takes half of its bytes of a quota",
        "security/quotas.py",
        (
            "now_seconds) + size / self.quota.bytes_out",
            "now_seconds) + size / self.quota.bytes_out / 2",
        ),
        tests="security/test_quotas.py",
    ),
    bug(
        "reads-never-wait-for-answers",
        "a quota of bytes of answers holds no read back",
        "security/quotas.py",
        (
            "full_seconds = max(full_seconds, self._full_out)",
            "full_seconds = max(full_seconds, 0.0)",
        ),
        tests="security/test_quotas.py",
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
        "list-does-not-replace-public",
        "a topic with an access list is public by default, too",
        "security/directory.py",
        (
            "return any(one.public for one in lists) if lists else self.policy.default_public",
            "return any(one.public for one in lists) or self.policy.default_public",
        ),
        tests="security/test_directory.py",
    ),
    # -- connections ---------------------------------------------------------------------------
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
)
