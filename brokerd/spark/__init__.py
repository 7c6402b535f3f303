# Tests: tests/spark/test_registering.py
"""The log as a source of Apache Spark: docs/spark.rst.

Importing this makes the format ``brokerd`` known to the active session, if there is one, and to
those that ``SparkSession.builder.getOrCreate()`` makes later: Spark calls nobody when a session is
made, so that method is wrapped. Without Spark the import does nothing.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING
from weakref import WeakSet

from brokerd.errors import BrokerdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd.spark.explaining import Explained

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
    from brokerd.spark.explaining import explain

    return explain(place, **options)


def _attend() -> None:
    """Register with the active session, and with those that are made later."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return
    known: WeakSet[SparkSession] = WeakSet()
    get_or_create = SparkSession.Builder.getOrCreate

    @wraps(get_or_create)
    def get(builder: SparkSession.Builder) -> SparkSession:
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
