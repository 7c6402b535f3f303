# Tests: tests/test_conditions.py, tests/test_watch.py
"""Named conditions of the broker: a full disk, a stalled disk, a wrong clock and others.

A condition stands while its probe returns a reason. `Conditions.check` asks all probes, and logs
when a condition begins and when it ends. Health, the page and the metrics show the result of the
last check, so they agree, and a request costs no probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from twisted.logger import Logger

_log = Logger(namespace="brokerd")


class Condition(NamedTuple):
    """One condition that an operator should know of."""

    name: str
    """Stable name, such as ``disk-full``; docs/monitoring.rst lists all."""
    probe: Callable[[], str]
    """Returns why the condition stands, "" if it does not. It must not block."""
    serves: bool = True
    """Whether a broker in this condition still serves clients; if not, it is not ready."""


class Conditions:
    """The conditions of one broker."""

    def __init__(self) -> None:
        self._conditions: list[Condition] = []
        self.reasons: dict[str, str] = {}
        """Condition -> why it stood at the last check, "" if it did not."""

    def add(self, conditions: Iterable[Condition]) -> None:
        """Add conditions; they do not stand before the next check."""
        for condition in conditions:
            self._conditions.append(condition)
            self.reasons.setdefault(condition.name, "")

    def check(self) -> None:
        """Ask all probes, and log each condition that began or ended."""
        for condition in self._conditions:
            before, reason = self.reasons[condition.name], condition.probe()
            self.reasons[condition.name] = reason
            if reason and not before:
                log = _log.warn if condition.serves else _log.error
                log(
                    "{condition}: {reason}",
                    event_id="condition-began",
                    condition=condition.name,
                    reason=reason,
                )
            elif before and not reason:
                _log.info(
                    "{condition} is over",
                    event_id="condition-ended",
                    condition=condition.name,
                )

    @property
    def standing(self) -> list[str]:
        """Names of the conditions that stood at the last check."""
        return [name for name, reason in self.reasons.items() if reason]

    @property
    def reason(self) -> str:
        """All reasons in one line; "" if no condition stands."""
        return "; ".join(dict.fromkeys(filter(None, self.reasons.values())))

    @property
    def serves(self) -> bool:
        """Whether no condition keeps the broker from serving clients."""
        return all(one.serves or not self.reasons[one.name] for one in self._conditions)
