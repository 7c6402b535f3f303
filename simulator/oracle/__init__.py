# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Check every promise that clients can see on the history of a run.

`check` is a pure function of the history. Where the history leaves open whether something happened,
every possibility is allowed. docs/simulator.rst, section "The oracle", lists the checks.

Packages: `timeline` bounds events in time and tells apart the lives of a topic. `records` judges
places, reads, offsets and removal. `groups` judges leases, dead letters and order. The modules here
judge the audit, starts of the broker, bounds of the archive and BlipMQ subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from simulator.history.operations import NEVER, History, Operation
from simulator.oracle.audit import Audit
from simulator.oracle.audit_trail import check_audit_trail
from simulator.oracle.boots import check_boots
from simulator.oracle.bounds import check_bounds
from simulator.oracle.explanations import check_explanations
from simulator.oracle.groups.answers import (
    check_answers,
    check_attempt_times,
    check_letters,
    check_lowest_first,
    check_tokens,
)
from simulator.oracle.groups.atomicity import check_cancels, check_letter_changes
from simulator.oracle.groups.group_partitions import GroupPartitionJudge, group_partitions_of
from simulator.oracle.groups.group_views import GroupViews
from simulator.oracle.groups.key_order import check_key_order, check_pauses
from simulator.oracle.holds import check_holds
from simulator.oracle.limits import check_limits
from simulator.oracle.records.offsets import Offsets
from simulator.oracle.records.reads import Reads
from simulator.oracle.records.records import (
    Records,
    check_content,
    check_keys,
    check_once,
    check_order,
    check_places,
)
from simulator.oracle.records.removal import Removal
from simulator.oracle.records.topics import check_topics
from simulator.oracle.registry import check_registry
from simulator.oracle.subscriptions import Subscriptions
from simulator.oracle.timeline.resends import merge_resends
from simulator.oracle.timeline.spans import Lives
from simulator.oracle.timeline.topic_lives import split_topics
from simulator.oracle.timeline.transactions import check_transaction_times, spread_transactions
from simulator.oracle.violation import Violation

__all__ = ["Judgement", "Violation", "check", "judge"]


HOLDS_OF_ROTTEN_FILES = frozenset(
    ("P1-content", "P1-ready", "P2-content", "P2-batch", "P3-answer", "P3-sums", "P7-silence")
)
"""Checks that hold even if rot destroyed files, because they do not rely on the broker's memory."""


class Judgement(NamedTuple):
    """The result of the oracle."""

    violations: list[Violation]
    undecided: int
    """Number of records with more possible orders than were tried; they are not judged."""


def check(history: History) -> list[Violation]:
    """Return the promises that ``history`` breaks, the earliest seen first."""
    return judge(history).violations


def judge(history: History) -> Judgement:
    """Return the violations and the number of undecided records."""
    history = replace(history, operations=[op for op in history.operations if _arrived(op)])
    lives = Lives(history)
    registry = check_registry(history, lives)
    late = list(check_transaction_times(history, lives))
    late += check_limits(history, lives)
    late += check_audit_trail(history, lives)
    whole = spread_transactions(history)
    whole_lives = Lives(whole)
    found = [*check_boots(whole, whole_lives), *check_answers(whole), *late]
    history = split_topics(whole, whole_lives)
    history, disagreements = merge_resends(history)
    found += disagreements
    lives = Lives(history)
    records = Records(history, lives)
    removal = Removal(history, lives, records)
    group_partitions = group_partitions_of(history)
    found += records.violations
    found += _check_records(records, lives)
    found += removal.check()
    found += check_topics(whole, whole_lives, registry.permissions)
    found += registry.violations
    offsets = Offsets(history, lives, records)
    found += offsets.check()
    found += Reads(history, lives, records, removal, offsets).check()
    found += Subscriptions(history, lives, records, removal, registry.permissions).check()
    found += check_cancels(history, lives, records)
    views = GroupViews(history, lives, records, removal)
    undecided = 0
    for group_partition in group_partitions.values():
        group_partition_judge = GroupPartitionJudge(
            history, lives, records, removal, group_partition
        )
        found += group_partition_judge.judge()
        undecided += group_partition_judge.undecided
        found += check_tokens(lives, group_partition)
        found += check_lowest_first(lives, records, group_partition)
        found += check_letters(records, group_partition)
        found += check_attempt_times(lives, group_partition)
        found += check_letter_changes(lives, records, removal, group_partition)
        found += check_pauses(lives, group_partition)
        found += check_key_order(history.rules, lives, records, removal, group_partition)
        found += views.check(group_partition)
    if not records.damaged:
        found += check_holds(whole, whole_lives)
    found += check_bounds(whole, lives, records, removal, group_partitions)
    found += check_explanations(history, lives, records, group_partitions)
    found += Audit(history, lives, records, removal, group_partitions).check()
    if history.rotted:
        found = [each for each in found if each.promise in HOLDS_OF_ROTTEN_FILES]
    return Judgement(sorted(set(found), key=_when_seen), undecided)


def _arrived(operation: Operation) -> bool:
    """Return whether the broker may have received the request."""
    return operation.arrived_us != NEVER or operation.answered_us != NEVER


def _check_records(records: Records, lives: Lives) -> Iterator[Violation]:
    yield from check_places(records, lives)
    yield from check_content(records)
    yield from check_once(records)
    yield from check_keys(records)
    yield from check_order(records, lives)


def _when_seen(violation: Violation) -> tuple[int, Violation]:
    return violation.at_us, violation
