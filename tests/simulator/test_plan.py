"""Plans: what a seed draws, and that a plan is data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from fnmatch import fnmatch
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from brokerd.broker.model.snapshotter import STEP_THINGS
from brokerd.server.sections import SECTIONS
from brokerd.wal import WalOptions
from simulator import draw
from simulator.draw import CRASHES_MAX, FEATURES, FORMATS, NEEDS, generate
from simulator.draw.formats import FORMATS_MAX
from simulator.history.operations import GroupRules
from simulator.plan import (
    AnyFault,
    ClientPlan,
    ClockStep,
    DiskError,
    Kill,
    Plan,
    PowerLoss,
    Settings,
    Stop,
    Topic,
)
from simulator.run import config_of, run

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.rst").read_text()
SEEDS = range(400)
PLANS = [generate(seed) for seed in SEEDS]


def a_client(**changes: object) -> ClientPlan:
    plan = ClientPlan(
        name="c0", identity="c0", role="consumer", seed=1, operations=1, topics=(Topic(name="t"),)
    )
    return msgspec.structs.replace(plan, **changes)


def crashes(plan: Plan) -> list[AnyFault]:
    return [
        fault for fault in plan.faults if isinstance(fault, Kill | PowerLoss | Stop | DiskError)
    ]


@pytest.mark.parametrize("plan", PLANS[:50], ids=lambda plan: str(plan.seed))
def test_a_plan_comes_back_from_its_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_a_seed_draws_the_same_plan_in_another_process() -> None:
    program = "from simulator.draw import generate; print(generate(7).to_json().decode())"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed},
            cwd=draw.__file__.rsplit("/simulator/", 1)[0],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert runs == [generate(7).to_json().decode() + "\n"] * 2


def test_different_seeds_draw_different_plans() -> None:
    assert len({plan.to_json() for plan in PLANS}) == len(PLANS)


def test_what_is_not_a_plan_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.faults\[0\]\.down_us|down_us"):
        Plan.from_json('{"seed": 1, "end_us": 1, "faults": [{"kind": "kill", "at_us": 1}]}')
    with pytest.raises(msgspec.ValidationError, match="unknown field `fault`"):
        Plan.from_json('{"seed": 1, "end_us": 1, "fault": []}')


def test_runs_stay_small() -> None:
    for plan in PLANS:
        assert 5_000_000 <= plan.end_us <= 120_000_000
        ours = [client for client in plan.clients if client.format == "mamamia"]
        others = [client for client in plan.clients if client.format != "mamamia"]
        assert sum(client.operations for client in ours) <= 2_100
        assert len(ours) <= 11
        assert sum(client.operations for client in others) <= 2_530
        assert len(others) <= 3 * FORMATS_MAX + 2
        assert len(crashes(plan)) <= CRASHES_MAX
        assert plan.longest_us <= 120_000_000


def test_each_format_is_drawn_now_and_then_and_some_runs_have_none() -> None:
    drawn = Counter(name for plan in PLANS for name in plan.formats)
    assert set(drawn) == {"mamamia", *FORMATS}
    assert all(drawn[name] < len(PLANS) / 2 for name in FORMATS)
    assert any(plan.formats == ("mamamia",) for plan in PLANS)


def test_other_formats_come_on_top_of_what_a_run_would_be_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulator.draw.formats.FORMATS", {})
    for plan in PLANS[:50]:
        alone = generate(plan.seed)
        assert alone.formats == ("mamamia",)
        others = [client for client in alone.clients if client.role != "registrar"]
        assert plan.clients[: len(others)] == tuple(others)
        assert (plan.topics, plan.disk, plan.network) == (alone.topics, alone.disk, alone.network)
        assert set(alone.faults) <= set(plan.faults)


def test_producers_that_are_not_told_places_run_only_where_nothing_is_lost() -> None:
    for plan in PLANS:
        assert plan.settings.durability == "fsync" or "blipmq" not in plan.formats


@pytest.mark.parametrize(
    "option",
    [
        "blipmq_ttl_seconds",
        "clock_grace_seconds",
        "clock_tolerance_seconds",
        "connections_max",
        "dead_letter_seconds",
        "first_byte_seconds",
        "flymq_delay_max_seconds",
        "idle_seconds",
        "login_seconds",
        "mark_quiet_ms",
        "retention_bytes",
        "retention_seconds",
        "rustlog_reference_groups",
        "stream_hold_seconds",
        "subscriptions_max",
        "transaction_seconds",
        "ttl_seconds",
        "unfinished_frame_seconds",
    ],
)
def test_each_option_is_drawn_now_and_then(option: str) -> None:
    usual = getattr(Settings(), option)
    drawn = sum(getattr(plan.settings, option) != usual for plan in PLANS)
    assert 3 < drawn < len(PLANS) / 2


def test_the_page_has_every_option_that_no_seed_draws() -> None:
    values: dict[str, set[object]] = defaultdict(set)
    for plan in PLANS:
        config = config_of(plan.settings)
        for section, kind in SECTIONS.items():
            for name in kind.__struct_fields__:
                values[f"{section}.{name}"].add(getattr(getattr(config, section), name))
    undrawn = {name for name, drawn in values.items() if len(drawn) == 1}
    table = PAGE.partition("No seed draws these options")[2].partition("Operators, vandals")[0]
    named = re.findall(r"``([a-z]+\.[a-z_*]+)``", table)
    of_page = {name for name in values if any(fnmatch(name, pattern) for pattern in named)}
    assert of_page == undrawn


def test_an_operator_sets_a_clock_with_steps_only_where_nothing_waits_for_a_delay() -> None:
    set_by = [plan for plan in PLANS if any("set_clock" in each.mix for each in plan.clients)]
    clocks = [plan for plan in set_by if any(isinstance(each, ClockStep) for each in plan.faults)]
    assert clocks
    assert len(clocks) < len(set_by)
    for plan in clocks:
        assert plan.settings.backoff_base_us == 0
        assert not any(each.delay_us_max or each.schedule_us_max for each in plan.clients)


def test_settings_are_ones_the_log_accepts() -> None:
    for plan in PLANS:
        WalOptions(segment_bytes=plan.settings.segment_bytes)


def test_faults_come_in_order_and_within_the_run() -> None:
    for plan in PLANS:
        times = [fault.at_us for fault in plan.faults]
        assert times == sorted(times)
        assert not times or (times[0] >= 0 and times[-1] < plan.end_us)


def test_faults_name_clients_of_the_plan() -> None:
    for plan in PLANS:
        names = {client.name for client in plan.clients}
        assert {getattr(fault, "client", "c0") for fault in plan.faults} <= names


def test_clients_have_names_and_seeds_of_their_own() -> None:
    for plan in PLANS:
        assert len({client.name for client in plan.clients}) == len(plan.clients)
        assert len({client.seed for client in plan.clients}) == len(plan.clients)


def test_topics_of_clients_are_topics_of_the_plan() -> None:
    for plan in PLANS:
        assert {topic for client in plan.clients for topic in client.topics} <= set(plan.topics)


def test_every_run_produces_and_consumes() -> None:
    for plan in PLANS:
        actions = {action for client in plan.clients for action in client.mix}
        assert {"produce", "acquire", "settle"} <= actions


def test_every_kind_of_fault_action_and_role_is_drawn_and_none_is_drawn_always() -> None:
    faults: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    for plan in PLANS:
        faults.update({type(fault).__name__ for fault in plan.faults})
        actions.update({action for client in plan.clients for action in client.mix})
        actions.update({client.role for client in plan.clients})
    assert set(faults) == {kind.__name__ for kind in AnyFault.__args__}
    assert all(count >= len(PLANS) * 0.03 for count in faults.values())
    assert all(count <= len(PLANS) * 0.8 for count in faults.values())
    assert {*NEEDS, "produce", "acquire", "settle", "look", "vandal", "watcher"} <= set(actions)
    assert all(actions[action] <= len(PLANS) * 0.9 for action in NEEDS)


def test_some_runs_have_no_crash_and_some_have_several() -> None:
    counts = Counter(len(crashes(plan)) for plan in PLANS)
    assert counts[0] >= len(PLANS) * 0.05
    assert sum(count for crashes, count in counts.items() if crashes >= 3) >= len(PLANS) * 0.2


def test_crashes_strike_inside_recoveries_too() -> None:
    """A fault that counts disk calls from the next boot is armed by another crash."""
    in_recovery = [
        (plan, fault)
        for plan in PLANS
        for fault in plan.faults
        if isinstance(fault, Kill | PowerLoss) and fault.from_boot
    ]
    assert len(in_recovery) >= 40
    for plan, fault in in_recovery:
        assert fault.at_call is not None
        others = [crash for crash in crashes(plan) if crash is not fault]
        assert any(crash.at_us == fault.at_us for crash in others)


def test_crashes_strike_inside_stops_too() -> None:
    """A few disk calls after the stop began."""
    in_stop = [
        crash
        for plan in PLANS
        for stop in plan.faults
        for crash in plan.faults
        if isinstance(stop, Stop)
        and isinstance(crash, Kill | PowerLoss)
        and (crash.at_us, crash.from_boot) == (stop.at_us, False)
    ]
    assert len(in_stop) >= 20
    assert all(crash.at_call is not None for crash in in_stop)


def test_crashes_strike_at_calls_that_are_rare() -> None:
    """Power goes while a file gets its name, its end or its place."""
    names = Counter(
        fault.at_name
        for plan in PLANS
        for fault in plan.faults
        if isinstance(fault, Kill | PowerLoss)
    )
    for name in ("create", "rename", "truncate", "unlink", "sync_directory"):
        assert names[name] >= 10
    stuck = [plan for plan in PLANS for fault in plan.faults if getattr(fault, "at_stuck", False)]
    assert len(stuck) >= 10
    assert all(plan.disk.stuck_permille for plan in stuck)


def test_some_runs_have_so_many_partitions_that_a_snapshot_takes_several_steps() -> None:
    """With frames between them."""
    large = [plan for plan in PLANS if sum(t.partitions for t in plan.topics) > STEP_THINGS / 2]
    assert len(PLANS) * 0.02 <= len(large) <= len(PLANS) * 0.15


def test_some_runs_have_stuck_syncs_and_some_empty_payloads() -> None:
    stuck = [plan.disk for plan in PLANS if plan.disk.stuck_permille]
    assert len(PLANS) * 0.1 <= len(stuck) <= len(PLANS) * 0.4
    assert all(disk.stuck_us_max > disk.sync_us_max for disk in stuck)
    empty = [plan for plan in PLANS if any(c.empty_permille for c in plan.clients)]
    assert len(PLANS) * 0.05 <= len(empty) <= len(PLANS) * 0.2


def test_clocks_go_both_ways_by_very_different_steps() -> None:
    steps = [f.by_us for plan in PLANS for f in plan.faults if isinstance(f, ClockStep)]
    assert min(steps) < -86_400_000_000 and max(steps) > 86_400_000_000
    assert min(map(abs, steps)) < 1_000_000


def test_most_runs_promise_durability_fully() -> None:
    modes = Counter(plan.settings.durability.partition(":")[0] for plan in PLANS)
    assert 0.75 <= modes["fsync"] / len(PLANS) <= 0.95
    assert modes["interval"] and modes["os"]


def test_each_feature_can_be_missing() -> None:
    """Swarm testing needs runs without a feature as much as runs with it."""
    assert all(0 < probability < 1 for probability in FEATURES.values())


def test_the_longest_wait_covers_leases_delays_and_back_off() -> None:
    plan = Plan(
        seed=0,
        end_us=1,
        clients=(a_client(duration_us_max=5), a_client(duration_us_max=3, delay_us_max=9)),
    )
    assert plan.longest_us == 9
    settings = Settings(backoff_base_us=1_000, backoff_max_us=3_000, max_attempts=4)
    assert msgspec.structs.replace(plan, settings=settings).longest_us == 3_009


def test_the_pairs_of_topic_and_group_are_named_once_and_in_order() -> None:
    clients = (
        a_client(topics=(Topic(name="b"), Topic(name="a")), groups=("h", "g")),
        a_client(topics=(Topic(name="a"),), groups=("g",)),
    )
    pairs = Plan(seed=0, end_us=1, clients=clients).pairs()
    assert pairs == [("a", "g"), ("a", "h"), ("b", "g"), ("b", "h")]


def test_the_oracle_is_told_the_rules_of_groups() -> None:
    settings = Settings(max_attempts=2, attempts="grants", backoff_base_us=5, backoff_max_us=6)
    assert settings.group_rules() == GroupRules(2, True, 5, 6)


def test_the_example_of_the_page_loses_power_and_breaks_nothing() -> None:
    """Who copies the plan of docs/simulator.rst gets what is said there."""
    example = re.search(r"loses power at a sync::\n\n(.*?)\n\n(?=\S)", PAGE, re.DOTALL)
    assert example is not None
    result = run(Plan.from_json(example[1]))
    assert any(line.endswith("fault: power loss, tear") for line in result.lines)
    assert result.violations == []


@pytest.mark.parametrize("kind", get_args(AnyFault), ids=lambda kind: kind.__name__)
def test_the_page_has_every_fault_and_field(kind: type[AnyFault]) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    table = PAGE.partition("must be given")[2].partition("Clients\n-------")[0]
    assert f"``{info.tag}``" in table
    assert [field.name for field in info.fields if f"``{field.name}``" not in table] == []


def test_operators_search_the_audit_trail_if_there_is_one() -> None:
    """Without security there is none."""
    searching = [
        plan for plan in PLANS if any("search_audit" in client.mix for client in plan.clients)
    ]
    assert searching and all(plan.settings.principal for plan in searching)
    with_trail = [
        plan
        for plan in PLANS
        if plan.settings.principal and any(client.role == "operator" for client in plan.clients)
    ]
    assert len(searching) < len(with_trail)
