# Tests: tests/test_tap.py
"""``twistd brokerd``: parses the options and assembles the service.

:func:`makeService` runs before the daemon's fork. It reads and checks the configuration and makes
paths absolute. The service opens lock, threads, files and sockets when it starts.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from twisted.logger import LegacyLogObserverWrapper, Logger, globalLogPublisher
from twisted.python import usage

from brokerd import __version__
from brokerd.admin.health import Health
from brokerd.admin.http.hosts import Hosts
from brokerd.admin.shapes.configuration import OptionShape
from brokerd.admin.site import MetricsResource, make_site
from brokerd.errors import BrokerdError
from brokerd.server.compiled import is_compiled
from brokerd.server.config import (
    Config,
    LoadedConfig,
    Log,
    Setting,
    load,
    parse_durability,
    secret_warnings,
    with_secrets,
)
from brokerd.server.configuration_report import ConfigurationReport
from brokerd.server.descriptors import descriptors_left
from brokerd.server.journald import WARNING
from brokerd.server.listeners import ADMIN, endpoints_of, insecure_listeners, is_open
from brokerd.server.logs import OperatorLog, OperatorLogFile, file_observer
from brokerd.server.memory_errors import MemoryErrorObserver
from brokerd.server.notify import Notifier
from brokerd.server.process_exit import ProcessExit, print_error, stderr_line
from brokerd.server.reload import Reload, handle_signals, ignore_signals
from brokerd.server.service import BrokerdService, Core, Listener
from brokerd.server.watch import certificate_conditions

MakeCore = Callable[[Config, Path, Any], Core]

_log = Logger(namespace="brokerd")


class Options(usage.Options):
    """The options of ``twistd brokerd``."""

    synopsis = "[--config FILE] [--data-dir DIR] [--listen FORMAT=ENDPOINT ...] [options]"
    longdesc = "A durable message broker. Every option of the configuration: etc/brokerd.toml."

    optParameters = [  # noqa: RUF012 - Twisted's own declaration
        ["config", "c", None, "Read this TOML file"],
        ["data-dir", "d", None, "Keep the data here [default: ./brokerd-data]"],
        ["admin", None, None, "Serve health, metrics and the page here, or none"],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[str] = []
        self.assignments: list[str] = []

    def opt_listen(self, value: str) -> None:
        """FORMAT=ENDPOINT: serve a wire format there; may be repeated, and then only these serve"""
        self.listeners.append(value)

    def opt_set(self, value: str) -> None:
        """SECTION.KEY=VALUE: set one value of the configuration; may be repeated"""
        self.assignments.append(value)

    def opt_version(self) -> None:
        """Print the version and exit"""
        print(f"brokerd {__version__}")
        raise SystemExit(0)

    def parseArgs(self, *arguments: str) -> None:
        """Refuse arguments that are not options."""
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}")

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse the options. A mistake is one line on stderr and exit code 1, without the help."""
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            raise SystemExit(f"brokerd: {error}; see twistd brokerd --help") from error


def load_options(options: Options, environment: Mapping[str, str]) -> LoadedConfig:
    """Read the configuration from its file, the environment and the options.

    :raises ConfigError: for the first mistake.
    """
    named = [
        Setting(name, options[key], f"--{key}", True)
        for key, name in (("data-dir", "data_dir"), ("admin", "admin.endpoint"))
        if options[key] is not None
    ]
    file = Path(options["config"]) if options["config"] is not None else None
    return load(file, environment, options.assignments, options.listeners, named)


def assemble(
    config: Config,
    environment: Mapping[str, str],
    reactor: Any,
    make_core: MakeCore,
    metrics: MetricsResource,
    process_exit: ProcessExit,
    options: Callable[[], Sequence[OptionShape]] = tuple,
) -> BrokerdService:
    """Assemble a service without opening anything.

    :param options: returns the options of the configuration, for the admin API.
    :raises ConfigError: for an invalid or insecure endpoint.
    """
    data_dir = Path(os.path.abspath(config.data_dir))
    endpoints = endpoints_of(reactor, config)
    insecure = insecure_listeners(config, endpoints)
    core = make_core(config, data_dir, reactor)

    def listener(name: str, text: str, factory: Callable[[], Any]) -> Listener:
        return Listener(name, text, endpoints[name], factory, insecure.get(name, ""))

    listeners = [
        listener(wire_format, text, partial(core.factory, wire_format))
        for wire_format, text in config.listen.items()
    ]
    health = Health()
    health.conditions.add(certificate_conditions(endpoints.values()))
    notifier = Notifier(environment, _log)
    facts = {
        "version": __version__,
        "compiled": is_compiled(),
        "durability": config.wal.durability,
    }
    service = BrokerdService(
        reactor, data_dir, core, listeners, health, process_exit, notifier, _log, facts
    )
    if config.admin.endpoint != "none":
        has_login = config.security.auth != "off"
        only_writes = not has_login and not checks_host(config, endpoints[ADMIN])
        names = [socket.gethostname(), *config.admin.hosts]
        hosts = Hosts(names, only_writes, has_login)
        api = core.api()
        api.options = options
        site = make_site(service.status, api, health, metrics, reactor, _log, hosts)
        site.descriptors_left = descriptors_left
        service.attach_admin(listener(ADMIN, config.admin.endpoint, lambda: site))
    return service


def checks_host(config: Config, endpoint: Any = None) -> bool:
    """Return whether the admin site has no login and must check the header Host of reads."""
    return config.security.auth == "off" and not is_open(config.admin.endpoint, endpoint)


def makeService(options: Options) -> BrokerdService:
    """Make the service for ``twistd``. A mistake is one line on stderr and exit code 1."""
    from prometheus_client.twisted import MetricsResource as metrics_resource
    from twisted.internet import reactor

    from brokerd.server.assembly import make_core

    try:
        loaded = load_options(options, os.environ)
        if options["config"] is not None:  # for a reload: a daemon changes its directory
            options["config"] = os.path.abspath(options["config"])
        config = with_secrets(loaded.config)
        warnings = (*loaded.warnings, *secret_warnings(config))
        process_exit = ProcessExit()
        use_monotonic_clock(reactor)
        report = ConfigurationReport(loaded, config)
        service = assemble(
            config, os.environ, reactor, make_core, metrics_resource, process_exit, report.options
        )
    except BrokerdError as error:
        raise SystemExit(stderr_line(str(error))) from error
    parent: Mapping[str, Any] = options.parent or {}
    operator_log = make_operator_log(config.log, parent)
    service.log_observer = operator_log.observer

    def read_again() -> Config:
        return report.reading(load_options(options, os.environ))

    def apply(config: Config) -> None:
        service.reconfigure(config)
        report.apply(config)

    reload = Reload(
        config,
        read_again,
        apply,
        operator_log,
        service.credentials(),
    )
    ignore_signals()
    reactor.callWhenRunning(handle_signals, reactor, reload, operator_log)
    if not (parent.get("nodaemon") or parent.get("debug")):
        process_exit.follow_daemon(reactor)
    reactor.callWhenRunning(announce, config, warnings)
    reactor.callWhenRunning(process_exit.stop_on_signals, reactor)
    globalLogPublisher.addObserver(MemoryErrorObserver(service.memory_failed, reactor))
    return service


def use_monotonic_clock(reactor: Any) -> None:
    """Make the timers of the reactor use the monotonic clock.

    ``reactor.seconds`` is the wall clock by default. Then a step of the wall clock would end leases
    and timeouts early or late. Call this before the first timer is set.
    """
    reactor.seconds = time.monotonic


def announce(config: Config, warnings: Sequence[str] = ()) -> None:
    """Print and log the risks of the configuration: loss in a power cut, readable secrets."""
    for line in warnings:
        print_error(f"WARNING: {line}", WARNING)
        _log.warn("{line}", event_id="configuration-warning", line=line)
    mode, interval_ms = parse_durability(config.wal.durability)
    if mode == "fsync":
        return
    loss = f"up to {interval_ms} ms of" if mode == "interval" else "any recent"
    line = (
        f'wal.durability is "{config.wal.durability}": after a power cut {loss} '
        "acknowledged work may be lost"
    )
    print_error(f"WARNING: {line}", WARNING)
    _log.warn("{line}", event_id="durability-reduced", line=line)


def make_operator_log(config: Log, parent: Mapping[str, Any]) -> OperatorLog:
    """Make the log for the destination in ``twistd``'s options: syslog, file or stdout.

    :param parent: the options of ``twistd`` itself.
    """
    if parent.get("syslog"):
        from twisted.python.syslog import SyslogObserver

        syslog: Any = SyslogObserver(parent.get("prefix", "brokerd"))
        return OperatorLog(LegacyLogObserverWrapper(syslog.emit), config)
    name = parent.get("logfile")
    if name == "-" or (parent.get("nodaemon") and not name):
        return OperatorLog(file_observer(sys.stdout, config.format, os.environ), config)
    file = OperatorLogFile.fromFullPath(os.path.abspath(name or "twistd.log"))
    return OperatorLog(file_observer(file, config.format), config, file)
