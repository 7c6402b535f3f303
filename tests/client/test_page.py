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

from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mamamia_async import MamamiaProtocol

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clients.rst").read_text()
BLOCKS = [
    dedent(block) for block in re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE)
]
SIGNATURES = {
    block.partition("Client(address")[0].lower(): block
    for block in BLOCKS
    if "Client(address" in block
}
"""By the name of the client's module."""
EXAMPLES = [block for block in BLOCKS if block not in SIGNATURES.values()]
NOT_TOLD = {"close", "send_many"}
"""Methods that the page speaks of elsewhere, or that `with` calls."""


def signature(name: str, function: Callable[..., Any]) -> str:
    """Names and defaults, without types."""
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "_cls")
    ]
    text = re.sub(r"<(built-in )?function .*?>", "...", str(inspect.Signature(parameters)))
    return name + re.sub(r"<(\w+\.\w+): .*?>", r"\1", text)


def methods(kind: type) -> dict[str, str]:
    return {
        name: signature(name, function)
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in NOT_TOLD
    }


def beside_methods(module: Any, name: str) -> str:
    """A client, or what its methods take and return."""
    found = vars(module)[name]
    if inspect.isfunction(found):
        return signature(name, found)
    return signature(name, found.__new__ if issubclass(found, tuple) else found.__init__)


def test_the_page_tells_of_every_client() -> None:
    assert sorted(SIGNATURES) == ["blipmq", "flymq", "mamamia", "mega", "rustlog"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_page_has_every_method_as_it_is(name: str) -> None:
    module = import_module(f"brokerd.client.{name}")
    told = [line for line in SIGNATURES[name].splitlines() if line]
    there = methods(vars(module)[f"{name.capitalize()}Client"])
    others = {line.partition("(")[0] for line in told} - there.keys()
    assert f"{name.capitalize()}Client" in others
    assert sorted(told) == sorted(
        [*there.values(), *(beside_methods(module, other) for other in others)]
    )


def test_both_clients_have_the_same_methods() -> None:
    blocking = methods(MamamiaClient)
    there = methods(MamamiaProtocol)
    assert {name: there[name] for name in blocking} == blocking


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_python_and_imports_what_there_is(example: str) -> None:
    compile(example, "docs/clients.rst", "exec")
    for name, names in re.findall(r"^from (brokerd\.\S+) import (.*)$", example, re.MULTILINE):
        module = import_module(name)
        assert all(hasattr(module, one) for one in names.split(", "))
