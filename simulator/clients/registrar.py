# Tests: tests/simulator/test_registry.py
"""A random administrator of accounts, access lists, keys, schemas and quotas.

It makes one call at a time and is the only client that makes such calls, so a simple model can
follow it (`simulator.oracle.registry_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import ClassVar

from brokerd.security.access import Access
from brokerd.security.quotas import Quota
from simulator.clients import registry_calls
from simulator.clients.credentials import Credentials
from simulator.clients.direct import Asker
from simulator.clients.registry_calls import RegistryCall
from simulator.history.operations import Operation
from simulator.history.registry import ADMIN, READ, WRITE, ListRule, SchemaField, sorted_grants
from simulator.machine.world import World
from simulator.plan import Action, ClientPlan

READY_US = 100_000
"""Time between two attempts while no broker runs."""
OTHERS = "ann", "bob"
"""Accounts besides that of the listener."""
ROLES = "consumer", "producer", "monitor", "admin", "guest", "crew"
SCHEMAS = "s", "t0"
FIELDS = "a", "b", "c"
MODES = (
    "none",
    "backward",
    "forward",
    "full",
    "backward_transitive",
    "forward_transitive",
    "full_transitive",
)
QUOTAS = ("default", "*"), ("account", "ann"), ("listener", "mega"), ("address", "10.0.0.0/8")
"""Quotas that concern no client of a run: their limits are only stored."""
LISTENER_QUOTA = "listener", "mamamia"
KEYS_MAX = 30

Script = Generator[RegistryCall, Operation, None]


class Registrar:
    """Does ``plan.operations`` actions, or fewer if it is stopped.

    With a ``principal`` it first gives that account, the one of all Mamamia clients, its rights.
    """

    def __init__(
        self,
        plan: ClientPlan,
        world: World,
        direct: Asker,
        principal: str,
        credentials: Credentials | None = None,
    ) -> None:
        self.plan = plan
        self.finished = False
        self.on_finished: Callable[[], None] = lambda: None
        self._world = world
        self._direct = direct
        self._principal = principal
        self._credentials = credentials or Credentials()
        self._chance = Random(plan.seed)
        self._left = plan.operations
        self._script: Script | None = self._first()
        self._secrets: dict[str, str] = {}
        """Label -> text of a key."""
        self._key_ids: dict[str, str] = {}
        self._logins: dict[str, tuple[int, Access]] = {}
        """Label of the key -> boot, and access of the login."""
        self._keys = 0

    # -- for the run -----------------------------------------------------------------------------

    def start(self) -> None:
        self._world.call_after(self.plan.begin_us, self._go_on, None)

    def stop(self) -> None:
        """Make no more calls."""
        self.hang_up()

    def hang_up(self) -> None:
        if not self.finished:
            self.finished = True
            self.on_finished()

    def note_arrivals(self) -> None:
        """Do nothing: its calls arrive at once."""

    # -- step by step ------------------------------------------------------------------------------

    def _next(self) -> None:
        if self.finished:
            return
        if not self._left:
            self.hang_up()
            return
        self._left -= 1
        mix = self.plan.mix
        (action,) = self._chance.choices(list(mix), list(mix.values()))
        self._script = self._ACTIONS[action](self)
        self._go_on(None)

    def _go_on(self, operation: Operation | None) -> None:
        """Make the next call of the script; None begins it."""
        if self.finished or self._script is None:
            return
        try:
            call = next(self._script) if operation is None else self._script.send(operation)
        except StopIteration:
            self._script = None
            self._world.call_after(self._chance.randint(0, self.plan.think_us), self._next)
            return
        self._ask(call)

    def _ask(self, call: RegistryCall) -> None:
        if self.finished:
            return
        if self._direct.is_ready:
            self._direct.perform_later(call.operation, call.begin, call.tell, self._go_on)
        else:
            self._world.call_after(READY_US, self._ask, call)

    # -- accounts ----------------------------------------------------------------------------------

    def _first(self) -> Script:
        if self._principal:
            yield registry_calls.create_account(
                self.plan.name, self._principal, ("consumer", "producer")
            )
        for name in OTHERS if self.plan.has_passwords else ():
            yield registry_calls.create_account(
                self.plan.name,
                name,
                ("consumer", "producer"),
                password=self._credentials.new_password(name),
            )
            yield from self._make_key_of(name)

    def _roles(self) -> tuple[str, ...]:
        return tuple(sorted(self._chance.sample(ROLES, self._chance.randint(0, 2))))

    def _create_account(self) -> Script:
        name, roles, enabled = (
            self._chance.choice(OTHERS),
            self._roles(),
            self._chance.random() < 0.9,
        )
        password = self._credentials.new_password(name) if self.plan.has_passwords else ""
        yield registry_calls.create_account(self.plan.name, name, roles, enabled, password)

    def _update_account(self) -> Script:
        name = self._chance.choice((*OTHERS, *[self._principal or OTHERS[0]] * 2))
        roles, enabled = self._roles(), self._chance.random() < 0.7
        if name == self._principal and self._chance.random() < 0.6:
            roles, enabled = ("consumer", "producer"), True  # so that much of the run is permitted
        yield registry_calls.update_account(self.plan.name, name, roles, enabled)

    def _set_password(self) -> Script:
        name = self._chance.choice(OTHERS)
        yield registry_calls.set_password(
            self.plan.name, name, self._credentials.new_password(name)
        )

    def _delete_account(self) -> Script:
        yield registry_calls.delete_account(self.plan.name, self._chance.choice(OTHERS))

    def _pattern(self) -> tuple[str, bool]:
        """Draw the name of a topic or a prefix of names."""
        names = [topic.name for topic in self.plan.topics if topic.name]
        return self._chance.choice(
            [("", True), ("t", True), ("zz", False), *((n, False) for n in names)]
        )

    def _grants(self, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        chance = self._chance
        bits = (READ, WRITE, ADMIN, READ | WRITE, READ | WRITE | ADMIN)
        chosen = chance.sample(names, chance.randint(0, len(names)))
        return sorted_grants((name, chance.choice(bits)) for name in chosen)

    def _set_list(self) -> Script:
        topic, prefix = self._pattern()
        accounts = (*OTHERS, self._principal) if self._principal else OTHERS
        yield registry_calls.put_list(
            self.plan.name,
            ListRule(
                topic,
                prefix,
                self._chance.random() < 0.15,
                self._grants(accounts),
                self._grants(("crew", "guest")),
            ),
        )

    def _delete_list(self) -> Script:
        yield registry_calls.delete_list(self.plan.name, *self._pattern())

    # -- keys ------------------------------------------------------------------------------------

    def _make_key(self) -> Script:
        if self._keys < KEYS_MAX:
            yield from self._make_key_of(self._chance.choice(OTHERS))

    def _make_key_of(self, owner: str) -> Script:
        label = f"k{self._keys}"
        self._keys += 1
        yield registry_calls.make_key(self.plan.name, owner, label, self._key_ids, self._secrets)
        if label in self._secrets:
            self._credentials.add_key(owner, label, self._secrets[label])

    def _revoke_key(self) -> Script:
        if self._key_ids:
            label = self._chance.choice(list(self._key_ids))
            yield registry_calls.revoke_key(self.plan.name, label, self._key_ids[label])

    def _log_in(self) -> Script:
        if not (self._secrets and self._principal):  # without one, security is off
            return
        labels = list(self._secrets)
        label = self._chance.choice(labels if self._chance.random() < 0.3 else labels[-2:])
        found: list[Access] = []
        operation = yield registry_calls.log_in(
            self.plan.name, label, self._secrets[label], lambda: self._direct.guard, found
        )
        if operation.succeeded:
            self._logins[label] = (operation.boot, found[0])

    def _probe(self) -> Script:
        if not self._logins:
            return
        label = self._chance.choice(list(self._logins))
        boot, access = self._logins[label]
        if boot != self._direct.boot:
            del self._logins[label]
            return
        subjects = ("zz", "tt", *(topic.name for topic in self.plan.topics))
        yield registry_calls.probe(self.plan.name, label, access, subjects)

    # -- schemas ---------------------------------------------------------------------------------

    def _register(self) -> Script:
        chance = self._chance
        names = chance.sample(FIELDS, chance.randint(1, len(FIELDS)))
        schema = tuple(SchemaField(name, chance.random() < 0.6) for name in sorted(names))
        yield registry_calls.register_schema(
            self.plan.name, chance.choice(SCHEMAS), None if chance.random() < 0.05 else schema
        )

    def _schema_mode(self) -> Script:
        yield registry_calls.set_mode(
            self.plan.name, self._chance.choice(SCHEMAS), self._chance.choice(MODES)
        )

    def _delete_schema(self) -> Script:
        version = self._chance.choice((0, self._chance.randint(1, 6)))
        yield registry_calls.delete_schema(self.plan.name, self._chance.choice(SCHEMAS), version)

    def _validate(self) -> Script:
        yield registry_calls.validate(
            self.plan.name, self._chance.choice(SCHEMAS), self._chance.randint(1, len(FIELDS))
        )

    # -- quotas ------------------------------------------------------------------------------------

    def _quota(self) -> tuple[str, str]:
        """Draw a quota: that of the listener, or one that concerns no client."""
        if self.plan.quota_requests_max and self._chance.random() < 0.5:
            return LISTENER_QUOTA
        return self._chance.choice(QUOTAS)

    def _set_quota(self) -> Script:
        kind, name = self._quota()
        requests, bytes_in = 1_000_000, 0
        if (kind, name) == LISTENER_QUOTA:
            requests = self._chance.randint(1, self.plan.quota_requests_max)
            if self.plan.quota_bytes_max:
                bytes_in = self._chance.randint(1_000, self.plan.quota_bytes_max)
                requests *= self._chance.randrange(2)
        connections = 0
        if (kind, name) == LISTENER_QUOTA and self.plan.quota_connections_max:
            connections = self._chance.randint(1, self.plan.quota_connections_max)
        bytes_out = 0
        if (kind, name) == LISTENER_QUOTA and self.plan.quota_answers_max:
            bytes_out = self._chance.randint(100, self.plan.quota_answers_max)
            requests *= self._chance.randrange(2)
        quota = Quota(kind, name, requests, bytes_in, bytes_out, connections)
        yield registry_calls.put_quota(self.plan.name, quota)

    def _delete_quota(self) -> Script:
        yield registry_calls.delete_quota(self.plan.name, *self._quota())

    def _inspect(self) -> Script:
        yield registry_calls.inspect(self.plan.name)

    _ACTIONS: ClassVar[dict[Action, Callable[[Registrar], Script]]] = {
        "create_account": _create_account,
        "update_account": _update_account,
        "delete_account": _delete_account,
        "set_list": _set_list,
        "delete_list": _delete_list,
        "set_password": _set_password,
        "make_key": _make_key,
        "revoke_key": _revoke_key,
        "log_in": _log_in,
        "probe": _probe,
        "register_schema": _register,
        "schema_mode": _schema_mode,
        "delete_schema": _delete_schema,
        "validate": _validate,
        "set_quota": _set_quota,
        "delete_quota": _delete_quota,
        "inspect": _inspect,
    }
