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
TYPED = {"flymq"}
"""Modules whose signatures stand there with types."""


class Bare:
    """An annotation that is shown as it stands in the code."""

    def __init__(self, annotation: Any) -> None:
        self._text = getattr(annotation, "__forward_arg__", annotation)

    def __repr__(self) -> str:
        return str(self._text)


def signature(name: str, function: Callable[..., Any], typed: bool = False) -> str:
    """Names and defaults, and, with ``typed``, types: of what is returned, if it is a method."""
    there = inspect.signature(function)
    nothing = inspect.Signature.empty
    parameters = [
        one.replace(annotation=Bare(one.annotation) if typed else nothing)
        for one in there.parameters.values()
        if one.name not in ("self", "_cls")
    ]
    returned = Bare(there.return_annotation) if typed and name.islower() else nothing
    shown = str(inspect.Signature(parameters, return_annotation=returned))
    text = re.sub(r"<(built-in )?function .*?>", "...", shown)
    return name + re.sub(r"<(\w+\.\w+): .*?>", r"\1", text)


def methods(kind: type, typed: bool = False) -> dict[str, str]:
    return {
        name: signature(name, function, typed)
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in NOT_TOLD
    }


def beside_methods(module: Any, name: str, typed: bool) -> str:
    """A client, or what its methods take and return."""
    found = vars(module)[name]
    if inspect.isfunction(found):
        return signature(name, found, typed)
    made_by = found.__new__ if issubclass(found, tuple) else found.__init__
    return signature(name, made_by, typed)


def test_the_page_tells_of_every_client() -> None:
    assert sorted(SIGNATURES) == ["blipmq", "flymq", "mamamia", "mega", "rustlog"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_page_has_every_method_as_it_is(name: str) -> None:
    module = import_module(f"brokerd.client.{name}")
    told = [line for line in SIGNATURES[name].splitlines() if line]
    typed = name in TYPED
    there = methods(vars(module)[f"{name.capitalize()}Client"], typed)
    others = {line.partition("(")[0] for line in told} - there.keys()
    assert f"{name.capitalize()}Client" in others
    assert sorted(told) == sorted(
        [*there.values(), *(beside_methods(module, other, typed) for other in others)]
    )


def test_whatever_a_flymq_method_takes_and_returns_is_told_with_its_fields() -> None:
    told = {line.partition("(")[0] for line in SIGNATURES["flymq"].splitlines()}
    elsewhere = {"Callable", "Connect", "Sequence", "FlymqTransaction", "False", "True", "None"}
    named = set(re.findall(r"(?<!\.)\b[A-Z]\w+", SIGNATURES["flymq"]))
    assert named - elsewhere == {name for name in told if name[:1].isupper()}


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
