"""The benchmarks of key order and of much at once: every step works, at a tiny scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import key_order, neighbours, stalls, tenants
from benchmarks.children import ChildFailed


@pytest.mark.slow
def test_every_phase_of_much_at_once_has_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is left."""
    code = stalls.main(["--json", "--scale=0.002", f"--directory={tmp_path}"])
    out = capsys.readouterr()
    assert code == 0, out.err
    phases = json.loads(out.out)["phases"]
    assert [phase["phase"] for phase in phases] == [
        "a group's leases lapse",
        "release owner",
        "seek",
        "delete group",
        "leases of groups lapse",
        "start offset of groups",
        "delete topic of groups",
        "long polls of groups",
        "expired records",
    ]
    assert all({"seconds", "longest_ms", "busiest_ms"} <= phase.keys() for phase in phases)
    assert max(phase["longest_ms"] for phase in phases) > 0  # a short one may be rounded to 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_small_produce_beside_heavy_requests_has_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--json",
        "--seconds=0.5",
        "--only=idle",
        "--only=leases",
        "--only=records",
        "--only=fetches",
        "--only=groups",
    ]
    code = neighbours.main([*options, f"--directory={tmp_path}"])
    out = capsys.readouterr()
    assert code == 0, out.err
    cases = json.loads(out.out)["cases"]
    assert [case["case"] for case in cases] == ["idle", "leases", "records", "fetches", "groups"]
    assert all(case["produces"] and case["processor_longest_ms"] > 0 for case in cases)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tenants_beside_all_heavy_clients_get_what_they_produced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "--minutes=0.1", "--peers=3", "--topics=20", f"--directory={tmp_path}"]
    code = tenants.main(options)
    out = capsys.readouterr()
    assert code == 0, out.err
    report = json.loads(out.out)
    assert [one["address"] for one in report["tenants"]] == list(tenants.PROMISES)
    assert all(0 < one["produced"] <= one["consumed"] for one in report["tenants"])
    assert report["memory_mib"][-1] > 0
    assert len(report["claimed_mib"]) == len(report["memory_mib"]) - 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_consumers_of_a_key_ordered_group_see_no_key_reordered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not with poison either, while a group without key order is seen to reorder."""
    options = ["--json", "--scale=0.01", "--rounds=1", f"--directory={tmp_path}"]
    code = key_order.main(options)
    out = capsys.readouterr()
    assert code == 0, out.err
    found = json.loads(out.out)
    runs = {name: ones[0] for name, ones in found["runs"].items()}
    assert (runs["ordered"]["reordered"], runs["poisoned"]["reordered"]) == (0, 0)
    assert runs["free"]["reordered"] > 0
    assert runs["poisoned"]["letters"] > 0
    assert found["durability"] == "fsync"
    assert list(tmp_path.iterdir()) == []


def message(key: bytes, number: int, grants: int = 1) -> dict[str, object]:
    return {"key": key, "id": number, "grants": grants}


class TestDeliveries:
    """What the consumers take for a reordering."""

    def test_a_later_message_before_an_earlier_one_is_done(self) -> None:
        deliveries = key_order.Deliveries(poisoned=True, wanted=9)
        deliveries.take([message(b"p1", 1)])
        deliveries.take([message(b"k1", 2), message(b"k1", 3)])
        assert deliveries.reordered == 0
        deliveries.take([message(b"p1", 4)])
        assert deliveries.reordered == 1

    def test_an_earlier_message_after_a_later_one(self) -> None:
        deliveries = key_order.Deliveries(poisoned=False, wanted=9)
        deliveries.take([message(b"k1", 5), message(b"k1", 4)])
        assert deliveries.reordered == 1

    def test_a_message_that_failed_comes_again_and_its_key_goes_on_when_it_is_dead(self) -> None:
        deliveries = key_order.Deliveries(poisoned=True, wanted=9)
        settles = [deliveries.take([message(b"p1", 1, grants)]) for grants in (1, 2, 3)]
        assert [one["success"] for (one,) in settles] == [False] * 3
        deliveries.take([message(b"p1", 2)])
        assert (deliveries.reordered, deliveries.dead, deliveries.done) == (0, 1, 0)


def test_a_broker_that_nobody_reaches_is_told() -> None:
    with pytest.raises((ChildFailed, OSError)):
        key_order.consume("127.0.0.1:1", "t", 1, False, 1)
