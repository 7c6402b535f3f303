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
    DeleteTopic,
    Extend,
    History,
    Look,
    Operation,
    Produce,
    Release,
    Settle,
)
from simulator.history.registry import ADMIN, READ, WRITE
from simulator.history.subscriptions import Poll, Subscribe
from simulator.history.transactions import Begin, RollBack, Stage, Transact
from simulator.oracle.registry_model import RegistryState
from simulator.oracle.timeline.spans import Lives, Span
from simulator.oracle.violation import Violation, violation

ANY = READ | WRITE | ADMIN
LOGIN = 0
"""In place of a permission: the principal must be an enabled account."""
DENIALS = "unauthorized", "authentication required"
MEGA_DENIAL = "INVALID_REQUEST"
"""MEGA has no code for a missing permission."""
TELLS = "not found", "exist", "TOPIC_NOT_FOUND", "TOPIC_ALREADY_EXISTS"
"""Parts of refusals that tell whether a topic exists."""
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


class Permissions:
    """The permissions of the clients of a history over time.

    Without ``epochs`` the registry is unknown: any permission is possible.
    """

    def __init__(self, history: History, lives: Lives, epochs: list[Epoch]) -> None:
        self._history = history
        self._lives = lives
        self._epochs = epochs

    def may_lack(self, permission: int, topic: str, span: Span) -> bool:
        """Return whether the clients may lack all these permissions at a moment of ``span``."""
        if not self._history.principal:
            return False
        need = Need(permission, topic)
        return not self._epochs or not all(self._has(state, need) for state in self._states(span))

    def check(self) -> Iterator[Violation]:
        """Return the violations of permissions."""
        if not self._history.principal or not self._epochs:
            return
        for op in self._history.operations:
            if op.connection == NEVER or op.answered_us == NEVER:
                continue
            if isinstance(op, ListTopics) and op.succeeded:
                yield from self._check_list(op)
            needs = self._needs(op)
            if needs:
                yield from self._check_request(op, needs)

    def _check_request(self, op: Operation, needs: tuple[Need, ...]) -> Iterator[Violation]:
        is_denied = self._is_denied(op)
        if op.error and not is_denied and not any(text in op.error for text in TELLS):
            return
        allowed = {
            all(self._has(state, need) for need in needs)
            for state in self._states(self._lives.span(op))
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
        for topic, _ in op.topics:
            if not any(self._has(state, Need(ANY, topic)) for state in states):
                yield violation("access", f"{topic!r} is listed without any permission", op)

    def _needs(self, op: Operation) -> tuple[Need, ...]:
        """Return all permissions that a request needs; none if it is not judged."""
        wire_format = self._format(op)
        match op:
            case Begin() | RollBack():
                return (Need(LOGIN),)
            case Transact():
                topics = dict.fromkeys(topic for topic, _ in op.messages)
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

    def _has(self, state: RegistryState, need: Need) -> bool:
        name = self._history.principal
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
