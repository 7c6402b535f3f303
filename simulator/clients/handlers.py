# Tests: tests/simulator/test_operator.py
"""Make the calls of an operator through the handlers of the admin API, with its principal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from brokerd.admin.http.routing import Call
from brokerd.broker import Broker
from brokerd.errors import BrokerdError
from simulator.clients.operator_access import OperatorAccess
from simulator.clients.registry_calls import Finish, RegistryCall
from simulator.history.operations import Operation

Handler = Callable[[Call], Coroutine[Deferred[Any], Any, Any]]


def handled(
    operation: Operation,
    handler: Handler,
    path: Mapping[str, str],
    tell: Callable[[Any], None] = lambda answer: None,
    *,
    query: Any = None,
    body: Callable[[Broker], Any] = lambda broker: None,
) -> RegistryCall:
    """Return a call of a handler of the admin API.

    :param path: the names in the path.
    :param tell: stores the handler's answer in the operation.
    :param body: returns the body, when the call is made.
    """

    def begin(broker: Broker, finish: Finish) -> None:
        nobody: Any = None  # The handlers use neither the session nor the options.
        access = OperatorAccess(operation.client)
        call = Call(broker, access, dict(path), query, body(broker), nobody, nobody, lambda: None)

        def refused(failure: Failure) -> None:
            failure.trap(BrokerdError)
            error: Any = failure.value
            finish(None, error)

        asked = Deferred.fromCoroutine(handler(call))
        asked.addCallbacks(lambda found: finish(found, None), refused)

    return RegistryCall(operation, begin, tell)
