"""The arrows of docs/architecture.rst, as a test: who may import whom, read from the source itself.

A room is a module or package under ``brokerd`` that has a rule here; a module belongs to the room
with the longest name. Every import statement counts, wherever it stands, because a function that
imports sideways is an arrow too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

VALUES = {"values", "errors"}
WAIST = VALUES | {"worker_pool", "histogram"}
WIRING = {"tap", "rollup", "server"}
"""The rooms that see every other room. Nobody below sees them."""

EVERYTHING = {"*"}
LOG_FILES = WAIST | {"walformat", "wal.disk"} | {"wal.segment", "wal.index_files", "wal.snapshot"}
STORED = WAIST | {"walformat", "archive.contract", "archive.storage"}
SERVED = STORED | {"archive.parquet", "archive.delta"}
ARCHIVED = SERVED | {"archive.journal", "archive.cluster", "archive.run", "archive.errors"}
QUERIED = WAIST | {"archive", "walformat"}
BROKERED = WAIST | {"groups", "wal", "walformat", "security", "schemas", "archive.contract"}
BROKER_BASE = BROKERED | {
    "broker.callbacks",
    "broker.clock",
    "broker.context",
    "broker.group_commit",
    "broker.light_first",
    "broker.model",
    "broker.status.counters",
}
"""Every service of the broker may import these."""
ARROWS: dict[str, set[str]] = {
    "values": set(),
    "errors": set(),
    "worker_pool": set(),
    "histogram": set(),
    "walformat": set(),
    "codecs": VALUES,
    "groups": VALUES | {"walformat"},
    "wal": WAIST | {"walformat", "wal", "archive.contract"},
    "wal.read": WAIST | {"walformat", "wal.disk"},
    "wal.write": LOG_FILES | {"wal.catalog"},
    "wal.deletion": LOG_FILES | {"wal.catalog"},
    "wal.recovery": LOG_FILES | {"wal.read", "wal.deletion.deleted_ranges", "archive.contract"},
    "wal.damage": LOG_FILES | {"wal.read", "wal.recovery", "wal.deletion.deleted_ranges"},
    "security": WAIST,
    "schemas": WAIST,
    "archive": WAIST | {"archive"},
    "archive.contract": WAIST | {"walformat"},
    "archive.storage": STORED,
    "archive.parquet": STORED,
    "archive.delta": STORED | {"archive.parquet"},
    "archive.serve": SERVED,
    "archive.journal": STORED,
    "archive.errors": WAIST,
    "archive.cluster": SERVED | {"archive.errors"},
    "archive.run": SERVED | {"archive.cluster"},
    "archive.ingest": ARCHIVED,
    "archive.derive": ARCHIVED,
    "archive.maintain": ARCHIVED | {"archive.derive"},
    "archive.iceberg": ARCHIVED,
    "archive.typed": ARCHIVED | {"schemas", "archive.maintain.merge_policy"},
    "spark": QUERIED | {"spark"},
    "spark.request": QUERIED,
    "spark.stream_report": QUERIED
    | {"client", "spark.options", "spark.plan.positions", "spark.sink.options"},
    "spark.location": QUERIED,
    "spark.options": QUERIED | {"spark.request"},
    "spark.plan": QUERIED | {"spark.request", "spark.location"},
    "spark.read": QUERIED
    | {"spark.plan", "spark.request", "spark.location", "spark.options", "spark.errors"},
    "spark.sink": QUERIED
    | {"client", "codecs", "spark.options", "spark.errors", "spark.read.row_format"},
    "broker": BROKERED | {"broker"},
    "broker.callbacks": BROKERED,
    "broker.clock": BROKERED,
    "broker.slices": BROKERED | {"broker.clock"},
    "broker.model": BROKERED | {"broker.clock", "broker.group_commit"},
    "broker.group_commit": BROKERED | {"broker.callbacks", "broker.clock", "broker.model"},
    "broker.light_first": BROKERED | {"broker.clock", "broker.group_commit"},
    "broker.context": BROKER_BASE,
    "broker.archive": BROKER_BASE,
    "broker.archive.admin": BROKER_BASE | {"broker.archive", "broker.retention"},
    "broker.status": BROKER_BASE | {"broker.archive"},
    "broker.records": BROKER_BASE | {"broker.archive", "broker.status.damage"},
    "broker.records.topic_writer": BROKER_BASE
    | {"broker.records", "broker.security", "broker.topic_admin"},
    "broker.leases": BROKER_BASE | {"broker.slices"},
    "broker.retention": BROKER_BASE | {"broker.archive", "broker.slices"},
    "broker.delayed": BROKER_BASE | {"broker.archive", "broker.leases", "broker.records"},
    "broker.topic_admin": BROKER_BASE | {"broker.leases"},
    "broker.security": BROKER_BASE | {"broker.records", "broker.topic_admin"},
    "broker.schemas": BROKER_BASE | {"broker.security"},
    "protocols": WAIST | {"codecs", "broker", "security", "schemas"},
    "admin": WAIST | {"broker", "security", "schemas"},
    "client": WAIST | {"codecs"},
    "cli": WAIST
    | {"client", "codecs", "wal", "walformat"}
    | {"server.compiled", "server.config", "server.listeners"}
    | {"cli.verbs.erase", "cli.verbs.recover", "cli.verbs.restore_topic"},
    "cli.verbs.erase": WAIST | {"cli", "archive", "server.config"},
    "cli.verbs.recover": WAIST | {"cli", "archive", "server.config"},
    "cli.verbs.restore_topic": WAIST | {"cli", "archive", "server.config"},
    "cli.verbs.backup": WAIST
    | {"cli", "backup", "archive.contract", "archive.storage", "wal", "server.config"},
    "backup": STORED | {"archive.delta", "wal"},
    **dict.fromkeys(WIRING, EVERYTHING),
}

TWISTED: dict[str, set[str]] = {
    "values": set(),
    "errors": set(),
    "worker_pool": set(),
    "histogram": set(),
    "walformat": set(),
    "codecs": set(),
    "groups": set(),
    "archive": set(),
    "backup": set(),
    "spark": set(),
    "security": set(),
    "schemas": set(),
    "wal": {"twisted.logger"},
    "broker": {
        "twisted.logger",
        "twisted.internet.defer",
        "twisted.internet.interfaces",
        "twisted.python.failure",
    },
}
"""Which parts of Twisted a room may import. A room that is not listed may import any."""

SPARK = {"spark", "spark.read", "spark.sink", "archive"} | {
    f"archive.{room}" for room in ("ingest", "derive", "maintain", "cluster")
}
"""The rooms that import pyspark."""

REACTOR_INSIDE_FUNCTIONS = WIRING | {"cli"}
WALFORMAT_LIBRARIES = {"msgpack", "xxhash"}


class Import(NamedTuple):
    """One imported name, dotted and absolute."""

    name: str
    line: int
    at_module_level: bool


def imports_of(
    module: str, is_package: bool, tree: ast.AST, nested: bool = False
) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, not nested)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, not nested)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(module, is_package, node, nested or is_function)


def _below(name: str, roots: set[str]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def _room(name: str) -> str | None:
    """Find the room of a dotted name below ``brokerd``: the longest one that it begins with."""
    return max((room for room in ARROWS if _below(name, {room})), key=len, default=None)


def _breach(room: str, imported: Import) -> str | None:
    """Say which rule an import of this room breaks, or return None."""
    name = imported.name
    top, _, inside = name.partition(".")
    if top == "brokerd":
        target = _room(inside)
        if target in (None, room):
            return None
        allowed = ARROWS[room]
        if allowed is not EVERYTHING and not _below(inside, allowed):
            return f"{room} may import only {sorted(allowed) or 'nothing of ours'}"
        return None
    if top == "simulator":
        return "nothing that is shipped imports the simulator"
    if top == "pyspark" and room not in SPARK:
        return f"only {sorted(SPARK)} import pyspark"
    if _below(name, {"twisted.internet.reactor"}):
        if imported.at_module_level:
            return "no reactor import at module level: take it as an argument"
        if room not in REACTOR_INSIDE_FUNCTIONS:
            return f"{room} never imports the reactor: take it as an argument"
    floor = room.partition(".")[0]
    if top in ("twisted", "zope") and floor in TWISTED and not _below(name, TWISTED[floor]):
        return f"{room} may import only {sorted(TWISTED[floor]) or 'nothing'} of Twisted"
    if room == "walformat" and top not in WALFORMAT_LIBRARIES | sys.stdlib_module_names:
        return f"walformat may import only the standard library and {sorted(WALFORMAT_LIBRARIES)}"
    return None


def breaches(path: str, source: str) -> list[str]:
    """Check one module.

    :param path: its path from the root of the repository, such as ``brokerd/wal/lock.py``.
    :return: one line for each breach, ``file:line: imports name: rule``.
    """
    parts = path.removesuffix(".py").split("/")
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    room = "values" if module == "brokerd" else _room(".".join(parts[1:]))
    if room is None or (room in ("archive", "wal") and len(parts) > 3):
        lost = ".".join(parts[1:-1]) or parts[1]
        return [f"{path}:1: a room without arrows: give {lost!r} its rule in tests/test_arrows.py"]
    found = []
    for imported in imports_of(module, is_package, ast.parse(source, path)):
        rule = _breach(room, imported)
        if rule:
            found.append(f"{path}:{imported.line}: imports {imported.name}: {rule}")
    return found


def test_every_import_follows_the_arrows() -> None:
    """The whole package keeps the arrows of the design."""
    found: list[str] = []
    for path in sorted((ROOT / "brokerd").rglob("*.py")):
        found += breaches(path.relative_to(ROOT).as_posix(), path.read_text())
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("brokerd/codecs/mamamia.py", "import brokerd.broker", "codecs may import only"),
        ("brokerd/codecs/mamamia.py", "from brokerd import wal", "codecs may import only"),
        ("brokerd/codecs/mamamia.py", "from twisted.python import log", "of Twisted"),
        ("brokerd/groups/store.py", "from ..wal.writer import Wal", "groups may import only"),
        (
            "brokerd/groups/store.py",
            "def f():\n    from ..wal import Wal",
            "groups may import only",
        ),
        ("brokerd/wal/__init__.py", "from ..broker import Broker", "wal may import only"),
        ("brokerd/wal/read/x.py", "from brokerd.wal.log import Wal", "wal.read may import only"),
        ("brokerd/wal/recovery/x.py", "from ..damage import verify", "wal.recovery may import"),
        ("brokerd/wal/attic/x.py", "", "a room without arrows"),
        ("brokerd/wal/writer.py", "from twisted.internet import defer", "of Twisted"),
        (
            "brokerd/broker/topics.py",
            "from brokerd.protocols import mamamia",
            "broker may import",
        ),
        ("brokerd/broker/log.py", "from brokerd.archive import job", "broker may import only"),
        ("brokerd/broker/log.py", "from twisted.internet import task", "of Twisted"),
        ("brokerd/walformat/x.py", "from brokerd import values", "walformat may import only"),
        ("brokerd/walformat/x.py", "from ..errors import DamagedData", "only nothing of ours"),
        ("brokerd/walformat/x.py", "import numpy", "walformat may import only"),
        ("brokerd/tap.py", "from twisted.internet import reactor", "no reactor import at module"),
        ("brokerd/admin/site.py", "def f():\n    from twisted.internet import reactor", "never"),
        ("brokerd/admin/site.py", "from brokerd.tap import Options", "admin may import only"),
        ("brokerd/tap.py", "import simulator.clock", "imports the simulator"),
        ("brokerd/broker/log.py", "import pyspark.sql", "import pyspark"),
        ("brokerd/archive/delta/table.py", "import pyspark.sql", "import pyspark"),
        ("brokerd/archive/contract/pin.py", "from twisted.internet import defer", "of Twisted"),
        ("brokerd/archive/contract/pin.py", "from ..journal import sealed", "contract may import"),
        ("brokerd/archive/delta/table.py", "from brokerd.archive import serve", "delta may import"),
        ("brokerd/archive/journal/sealed.py", "from ..run import Run", "journal may import only"),
        ("brokerd/archive/attic/rats.py", "", "a room without arrows"),
        ("brokerd/cellar/rats.py", "", "a room without arrows"),
    ],
)
def test_a_wrong_arrow_is_named_with_file_line_and_rule(path: str, source: str, rule: str) -> None:
    """The check would see each kind of breach, and its message says where and why."""
    (message,) = breaches(path, source)
    assert message.startswith(f"{path}:")
    assert rule in message


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("brokerd/codecs/mamamia.py", "import msgpack\nfrom brokerd.values import Encoding"),
        ("brokerd/wal/writer.py", "from twisted.logger import Logger\nfrom .. import walformat"),
        ("brokerd/broker/log.py", "from brokerd.archive.contract.view import ArchiveView"),
        ("brokerd/broker/__init__.py", "from .topics import Topics"),
        ("brokerd/archive/job.py", "from .ingest.ingest import roll_up\nimport pyspark"),
        ("brokerd/archive/serve/lazy.py", "from ..delta.log_reader import DeltaLog"),
        (
            "brokerd/protocols/mamamia.py",
            "from twisted.internet.protocol import Factory",
        ),
        ("brokerd/tap.py", "def makeService():\n    from twisted.internet import reactor"),
    ],
)
def test_a_right_arrow_is_left_alone(path: str, source: str) -> None:
    """Imports that the design allows raise nothing."""
    assert breaches(path, source) == []


@pytest.mark.parametrize("room", ["brokerd", "simulator", "benchmarks", "demo"])
def test_the_tests_that_a_module_names_exist(room: str) -> None:
    """``# Tests:`` in the first line leads somewhere."""
    for path in (ROOT / room).rglob("*.py"):
        first = (path.read_text().splitlines() or [""])[0]
        for name in first.removeprefix("# Tests:").split(",") if "# Tests:" in first else ():
            assert (ROOT / name.strip()).exists(), f"{path}: {name}"
