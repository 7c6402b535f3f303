# Tests: tests/test_reload.py, tests/test_signals.py
"""Reads the configuration again at SIGHUP, and applies the options that can change at run time.

A mistake in the configuration changes nothing. Options that need a restart are named in a line of
the log. The signals never end the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from msgspec import Struct, structs
from twisted.logger import Logger

from brokerd.errors import BrokerdError
from brokerd.server.config import SECTIONS, Config
from brokerd.server.logs import OperatorLog

RELOADABLE = (
    "log.level",
    "log.rotate_bytes",
    "limits.memory",
    "limits.transaction_bytes",
    "limits.connections",
    "limits.connections_per_address",
    "limits.first_byte_seconds",
    "limits.login_seconds",
    "limits.frame_bytes",
    "limits.idle_seconds",
    "limits.unfinished_frame_seconds",
    "limits.in_flight_requests",
    "limits.in_flight_bytes",
    "limits.max_topics",
    "limits.partitions",
    "limits.groups",
    "limits.group_state_bytes",
    "limits.producers",
    "limits.subscriptions",
    "limits.streams",
    "blipmq.api_keys",
    "blipmq.api_keys_file",
)
"""The options that a reload applies. Files of ``[tls]`` are read again, too."""

_NO_MEMORY = b"brokerd: no memory to handle a signal; send it again\n"


class Refreshable(Protocol):
    """TLS files, as `brokerd.server.tls.Credentials`."""

    def refresh(self) -> None: ...


class Reload:
    """One broker's configuration, and the way to change it.

    :param config: the configuration of the start, with the secrets from their files.
    :param load: reads the configuration again, with the secrets; raises `ConfigError`.
    :param apply: applies the `RELOADABLE` options of a configuration.
    """

    _log = Logger(namespace="brokerd")

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        apply: Callable[[Config], None],
        operator_log: OperatorLog,
        credentials: Iterable[Refreshable] = (),
    ) -> None:
        self._config = config
        self._load = load
        self._apply = apply
        self._operator_log = operator_log
        self._credentials = list(credentials)
        self._waiting: tuple[str, ...] = ()
        """Options that wait for a restart."""

    def run(self) -> None:
        """Open the log file again, and read configuration and TLS files again."""
        self._operator_log.reopen()
        try:
            wanted = self._load()
        except BrokerdError as error:
            self._log.error(
                "the configuration is not reloaded: {reason}; the earlier one stays in use",
                event_id="reload-failed",
                reason=str(error),
            )
            return
        for one in self._credentials:
            one.refresh()
        changed = list(differences(self._config, wanted))
        applied = [name for name in changed if name in RELOADABLE]
        fixed = [name for name in changed if name not in RELOADABLE]
        self._config = merged(self._config, wanted, applied)
        self._operator_log.configure(self._config.log)
        self._apply(self._config)
        self._log.info(
            "the configuration was read again; changed: {changed}",
            event_id="reloaded",
            changed=", ".join(applied) or "nothing",
        )
        if fixed:
            self._log.warn(
                "these options have changed and need a restart: {options}",
                event_id="restart-needed",
                options=", ".join(fixed),
            )


def differences(before: Config, after: Config) -> Iterator[str]:
    """Yield the options with different values, by dotted name."""
    for name in Config.__struct_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, Struct):
            for key in one.__struct_fields__:
                if getattr(one, key) != getattr(other, key):
                    yield f"{name}.{key}"
        elif one != other:
            yield name


def merged(before: Config, after: Config, names: Iterable[str]) -> Config:
    """Return ``before`` with these options of ``after``."""
    for name in names:
        section, _, key = name.partition(".")
        assert section in SECTIONS, f"{name} is in a section"
        values = structs.replace(
            getattr(before, section), **{key: getattr(getattr(after, section), key)}
        )
        before = structs.replace(before, **{section: values})
    return before


def ignore_signals() -> None:
    """Ignore SIGHUP and SIGUSR1 until `handle_signals`: by default they end the process."""
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def handle_signals(reactor: Any, reload: Reload, operator_log: OperatorLog) -> None:
    """Make SIGHUP reload, and SIGUSR1 rotate the log file. Call it when the reactor runs."""
    for number, function in ((signal.SIGHUP, reload.run), (signal.SIGUSR1, operator_log.rotate)):
        signal.signal(number, _handler(reactor, function))


def _handler(reactor: Any, function: Callable[[], None]) -> Callable[[int, object], None]:
    def handle(number: int, frame: object) -> None:
        try:
            reactor.callFromThread(function)
        except MemoryError:
            os.write(2, _NO_MEMORY)

    return handle
