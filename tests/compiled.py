"""The modules that a compiled wheel has compiled, and whether this session tests those."""

from __future__ import annotations

import importlib
import os
from configparser import ConfigParser
from pathlib import Path

from _pytest import monkeypatch

ROOT = Path(__file__).resolve().parents[1]

COMPILED = os.environ.get("TESTED_BROKERD") == "compiled"
"""Whether the tests have to run on compiled modules: `make test-compiled`."""


def replaces_method(error: AttributeError) -> bool:
    """Return whether a test itself, not brokerd, set an attribute that is a compiled method."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    setter = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    return str(error).endswith("is read-only") and (
        setter == monkeypatch.__file__ or ROOT / "tests" in Path(setter).parents
    )


def modules_to_compile() -> list[str]:
    """Import all modules that a compiled wheel has compiled, and return their names."""
    names = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in paths_to_compile()
    ]
    for name in names:
        importlib.import_module(name)
    return names


def paths_to_compile() -> list[str]:
    """Return the paths of the modules that setup.cfg lists, as setup.py finds them."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    section = config["brokerd.compiled"]
    found, left_out = (
        {path.relative_to(ROOT).as_posix() for one in patterns.split() for path in ROOT.glob(one)}
        for patterns in (section["modules"], section["except"])
    )
    return sorted(found - left_out)
