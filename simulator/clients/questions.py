# Tests: tests/simulator/test_operator.py
"""Ask for the life of a record, as ``brokerctl explain`` does by the admin API."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from brokerd.admin.calls.history import describe_history
from brokerd.admin.http.routing import Call
from brokerd.admin.shapes.history import History, HistoryQuery
from brokerd.broker import Broker
from brokerd.errors import BrokerdError
from brokerd.security import OPEN
from simulator.clients.registry_calls import UNNUMBERED, Finish, RegistryCall
from simulator.history.operations import Explain, LifeEvent, Place

EVENTS_MAX = 1_000


def explain(client: str, topic: str, place: Place) -> RegistryCall:
    """Ask for all events of all groups about a record."""
    operation = Explain(number=UNNUMBERED, client=client, topic=topic, place=place)
    path = {"topic": topic, "partition": str(place.partition), "offset": str(place.offset)}
    query = HistoryQuery(limit=EVENTS_MAX)

    def begin(broker: Broker, finish: Finish) -> None:
        nobody: Any = None  # It uses neither the session nor the options.
        call = Call(broker, OPEN, path, query, None, nobody, nobody)

        def refused(failure: Failure) -> None:
            failure.trap(BrokerdError)
            error: Any = failure.value
            finish(None, error)

        asked = Deferred.fromCoroutine(describe_history(call))
        asked.addCallbacks(lambda found: finish(found, None), refused)

    def tell(found: History) -> None:
        operation.exists = found.record is not None
        operation.is_whole = found.next is None and not found.problems
        operation.events = tuple(
            LifeEvent(one.lsn, one.group, one.event, one.token, one.reason, one.first, one.end)
            for one in found.events
        )

    return RegistryCall(operation, begin, tell)
