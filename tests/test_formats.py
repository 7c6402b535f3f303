"""No table, test or page that has a row for each wire format leaves one of them out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

from brokerd.cli.bench.formats import FORMATS as LOADED
from brokerd.server.assembly import FACTORIES
from brokerd.server.sections import DEFAULT_LISTENERS, FORMATS
from demo.readers import READERS
from demo.summary import PLACES
from demo.writers import FORMAT_WRITERS
from simulator.draw import FORMATS as DRAWN
from simulator.draw.formats import ESSENTIAL, MIXES
from simulator.plan import WireFormat
from tests.codecs.every import DECODERS
from tests.cross.format_clients import FORMAT_CLIENTS
from tests.cross.peers import PEERS

ROOT = Path(__file__).resolve().parent.parent

TABLES: dict[str, Iterable[str]] = {
    "what is served": FACTORIES,
    "what listens by default": chain.from_iterable(form.split("+") for form in DEFAULT_LISTENERS),
    "what puts load on a broker": LOADED,
    "what has a client": {path.stem for path in ROOT.glob("brokerd/client/*.py")} & {*FORMATS},
    "what has a page": {path.stem for path in ROOT.glob("docs/protocols/*.rst")},
    "what the simulator can plan": get_args(WireFormat),
    "what the simulator draws": {"mamamia", *DRAWN},
    "whose operations the simulator draws": {"mamamia", *MIXES},
    "whose essential operations are drawn": {"mamamia", *ESSENTIAL},
    "what the demo writes": FORMAT_WRITERS,
    "what the demo reads": {"mamamia", *(reader.form for reader in READERS)},
    "what the demo tells of": PLACES,
    "whose decoder is tested": DECODERS,
    "whose peers are matched": {peer.listener for peer in PEERS.values()},
    "whose refusals are compared": {name.split()[0].lower() for name in FORMAT_CLIENTS},
    "what is fuzzed": {path.stem[len("of_") :] for path in ROOT.glob("tests/fuzz/of_*.py")},
}


@pytest.mark.parametrize("table", TABLES)
def test_every_format_is_in_every_table(table: str) -> None:
    assert sorted(TABLES[table]) == sorted(FORMATS)


MAY_LACK = {
    "demo/readers.py": {"mamamia"},  # its workers lease
    "docs/architecture.rst": {"rustlog"},
    "docs/cli.rst": {"mega"},
    "docs/leases.rst": {"mega"},
    "simulator/draw/formats.py": {"mamamia"},
    "tests/cross/test_permissions.py": {"flymq"},
    "tests/simulator/test_format_clients.py": {"mamamia"},
    "tests/simulator/test_plan.py": {"mega"},
    "tests/test_assembly.py": {"blipmq"},
    "tests/test_guards.py": {"rustlog"},
}
"""Files that name all wire formats but these."""
HISTORY = "tests/planted/", "tests/releases/"
"""About brokers of one time, with the formats of that time."""
TEXTS = (
    "README.rst",
    *(
        f"{room}/**/*.{kind}"
        for room in ("brokerd", "simulator", "benchmarks", "demo", "docs", "etc", "tests")
        for kind in ("py", "rst", "toml", "svg")
    ),
)


def named_formats(text: str) -> set[str]:
    """Return the wire formats that a text names."""
    text = text.lower()
    return {
        form for form in FORMATS if form in text and re.search(rf"(?<![a-z]){form}(?![a-z])", text)
    }


def test_a_file_that_names_all_other_formats_names_each() -> None:
    """A page, table or test with a row for each format needs a row for a new one, too."""
    wrong = []
    for path in chain.from_iterable(map(ROOT.glob, TEXTS)):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(HISTORY):
            lacks = {*FORMATS} - named_formats(path.read_text())
            may_lack = MAY_LACK.get(name, set())
            if len(lacks - may_lack) == 1 or not may_lack <= lacks:
                wrong.append(f"{name} lacks {sorted(lacks)}")
    assert not wrong, "\n".join(["name the format there, or correct MAY_LACK:", *sorted(wrong)])
