"""The fixture of a shell."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return ``brokerctl`` with an empty broker."""
    return Shell(monkeypatch)
