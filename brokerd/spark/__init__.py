# Tests: tests/spark/test_registering.py
"""The log as a source of Apache Spark: docs/spark.rst.

Importing this module registers the format ``brokerd`` with the active session and with sessions
that ``SparkSession.builder.getOrCreate()`` creates later. The module wraps this method, because
Spark has no hook for new sessions. Without Spark the import has no effect.
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

from brokerd.errors import BrokerdError, install_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokerd.spark.explain_query import Explanation

__all__ = ["NoPyspark", "explain", "log", "register"]


class NoPyspark(BrokerdError):
    """The package pyspark is not installed."""


def register(spark: SparkSession) -> None:
    """Register the format ``brokerd`` with a session. The import does it for the active session.

    :raises NoPyspark: pyspark is not installed.
    """
    try:
        from brokerd.spark.source import LogSource
    except ImportError as error:
        raise _no_pyspark(error) from None
    spark.dataSource.register(LogSource)


def log(spark: SparkSession, place: str, **options: object) -> DataFrame:
    """Return the rows of a log as a DataFrame, as of this moment.

    Spark's own Parquet reader scans the archive, several times faster than the format ``brokerd``.
    Rows, columns and options are those of the format.

    :param place: as for ``load``.
    :param options: as for ``option``. Pass ``from`` as ``**{"from": ...}``.
    :raises NoPyspark: pyspark is not installed.
    :raises BrokerdError: the log cannot be read, or an option is wrong.
    """
    try:
        from brokerd.spark.log_frame import read_log
    except ImportError as error:
        raise _no_pyspark(error) from None
    return read_log(spark, place, options)


def explain(place: str, **options: object) -> Explanation:
    """Plan a query, and return the amounts that it reads and skips. Read no record.

    :param place: the path for ``load``.
    :param options: the options for ``option``. Pass ``from`` as ``**{"from": ...}``.
    :return: an object whose ``str()`` is a table.
    :raises BrokerdError: for the reasons of the query.
    """
    from brokerd.spark.explain_query import explain

    return explain(place, **options)


def _no_pyspark(error: ImportError) -> NoPyspark:
    return NoPyspark(f"{error.name} is not installed: {install_text('spark')}")


def _prepare(environment: MutableMapping[str, str]) -> None:
    """Set the Python and the Java of a Spark that starts later, as brokerd-rollup does.

    The user's ``PYSPARK_PYTHON``, ``JAVA_HOME`` and ``PATH`` stay. Spark itself reports a missing
    Java.
    """
    from brokerd.archive.cluster.session import NoSpark
    from brokerd.spark.java import find_java_home

    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if "JAVA_HOME" not in environment and shutil.which("java") is None:
        with suppress(NoSpark):
            environment["JAVA_HOME"] = str(find_java_home(environment))


def _hook_sessions() -> None:
    """Register with the active session and with later sessions."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return
    registered: WeakSet[SparkSession] = WeakSet()
    get_or_create = SparkSession.Builder.getOrCreate

    @wraps(get_or_create)
    def get(builder: SparkSession.Builder) -> SparkSession:
        if SparkSession.getActiveSession() is None:
            _prepare(os.environ)
        session = get_or_create(builder)
        if session not in registered:
            register(session)
            registered.add(session)
        return session

    type.__setattr__(SparkSession.Builder, "getOrCreate", get)
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        registered.add(active)


_hook_sessions()
