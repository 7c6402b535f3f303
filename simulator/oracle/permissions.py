# Tests: tests/simulator/test_permissions.py
"""Check that requests are carried out with their permission, and refused without it.

The pages of the formats say which request needs which permission (docs/protocols). A refusal for
rights is true, and an answer without the permission does not tell whether a topic exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    ResetOffset,
)
from simulator.history.operations import (
    NEVER,
    Acquire,
    Cancel,
    Connected,
    DeleteTopic,
    Extend,
    History,
    Look,
    Operation,
    Produce,
    Release,
    Settle,
)
from simulator.history.registry import ADMIN, READ, WRITE, WireLogIn
from simulator.history.subscriptions import Poll, Subscribe
from simulator.history.transactions import Begin, RollBack, Stage, Transact
from simulator.oracle.registry_model import RegistryState
from simulator.oracle.timeline.spans import EVER_US, Lives, Span
from simulator.oracle.timeline.transactions import refused_messages, staged_messages
from simulator.oracle.violation import Violation, violation

ANY = READ | WRITE | ADMIN
LOGIN = 0
"""In place of a permission: the principal must be an enabled account."""
DENIALS = "unauthorized", "authentication required", "unauthenticated"
LOGIN_REFUSALS = "invalid username or password", "user account is disabled", "invalid API key"
"""Refusals that say that a login was wrong. Others ask for patience."""
MEGA_DENIAL = "INVALID_REQUEST"
"""MEGA has no code for a missing permission."""
TELLS = "not found", "exist", "TOPIC_NOT_FOUND", "TOPIC_ALREADY_EXISTS"
"""Parts of refusals that tell whether a topic exists."""
NO_TRANSACTION = "transaction not found"
"""The refusal of a transaction that ended with its connection. It tells nothing of topics."""
NEEDS: dict[type[Operation], int] = {
    Produce: WRITE,
    Cancel: WRITE,
    Stage: WRITE,
    Acquire: READ,
    Settle: READ,
    Extend: READ,
    Release: READ,
    Look: READ,
    Read: READ,
    Commit: READ,
    Committed: READ,
    Position: READ,
    Subscribe: READ,
    ResetOffset: ADMIN,
    CreateTopic: ADMIN,
    DeleteTopic: ADMIN,
}
"""The permission of each request on its topic, with security on."""


class Epoch(NamedTuple):
    """A time in which the registry had one of some states."""

    first_us: int
    last_us: int
    states: tuple[RegistryState, ...]


class Need(NamedTuple):
    """One of these permissions on a topic."""

    permission: int
    topic: str = ""


class Binding(NamedTuple):
    """The principal of a connection: an account by name, and what it logged in with."""

    name: str
    made_by: int = NEVER
    """The request that created the account; NEVER: any account of the name."""
    password: str = ""
    key: str = ""

    def is_live(self, state: RegistryState) -> bool:
        """Return whether a login still counts: same account, same password, key not revoked."""
        if self.made_by == NEVER:
            return True
        account = state.accounts.get(self.name)
        return (
            account is not None
            and account.made_by == self.made_by
            and self.password in ("", account.password)
            and (not self.key or self.key in state.keys)
        )


class Permissions:
    """The permissions of the clients of a history over time.

    Without ``epochs`` the registry is unknown: any permission is possible.
    """

    def __init__(self, history: History, lives: Lives, epochs: list[Epoch]) -> None:
        self._history = history
        self._lives = lives
        self._epochs = epochs
        self._refused_messages = refused_messages(history)
        self._logins: dict[int, WireLogIn] = {
            op.connection: op for op in history.operations if isinstance(op, WireLogIn)
        }
        """Connection -> its login. A connection logs in first, and once."""

    def may_lack(self, permission: int, topic: str, span: Span) -> bool:
        """Return whether the clients may lack all these permissions at a moment of ``span``.

        Where clients log in, they may.
        """
        if not self._history.principal:
            return False
        if self._logins:
            return True
        need, listener = Need(permission, topic), Binding(self._history.principal)
        return not self._epochs or not all(
            self._has(state, need, listener) for state in self._states(span)
        )

    def may_be_stranger(self, one: Connected, span: Span) -> bool:
        """Return whether a connection may lack a login and any permission."""
        if self._history.access.allow_anonymous:
            return False
        if self._may_log_in(one) or not self._epochs:
            return True
        name = self._history.principal
        return not all(state.is_enabled(name) for state in self._states(span))

    def strange_spans(self, one: Connected) -> Iterator[Span]:
        """Yield the spans in which a connection certainly lacks a login and any permission."""
        name = self._history.principal
        is_unknown = not name or self._history.access.allow_anonymous or self._may_log_in(one)
        if is_unknown or not self._epochs:
            return
        first_us = -1
        for epoch in sorted(self._epochs, key=lambda epoch: epoch.first_us):
            if any(state.is_enabled(name) for state in epoch.states):
                yield Span(first_us, epoch.first_us)
                first_us = max(first_us, epoch.last_us)
        yield Span(first_us, EVER_US)

    def _may_log_in(self, one: Connected) -> bool:
        """Return whether a connection may have a principal of its own."""
        return one.number in self._logins or self._history.formats.get(one.client) == "blipmq"

    def check(self) -> Iterator[Violation]:
        """Return the violations of permissions."""
        if not self._history.principal or not self._epochs:
            return
        for op in self._history.operations:
            if op.connection == NEVER or op.answered_us == NEVER:
                continue
            if isinstance(op, WireLogIn):
                yield from self._check_login(op)
            if isinstance(op, ListTopics) and op.succeeded:
                yield from self._check_list(op)
            needs = self._needs(op)
            if needs:
                yield from self._check_request(op, needs)

    def _check_request(self, op: Operation, needs: tuple[Need, ...]) -> Iterator[Violation]:
        is_denied = self._is_denied(op)
        bindings = self._bindings(op)
        if op.error and not is_denied and not any(text in op.error for text in TELLS):
            return
        allowed = {
            all(self._has(state, need, binding) for need in needs)
            for state in self._states(self._lives.span(op))
            for binding in bindings
        }
        names = ", ".join(repr(need.topic) for need in needs)
        if is_denied and allowed == {True}:
            yield violation("access", f"{names}: refused with the permission all the time", op)
        if is_denied or allowed != {False}:
            return
        if op.error:
            yield violation("access", f"{names}: refused with {op.error}, without permission", op)
        elif getattr(op, "is_promised", True):  # the refusal of another one may be missing
            yield violation("access", f"{names}: no state gives the client the permission", op)

    def _check_list(self, op: ListTopics) -> Iterator[Violation]:
        """Check that a list shows only topics on which the client has some permission."""
        states = self._states(self._lives.span(op))
        bindings = self._bindings(op)
        for topic, _ in op.topics:
            need = Need(ANY, topic)
            if not any(self._has(state, need, one) for state in states for one in bindings):
                yield violation("access", f"{topic!r} is listed without any permission", op)

    def _needs(self, op: Operation) -> tuple[Need, ...]:
        """Return all permissions that a request needs; none if it is not judged."""
        wire_format = self._format(op)
        match op:
            case Begin() | RollBack():
                return (Need(LOGIN),)
            case Transact() if op.error.startswith(NO_TRANSACTION):
                return (Need(LOGIN),)
            case Transact():
                staged = staged_messages(op, self._refused_messages)
                topics = dict.fromkeys(topic for topic, _ in staged)
                return (Need(LOGIN), *(Need(WRITE, topic) for topic in topics))
            case ListTopics():
                return (Need(LOGIN),) if wire_format == "flymq" else ()
            case Position() if wire_format == "rustlog":
                return (Need(ANY, op.topic),)
            case Poll() if wire_format == "blipmq":  # without the permission it gets nothing
                return () if op.handed is None else (Need(READ, op.topic),)
        permission = NEEDS.get(type(op))
        return () if permission is None else (Need(permission, getattr(op, "topic", "")),)

    def _is_denied(self, op: Operation) -> bool:
        if self._format(op) == "mega":
            return op.error == MEGA_DENIAL
        return op.error.startswith(DENIALS)

    def _format(self, op: Operation) -> str:
        return self._history.formats.get(op.client, "mamamia")

    def _check_login(self, op: WireLogIn) -> Iterator[Violation]:
        """Check that a login succeeds by a right password or key, and by no other."""
        if op.error and not op.error.startswith(LOGIN_REFUSALS):
            return
        possible = {
            self._binding(state, op) is not None for state in self._states(self._lives.span(op))
        }
        if op.error and possible == {True}:
            yield violation("access", f"{op.name}: refused with a right password or key", op)
        if not op.error and possible == {False}:
            yield violation("access", f"{op.name}: no password or key was right", op)

    def _bindings(self, op: Operation) -> set[Binding]:
        """Return the principals that the connection of a request may have."""
        login = self._logins.get(op.connection)
        listener = Binding(self._history.principal)
        if login is None or login is op:
            return {listener}
        if login.error:
            return {Binding("") if self._format(op) == "blipmq" else listener}
        states = self._states(self._lives.span(login))
        found = {self._binding(state, login) for state in states}
        return {binding for binding in found if binding is not None} or {listener}

    def _binding(self, state: RegistryState, login: WireLogIn) -> Binding | None:
        """Return the principal of a login in a state; None if it is wrong there."""
        if login.is_configured:
            return Binding(login.name)
        account = state.accounts.get(login.name)
        if account is None or not account.enabled:
            return None
        if login.password:
            is_right = account.password == login.password
        else:
            is_right = state.keys.get(login.key) == login.name
        if not is_right:
            return None
        return Binding(login.name, account.made_by, login.password, login.key)

    def _has(self, state: RegistryState, need: Need, binding: Binding) -> bool:
        name = binding.name
        if not (name and binding.is_live(state)):
            return False
        if need.permission == LOGIN:
            return state.is_enabled(name)
        return bool(state.permissions(name, need.topic) & need.permission)

    def _states(self, span: Span) -> list[RegistryState]:
        """Return the states that the registry may have had during a span."""
        return [
            state
            for epoch in self._epochs
            if epoch.first_us <= span.last_us and span.first_us <= epoch.last_us
            for state in epoch.states
        ]
