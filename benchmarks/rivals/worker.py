# Tests: tests/test_compare.py
"""A worker process of the load generator that knows the rivals, too."""

from __future__ import annotations

from benchmarks.rivals import add_rivals
from brokerd.cli.bench.load import main

if __name__ == "__main__":
    add_rivals()
    main()
