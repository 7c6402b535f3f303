# Tests: tests/test_demo.py
"""The chart of the demo: delays by carrier and by hour of the day. `draw` writes one PNG file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BLUE, _GREY = "#2a6f97", "#c9d6df"


def draw(path: Path, by_carrier: Sequence[Any], by_hour: Sequence[Any]) -> None:
    """Write the chart to ``path``.

    :param by_carrier: rows with ``carrier``, ``flights`` and ``mean_delay_min``.
    :param by_hour: rows with ``hour``, ``flights`` and ``mean_delay_min``.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle("Flights from New York, read back from the archive by Spark SQL")
    left, right = figure.subplots(1, 2)
    _draw_carriers(left, by_carrier)
    _draw_day(right, by_hour)
    figure.savefig(path, dpi=110)


def _draw_carriers(axes: Axes, rows: Sequence[Any]) -> None:
    # The mean is None for a carrier without any departure.
    delays = [row["mean_delay_min"] or 0 for row in rows]
    axes.barh([row["carrier"] for row in rows], delays, color=_BLUE)
    axes.invert_yaxis()
    axes.set_title("mean departure delay by carrier")
    axes.set_xlabel("minutes")


def _draw_day(axes: Axes, rows: Sequence[Any]) -> None:
    hours = [row["hour"] for row in rows]
    axes.bar(hours, [row["flights"] for row in rows], color=_GREY)
    axes.set_title("through the day")
    axes.set_xlabel("scheduled hour of departure")
    axes.set_ylabel("flights")
    axes.set_xticks(range(0, 24, 3))
    delays = axes.twinx()
    delays.plot(hours, [row["mean_delay_min"] for row in rows], color=_BLUE, marker="o")
    delays.set_ylabel("mean departure delay in minutes", color=_BLUE)
    delays.set_ylim(bottom=0)
