"""An archive that is not there yet, or cannot be read here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from brokerd.archive.contract.view import ArchiveUnavailable, ArchiveView
from brokerd.archive.serve.lazy import LOG_OF_RECORDS, LazyArchive

LOG_ID = "ab" * 16


class Opened:
    """What the archive's module would open."""

    def __init__(self, root: Path, log_id: str) -> None:
        self.asked = (root, log_id)

    def refresh(self) -> ArchiveView:
        return self  # type: ignore[return-value]


def test_there_is_nothing_before_the_first_rollup(tmp_path: Path) -> None:
    """Whether there is a directory or not."""
    assert LazyArchive(tmp_path / "archive", LOG_ID).refresh() is None
    (tmp_path / "archive").mkdir()
    assert LazyArchive(tmp_path / "archive", LOG_ID).refresh() is None


def test_it_is_opened_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that ran before the first rollup sees it, and opens it once."""
    readback = ModuleType("brokerd.archive.serve.delta_archive")
    readback.DeltaArchive = Opened  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, readback.__name__, readback)
    archive = LazyArchive(tmp_path, LOG_ID)
    assert archive.refresh() is None
    (tmp_path / LOG_OF_RECORDS).mkdir(parents=True)
    opened = archive.refresh()
    assert isinstance(opened, Opened)
    assert opened.asked == (tmp_path, LOG_ID)
    assert archive.refresh() is opened


def test_a_missing_library_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes on, and reads the archive as soon as the library is there."""
    (tmp_path / LOG_OF_RECORDS).mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "brokerd.archive.serve.delta_archive", None)
    with pytest.raises(ArchiveUnavailable, match=r"pip install 'brokerd\[archive\]'"):
        LazyArchive(tmp_path, LOG_ID).refresh()


def test_a_broker_without_archive_loads_no_library_for_it(tmp_path: Path) -> None:
    """They would take as much memory as all the rest of it."""
    script = (
        "import sys; from pathlib import Path; import brokerd.server.assembly;"
        "from brokerd.archive.serve.lazy import LazyArchive;"
        f"assert LazyArchive(Path({str(tmp_path)!r}), 'x').refresh() is None;"
        "print({'pyarrow', 'deltalake', 'numpy', 'pyspark'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("set()\n", "")
