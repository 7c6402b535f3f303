# Tests: tests/test_size.py
"""Run steps of a benchmark in processes of their own, so that memory and threads start fresh.

Contract: ``run_child(module, spec)`` runs ``python -m MODULE --step JSON`` and returns the JSON
object that the child printed as its last line. The child ends with its parent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from brokerd.cli.bench.formats import BenchFailed
from brokerd.errors import BrokerdError

from .inside import InsideFailed
from .process import die_with_parent


class ChildFailed(Exception):
    """A step failed; the message has the end of its output."""


def run_child(module: str, spec: dict[str, Any], seconds_max: float) -> dict[str, Any]:
    """Run one step and return its result.

    :raises ChildFailed: the step fails or takes longer than ``seconds_max``.
    """
    command = [sys.executable, "-m", module, "--step", json.dumps(spec)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"{module} {spec}: not done after {seconds_max:.0f} s") from None
    if done.returncode:
        raise ChildFailed(f"{module} {spec}: {done.stderr.strip() or done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def answer(step: Callable[[], dict[str, Any]]) -> int:
    """Run ``step`` in the child, print its result, and return the exit code."""
    try:
        print(json.dumps(step()), flush=True)
    except (ChildFailed, InsideFailed, BenchFailed, BrokerdError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
