# Tests: tests/broker/test_calls.py
"""Run one call of the broker for a caller without a connection, such as the admin API.

`call_when_admitted` waits while the broker is congested, and answers when the change is durable.
`brokerd.protocols.base.connection` does the same for a stream of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred

from brokerd.broker.broker import Broker
from brokerd.broker.group_commit import Congested
from brokerd.errors import BrokerdError, ShuttingDown, StorageFailed, without_traceback

Result = TypeVar("Result")


def call_when_admitted(broker: Broker, call: Callable[[], Result]) -> Deferred[Result]:
    """Run ``call()``, again after each `Congested`, and fire when its result is durable.

    ``call`` uses the broker, and must raise before it changes anything. If it raises a
    `BrokerdError`, the Deferred fails with it when all earlier changes are durable. It fails with
    `ShuttingDown` while the broker does not serve. A cancelled Deferred fails with CancelledError.
    Then a waiting call is dropped, and a finished call keeps its effect.
    """
    question = _Call(broker, call)
    question.attempt()
    return question.answer


class _Call(Generic[Result]):
    """A call and the Deferred of its result."""

    def __init__(self, broker: Broker, call: Callable[[], Result]) -> None:
        self._broker = broker
        self._call = call
        self.answer: Deferred[Result] = Deferred()

    def attempt(self) -> None:
        """Run the call, unless its Deferred was cancelled."""
        if self.answer.called:
            return
        try:
            if not self._broker.ready:
                raise ShuttingDown(
                    "the broker is starting or stopping and takes no requests; try again later"
                )
            result = self._call()
        except Congested:
            self._broker.group_commit.when_uncongested(self.attempt)
        except (ShuttingDown, StorageFailed) as refusal:
            self.answer.errback(without_traceback(refusal))  # the log may never be durable again
        except BrokerdError as refusal:
            refuse = partial(self.answer.errback, without_traceback(refusal))
            self._broker.group_commit.when_all_durable(refuse)
        except Exception:
            self.answer.errback()
        else:
            # If the Deferred is cancelled before, it ignores the result.
            self._broker.group_commit.when_all_durable(partial(self.answer.callback, result))
