# Tests: tests/spark/test_registering.py
"""The log as a source of Apache Spark: docs/spark.rst.

Importing this makes the format ``brokerd`` known to the active session, if there is one, and to
those that ``SparkSession.builder.getOrCreate()`` makes later: Spark calls nobody when a session is
made, so that method is wrapped. Without Spark the import does nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING
from weakref import WeakSet

from brokerd.errors import BrokerdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd.spark.explain_query import Explained

__all__ = ["NoPyspark", "explain", "register"]


class NoPyspark(BrokerdError):
    """Spark's Python package is not installed."""


def register(spark: SparkSession) -> None:
    """Make the format ``brokerd`` known to a session, which importing this does, too.

    :raises NoPyspark: if it is not installed.
    """
    try:
        from brokerd.spark.source import LogSource
    except ImportError as error:
        raise NoPyspark(f"{error.name} is not installed: pip install 'brokerd[spark]'") from None
    spark.dataSource.register(LogSource)


def explain(place: str, **options: object) -> Explained:
    """Tell what a query would read, and leave out; it reads no record.

    :param place: as for ``load``.
    :param options: as for ``option``; ``from`` goes in as ``**{"from": ...}``.
    :return: its ``str()`` is a table.
    :raises BrokerdError: as the query would.
    """
    from brokerd.spark.explain_query import explain

    return explain(place, **options)


def _prepare(environment: MutableMapping[str, str]) -> None:
    """See to it that a Spark that begins now has this Python, and a Java; as brokerd-rollup does.

    What the user said by ``PYSPARK_PYTHON``, ``JAVA_HOME`` or ``PATH`` stays. Where there is no
    Java at all, that is Spark's to tell.
    """
    from brokerd.archive.cluster.session import NoSpark
    from brokerd.spark.java import home

    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if "JAVA_HOME" not in environment and shutil.which("java") is None:
        with suppress(NoSpark):
            environment["JAVA_HOME"] = str(home(environment))


def _attend() -> None:
    """Register with the active session, and with those that are made later."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        return
    known: WeakSet[SparkSession] = WeakSet()
    get_or_create = SparkSession.Builder.getOrCreate

    @wraps(get_or_create)
    def get(builder: SparkSession.Builder) -> SparkSession:
        if SparkContext._active_spark_context is None:
            _prepare(os.environ)
        session = get_or_create(builder)
        if session not in known:
            register(session)
            known.add(session)
        return session

    type.__setattr__(SparkSession.Builder, "getOrCreate", get)
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        known.add(active)


_attend()
