# Tests: tests/admin/test_openapi.py
"""Answers about the configuration; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Origin = Literal["default", "file", "environment", "option"]


class OptionShape(Struct):
    """An option of the configuration, and where its value comes from."""

    name: str
    """For example ``wal.segment_bytes``."""
    value: Any
    """The value in use. Each secret is ``***``."""
    origin: Origin
    source: str
    """The file and key, the variable or the option that gives the value; empty: the default."""
    default: Any
    reloadable: bool
    """Whether a reload (SIGHUP) applies a new value; else it needs a restart."""
    restart_needed: bool
    """Whether a reload read another value that waits for a restart."""


class Configuration(Struct):
    """All options, by section."""

    options: list[OptionShape]
