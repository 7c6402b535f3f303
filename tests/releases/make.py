"""Make the fixture of a release: its data directory and archive, and the expected reads of them.

usage: python -m tests.releases.make tests/releases/VERSION-COMMIT.tar.xz

At a release, run it once from the root of the release's own tree, commit the file, and never change
it. `tests/releases/test_open.py` opens every such file with the broker of its own tree. The file
holds ``data``, the data directory of a stopped broker without ``run`` and ``lock``, and
``expectations.json``, which this release reads from two copies of it. No absolute path is in it.

A later release may show more fields: the test ignores fields that are not in the file.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.releases.clients import serving
from tests.releases.history import ROOT, write
from tests.releases.view import admin_view, archive_rows, formats_view, now


def make(target: Path, directory: Path) -> None:
    """Write the history below an empty directory, read it back, and pack both."""
    data_dir = directory / "data"
    facts = write(data_dir, directory / "password")
    for name in ("run", "lock"):
        path = data_dir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    views = [_read(data_dir, directory / f"copy {number}", facts) for number in range(2)]
    assert views[0] == views[1]
    expectations = {"facts": facts, "rows": archive_rows(data_dir), **views[0]}
    text = json.dumps(expectations, indent=1, sort_keys=True, ensure_ascii=False)
    found = [p for p in data_dir.rglob("*") if p.is_file() and _names(p, directory)]
    assert not found, found
    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(data_dir, "data", filter=_anonymous)
        info = tarfile.TarInfo("expectations.json")
        info.size = len(text.encode())
        archive.addfile(info, io.BytesIO(text.encode()))


def _read(data_dir: Path, copy: Path, facts: dict[str, Any]) -> dict[str, Any]:
    shutil.copytree(data_dir, copy)
    started = now()
    with serving(copy) as clients:
        view = {"admin": admin_view(clients, started), "formats": formats_view(clients, facts)}
        return dict(json.loads(json.dumps(view)))


def _names(path: Path, directory: Path) -> bool:
    """Return whether a file holds the directory's path, which means nothing elsewhere."""
    return str(directory).encode() in path.read_bytes()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)  # the broker and the job are of this tree
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(sys.argv[1]), Path(temporary))
