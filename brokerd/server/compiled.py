# Tests: tests/test_build_backend.py
"""Tells whether this brokerd is compiled (docs/architecture.rst, Compiled modules)."""

from __future__ import annotations

import sys

from brokerd.groups import store


def is_compiled() -> bool:
    """Return whether mypyc has compiled the core: its modules are shared libraries."""
    return _is_library(store.__file__)


def compiled_modules() -> list[str]:
    """Return the names of brokerd's imported modules that are shared libraries."""
    return sorted(
        name
        for name, module in sys.modules.items()
        if name.startswith("brokerd.") and _is_library(getattr(module, "__file__", None))
    )


def _is_library(path: str | None) -> bool:
    return path is not None and not path.endswith(".py")
