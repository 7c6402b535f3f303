"""The check finds each kind of broken promise, and nothing where all promises are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.crowd import KEYED, SHARED, key_of
from benchmarks.ledger import Ledger, Seen
from benchmarks.oracle import Origin
from benchmarks.powerloss.check import Check
from benchmarks.powerloss.facts import (
    DELAYED,
    LEFT,
    RIGHT,
    SHORT,
    TOPICS,
    TRIMMED,
    Asked,
    Facts,
    Transaction,
    Trim,
)

POINT = 100
COUNT = 10
BRIEF = "brief-0"
BYTES = Ledger(7)
Topics = dict[str, list[Seen]]


def origin_at(topic: str, offset: int) -> Origin:
    return Origin([*TOPICS, BRIEF].index(topic), offset + 1)


def record_at(topic: str, offset: int) -> Seen:
    return Seen(offset, BYTES.value(origin_at(topic, offset)))


@pytest.fixture
def facts() -> Facts:
    """Ten records of each topic, all told before the power loss, and five that were sent later.

    Offset 0 of `SHARED` is settled, a settle of 1 was not answered. Transactions hold two records
    of each topic. `TRIMMED` is trimmed at 2, and perhaps at 4.
    """
    facts = Facts(7)
    for topic in (*TOPICS, BRIEF):
        told = facts.told.setdefault(topic, {})
        for offset in range(COUNT + 5):
            late = POINT * (offset >= COUNT)
            facts.sent[origin_at(topic, offset)] = late + offset
            told[origin_at(topic, offset)] = (offset, late + offset + 1)
    facts.settles = {0: Asked(10, 20), 1: Asked(30), 2: Asked(POINT, POINT + 1)}
    facts.trims = [Trim(30, 40, offset=2), Trim(90, POINT + 1, offset=4)]
    for first in range(0, COUNT, 2):
        origins = {t: [origin_at(t, first), origin_at(t, first + 1)] for t in (LEFT, RIGHT)}
        facts.transactions.append(Transaction(first, first + 2, origins=origins))
    return facts


@pytest.fixture
def topics() -> Topics:
    """What a broker has that kept every promise."""
    found = {topic: [record_at(topic, at) for at in range(COUNT)] for topic in (*TOPICS, BRIEF)}
    del found[TRIMMED][:2], found[SHORT][:5]
    return found


def test_kept_promises_are_no_finding(facts: Facts, topics: Topics) -> None:
    check = Check(facts, POINT)
    check.judge_records(topics)
    check.judge_leases([1, *range(2, COUNT)], topics[SHARED])
    check.judge_archive([(SHARED, 0, *seen) for seen in topics[SHARED]])
    check.judge_new(SHARED, COUNT, topics[SHARED])
    assert check.findings == []


def test_what_was_not_told_may_be_there_or_not(facts: Facts, topics: Topics) -> None:
    """The later trim was done, the last delayed record was sent and not answered."""
    del topics[TRIMMED][:2]
    del topics[DELAYED][-1]
    facts.told[DELAYED][origin_at(DELAYED, COUNT - 1)] = (COUNT - 1, POINT + 1)
    check = Check(facts, POINT)
    check.judge_records(topics)
    check.judge_leases(range(2, COUNT), topics[SHARED])
    assert check.findings == []


def gone(topic: str) -> Callable[[Facts, Topics], None]:
    def spoil(facts: Facts, topics: Topics) -> None:
        del topics[topic][-3]

    return spoil


def all_gone(topic: str) -> Callable[[Facts, Topics], None]:
    def spoil(facts: Facts, topics: Topics) -> None:
        del topics[topic]

    return spoil


def twice(facts: Facts, topics: Topics) -> None:
    topics[SHARED].append(Seen(COUNT, topics[SHARED][-1].value))


def damaged(facts: Facts, topics: Topics) -> None:
    topics[SHORT][1] = Seen(topics[SHORT][1].offset, b"damaged")


def from_the_future(facts: Facts, topics: Topics) -> None:
    topics[SHARED].append(record_at(SHARED, COUNT))


def trimmed_returns(facts: Facts, topics: Topics) -> None:
    topics[TRIMMED].insert(0, record_at(TRIMMED, 1))


def rolled_back_is_there(facts: Facts, topics: Topics) -> None:
    facts.transactions[0].is_commit = False


def half_a_transaction(facts: Facts, topics: Topics) -> None:
    """It was not answered, so all of it may be gone."""
    for topic in (LEFT, RIGHT):
        for at in range(COUNT):
            facts.told[topic][origin_at(topic, at)] = (at, POINT + 1)
    topics[LEFT].pop()


def deleted_returns(facts: Facts, topics: Topics) -> None:
    facts.deletions[BRIEF] = Asked(50, 60)


SPOILS = [
    *(
        pytest.param(gone(topic), id=f"gone of {topic}")
        for topic in (SHARED, TRIMMED, SHORT, BRIEF)
    ),
    *(pytest.param(all_gone(topic), id=f"all of {topic}") for topic in (*TOPICS, BRIEF)),
    *(twice, damaged, from_the_future, trimmed_returns, rolled_back_is_there, half_a_transaction),
    deleted_returns,
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_broken_promise_is_found(
    facts: Facts, topics: Topics, spoil: Callable[[Facts, Topics], None]
) -> None:
    spoil(facts, topics)
    check = Check(facts, POINT)
    check.judge_records(topics)
    assert check.findings


def test_only_the_latest_of_a_key_has_to_be_there(facts: Facts, topics: Topics) -> None:
    latest = {key_of(origin_at(KEYED, at)): at for at in range(COUNT)}
    topics[KEYED] = [record_at(KEYED, at) for at in sorted(latest.values())]
    check = Check(facts, POINT)
    check.judge_records(topics)
    assert check.findings == []


@pytest.mark.parametrize(
    ("leased", "finding"),
    [
        (range(COUNT), "1 settled records are leased again: [0]"),
        (range(2, COUNT - 1), "1 records are not leased: [9]"),
        ([5, *range(2, COUNT)], "shared offset 5 is leased 2 times"),
    ],
)
def test_leases_are_judged(facts: Facts, topics: Topics, leased: list[int], finding: str) -> None:
    check = Check(facts, POINT)
    check.judge_leases(leased, topics[SHARED])
    assert check.findings == [finding]


def test_the_archive_and_new_offsets_are_judged(facts: Facts, topics: Topics) -> None:
    check = Check(facts, POINT)
    check.judge_archive([(SHARED, 0, *record_at(SHARED, 3))] * 2)
    check.judge_archive([(SHARED, 0, 4, b"damaged")])
    check.judge_new(SHARED, COUNT - 1, topics[SHARED])
    assert [finding.split(":")[0] for finding in check.findings] == [
        "1 records are in the archive twice",
        "archived shared offset 4 was never sent",
        "the table",
        "shared",
    ]


def test_a_rollup_afterwards_has_to_take_everything(facts: Facts, topics: Topics) -> None:
    """The new record that the check itself produced may be there."""
    check = Check(facts, POINT)
    rows = [(SHARED, 0, *seen) for seen in topics[SHARED]]
    check.judge_whole_archive([*rows, (SHARED, 0, COUNT, b"after the power loss")])
    assert check.findings == []
    check.judge_whole_archive(rows[1:])
    (finding,) = check.findings
    assert "1 acknowledged records are gone" in finding


def test_facts_survive_a_file(facts: Facts, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("facts") / "facts"
    facts.save(path)
    assert Facts.load(path) == facts
