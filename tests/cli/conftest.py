"""A shell for every test that asks for one."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """``brokerctl`` and an empty broker."""
    return Shell(monkeypatch)
