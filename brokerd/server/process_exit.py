# Tests: tests/test_process_exit.py
"""How the process ends: one line on stderr and one exit code, also when it is a daemon.

``twistd`` exits with 0 whenever the reactor stops, and its daemon mode reports success before the
reactor runs. An :class:`ProcessExit` mends both. It sets the exit code at the very end, after every
orderly step of the shutdown. And it follows the daemon: a process stays behind until the daemon is
ready or has failed, prints the daemon's line, and exits with the daemon's code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReactorDaemonize
from zope.interface import alsoProvides

CLEAN = 0
USAGE = 1
STORAGE_FAILED = 74
"""``EX_IOERR``: a write or sync failed."""
IN_USE = 75
"""``EX_TEMPFAIL``: the data directory or a port is taken."""

_INTERRUPTED = 130
_LONGEST_REPORT = 4096


class ProcessExit:
    """Collects the end of one process. The first failure counts; later ones are only said."""

    def __init__(self, at_exit: Callable[[Callable[[], None]], Any] = atexit.register) -> None:
        self.code = CLEAN
        self._status_pipe: int | None = None
        at_exit(self._leave)

    def fail(self, code: int, line: str) -> None:
        """Say why the process will end, and remember its exit code. Does not stop anything."""
        self.code = self.code or code
        print_error(line)
        self._report(code, line)

    def ready(self) -> None:
        """Let the process that was left behind go home."""
        self._report(CLEAN, "")

    def follow_daemon(self, reactor: Any) -> None:
        """Stay behind when ``twistd`` forks, by the hooks that it offers to reactors."""
        before = getattr(reactor, "beforeDaemonize", None)
        after = getattr(reactor, "afterDaemonize", None)

        def before_daemonize() -> None:
            if before is not None:
                before()
            self._split()

        def after_daemonize() -> None:
            if after is not None:
                after()

        reactor.beforeDaemonize = before_daemonize
        reactor.afterDaemonize = after_daemonize
        alsoProvides(reactor, IReactorDaemonize)

    def stop_on_signals(self, reactor: Any) -> None:
        """Turn SIGTERM and SIGINT into a clean stop, whose exit code is 0.

        Twisted's own handlers would end the process by the same signal after the stop. Call this
        when the reactor runs, because it installs its handlers when it starts.
        """

        def stop() -> None:
            with contextlib.suppress(ReactorNotRunning):  # a second signal while it stops
                reactor.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: reactor.callFromThread(stop))

    def _split(self) -> None:
        read_end, write_end = os.pipe()
        if os.fork():
            os.close(write_end)
            os._exit(_wait_for_daemon(read_end))
        os.close(read_end)
        self._status_pipe = write_end

    def _report(self, code: int, line: str) -> None:
        if self._status_pipe is not None:
            pipe, self._status_pipe = self._status_pipe, None
            # A broken pipe means that nobody waits any more; the line is in the log too.
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, f"{code} {line}".encode()[:_LONGEST_REPORT])
            os.close(pipe)

    def _leave(self) -> None:
        if self.code != CLEAN:
            for stream in (sys.__stdout__, sys.__stderr__):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                        stream.flush()
            os._exit(self.code)


def print_error(line: str) -> None:
    """Print one line to the real stderr, which ``twistd`` hides behind its log.

    If nobody reads it any more, the line is in the log all the same, and the process must end.
    """
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"brokerd: {line}", file=sys.__stderr__, flush=True)


def _wait_for_daemon(read_end: int) -> int:
    """Wait for the daemon's report.

    :return: the exit code for the process that was left behind.
    """
    report = b""
    try:
        while chunk := os.read(read_end, _LONGEST_REPORT):
            report += chunk
    except KeyboardInterrupt:
        print_error("the daemon goes on starting; see its log")
        return _INTERRUPTED
    code, _, line = report.decode(errors="replace").partition(" ")
    if not code:
        print_error("the daemon ended before it was ready; see its log")
        return USAGE
    if line:
        print_error(line)
    return int(code)
