"""No table of wire formats leaves one of them out."""

from __future__ import annotations

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
