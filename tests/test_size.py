"""The benchmarks at size: what the probe sees, and that every step works, at a tiny scale."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from benchmarks import group_state, holes, schedule, size
from benchmarks.children import ChildFailed, run_child
from benchmarks.stall_probe import StallProbe


def pass_time(clock: Clock, seconds: float, step: float = 0.001) -> None:
    """Let an idle reactor turn."""
    for _ in range(round(seconds / step)):
        clock.advance(step)


class TestStallProbe:
    def test_an_idle_reactor_has_no_long_turn(self) -> None:
        """What the probe costs itself does not show."""
        clock = Clock()
        probe = StallProbe(clock)
        probe.begin("quiet")
        pass_time(clock, 0.5)
        stalls = probe.end()
        assert (stalls.phase, stalls.over_50_ms, stalls.where) == ("quiet", 0, [])
        assert stalls.longest_ms <= 1
        assert stalls.seconds == pytest.approx(0.5, abs=0.01)

    def test_a_turn_that_takes_long_is_told_with_its_length(self) -> None:
        """The longest, and how many there were."""
        clock = Clock()
        probe = StallProbe(clock)
        probe.begin("work")
        for seconds in (0.030, 0.060, 0.120):
            pass_time(clock, 0.01)
            clock.advance(seconds)
        stalls = probe.end()
        assert stalls.longest_ms == pytest.approx(119, abs=1)
        assert stalls.over_50_ms == 2
        assert [float(line.split()[0]) for line in stalls.where] == pytest.approx(
            [119, 59, 29], abs=1.1
        )

    def test_the_turn_that_ends_the_watch_counts_too(self) -> None:
        """Nothing long hides behind the end."""
        clock = Clock()
        probe = StallProbe(clock)
        probe.begin("end")
        clock.rightNow += 0.2
        assert probe.end().longest_ms == pytest.approx(199, abs=1)

    def test_work_is_told_apart_from_waiting(self) -> None:
        """A turn that only waited took no processor time; one that worked did."""
        clock = Clock()
        probe = StallProbe(clock)
        probe.begin("waiting")
        clock.advance(0.5)
        waiting = probe.end()
        probe.begin("working")
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        clock.advance(0.5)
        working = probe.end()
        assert waiting.busiest_ms < 20 <= working.busiest_ms

    def test_each_phase_begins_anew(self) -> None:
        """A long turn of one phase is none of the next."""
        clock = Clock()
        probe = StallProbe(clock)
        probe.begin("first")
        clock.advance(0.3)
        probe.end()
        pass_time(clock, 0.1)
        probe.begin("second")
        pass_time(clock, 0.1)
        assert probe.end().longest_ms <= 1


class TestSize:
    @pytest.mark.slow
    def test_every_state_is_built_started_and_watched(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Memory, both starts and every phase have figures, and nothing is left."""
        options = ["--json", "--scale=0.0002", "--states=all", f"--directory={tmp_path}"]
        code = size.main(options)
        out = capsys.readouterr()
        assert code == 0, out.err
        (state,) = json.loads(out.out)["states"]
        assert state["built"]["formula_bytes"] > 0
        assert state["built"]["snapshot_bytes"] > 0
        assert state["log"]["start_seconds"] > 0
        assert state["snapshot"]["start_seconds"] > 0
        phases = [phase["phase"] for phase in state["snapshot"]["phases"]]
        assert phases[:5] == ["quiet", "snapshot", "status", "metrics", "lapse"]
        assert "from the snapshot" in out.err
        assert list(tmp_path.iterdir()) == []

    def test_a_state_that_there_is_not_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With the names that there are."""
        with pytest.raises(SystemExit):
            size.main(["--states=nothing"])
        assert "holes" in capsys.readouterr().err

    def test_a_step_that_fails_says_why(self, tmp_path: Path) -> None:
        """What the child said last reaches the caller."""
        (tmp_path / "data").write_text("no directory")
        spec = {"step": "start", "data_dir": str(tmp_path / "data"), "state": "holes", "scale": 1}
        with pytest.raises(ChildFailed, match="Not a directory"):
            run_child("benchmarks.size", spec, 60)


class TestGroupState:
    @pytest.mark.slow
    def test_groups_are_measured_before_and_after_a_kill_and_a_stop(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["--json", "--groups=3", "--partitions=20", f"--directory={tmp_path}"]
        code = group_state.main(options)
        out = capsys.readouterr()
        assert code == 0, out.err
        found = json.loads(out.out)
        assert 0 < found["acquire_median_ms"] <= found["acquire_max_ms"]
        assert min(found[key] for key in ("rss_bytes", "started_bytes", "again_bytes")) > 0
        assert min(found[key] for key in ("start_seconds", "stop_seconds", "subscribe_ms")) > 0
        assert list(tmp_path.iterdir()) == []


class TestHoles:
    @pytest.mark.slow
    def test_every_shape_is_measured_beside_a_fresh_group(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """On the store alone and over the wire; nothing is left."""
        options = ["--json", "--scale=0.0002", "--seconds=0.1", "--rounds=1"]
        code = holes.main([*options, f"--directory={tmp_path}"])
        out = capsys.readouterr()
        assert code == 0, out.err
        shapes = json.loads(out.out)["shapes"]
        assert [shape["shape"] for shape in shapes] == ["holes", "returned", "waiting"]
        for shape in shapes:
            assert [line["where"] for line in shape["lines"]] == ["store"] * 4 + ["wire"] * 2
            assert all(line["fresh_per_s"] > 0 for line in shape["lines"])
            assert all(line["shape_per_s"] > 0 for line in shape["lines"])
        assert list(tmp_path.iterdir()) == []


class TestSchedule:
    @pytest.mark.slow
    def test_lateness_is_told_of_all_that_fired_and_none_is_early(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """In both orders, at the broker and at a consumer; nothing is left."""
        code = schedule.main(["--json", "--scale=0.001", f"--directory={tmp_path}"])
        out = capsys.readouterr()
        assert code == 0, out.err
        orders = json.loads(out.out)["orders"]
        assert [order["order"] for order in orders] == ["in-order", "random"]
        for order in orders:
            assert order["load_msgs_per_s"] > 0
            for what in ("fired", "delivered"):
                late = order[what]
                assert late["count"] == 1000
                assert late["min_ms"] <= late["p50_ms"] <= late["p99_ms"] <= late["max_ms"]
            assert order["delivered"]["min_ms"] >= 0
        assert list(tmp_path.iterdir()) == []

    def test_a_schedule_that_is_filled_too_slowly_gets_more_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Twice; then it is an error."""
        leads: list[float] = []

        def run_child(module: str, spec: dict[str, Any], seconds_max: float) -> dict[str, Any]:
            leads.append(spec["lead_seconds"])
            return {"too_slow_seconds": 7.0}

        monkeypatch.setattr(schedule, "run_child", run_child)
        with pytest.raises(ChildFailed, match=r"took 7 s: too slow"):
            list(schedule.measure(tmp_path, ["random"], 0.001, lambda line: None))
        assert leads == sorted(set(leads)) and len(leads) == 3
        assert list(tmp_path.iterdir()) == []

    def test_due_times_are_spread_evenly_in_either_order(self) -> None:
        """The same times, shuffled or not."""
        ordered = schedule.due_times(4, 100, 1000, "in-order")
        assert ordered == [1000, 1025, 1050, 1075]
        shuffled = schedule.due_times(1000, 100_000, 0, "random")
        assert shuffled != sorted(shuffled)
        assert sorted(shuffled) == schedule.due_times(1000, 100_000, 0, "in-order")

    def test_percentiles_of_lateness(self) -> None:
        """In milliseconds; nothing that came is told as nothing."""
        found = schedule.lateness([3000, 1000, 2000, 100_000])
        assert found == {"count": 4, "min_ms": 1, "p50_ms": 3, "p99_ms": 100, "max_ms": 100}
        assert schedule.lateness([]) == {"count": 0}
