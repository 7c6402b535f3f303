"""What a query may be pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.spark.location import BadLocation, Location, open_location


def _data_dir(root: Path) -> Path:
    for name in ("wal", "state"):
        (root / name).mkdir(parents=True)
    return root


def test_a_data_directory_has_its_archive_below_it(tmp_path: Path) -> None:
    root = _data_dir(tmp_path / "data")
    assert open_location(str(root)) == Location(str(root), str(root / "archive"))
    assert open_location(f"file://{root}") == Location(str(root), str(root / "archive"))


def test_the_archive_of_a_data_directory_may_be_elsewhere(tmp_path: Path) -> None:
    root = _data_dir(tmp_path / "data")
    elsewhere = str(tmp_path / "elsewhere")
    assert open_location(str(root), elsewhere) == Location(str(root), elsewhere)
    assert open_location(str(root), "s3://bucket/a") == Location(str(root), "s3://bucket/a")
    with pytest.raises(
        BadLocation, match=r"^the option archive: 'ftp://host/x' is neither a local directory"
    ):
        open_location(str(root), "ftp://host/x")


def test_an_archive_is_a_place_by_itself(tmp_path: Path) -> None:
    (tmp_path / "records" / "_delta_log").mkdir(parents=True)
    assert open_location(str(tmp_path)) == Location(None, str(tmp_path))
    with pytest.raises(
        BadLocation, match="is an archive, so the option archive='/a' has no effect"
    ):
        open_location(str(tmp_path), "/a")


def test_what_is_neither_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(BadLocation, match=r"lacks wal/ or state/, .* lacks records/_delta_log/"):
        open_location(str(tmp_path))
    with pytest.raises(BadLocation, match="does not exist"):
        open_location(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(BadLocation, match="is not a directory"):
        open_location(str(tmp_path / "file"))
    with pytest.raises(BadLocation, match="needs a path"):
        open_location("")
    with pytest.raises(
        BadLocation, match=r"^load\(\): 'ftp://host/x' is neither a local directory"
    ):
        open_location("ftp://host/x")


def test_a_directory_that_may_not_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(
        BadLocation, match=f"{tmp_path} cannot be read: Permission denied; the user who"
    ):
        open_location(str(tmp_path))
