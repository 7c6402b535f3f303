# Tests: tests/test_service.py
"""The service that ``twistd`` runs: an ordered start and an ordered stop.

Start: lock, admin site, replay, listeners, ``run/listeners.json``, readiness. Stop: listeners,
pending answers, the core (snapshot, mark, close, unlock), the admin site. Every failure is one line
on stderr and one exit code (:mod:`brokerd.server.process_exit`). A failed core is abandoned, not
closed.

The core is an argument: the broker with its journal, or a stand-in of the tests.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IListeningPort,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.logger import ILogObserver, Logger
from twisted.python.failure import Failure

from brokerd.admin.conditions import Condition
from brokerd.admin.health import Health, Phase
from brokerd.admin.http.routing import Api
from brokerd.errors import BrokerdError, DirectoryLocked, NewerFormat, StorageFailed, os_error_text
from brokerd.server.bounded_call import bounded_call
from brokerd.server.config import Config
from brokerd.server.endpoints import address_text
from brokerd.server.listeners import ADMIN, speaks_tls
from brokerd.server.notify import Notifier
from brokerd.server.process_exit import IN_USE, STORAGE_FAILED, USAGE, ProcessExit
from brokerd.server.watch import Watch
from brokerd.wal import RealDisk

SPEAK_TLS = "tls"
"""Key of listeners.json with the names of the TLS listeners."""
LISTENERS_RETRY_SECONDS = 1.0
"""Interval of attempts to write listeners.json on a full disk."""
DRAIN_SECONDS = 10.0
"""Longest time for which a stop waits for commits in flight and for answers to leave."""
REMOVE_SECONDS = 5.0
"""Longest time for which the removal of listeners.json at a stop blocks the reactor."""


class Core(Protocol):
    """The interface of the core; the service calls the methods in this order."""

    on_fatal: Callable[[BaseException], None]
    """Called once after a failed write or sync; the core acknowledges nothing afterwards."""

    def lock(self) -> None:
        """Take the data directory, or raise DirectoryLocked or UnsafeFileSystem."""

    def open(self) -> Deferred[None]:
        """Replay the journal in a thread; cancelling returns at once."""

    def factory(self, wire_format: str) -> IProtocolFactory:
        """Make the factory of a wire format."""

    def fail(self, what: str, error: Exception) -> None:
        """Stop acknowledging and call ``on_fatal``: changes in memory may be incomplete."""

    def drain(self) -> Deferred[None]:
        """Take no new requests; fire when every pending answer has left."""

    def close(self) -> Deferred[None]:
        """Write the snapshot and the mark, close and unlock."""

    def status(self) -> dict[str, Any]:
        """Return the status for the admin site, in JSON values; valid at any time."""

    def conditions(self) -> Iterable[Condition]:
        """Return the conditions of disk, log, archive and clock; probes work at any time."""

    def measure(self) -> None:
        """Start the measurements that the conditions need; the service calls it every second."""

    def reconfigure(self, config: Config) -> None:
        """Use the options of ``config`` that can change at run time."""

    def commit_seconds(self) -> float:
        """Return the time for which the commit under way has waited for the disk; 0 without one."""

    def api(self) -> Api:
        """Make the resource for ``/api/v1``, without the status."""

    def abandon(self) -> None:
        """Release everything at once, as a crash would; write nothing."""


class Listener:
    """A listener: its name in listeners.json, its endpoint and its factory."""

    def __init__(
        self,
        name: str,
        description: str,
        endpoint: IStreamServerEndpoint,
        factory: Callable[[], IProtocolFactory],
        lacks: str = "",
    ) -> None:
        self.name = name
        self.description = description
        self.endpoint = endpoint
        self.factory = factory
        self.lacks = lacks
        """Protection that an open listener lacks, else ""."""
        self.speaks_tls = speaks_tls(endpoint)

    @property
    def refused(self) -> int:
        """Number of failed TLS handshakes."""
        return int(getattr(self.endpoint, "refused", 0))


class StartFailed(Exception):
    """The broker cannot start: an exit code and the line for stderr."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


class BrokerdService(Service):
    """The broker as a service of ``twistd``.

    :param reactor: runs the service and is its clock.
    :param data_dir: an absolute path; created with its parents if missing.
    :param listeners: opened in this order after the replay.
    :param facts: constant entries of the status, for example the version.
    """

    def __init__(
        self,
        reactor: Any,
        data_dir: Path,
        core: Core,
        listeners: list[Listener],
        health: Health,
        process_exit: ProcessExit,
        notifier: Notifier,
        log: Logger,
        facts: Mapping[str, Any],
    ) -> None:
        self._reactor = reactor
        self._facts = facts
        self._data_dir = data_dir
        self._core = core
        self._listeners = listeners
        self._admin: Listener | None = None
        self._started_at = reactor.seconds()
        self._health = health
        health.conditions.add(core.conditions())
        self._watch = Watch(reactor, health.conditions, core.measure, core.commit_seconds, notifier)
        self._process_exit = process_exit
        self._notifier = notifier
        self._log = log
        self.log_observer: ILogObserver | None = None
        self._locked = False
        self._opened = False
        self._ports: dict[str, IListeningPort] = {}
        self._starting: Deferred[None] | None = None
        self._rewriting: IDelayedCall | None = None

    def setServiceParent(self, parent: Any) -> None:
        """Join the application and set its log observer."""
        super().setServiceParent(parent)
        if self.log_observer is not None:
            parent.setComponent(ILogObserver, self.log_observer)

    def reconfigure(self, config: Config) -> None:
        """Use the options of ``config`` that can change at run time."""
        self._core.reconfigure(config)
        for listener in self._all_listeners():
            limit_handshakes = getattr(listener.endpoint, "limit_handshakes", None)
            if limit_handshakes is not None:
                limit_handshakes(config.limits.unfinished_frame_seconds)

    def _all_listeners(self) -> list[Listener]:
        return [*self._listeners, *([] if self._admin is None else [self._admin])]

    def credentials(self) -> list[Any]:
        """Return the TLS files of all listeners, each once."""
        found = (getattr(one.endpoint, "credentials", None) for one in self._all_listeners())
        return list(dict.fromkeys(one for one in found if one is not None))

    def attach_admin(self, admin: Listener) -> None:
        """Add the admin site, which opens before the replay, so that health checks work."""
        self._admin = admin

    def status(self) -> dict[str, Any]:
        """Return the status of the whole broker, in JSON values."""
        return {
            "phase": self._health.phase.value,
            "reason": self._health.reason,
            "ready": int(self._health.ready),
            "conditions": dict(self._health.conditions.reasons),
            "loop_lag": self._watch.lag.times.status(),
            "uptime_seconds": round(self._reactor.seconds() - self._started_at, 3),
            "data_dir": str(self._data_dir),
            "listeners": self._addresses(),
            "tls_refused": self._tls_refused(),
            **self._facts,
            **self._core.status(),
        }

    def _tls_refused(self) -> dict[str, int]:
        """Return TLS listener -> failed handshakes."""
        return {one.name: one.refused for one in self._all_listeners() if one.speaks_tls}

    # Up.

    def startService(self) -> None:
        """Start the service; the rest runs in the reactor."""
        super().startService()
        self._core.on_fatal = self._fatal
        self._reactor.callWhenRunning(self._begin)

    def _begin(self) -> None:
        if not self.running:
            return
        self._watch.start()
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(_ignore_cancelled)

    async def _start(self) -> None:
        try:
            await self._open()
        except CancelledError:
            raise
        except StartFailed as error:
            self._give_up(error.code, str(error))
        except BrokerdError as error:
            if isinstance(error, NewerFormat) and error.__cause__ is not None:
                cause = Failure(error.__cause__)
                self._log.failure("the start failed", cause, event_id="start-failed")
            self._give_up(exit_code(error), str(error))
        except OSError as error:
            self._give_up(exit_code(error), _with_advice(error))
        except MemoryError as error:
            self._give_up(exit_code(error), "memory ran out during the start")
        except Exception as error:  # a bug: the traceback goes to the log
            self._log.failure("the start failed", event_id="start-failed")
            self._give_up(USAGE, f"unexpected {type(error).__name__}; see the log")

    async def _open(self) -> None:
        self._make_data_dir()
        self._core.lock()
        self._locked = True
        self._remove_listeners_file()
        if self._admin is not None:
            await self._listen(self._admin)
        self._health.phase = Phase.REPLAYING
        self._notifier.send("STATUS=replaying the journal")
        await self._core.open()
        self._opened = True
        for listener in self._listeners:
            await self._listen(listener)
        self._write_listeners_file()
        self._watch.check()
        self._health.phase = Phase.READY
        addresses = self._addresses()
        summary = ", ".join(f"{name} {address}" for name, address in addresses.items())
        self._notifier.send("READY=1", f"STATUS=serving: {summary}")
        self._log.info("ready: {summary}", event_id="ready", summary=summary)
        self._process_exit.ready()

    def memory_failed(self, error: MemoryError) -> None:
        """Stop after a `MemoryError` that may have left a change incomplete."""
        self._core.fail("memory ran out", error)

    def _make_data_dir(self) -> None:
        """Make the data directory, durably: also its name, if a start that was killed made it."""
        path = self._data_dir.absolute()
        try:
            made = [one for one in (path, *path.parents) if not one.exists()]
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in (path, path.parent, *(one.parent for one in made[1:])):
                _sync_directory(directory)
        except OSError as error:
            line = f"cannot make the data directory: {_with_advice(error)}"
            raise StartFailed(USAGE, line) from error

    async def _listen(self, listener: Listener) -> None:
        try:
            port = await listener.endpoint.listen(listener.factory())
        except (CannotListenError, OSError) as error:
            raise _cannot_listen(listener, error) from error
        self._ports[listener.name] = port
        self._log.info(
            "{listener} listens on {address}, {speech}",
            event_id="listening",
            listener=listener.name,
            address=address_text(port.getHost()),
            speech="with TLS" if listener.speaks_tls else "without TLS",
        )
        if listener.lacks:
            self._log.warn(
                "{listener} is open to other machines {lacks}; security.allow_insecure allows it",
                event_id="listener-insecure",
                listener=listener.name,
                lacks=listener.lacks,
            )

    def _addresses(self) -> dict[str, str]:
        hosts: dict[str, IAddress] = {name: port.getHost() for name, port in self._ports.items()}
        found = {}
        for name in [*(listener.name for listener in self._listeners), ADMIN]:
            if name in hosts:
                for wire_format in name.split("+"):
                    found[wire_format] = address_text(hosts[name])
        return found

    # listeners.json

    def _described(self) -> dict[str, Any]:
        """Return the addresses and the names of the TLS listeners."""
        addresses: dict[str, Any] = dict(self._addresses())
        speaking = {
            wire_format
            for one in self._all_listeners()
            if one.speaks_tls
            for wire_format in one.name.split("+")
        }
        if speaking:
            addresses[SPEAK_TLS] = [name for name in addresses if name in speaking]
        return addresses

    @property
    def _listeners_file(self) -> Path:
        return self._data_dir / "run" / "listeners.json"

    def _write_listeners_file(self) -> None:
        """Write listeners.json; on a full disk retry, because that must not stop a start."""
        try:
            write_json(self._listeners_file, self._described())
        except OSError as error:
            if self._rewriting is None:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._log.warn(
                    "{path} cannot be written: {reason}; it is tried again",
                    event_id="listeners-failed",
                    path=str(self._listeners_file),
                    reason=error.strerror,
                )
            self._rewriting = self._reactor.callLater(
                LISTENERS_RETRY_SECONDS, self._write_listeners_file
            )

    def _remove_listeners_file(self) -> None:
        self._listeners_file.unlink(missing_ok=True)

    def _remove_listeners_file_at_stop(self) -> None:
        """Remove listeners.json within REMOVE_SECONDS; a failing disk must not block the stop."""
        if self._rewriting is not None and self._rewriting.active():
            self._rewriting.cancel()
        reason = f"it takes more than {REMOVE_SECONDS:g} s"
        try:
            if bounded_call(self._remove_listeners_file, REMOVE_SECONDS):
                return
        except OSError as error:
            reason = error.strerror or str(error)
        self._log.warn(
            "{path} cannot be removed: {reason}; the next start removes it",
            event_id="listeners-kept",
            path=str(self._listeners_file),
            reason=reason,
        )

    # Down.

    def _fatal(self, error: BaseException) -> None:
        """Stop after a failure of the core."""
        self._give_up(STORAGE_FAILED, str(error))

    def _give_up(self, code: int, line: str) -> None:
        if self._health.phase is not Phase.FAILED:
            self._health.fail(line)
            try:
                self._process_exit.fail(code, line)
                self._log.critical("{reason}", event_id="failed", reason=line, exit_code=code)
            finally:
                if self.running:
                    self._reactor.stop()

    def stopService(self) -> Deferred[None]:
        """Stop in order; fire when all is closed. Never fails."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        try:
            await self._stop_all()
        except MemoryError:
            self._give_up(STORAGE_FAILED, "memory ran out during the stop")
        self._process_exit.stopped()

    async def _stop_all(self) -> None:
        self._notifier.send("STOPPING=1", "STATUS=stopping")
        if self._health.phase is not Phase.FAILED:
            self._health.phase = Phase.STOPPING
            self._log.info("stopping", event_id="stopping")
        if self._starting is not None:
            self._starting.cancel()
        for listener in self._listeners:
            await self._stop_listening(listener.name)
        if self._locked:
            await self._close_core()
        await self._stop_listening(ADMIN)
        self._watch.stop()
        if self._health.phase is not Phase.FAILED:
            self._log.info("stopped", event_id="stopped")

    async def _stop_listening(self, name: str) -> None:
        port = self._ports.pop(name, None)
        if port is not None:
            await maybeDeferred(port.stopListening)

    async def _close_core(self) -> None:
        self._remove_listeners_file_at_stop()
        if not self._opened or self._health.phase is Phase.FAILED:
            self._core.abandon()
            return
        try:
            await self._core.drain().addTimeout(DRAIN_SECONDS, self._reactor)
        except TimeoutError:
            self._log.warn(
                "some answers did not leave within {seconds} s; their clients have to ask again",
                event_id="drain-timeout",
                seconds=DRAIN_SECONDS,
            )
        except Exception:  # a bug must not keep the journal from being closed
            self._log.failure("answers could not leave", event_id="drain-failed")
        try:
            await self._core.close()
        except Exception as error:
            if not isinstance(error, BrokerdError | OSError):
                self._log.failure("closing failed", event_id="close-failed")
            self._give_up(STORAGE_FAILED, f"closing failed: {error}")
            self._core.abandon()


def _ignore_cancelled(failure: Failure) -> None:
    failure.trap(CancelledError)


def _sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError.

    A directory that this user cannot read, or a read-only one, is another program's to keep.
    """
    try:
        RealDisk().sync_directory(str(path))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
            raise


def exit_code(error: BaseException) -> int:
    """Choose the exit code for an error that ends the process."""
    if isinstance(error, DirectoryLocked):
        return IN_USE
    if isinstance(error, StorageFailed | OSError | MemoryError):
        return STORAGE_FAILED
    return USAGE


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a small JSON file atomically: a reader sees all of it or none."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _cannot_listen(listener: Listener, error: Exception) -> StartFailed:
    cause = error.socketError if isinstance(error, CannotListenError) else error
    taken = getattr(cause, "errno", None) == errno.EADDRINUSE or not isinstance(cause, OSError)
    reason = "it is in use" if taken else (getattr(cause, "strerror", None) or str(cause))
    return StartFailed(
        IN_USE if taken else USAGE,
        f"{listener.name} cannot listen on {listener.description}: {reason}",
    )


_OWN = "let the user that runs brokerd read and write it, and the directory it is in"
_MOVE = "move it away: the broker needs this path"
_ADVICE = {
    errno.EACCES: _OWN,
    errno.EPERM: _OWN,
    errno.EROFS: "mount the file system for writing, or name another directory with --data-dir",
    errno.EEXIST: _MOVE,
    errno.EISDIR: _MOVE,
    errno.ENOTDIR: _MOVE,
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "check the disk",
}


def _with_advice(error: OSError) -> str:
    advice = _ADVICE.get(error.errno or 0)
    return os_error_text(error) + (f"; {advice}" if advice else "")
