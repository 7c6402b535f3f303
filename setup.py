"""Compile the modules that setup.cfg lists, if scripts/build_backend.py orders it.

Everything else about the package is in setup.cfg.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def compiled_modules() -> list[str]:
    """Return the paths of the modules in the section ``brokerd.compiled`` of setup.cfg."""
    config = ConfigParser()
    config.read("setup.cfg")
    section = config["brokerd.compiled"]
    return sorted(_paths(section["modules"]) - _paths(section["except"]))


def _paths(patterns: str) -> set[str]:
    return {path.as_posix() for pattern in patterns.split() for path in Path().glob(pattern)}


def extensions() -> list[Extension]:
    """Translate the modules to C, and return the shared libraries to build of it."""
    from mypyc.build import mypycify

    # `make lint` checks the types with the settings of pyproject.toml. The build has neither the
    # plugins nor the libraries that those need, so it checks only the modules to compile.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    options += compiled_modules()
    # -O2 takes half as much processor time again to compile, and the broker is no faster.
    extensions: list[Extension] = mypycify(
        options, opt_level="1", debug_level="0", multi_file=True, group_name="brokerd"
    )
    return extensions


class ParallelBuild(build_ext):
    """Build extensions, and the C files of each, in as many processes as there are cores."""

    def build_extensions(self) -> None:
        compile_files = self.compiler.compile

        def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_files([source], **options), sources)
                return [name for names in objects for name in names]

        self.compiler.compile = compile_in_parallel
        self.parallel = os.cpu_count()
        super().build_extensions()


if os.environ.get("BROKERD_BUILD_EXTENSIONS") == "1":
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
else:
    setup()
