# Tests: tests/archive/test_shipping.py
"""brokerd on the machines where tasks run: the modules that they need, and proof which those are.

Executors are sent a zip of the modules, as the driver runs them, which Spark's workers then find
before any brokerd that is installed there (docs/spark-cluster.rst). The zip is the same whenever
the modules are. It has no libraries: those have to be there.

A task says first what it was made with. Where another brokerd would run it, or a library is
missing, it is refused in words, before anything else of it is even read: `carried`.

``python -m brokerd.archive.cluster.shipping DIRECTORY`` writes the zip and prints its path, for
``spark-submit --py-files``.
"""

from __future__ import annotations

import importlib.resources
import os
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import brokerd

if TYPE_CHECKING:
    from pyspark import SparkContext

ROOMS = ("archive", "spark", "walformat")
MODULES = ("__init__.py", "errors.py", "values.py")
"""What tasks import of brokerd; more than these, those in `ROOMS` do not import."""

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the zip: the first that one can have."""
_PAGE = "docs/spark-cluster.rst"


class Package(NamedTuple):
    """Which brokerd this is."""

    version: str
    digest: str
    """Of its modules."""

    def __str__(self) -> str:
        return f"{self.version} ({self.digest[:8]})"


@cache
def package() -> Package:
    """The brokerd that runs here."""
    digest = blake2b(digest_size=16)
    for name, content in _modules():
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)))
        digest.update(content)
    return Package(brokerd.__version__, digest.hexdigest())


@cache
def _modules() -> tuple[tuple[str, bytes], ...]:
    """Names below the package, and contents, in order; also of a package that runs from a zip."""
    top = importlib.resources.files(brokerd)
    rooms = [one for room in ROOMS for one in _below(top / room, room)]
    return *((name, (top / name).read_bytes()) for name in MODULES), *rooms


def _below(directory: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}/{entry.name}"
        if entry.name.endswith(".py"):
            yield name, entry.read_bytes()
        elif entry.is_dir():
            yield from _below(entry, name)


# -- On the driver -------------------------------------------------------------------------------


def write_zip(directory: Path) -> Path:
    """Write the modules that tasks need as ``brokerd-<version>-<digest>.zip``; gives its path."""
    version, digest = package()
    path = directory / f"brokerd-{version}-{digest[:16]}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in _modules():
            entry = zipfile.ZipInfo(f"brokerd/{name}", _LONG_AGO)
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def main(arguments: Sequence[str]) -> int:
    """Write the zip; the exit code."""
    if len(arguments) != 1:
        print("usage: python -m brokerd.archive.cluster.shipping DIRECTORY", file=sys.stderr)
        return 2
    try:
        print(write_zip(Path(arguments[0])))
    except OSError as error:
        print(f"{error.filename or arguments[0]}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def ship(context: SparkContext, directory: Path) -> Path:
    """Have the executors of a running Spark use the driver's brokerd; gives the zip's path.

    The zip is written into ``directory``, where it has to stay for as long as Spark runs. It is
    for the executors alone: where this process finds its modules stays as it is.
    """
    path = write_zip(directory)
    before = list(sys.path)
    try:
        context.addPyFile(str(path))
    finally:
        sys.path[:] = before
    return path


def carried(
    function: Callable[[Any], Any], expected: Package | None
) -> Callable[[bytes], tuple[Any, str]]:
    """A function of a module, as one of pickled arguments that any executor can be given.

    It returns what the function returned, and ""; or, in words, why it was not called: another
    brokerd than ``expected`` would have run it. To be unpickled it needs nothing of brokerd.

    :param expected: None: whatever is there, which beside the driver is what the driver runs.
    """
    pickled = pickle.dumps(function)
    wanted = None if expected is None else tuple(expected)

    def call(argument: bytes) -> tuple[Any, str]:
        try:
            from brokerd.archive.cluster.shipping import run_here
        except ImportError as error:
            return None, f"an executor has no brokerd that fits: {error}"
        return run_here(wanted, pickled, argument)

    return call


# -- On an executor ------------------------------------------------------------------------------


def run_here(wanted: tuple[str, ...] | None, function: bytes, argument: bytes) -> tuple[Any, str]:
    """Call a pickled function, if it is of this brokerd; else say why not."""
    if wanted is not None and package() != wanted:
        where = os.path.dirname(brokerd.__file__)
        return None, (
            f"an executor runs brokerd {package()} of {where}, the driver {Package(*wanted)}: "
            "take the other one out of --py-files, spark.submit.pyFiles and PYTHONPATH "
            f"({_PAGE})"
        )
    try:
        called, given = pickle.loads(function), pickle.loads(argument)
    except ModuleNotFoundError as error:
        return None, (
            f"{error.name} is not installed where tasks run, in {sys.executable}: "
            f"`pip install 'brokerd[spark]'` there, or send an environment along ({_PAGE})"
        )
    return called(given), ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
