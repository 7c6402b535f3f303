"""What a query may be pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.spark.location import Location, NoPlace, open_place


def _data_dir(root: Path) -> Path:
    for name in ("wal", "state"):
        (root / name).mkdir(parents=True)
    return root


def test_a_data_directory_has_its_archive_below_it(tmp_path: Path) -> None:
    root = _data_dir(tmp_path / "data")
    assert open_place(str(root)) == Location(str(root), str(root / "archive"))
    assert open_place(f"file://{root}") == Location(str(root), str(root / "archive"))


def test_the_archive_of_a_data_directory_may_be_elsewhere(tmp_path: Path) -> None:
    root = _data_dir(tmp_path / "data")
    elsewhere = str(tmp_path / "elsewhere")
    assert open_place(str(root), elsewhere) == Location(str(root), elsewhere)
    assert open_place(str(root), "s3://bucket/a") == Location(str(root), "s3://bucket/a")
    with pytest.raises(NoPlace, match=r"^the option archive: 'ftp://host/x' is no local directory"):
        open_place(str(root), "ftp://host/x")


def test_an_archive_is_a_place_by_itself(tmp_path: Path) -> None:
    (tmp_path / "records" / "_delta_log").mkdir(parents=True)
    assert open_place(str(tmp_path)) == Location(None, str(tmp_path))
    with pytest.raises(NoPlace, match="is an archive, so the option archive='/a' says nothing"):
        open_place(str(tmp_path), "/a")


def test_what_is_neither_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NoPlace, match=r"lacks wal/ or state/, .* lacks records/_delta_log/"):
        open_place(str(tmp_path))
    with pytest.raises(NoPlace, match="is not there"):
        open_place(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(NoPlace, match="is no directory"):
        open_place(str(tmp_path / "file"))
    with pytest.raises(NoPlace, match="wants a place"):
        open_place("")
    with pytest.raises(NoPlace, match=r"^load\(\): 'ftp://host/x' is no local directory"):
        open_place("ftp://host/x")


def test_a_directory_that_may_not_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(NoPlace, match=f"{tmp_path} cannot be looked at: Permission denied; who"):
        open_place(str(tmp_path))
