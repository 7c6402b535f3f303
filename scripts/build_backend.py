# Tests: tests/test_build_backend.py
"""Build brokerd's wheels: compiled by mypyc, or pure Python.

This is a build backend (PEP 517) around that of setuptools. ``BROKERD_COMPILE`` decides:

* unset or ``auto``: compile if this machine can. Otherwise print one line and build the pure wheel.
* ``1``: compile; failing is an error, and comes at once on a machine that cannot.
* ``0``: build the pure wheel.

An editable install is never compiled: a shared library would hide later changes of its source.

``python scripts/build_backend.py`` prints why this machine cannot compile, and exits with 1.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

CHOICE = "BROKERD_COMPILE"
ORDER = "BROKERD_BUILD_EXTENSIONS"
"""Set while setup.py has to compile; not for users."""

COMPILER = "mypy[mypyc]>=2.4"

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return the packages that the build needs: mypy only for a compiled wheel.

    pip asks this first, and fetches the packages then.

    :raises SystemExit: the build has to compile, and this machine cannot.
    """
    needed: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return needed if _reason() else [*needed, COMPILER]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel and return its file name.

    :raises SystemExit: it has to compile and cannot.
    """
    arguments = wheel_directory, config_settings, metadata_directory
    _remove_earlier_builds()
    if _plan():
        try:
            with _compiling():
                return str(build_meta.build_wheel(*arguments))
        # mypyc and setuptools end a failed build with SystemExit. They have printed the reason.
        except (SystemExit, ImportError, OSError) as error:
            if _choice() == "1":
                raise
            _say(f"mypyc failed: {error or type(error).__name__}")
            _remove_earlier_builds()
    return str(build_meta.build_wheel(*arguments))


def obstacle() -> str:
    """Return why this machine cannot compile, or an empty string."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    headers = sysconfig.get_path("include")
    command = [*compiler, f"-I{headers}", "-fsyntax-only", "-x", "c", "-"]
    try:
        result = subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True)
    except OSError as error:
        return f"the C compiler {compiler[0]} cannot run: {error.strerror}"
    if result.returncode:
        return f"{compiler[0]} does not compile Python.h of {headers}"
    return ""


def main() -> int:
    """Print the obstacle to compiling, and return the exit code."""
    found = obstacle()
    if found:
        print(found)
    return 1 if found else 0


def _choice() -> str:
    choice = os.environ.get(CHOICE) or "auto"
    if choice not in ("0", "1", "auto"):
        raise SystemExit(f"{CHOICE}={choice}: expected 0, 1 or auto")
    return choice


def _plan() -> bool:
    """Return whether to compile. Print the line if the machine cannot."""
    reason = _reason()
    if reason and _choice() != "0":
        _say(reason)
    return not reason


def _reason() -> str:
    """Return why the wheel is pure, or an empty string for a compiled one."""
    choice = _choice()
    if choice == "0":
        return f"{CHOICE}=0"
    found = obstacle()
    if found and choice == "1":
        raise SystemExit(f"{CHOICE}=1: brokerd cannot be compiled here: {found}")
    return found


def _remove_earlier_builds() -> None:
    """Remove what setuptools would copy into the wheel, such as libraries of an earlier build."""
    for directory in Path("build").glob("lib*"):
        shutil.rmtree(directory)


def _say(reason: str) -> None:
    print(f"brokerd: pure Python, not compiled: {reason}", file=sys.stderr)


@contextmanager
def _compiling() -> Iterator[None]:
    os.environ[ORDER] = "1"
    try:
        yield
    finally:
        del os.environ[ORDER]


if __name__ == "__main__":
    sys.exit(main())
