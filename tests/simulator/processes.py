"""Run programs in processes of their own; a simulation must not depend on the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120


def said_with_two_hash_seeds(program: str) -> list[str]:
    """Return a program's output in two interpreters with different hash seeds."""
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        ).stdout
        for hash_seed in ("1", "2")
    ]
