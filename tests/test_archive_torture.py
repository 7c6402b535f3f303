"""The torture of the archive finds what is wrong, and a short run of it finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.archive_kills import KILLS, Kill, Summary, some_kills
from benchmarks.archive_torture import SETTINGS, Torture, main
from benchmarks.ledger import Ledger, Seen
from benchmarks.oracle import Origin
from benchmarks.process import BrokerProcess

pytest.importorskip("pyspark")

TOPIC = "t"
PRODUCERS = 3


@pytest.fixture
def ledger() -> Ledger:
    """Books of 60 records of three producers, by turns."""
    ledger = Ledger(7)
    for offset in range(60):
        ledger.acknowledge(TOPIC, [origin_at(offset)], [offset])
    return ledger


def origin_at(offset: int) -> Origin:
    return Origin(offset % PRODUCERS, offset // PRODUCERS + 1)


def read(ledger: Ledger) -> list[Seen]:
    """What a reader of it all sees."""
    return [Seen(offset, ledger.value(origin_at(offset))) for offset in range(60)]


def test_what_is_as_it_was_acknowledged_is_no_finding(ledger: Ledger) -> None:
    """Nor is a record of unknown fate, nor an offset that is not told."""
    seen = read(ledger)
    ledger.audit(TOPIC, "reader", seen)
    ledger.audit(TOPIC, "reader", [Seen(None, value) for _, value in seen])
    unknown = Seen(60, ledger.value(Origin(0, 99)))
    ledger.audit(TOPIC, "reader", [*seen, unknown])
    ledger.audit_order(TOPIC, "reader", seen)
    assert ledger.findings == []


def lost(seen: list[Seen]) -> None:
    del seen[30]


def twice(seen: list[Seen]) -> None:
    seen.insert(31, seen[30])


def twice_at_another_offset(seen: list[Seen]) -> None:
    seen.append(Seen(60, seen[59].value))


def swapped(seen: list[Seen]) -> None:
    seen[30], seen[33] = seen[33], seen[30]


def values_swapped(seen: list[Seen]) -> None:
    seen[30], seen[31] = Seen(30, seen[31].value), Seen(31, seen[30].value)


def a_bit_flipped(seen: list[Seen]) -> None:
    value = seen[30].value
    seen[30] = Seen(30, value[:-1] + bytes([value[-1] ^ 1]))


def moved(seen: list[Seen]) -> None:
    seen[59] = Seen(60, seen[59].value)


@pytest.mark.parametrize(
    "spoil", [lost, twice, twice_at_another_offset, swapped, values_swapped, a_bit_flipped, moved]
)
def test_a_broken_promise_is_found(ledger: Ledger, spoil: Callable[[list[Seen]], None]) -> None:
    """Whatever is not there once, in order, with its bytes, at its offset."""
    seen = read(ledger)
    spoil(seen)
    ledger.audit(TOPIC, "reader", seen)
    assert ledger.findings
    assert all(finding.startswith("reader: t") for finding in ledger.findings)


def key_of(origin: Origin) -> bytes:
    return b"%d" % origin.producer


def test_what_compaction_may_remove_is_counted(ledger: Ledger) -> None:
    """Of three keys the latest records are left, or some more."""
    assert ledger.audit_latest(TOPIC, "reader", read(ledger)[57:], key_of) == 57
    assert ledger.audit_latest(TOPIC, "reader", read(ledger)[40:], key_of) == 40
    assert ledger.findings == []


def test_the_latest_of_a_key_has_to_be_there(ledger: Ledger) -> None:
    """Though older ones are."""
    seen = read(ledger)
    del seen[58]
    ledger.audit_latest(TOPIC, "reader", seen, key_of)
    assert len(ledger.findings) == 1
    assert "at 58, latest of its key, is gone" in ledger.findings[0]


@pytest.mark.parametrize("spoil", [twice, swapped, values_swapped, a_bit_flipped])
def test_what_is_left_has_to_be_in_order(
    ledger: Ledger, spoil: Callable[[list[Seen]], None]
) -> None:
    """Each once, with its own bytes."""
    seen = read(ledger)
    spoil(seen)
    ledger.audit_order(TOPIC, "reader", seen)
    assert ledger.findings


def test_everybody_is_killed_everywhere() -> None:
    """Before anything comes again; the seed tells the order."""
    assert sorted(some_kills(len(KILLS), 3)) == sorted(KILLS)
    assert some_kills(100, 3) == some_kills(100, 3) != some_kills(100, 4)


def test_runs_with_several_logs_are_told_as_one() -> None:
    """What each came to is added up."""
    one = Summary(rounds=2, seconds=3.0, acknowledged=7, digest="aa")
    one.kills["driver"] = 2
    two = Summary(rounds=1, seconds=1.0, missed=[KILLS[0]], digest="bb", findings=["gone"])
    two.kills.update(driver=1, broker=1)
    one.add(two)
    assert (one.rounds, one.seconds, one.acknowledged, one.digest) == (3, 4.0, 7, "bb")
    assert (one.kills, one.missed) == ({"driver": 3, "broker": 1}, [KILLS[0]])
    assert one.text().endswith("BROKEN: gone\nbroken promises")


def test_a_kill_that_is_not_met_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all others; what is not met then either is told."""
    tried: list[Kill] = []
    never, later, soon = KILLS[:3]

    def tries(torture: Torture, stage: object, number: int, kill: Kill) -> bool:
        assert number == len(tried)
        tried.append(kill)
        return kill == soon or (kill == later and tried.count(kill) == 2)

    for name in ("_set_up", "_end", "_judge"):
        monkeypatch.setattr(Torture, name, lambda *_: None)
    monkeypatch.setattr(Torture, "_round", tries)
    monkeypatch.setattr(BrokerProcess, "start", lambda *_: None)
    monkeypatch.setattr(BrokerProcess, "address_of", lambda *_: "")
    torture = Torture(BrokerProcess(tmp_path, tmp_path / "log", ()), 1, lambda line: None)
    assert torture.run([never, later, soon]).missed == [never]
    assert tried == [never, later, soon, never, later, never]


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_a_part_that_there_is_not_is_wrong_usage(
    part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything begins."""
    with pytest.raises(SystemExit) as ended:
        main(["--part", part])
    assert ended.value.code == 2
    assert "argument --part" in capsys.readouterr().err


@pytest.mark.soak
def test_a_short_run_keeps_every_promise(tmp_path: Path) -> None:
    """The driver dies between two commits, the broker when it deletes, and all is there once."""
    kills = [Kill("driver", "before events commit"), Kill("broker", "deleting")]
    with BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS) as broker:
        summary = Torture(broker, 11, lambda line: None, 3 << 20, derived=False).run(kills)
    assert summary.findings == []
    assert summary.kills == {"driver": 1, "broker": 1}
    assert summary.archived > 1_000
    assert summary.compacted > 0
    assert summary.segments_deleted > 0
