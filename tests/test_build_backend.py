"""The build of wheels: compiled where it can be, pure Python where it cannot or must not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

from brokerd.server.compiled import compiled_modules, is_compiled
from tests.compiled import COMPILED, modules_to_compile, paths_to_compile, replaces_method

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The backend, as a build frontend imports it, without an order to compile or not.

    It works in a directory of its own, because it removes libraries of earlier builds.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKERD_COMPILE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    spec = importlib.util.spec_from_file_location("backend", ROOT / "scripts/build_backend.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Setuptools:
    """Stands in for the backend of setuptools: notes what it has to build, and may fail."""

    def __init__(self, backend: ModuleType, failure: BaseException | None = None) -> None:
        self.backend = backend
        self.failure = failure
        self.built: list[str] = []

    def build_wheel(self, *_: object) -> str:
        compiled = self.backend.os.environ.get("BROKERD_BUILD_EXTENSIONS") == "1"
        self.built.append("compiled" if compiled else "pure")
        if compiled and self.failure is not None:
            raise self.failure
        return f"{self.built[-1]}.whl"

    def get_requires_for_build_wheel(self, *_: object) -> list[str]:
        return ["wheel"]


def build(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, failure: BaseException | None = None
) -> list[str]:
    """Build a wheel with the stand-in; return the builds in order."""
    setuptools = Setuptools(backend, failure)
    monkeypatch.setattr(backend, "build_meta", setuptools)
    assert backend.build_wheel("dist") == f"{setuptools.built[-1]}.whl"
    return setuptools.built


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (
            "no-such-compiler",
            "the C compiler no-such-compiler cannot run: No such file",
        ),
        ("false", "false does not compile Python.h of "),
    ],
)
def test_without_a_compiler_the_wheel_is_pure(
    backend: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compiler: str,
    reason: str,
) -> None:
    """One line tells why, and mypy is not asked for."""
    monkeypatch.setenv("CC", compiler)
    assert build(backend, monkeypatch) == ["pure"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"brokerd: pure Python, not compiled: {reason}")
    assert backend.get_requires_for_build_wheel() == ["wheel"]
    assert capsys.readouterr().err == "", "pip asks before it builds, and the line comes once"
    assert backend.main() == 1
    assert capsys.readouterr().out.startswith(reason)


@pytest.mark.parametrize("choice", ["", "auto", "1"])
def test_with_a_compiler_the_wheel_is_compiled(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """With and without the order to compile; then the build needs mypy."""
    monkeypatch.setenv("BROKERD_COMPILE", choice)
    monkeypatch.setattr(backend, "obstacle", lambda: "")
    assert build(backend, monkeypatch) == ["compiled"]
    assert backend.get_requires_for_build_wheel() == ["wheel", backend.COMPILER]
    assert "BROKERD_BUILD_EXTENSIONS" not in backend.os.environ


@pytest.mark.parametrize("failure", [SystemExit("gcc failed"), ImportError("no mypyc")])
def test_a_failed_compilation_falls_back(
    backend: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
) -> None:
    """To the pure wheel and one line; the order to compile makes it an error."""
    monkeypatch.setattr(backend, "obstacle", lambda: "")
    assert build(backend, monkeypatch, failure) == ["compiled", "pure"]
    assert capsys.readouterr().err == (
        f"brokerd: pure Python, not compiled: mypyc failed: {failure}\n"
    )
    monkeypatch.setenv("BROKERD_COMPILE", "1")
    with pytest.raises(type(failure)):
        build(backend, monkeypatch, failure)


def test_the_order_to_compile_fails_at_once_without_a_compiler(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip asks for the packages of the build first: before it fetches mypy, which takes a while."""
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("BROKERD_COMPILE", "1")
    setuptools = Setuptools(backend)
    monkeypatch.setattr(backend, "build_meta", setuptools)
    text = "BROKERD_COMPILE=1: brokerd cannot be compiled here: the C compiler no-such-compiler "
    for ask in (backend.get_requires_for_build_wheel, lambda: backend.build_wheel("dist")):
        with pytest.raises(SystemExit, match=text):
            ask()
    assert setuptools.built == []


def test_zero_never_compiles(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it could, and it does not look for a compiler."""
    monkeypatch.setattr(backend, "obstacle", lambda: 1 // 0)
    monkeypatch.setenv("BROKERD_COMPILE", "0")
    assert build(backend, monkeypatch) == ["pure"]
    assert backend.get_requires_for_build_wheel() == ["wheel"]


def test_libraries_of_an_earlier_build_are_removed(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Setuptools would copy them into the wheel, also of modules that are not compiled any more."""
    old = tmp_path / "build/lib.linux/brokerd/tables.so"
    page = tmp_path / "build/docs/index.html"
    for path in (old, page):
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setenv("BROKERD_COMPILE", "0")
    build(backend, monkeypatch)
    assert not old.exists() and page.exists()


def test_another_choice_is_refused(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the variable and the value."""
    monkeypatch.setenv("BROKERD_COMPILE", "yes")
    with pytest.raises(SystemExit, match="BROKERD_COMPILE=yes: expected 0, 1 or auto"):
        backend.build_wheel("dist")


def test_the_list_of_compiled_modules_is_true() -> None:
    """Each pattern of setup.cfg finds a module, and each module can be imported."""
    paths = paths_to_compile()
    assert len(paths) > 20
    assert "brokerd/groups/store.py" in paths
    assert "brokerd/errors.py" not in paths
    assert len(modules_to_compile()) == len(paths)


def test_no_class_of_python_derives_from_a_compiled_class() -> None:
    """Python refuses to make objects of such a class: compile both modules, or neither."""
    compiled = set(paths_to_compile())
    wrong = [
        f"{path}: {one.__qualname__} derives from {base.__qualname__}"
        for path, module in _modules().items()
        if path not in compiled
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == module.__name__
        for base in one.__mro__[1:]
        if f"{base.__module__.replace('.', '/')}.py" in compiled and not _stays_python(base)
    ]
    assert wrong == []


def _modules() -> dict[str, ModuleType]:
    """Import the modules of the rooms that use compiled ones; return them by path."""
    rooms = ("broker", "cli", "client", "codecs", "groups", "protocols", "wal", "walformat")
    paths = [path for room in rooms for path in (ROOT / "brokerd" / room).rglob("*.py")]
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.name != "__main__.py"]
    return {
        name: importlib.import_module(
            name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
        for name in names
    }


def _stays_python(base: type) -> bool:
    """Return whether mypyc leaves a class as it is: named tuples, enums, protocols."""
    return issubclass(base, tuple | Enum) or getattr(base, "_is_protocol", False)


def test_brokerd_tells_whether_it_is_compiled() -> None:
    """The tests of the working copy run pure Python; `make test-compiled` runs the compiled one."""
    modules_to_compile()
    assert is_compiled() is COMPILED
    assert len(compiled_modules()) == (len(paths_to_compile()) if COMPILED else 0)


class Fixed:
    """Refuses a replacement of its method, as objects of compiled classes do."""

    __slots__ = ()

    def method(self) -> None: ...


def test_only_a_replacement_by_a_test_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled brokerd that replaces a method itself has a fault."""
    with pytest.raises(AttributeError, match="is read-only") as by_monkeypatch:
        monkeypatch.setattr(Fixed(), "method", print)
    with pytest.raises(AttributeError, match="is read-only") as by_test:
        Fixed().method = print  # type: ignore[method-assign]
    with pytest.raises(AttributeError, match="is read-only") as by_brokerd:
        exec(compile("fixed.method = print", "brokerd/broker/x.py", "exec"), {"fixed": Fixed()})
    with pytest.raises(AttributeError) as other:
        getattr(Fixed(), "other")  # noqa: B009
    errors = (by_monkeypatch, by_test, by_brokerd, other)
    assert [replaces_method(error.value) for error in errors] == [True, True, False, False]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small package with our setup.py, backend and settings, and one module to compile."""
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.rst", "LICENSE", "scripts"):
        (shutil.copytree if name == "scripts" else shutil.copy)(ROOT / name, tmp_path / name)
    for path in ("__init__.py", "values.py", "errors.py"):
        (tmp_path / "brokerd").mkdir(exist_ok=True)
        shutil.copy(ROOT / "brokerd" / path, tmp_path / "brokerd" / path)
    (tmp_path / "brokerd/groups").mkdir()
    (tmp_path / "brokerd/groups/small.py").write_text(
        "class Counter:\n"
        "    def __init__(self) -> None:\n"
        "        self.count = 0\n\n"
        "    def fail(self) -> int:\n"
        "        self.count += 1\n"
        "        return self.count // (self.count - 1)\n"
    )
    return tmp_path


def wheel_of(source: Path, choice: str) -> zipfile.ZipFile:
    """Build a wheel as pip does, with the packages that are installed here."""
    code = "import build_backend, sys; print(build_backend.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(source / "dist")],
        cwd=source,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "scripts", "BROKERD_COMPILE": choice},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(source / "dist" / done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_pure_wheel_suits_every_machine(source: Path) -> None:
    """It has no library, and its tag says so."""
    wheel = wheel_of(source, "0")
    assert wheel.filename is not None and wheel.filename.endswith("-py3-none-any.whl")
    assert not [name for name in wheel.namelist() if name.endswith(".so")]


@pytest.mark.slow
def test_a_compiled_wheel_has_libraries_beside_the_sources(source: Path, tmp_path: Path) -> None:
    """Executors get the sources; a traceback names the line of a compiled function."""
    pytest.importorskip("mypyc")
    wheel = wheel_of(source, "1")
    assert wheel.filename is not None and "-none-any" not in wheel.filename
    names = wheel.namelist()
    libraries = {name.partition(".")[0] for name in names if name.endswith(".so")}
    assert libraries == {"brokerd__mypyc", "brokerd/groups/small"}
    assert {"brokerd/values.py", "brokerd/groups/small.py", "brokerd/errors.py"} <= set(names)
    installed = tmp_path / "installed"
    wheel.extractall(installed)
    code = (
        "import json, traceback\n"
        "from brokerd.groups.small import Counter\n"
        "try:\n"
        "    Counter().fail()\n"
        "except ZeroDivisionError:\n"
        "    print(json.dumps(traceback.format_exc()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "dist",
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    text = json.loads(done.stdout)
    assert 'File "brokerd/groups/small.py", line 7, in fail\n' in text
