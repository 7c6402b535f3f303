# Tests: tests/groups/test_settings.py
"""Settings of a consumer group: attempts, back-off, default lease.

The journal (event CONFIGURED) and snapshots store settings as JSON text, so every field is an
integer, a word or a boolean.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Literal

from brokerd.errors import InvalidRequest

MAX_ATTEMPTS_LIMIT = 1_000_000
"""Largest accepted ``max_attempts``."""

MAX_DURATION_US = 100 * 365 * 86_400 * 1_000_000
"""Longest lease or delay: a hundred years. Longer ones are cut to it."""


KEPT = 64
"""Settings whose text is cached. All partitions of a group have the same."""


@dataclass(frozen=True)
class GroupSettings:
    """Settings of a consumer group. Raises InvalidRequest for values out of range."""

    max_attempts: int = 3
    """A record becomes a dead letter when this attempt fails."""
    attempts: Literal["failures", "grants"] = "failures"
    """The counter to compare with ``max_attempts``."""
    backoff_base_us: int = 0
    """Delay after the first failure. It doubles with each further failure. 0: no delay."""
    backoff_max_us: int = 600_000_000
    default_duration_us: int = 30_000_000
    """Lease duration of requests without one."""
    key_ordered: bool = False
    """Whether records of one key are leased one at a time, in offset order."""
    lease_doubling: bool = False
    """Whether each further lease of a record lasts twice as long as the one before."""

    def __post_init__(self) -> None:
        if self.attempts not in ("failures", "grants"):
            raise InvalidRequest(
                f"group setting attempts is {self.attempts!r}; use 'failures' or 'grants'"
            )
        _check_range("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS_LIMIT)
        for name in ("backoff_base_us", "backoff_max_us", "default_duration_us"):
            _check_range(name, getattr(self, name), 0, MAX_DURATION_US)
        for name in ("key_ordered", "lease_doubling"):
            if type(getattr(self, name)) is not bool:
                raise InvalidRequest(
                    f"group setting {name} is {getattr(self, name)!r}; use true or false"
                )

    def check_backoff(self) -> None:
        """Raise InvalidRequest if the delay after the first failure is above the longest one.

        New settings must pass. `from_json` accepts such values of earlier versions: the delay is
        ``backoff_max_us`` then.
        """
        if self.backoff_base_us > self.backoff_max_us:
            raise InvalidRequest(
                f"the back-off after the first failure ({self.backoff_base_us / 1e6:g} s) is "
                f"longer than the longest back-off ({self.backoff_max_us / 1e6:g} s); lower "
                "backoff_base or raise backoff_max"
            )

    def backoff_us(self, failures: int) -> int:
        """Return the delay after this number of failures: base * 2 ** (failures - 1)."""
        if failures <= 0 or not self.backoff_base_us:
            return 0
        return min(self.backoff_base_us << min(failures - 1, 63), self.backoff_max_us)

    def lease_us(self, duration_us: int, grants: int) -> int:
        """Return the duration of a record's ``grants``-th lease; ``duration_us`` is the first's.

        With ``lease_doubling`` it doubles up to ``backoff_max_us``. It is never below
        ``duration_us``.
        """
        if grants <= 1 or not self.lease_doubling:
            return duration_us
        return min(duration_us << min(grants - 1, 63), max(duration_us, self.backoff_max_us))

    @lru_cache(KEPT)  # noqa: B019  (settings are values; the cache keeps few of them)
    def to_json(self) -> str:
        """Return the settings as one line of JSON for ``from_json``.

        Omits ``lease_doubling`` if it is false, for versions without this setting.
        """
        values = asdict(self)
        if not self.lease_doubling:
            del values["lease_doubling"]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @classmethod
    @lru_cache(KEPT)
    def from_json(cls, text: str) -> GroupSettings:
        """Read ``to_json`` text. Keys left out take their defaults.

        Raises InvalidRequest for text that is not a JSON object of known settings.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"group settings are not JSON ({error}): {text[:80]!r}") from None
        if not isinstance(values, dict):
            raise InvalidRequest(f"group settings must be a JSON object, not {text[:80]!r}")
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise InvalidRequest(f"unknown group setting {unknown[0]!r}; remove it")
        return cls(**values)


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequest(
            f"group setting {name} is {value!r}; use an integer from {low} to {high}"
        )
