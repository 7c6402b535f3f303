# Tests: tests/simulator/test_plan.py
"""Draw options of the broker that most runs leave at their defaults, and an operator's clock.

The draw has its own random numbers, so the other parts of the plan do not depend on it.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulator.draw.chance import KIB, SECOND, Chance, DrawContext
from simulator.plan import Action, ClientPlan, ClockStep, Plan, Settings

CLOCK_OPTIONS = 0.5
"""Probability of other clock options, where the wall clock is set."""
CLOCK_SET = 0.5
"""Probability of an operator who declares the wall clock right."""
MESSAGE_TTL = 0.25
REFERENCE_GROUPS = 0.4
TRANSACTION_SECONDS = 0.4
MARK_QUIET = 0.3
CONNECTION_LIMITS = 0.2
DEFAULT_RETENTION = 0.1
DEAD_LETTER_SECONDS = 0.3
SUBSCRIPTIONS = 0.25
DELAY_MAX = 0.8
STREAMS = 0.3
"""Probability of operators who report positions of named streams."""
STREAM_OPERATIONS = 30
"""Further operations of these operators."""
QUESTIONS = 0.3
"""Probability of operators who ask for the lives of records."""
QUESTION_OPERATIONS = 20
"""Further operations of these operators."""
SEARCHES = 0.6
"""Probability of operators who search the audit trail, with security on."""
SEARCH_OPERATIONS = 15
"""Further operations of these operators."""


def add_options(plan: Plan, context: DrawContext) -> Plan:
    """Return the plan with other options. ``context`` has its own random numbers."""
    chance = context.chance
    settings, formats = plan.settings, plan.formats
    if chance.on(MARK_QUIET):
        settings = replace(settings, mark_quiet_ms=chance.scale(1, 5_000))
    # Equal payloads do not tell which record has a time to live.
    has_equals = any(client.empty_permille for client in plan.clients)
    if "blipmq" in formats and chance.on(MESSAGE_TTL) and not has_equals:
        settings = replace(settings, blipmq_ttl_seconds=draw_message_ttl(context))
    if "flymq" in formats and chance.on(TRANSACTION_SECONDS):
        settings = replace(settings, transaction_seconds=chance.scale(1, 10))
    has_steps = any(isinstance(fault, ClockStep) for fault in plan.faults)
    if has_steps and chance.on(CLOCK_OPTIONS):
        settings = draw_clock(chance, settings)
    plan = replace(plan, settings=settings)
    is_lasting = "topic deletions" not in context.features
    if "rustlog" in formats and is_lasting and chance.on(REFERENCE_GROUPS):
        plan = with_reference_groups(plan)
    own = Chance(f"{plan.seed}/clock set")
    if own.on(CLOCK_SET) and not (has_steps and waits(plan)):
        plan = replace(plan, clients=tuple(map(with_clock, plan.clients)))
    return plan


def add_times(plan: Plan, chance: Chance) -> Plan:
    """Return the plan with other limits of connections. ``chance`` is its own."""
    if not chance.on(CONNECTION_LIMITS):
        return plan
    settings = plan.settings
    if chance.on(0.4):
        settings = replace(settings, connections_max=chance.randint(2, 1 + len(plan.clients)))
    if chance.on(0.5):
        settings = replace(settings, first_byte_seconds=chance.scale(1, 20))
    if chance.on(0.5):
        settings = replace(settings, idle_seconds=chance.scale(1, 20))
    if chance.on(0.5):
        settings = replace(settings, unfinished_frame_seconds=chance.scale(1, 20))
    if chance.on(0.5):
        settings = replace(settings, login_seconds=chance.scale(1, 20))
    return replace(plan, settings=settings)


def add_streams(plan: Plan) -> Plan:
    """Return the plan; its operators may report positions of named streams."""
    own = Chance(f"{plan.seed}/streams")
    if not own.on(STREAMS) or not any(client.role == "operator" for client in plan.clients):
        return plan
    settings = plan.settings
    if own.on(0.3):
        settings = replace(settings, stream_hold_seconds=own.scale(1, 60))
    if not any(client.empty_permille for client in plan.clients) and settings.durability == "fsync":
        settings = replace(
            settings, retention_bytes=own.scale(KIB, 64 * KIB), retention_check_seconds=1
        )
    return replace(plan, settings=settings, clients=tuple(map(with_streams, plan.clients)))


def add_questions(plan: Plan) -> Plan:
    """Return the plan; its operators may ask for the lives of records.

    They always do so where the archive has real files, and with them the events of records.
    """
    if not (plan.settings.archive_files or Chance(f"{plan.seed}/questions").on(QUESTIONS)):
        return plan
    return replace(plan, clients=tuple(map(with_questions, plan.clients)))


def add_searches(plan: Plan) -> Plan:
    """Return the plan; its operators may search the audit trail, if there is one."""
    if not plan.settings.principal or not Chance(f"{plan.seed}/searches").on(SEARCHES):
        return plan
    return replace(plan, clients=tuple(map(with_searches, plan.clients)))


def with_searches(client: ClientPlan) -> ClientPlan:
    """Return the client; an operator also searches the audit trail."""
    weight = 1 + sum(client.mix.values()) // 3
    return _with_actions(client, {"search_audit": weight}, SEARCH_OPERATIONS)


def with_questions(client: ClientPlan) -> ClientPlan:
    """Return the client; an operator also asks for the lives of records."""
    weight = 1 + sum(client.mix.values()) // 2
    return _with_actions(client, {"explain": weight}, QUESTION_OPERATIONS)


def with_streams(client: ClientPlan) -> ClientPlan:
    """Return the client; an operator also reports positions of streams."""
    weight = 1 + sum(client.mix.values()) // 2
    return _with_actions(client, {"report_stream": weight, "drop_stream": 1}, STREAM_OPERATIONS)


def _with_actions(client: ClientPlan, added: dict[Action, int], count: int) -> ClientPlan:
    """Return the client; an operator has more actions, and more operations in the same time."""
    if client.role != "operator":
        return client
    mix: dict[Action, int] = {**client.mix, **added}
    operations = client.operations + count
    think_us = client.think_us * client.operations // operations
    return replace(client, mix=mix, operations=operations, think_us=think_us)


def draw_message_ttl(context: DrawContext) -> int:
    """Draw the time to live of BlipMQ's messages, in seconds.

    Half of them end after the run, so that a message that expires too early is missing at its end.
    """
    seconds = context.end_us // SECOND
    if context.chance.on(0.5):
        return context.chance.randint(seconds, 2 * seconds)
    return context.chance.scale(1, 60)


def add_defaults(plan: Plan, context: DrawContext) -> Plan:
    """Return the plan with other defaults of retention, and limits that clients reach."""
    chance, settings = context.chance, plan.settings
    is_kept = settings.durability != "fsync" or any(
        client.empty_permille for client in plan.clients
    )
    if not is_kept and chance.on(DEFAULT_RETENTION):
        settings = replace(
            settings,
            retention_seconds=chance.scale(1, 60) if chance.on(0.5) else 0,
            retention_bytes=chance.scale(KIB, 256 * KIB) if chance.on(0.5) else 0,
            ttl_seconds=chance.scale(1, 60) if chance.on(0.5) else 0,
            retention_check_seconds=chance.randint(1, 5),
        )
    has_steps = any(isinstance(fault, ClockStep) for fault in plan.faults)
    if not has_steps and chance.on(DEAD_LETTER_SECONDS):
        settings = replace(settings, dead_letter_seconds=chance.scale(1, 60) - 1)
    if "blipmq" in plan.formats and chance.on(SUBSCRIPTIONS):
        settings = replace(settings, subscriptions_max=chance.randint(1, 4))
    delays_us = [c.schedule_us_max for c in plan.clients if c.format == "flymq"]
    longest_us = max(delays_us, default=0)
    if longest_us > 2 * SECOND and chance.on(DELAY_MAX):
        limit_seconds = chance.scale(1, longest_us // SECOND)
        settings = replace(settings, flymq_delay_max_seconds=limit_seconds)
    return replace(plan, settings=settings)


def draw_clock(chance: Chance, settings: Settings) -> Settings:
    """Draw a tolerance and a grace. A clock that is trusted so soon removes no dead letters."""
    return replace(
        settings,
        clock_tolerance_seconds=chance.scale(3, 60),
        clock_grace_seconds=chance.scale(5, 300),
        dead_letter_seconds=0,
    )


def with_reference_groups(plan: Plan) -> Plan:
    """Return the plan with the reference's group rules in RustLog's binary dialect."""
    return replace(
        plan,
        settings=replace(plan.settings, rustlog_reference_groups=True),
        clients=tuple(
            replace(client, has_reference_groups=client.format == "rustlog")
            for client in plan.clients
        ),
    )


def waits(plan: Plan) -> bool:
    """Return whether anything may wait in broker time.

    After a crash such a delay may last longer, by as much as the clock was set back.
    """
    return plan.settings.backoff_base_us > 0 or any(
        client.delay_us_max
        or client.schedule_us_max
        or client.aged_permille
        or "configure" in client.mix
        for client in plan.clients
    )


def with_clock(client: ClientPlan) -> ClientPlan:
    """Return the client; an operator also sets broker time to the wall clock."""
    if client.role != "operator":
        return client
    return replace(client, mix={**client.mix, "set_clock": 1 + sum(client.mix.values()) // 6})
