# Tests: tests/archive/test_shipping.py
"""Ships brokerd to the machines of tasks, and checks there that it is the driver's brokerd.

The driver sends executors a zip of its modules. Spark's workers import it before any installed
brokerd (docs/spark-cluster.rst). Equal modules give equal zips. The zip has no libraries, so each
machine needs them installed. Of the wire formats it has Mamamia alone, in which the sink writes.

A task first compares packages. If another brokerd would run it, or a library is missing, it
returns an error text before it unpickles the function: `portable_task`.

``python -m brokerd.archive.cluster.shipping DIRECTORY`` writes the zip and prints its path, for
``spark-submit --py-files``.
"""

from __future__ import annotations

import importlib.resources
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from hashlib import blake2b
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import brokerd

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKAGES = ("archive", "client", "codecs", "spark", "walformat")
MODULES = ("__init__.py", "errors.py", "values.py")
"""The parts of brokerd that tasks import."""
WIRE_FORMAT = "mamamia"
"""The wire format of the sink. Codecs and clients of other formats are not sent."""

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the zip: the earliest that the format has."""
_PAGE = "docs/spark-cluster.rst"


class Package(NamedTuple):
    """The identity of a copy of brokerd."""

    version: str
    digest: str
    """The digest of its modules."""

    def __str__(self) -> str:
        return f"{self.version} ({self.digest[:8]})"


@cache
def package() -> Package:
    """Return the identity of this process's brokerd."""
    digest = blake2b(digest_size=16)
    for name, content in _modules():
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)))
        digest.update(content)
    return Package(brokerd.__version__, digest.hexdigest())


@cache
def _modules() -> tuple[tuple[str, bytes], ...]:
    """Return file names below the package and contents, in order. The package may be a zip."""
    top = importlib.resources.files(brokerd)
    formats = {entry.name for entry in (top / "codecs").iterdir() if entry.is_dir()}
    others = formats - {WIRE_FORMAT}
    below = [one for name in PACKAGES for one in _below(top / name, name, others)]
    return *((name, (top / name).read_bytes()) for name in MODULES), *below


def _below(directory: Traversable, prefix: str, others: Set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the modules below a directory, without those whose names begin with another format."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}/{entry.name}"
        if re.split("[._]", entry.name, maxsplit=1)[0] in others:
            continue
        if entry.name.endswith(".py"):
            yield name, entry.read_bytes()
        elif entry.is_dir():
            yield from _below(entry, name, others)


# -- On the driver -------------------------------------------------------------------------------


def write_zip(directory: Path) -> Path:
    """Write the modules as ``brokerd-<version>-<digest>.zip``, and return the path."""
    version, digest = package()
    path = directory / f"brokerd-{version}-{digest[:16]}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in _modules():
            entry = zipfile.ZipInfo(f"brokerd/{name}", _ZIP_EPOCH)
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def main(arguments: Sequence[str]) -> int:
    """Write the zip, and return the exit code."""
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
    """Send the driver's brokerd to the executors of a running Spark, and return the zip's path.

    The zip must stay in ``directory`` while Spark runs. The module path of this process does not
    change.
    """
    path = write_zip(directory)
    before = list(sys.path)
    try:
        context.addPyFile(str(path))
    finally:
        sys.path[:] = before
    return path


def portable_task(
    function: Callable[[Any], Any], expected: Package | None
) -> Callable[[bytes], tuple[Any, str]]:
    """Return a task that calls a module's function. Any executor can unpickle it without brokerd.

    The task takes a pickled argument. It returns the function's result and "", or None and the
    reason why it did not call the function.

    :param expected: the brokerd that must run the task; None accepts any, for tasks beside the
        driver.
    """
    pickled = pickle.dumps(function)
    identity = None if expected is None else tuple(expected)

    def call(argument: bytes) -> tuple[Any, str]:
        try:
            from brokerd.archive.cluster.shipping import run_task
        except ImportError as error:
            return None, f"an executor lacks a suitable brokerd: {error}"
        return run_task(identity, pickled, argument)

    return call


# -- On an executor ------------------------------------------------------------------------------


def run_task(identity: tuple[str, ...] | None, function: bytes, argument: bytes) -> tuple[Any, str]:
    """Call a pickled function if this is the expected brokerd. Return as `portable_task` does."""
    if identity is not None and package() != identity:
        where = os.path.dirname(brokerd.__file__)
        return None, (
            f"an executor runs brokerd {package()} of {where}, the driver {Package(*identity)}: "
            "remove the former from --py-files, spark.submit.pyFiles and PYTHONPATH "
            f"({_PAGE})"
        )
    try:
        call, value = pickle.loads(function), pickle.loads(argument)
    except ModuleNotFoundError as error:
        return None, (
            f"{error.name} is not installed where tasks run, in {sys.executable}: "
            f"`pip install 'brokerd[spark]'` there, or ship an environment ({_PAGE})"
        )
    return call(value), ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
