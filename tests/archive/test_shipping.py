"""What executors are sent is all that tasks need, and a task runs on that or not at all."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import zipfile
from operator import neg
from pathlib import Path
from textwrap import dedent

import pytest

import brokerd
from brokerd import __version__
from brokerd.archive.cluster.shipping import (
    Package,
    main,
    package,
    portable_task,
    run_task,
    write_zip,
)
from brokerd.server.sections import FORMATS

cloudpickle = pytest.importorskip("pyspark.cloudpickle", reason="needs pyspark")

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(brokerd.__file__).parent
"""The brokerd under test: of the working copy, or of a compiled wheel."""


def run_python(script: str, *arguments: str) -> str:
    """What a program says that finds brokerd only where it looks for it."""
    command = [sys.executable, "-I", "-c", dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_same_modules_are_the_same_zip(tmp_path: Path) -> None:
    """Byte for byte, under one name, and small."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = write_zip(tmp_path / "a"), write_zip(tmp_path / "b")
    assert one.name == other.name
    assert one.name.startswith(f"brokerd-{__version__}-")
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_size < 1 << 19


def test_it_has_modules_and_nothing_else(tmp_path: Path) -> None:
    """Their sources, for any version of Python."""
    with zipfile.ZipFile(write_zip(tmp_path)) as archive:
        names = archive.namelist()
        assert archive.read("brokerd/errors.py") == (ROOT / "brokerd/errors.py").read_bytes()
    assert "brokerd/archive/ingest/tasks.py" in names
    assert {Path(name).suffix for name in names} == {".py"}
    assert {"brokerd/client/mamamia.py", "brokerd/codecs/mamamia/requests.py"} <= {*names}
    others = {*FORMATS} - {"mamamia"}
    assert not [name for name in names if others & {*re.split(r"[/._]", name)}], "never imported"


def test_all_in_it_can_be_imported_from_it_alone(tmp_path: Path) -> None:
    """Without the brokerd that is installed; and it hides nobody's pyspark."""
    path = write_zip(tmp_path)
    said = run_python(
        """
        import importlib, sys, zipfile
        sys.path.insert(0, sys.argv[1])
        with zipfile.ZipFile(sys.argv[1]) as archive:
            names = [name.removesuffix(".py").replace("/", ".") for name in archive.namelist()]
        for name in names:
            importlib.import_module(name.removesuffix(".__init__"))
        ours = [one for name, one in sys.modules.items() if name.partition(".")[0] == "brokerd"]
        assert all(one.__file__.startswith(sys.argv[1]) for one in ours)
        import pyspark.sql
        assert not pyspark.__file__.startswith(sys.argv[1])
        from brokerd.archive.cluster.shipping import package
        print(len(ours) >= len(names), package().digest)
        """,
        str(path),
    )
    assert said == f"True {package().digest}"


def test_the_command_writes_it_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or what is wrong."""
    assert main([str(tmp_path)]) == 0
    path = Path(capsys.readouterr().out.rstrip("\n"))
    assert path.parent == tmp_path and zipfile.is_zipfile(path)
    assert main([str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.endswith("No such file or directory\n")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_a_task_runs_on_the_brokerd_that_it_is_of() -> None:
    """And where it does not matter, on any."""
    for expected in (package(), None):
        assert portable_task(neg, expected)(pickle.dumps(7)) == (-7, "")


def test_a_task_of_another_brokerd_is_refused() -> None:
    """Both are named, and nothing of the task is read."""
    other = Package("0.0.9", "feed" * 8)
    result, text = portable_task(neg, other)(b"no pickle")
    assert result is None
    assert f"an executor runs brokerd {__version__} (" in text
    assert f"of {INSTALLED}, the driver 0.0.9 (feedfeed): remove the former from" in text


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do where tasks run."""
    function = pickle.dumps(neg).replace(b"_operator", b"nolibrary")
    result, text = run_task(tuple(package()), function, b"")
    assert result is None
    assert text.startswith(f"nolibrary is not installed where tasks run, in {sys.executable}: `pip")


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({}, "an executor lacks a suitable brokerd: No module named 'brokerd'"),
        (
            {"__init__": "", "archive/__init__": "", "archive/cluster/__init__": ""},
            "an executor lacks a suitable brokerd: No module named "
            "'brokerd.archive.cluster.shipping'",
        ),
        (
            {
                "__init__": "",
                "archive/__init__": "",
                "archive/cluster/__init__": "",
                "archive/cluster/shipping": "x = 1",
            },
            "an executor lacks a suitable brokerd: cannot import name 'run_task' from "
            "'brokerd.archive.cluster.shipping'",
        ),
    ],
)
def test_a_brokerd_of_earlier_is_told(
    tmp_path: Path, modules: dict[str, str], expected: str
) -> None:
    """One that knows nothing of this, or none at all: the task can be read all the same."""
    for name, text in modules.items():
        path = tmp_path / "old" / "brokerd" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    task = tmp_path / "task"
    task.write_bytes(cloudpickle.dumps(portable_task(_module_function, package())))
    said = run_python(
        """
        import pickle, sys
        sys.meta_path = [one for one in sys.meta_path if "editable" not in repr(one)]
        sys.path[:] = [sys.argv[1], *(one for one in sys.path if one not in sys.argv[3:])]
        with open(sys.argv[2], "rb") as task:
            print(pickle.load(task)(b""))
        """,
        *(str(tmp_path / "old"), str(task), str(ROOT), str(INSTALLED.parent)),
    )
    assert said.startswith(f'(None, "{expected}')


def _module_function(argument: object) -> object:
    return argument
