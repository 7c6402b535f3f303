"""Tests of backups use many small files on a real disk, and none of them cuts the power."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make syncs free."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)
