# Tests: tests/test_demo.py
"""Progress output: a line redrawn in place on a terminal, otherwise a new line every 10 %."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

_BAR_WIDTH = 16
_TENTHS = 10


class Progress:
    """Shows the records written, and the records read by each format.

    :param total: rows to write and read; counts above it are shown as 100 %.
    """

    def __init__(self, out: TextIO, total: int) -> None:
        self._out = out
        self._total = total
        self._is_terminal = out.isatty()
        self._shown_tenth = 0
        self._has_line = False

    def show(self, written: int, read: Mapping[str, int], rate: float) -> None:
        """Show the counts; ``read`` is format -> records, ``rate`` is records read per second."""
        mean = sum(read.values()) // len(read)
        if self._is_terminal:
            self._out.write(
                f"\r  written {self._bar(written)} read {self._bar(mean)} {rate:8,.0f}/s "
            )
            self._has_line = True
        else:
            tenth = _TENTHS * min(mean, self._total) // self._total
            if tenth == self._shown_tenth:
                return
            self._shown_tenth = tenth
            by_format = "  ".join(f"{name} {count:,}" for name, count in read.items())
            self._out.write(f"  written {written:,}  read: {by_format}\n")
        self._out.flush()

    def say(self, line: str) -> None:
        """Print a line above the progress line."""
        self.end_line()
        self._out.write(f"{line}\n")
        self._out.flush()

    def end_line(self) -> None:
        """Keep the progress line on the screen and continue below it."""
        if self._has_line:
            self._out.write("\n")
            self._has_line = False

    def _bar(self, count: int) -> str:
        share = min(1.0, count / self._total)
        filled = int(share * _BAR_WIDTH)
        return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%}"
