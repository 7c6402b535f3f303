# Tests: tests/simulator/test_plan.py
"""Draw the administrator of accounts, schemas and quotas of a plan.

The draw has its own random numbers, so the other parts of the plan do not depend on it.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulator.clients.registrar import OTHERS
from simulator.draw.chance import Chance, DrawContext
from simulator.plan import Action, ClientPlan, Plan

REGISTRAR = 0.3
"""Probability of a registrar in a run that loses nothing."""
SECURITY = 0.7
"""Probability of security in a run with a registrar."""
QUOTA = 0.3
"""Probability of a quota for the listener."""
PUBLIC = 0.25
"""Probability that topics without a list are public, and that anonymous may use public ones."""
WIRE_LOGINS = 0.7
"""Probability of logins on the wire, with security on and where a format has logins."""
LOGIN_FORMATS = "flymq", "blipmq"
PRINCIPAL = "everyone"

ACCOUNTS: dict[Action, int] = {
    "create_account": 3,
    "update_account": 4,
    "delete_account": 1,
    "set_list": 5,
    "delete_list": 2,
    "make_key": 3,
    "revoke_key": 2,
}
LOGINS: dict[Action, int] = {"log_in": 4, "probe": 8}
SCHEMAS: dict[Action, int] = {
    "register_schema": 6,
    "schema_mode": 2,
    "delete_schema": 1,
    "validate": 3,
}
QUOTAS: dict[Action, int] = {"set_quota": 3, "delete_quota": 2}


def add_registrar(plan: Plan, context: DrawContext) -> Plan:
    """Return the plan, with a registrar if it is drawn. ``context`` has its own random numbers."""
    chance = context.chance
    if not chance.on(REGISTRAR) or "lazy durability" in context.features:
        return plan
    is_secure = chance.on(SECURITY)
    mix: dict[Action, int] = {"inspect": 2}
    parts = [part for part in (ACCOUNTS, SCHEMAS, QUOTAS) if chance.on(0.6)]
    for part in parts or [ACCOUNTS]:
        mix |= part
    if is_secure:
        mix |= ACCOUNTS | LOGINS
    has_quota = "set_quota" in mix and chance.on(QUOTA)
    operations = chance.scale(20, 200)
    registrar = ClientPlan(
        name="registrar",
        identity="registrar",
        role="registrar",
        seed=chance.getrandbits(32),
        operations=operations,
        think_us=2 * context.end_us // operations,
        topics=plan.topics,
        mix=mix,
        quota_requests_max=chance.scale(5, 300) if has_quota else 0,
    )
    if has_quota and chance.on(0.5):
        registrar = replace(registrar, quota_bytes_max=chance.scale(1_500, 30_000))
    limited = Chance(f"{plan.seed}/connection quota")
    if has_quota and limited.on(0.6):
        clients = sum(client.format == "mamamia" for client in plan.clients)
        registrar = replace(registrar, quota_connections_max=limited.randint(1, clients + 1))
    answers = Chance(f"{plan.seed}/quota of answers")
    if has_quota and answers.on(0.5):
        registrar = replace(registrar, quota_answers_max=answers.scale(200, 20_000))
    if is_secure:
        own = Chance(f"{plan.seed}/public")
        settings = replace(
            plan.settings,
            principal=PRINCIPAL,
            default_public=own.on(PUBLIC),
            allow_anonymous=own.on(PUBLIC),
        )
        plan = replace(plan, settings=settings)
    return replace(plan, clients=(*plan.clients, registrar))


def add_logins(plan: Plan, chance: Chance) -> Plan:
    """Return the plan, in which clients of FlyMQ and BlipMQ log in. ``chance`` is its own."""
    if not plan.settings.principal or not chance.on(WIRE_LOGINS):
        return plan
    clients: list[ClientPlan] = []
    for client in plan.clients:
        if client.role == "registrar":
            mix: dict[Action, int] = {**client.mix, "set_password": 3}
            clients.append(replace(client, has_passwords=True, mix=mix))
        elif client.format in LOGIN_FORMATS and client.role != "vandal" and chance.on(0.8):
            wrong_permille = chance.one((0, 100, 400))
            login = chance.one(OTHERS)
            clients.append(replace(client, login=login, wrong_permille=wrong_permille))
        else:
            clients.append(client)
    return replace(plan, clients=tuple(clients))
