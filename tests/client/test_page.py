"""docs/clients.rst: its signatures are those of the code, and its examples are Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from brokerd.client.mamamia import BatchSettle, MamamiaClient, batch_message
from brokerd.client.mamamia_async import MamamiaProtocol

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clients.rst").read_text()
BLOCKS = [
    dedent(block) for block in re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE)
]
SIGNATURES = next(block for block in BLOCKS if "MamamiaClient(address" in block)
EXAMPLES = [block for block in BLOCKS if block is not SIGNATURES]
NOT_TOLD = {"close", "send_many"}
"""Methods that the page speaks of elsewhere, or that `with` calls."""


def signature(name: str, function: Callable[..., Any]) -> str:
    """Names and defaults, without types."""
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "_cls")
    ]
    text = str(inspect.Signature(parameters))
    return name + re.sub(r"<function .*?>", "...", text)


def methods(kind: type) -> dict[str, str]:
    there = inspect.getmembers(kind, inspect.isfunction)
    known = {name for name, _ in inspect.getmembers(MamamiaClient, inspect.isfunction)}
    return {
        name: signature(name, function)
        for name, function in there
        if name in known and not name.startswith("_") and name not in NOT_TOLD
    }


def test_the_page_has_every_method_as_it_is() -> None:
    told = [line for line in SIGNATURES.splitlines() if line]
    there = methods(MamamiaClient)
    others = [
        signature("MamamiaClient", MamamiaClient.__init__),
        signature("batch_message", batch_message),
        signature("BatchSettle", BatchSettle.__new__),
    ]
    assert sorted(told) == sorted([*there.values(), *others])


def test_both_clients_have_the_same_methods() -> None:
    assert methods(MamamiaProtocol) == methods(MamamiaClient)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_python_and_imports_what_there_is(example: str) -> None:
    compile(example, "docs/clients.rst", "exec")
    for name, names in re.findall(r"^from (brokerd\.\S+) import (.*)$", example, re.MULTILINE):
        module = import_module(name)
        assert all(hasattr(module, one) for one in names.split(", "))
