# Tests: tests/test_process_exit.py
"""The end of the process: one line on stderr and one exit code, also for a daemon.

``twistd`` exits with 0 whenever the reactor stops, and its daemon mode reports success before the
reactor runs. :class:`ProcessExit` corrects both. It sets the exit code after all steps of the
shutdown. With a daemon, the parent process stays until the daemon is ready or has failed, prints
the daemon's line, and exits with its code.
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

from brokerd.server.journald import ERROR, is_journal

CLEAN = 0
USAGE = 1
STORAGE_FAILED = 74
"""``EX_IOERR``: a write or sync failed, or memory ran out."""
IN_USE = 75
"""``EX_TEMPFAIL``: the data directory or a port is taken."""

_INTERRUPTED = 130
_LONGEST_REPORT = 4096

STOP_SECONDS = 100.0
"""Longest time from SIGTERM to the end: more than the bounds of all steps of a stop."""
FAIL_SECONDS = 20.0
"""Longest time from a failure to the end. Nothing is written then."""
_AGAIN_SECONDS = 0.1
"""Pause before a signal handler without memory tries again."""
_TOO_LATE = b"brokerd: the stop takes too long; the process ends and the next start replays\n"


class ProcessExit:
    """Records the exit code of the process. The first failure counts; later ones are only
    printed.
    """

    def __init__(self, at_exit: Callable[[Callable[[], None]], Any] = atexit.register) -> None:
        self.code = CLEAN
        self._status_pipe: int | None = None
        self._is_serving = False
        self._has_alarm = False
        self._is_ending = False
        at_exit(self._leave)

    def fail(self, code: int, line: str) -> None:
        """Print why the process will end, and record its exit code. Does not stop anything."""
        self.code = self.code or code
        self._end_within(FAIL_SECONDS)
        print_error(line)
        self._report(code, line)

    def ready(self) -> None:
        """Let the parent process exit with 0."""
        self._is_serving = True
        self._report(CLEAN, "")

    def stopped(self) -> None:
        """Note that the service has stopped."""
        self._is_serving = False

    def _end_within(self, seconds: float) -> None:
        """End the process with `STORAGE_FAILED` if it still runs in ``seconds``."""
        if self._has_alarm and not self._is_ending:
            self._is_ending = True
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def follow_daemon(self, reactor: Any) -> None:
        """Keep the parent process when ``twistd`` forks, by its reactor hooks."""
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
        """Make SIGTERM and SIGINT stop the service with exit code 0.

        Twisted's own handlers would end the process by the same signal after the stop. Call this
        when the reactor runs, because it installs its handlers when it starts.

        A handler without memory tries again. The process ends with `STORAGE_FAILED` if a stop takes
        more than `STOP_SECONDS`, because memory may run out at any step of it.
        """

        def stop() -> None:
            with contextlib.suppress(ReactorNotRunning):  # a second signal while it stops
                reactor.stop()

        def ask(number: int, frame: object) -> None:
            try:
                reactor.callFromThread(stop)
            except MemoryError:
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            else:
                self._end_within(STOP_SECONDS)

        def alarm(number: int, frame: object) -> None:
            if not self._is_ending:
                ask(number, frame)
                return
            os.write(2, _TOO_LATE)
            os._exit(self.code or STORAGE_FAILED)

        signal.signal(signal.SIGALRM, alarm)
        self._has_alarm = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, ask)

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
            # A broken pipe means that the parent has exited; the log has the line too.
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, f"{code} {line}".encode()[:_LONGEST_REPORT])
            os.close(pipe)

    def _leave(self) -> None:
        if self._is_serving and self.code == CLEAN:
            self.fail(STORAGE_FAILED, "the reactor ended before the broker stopped; see the log")
        if self.code != CLEAN:
            for stream in (sys.__stdout__, sys.__stderr__):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):  # stderr is closed
                        stream.flush()
            os._exit(self.code)


def print_error(line: str, priority: int = ERROR) -> None:
    """Print one line to the real stderr, which ``twistd`` hides behind its log.

    The log has the line too, so a closed stderr is ignored.
    """
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):
            print(stderr_line(line, priority), file=sys.__stderr__, flush=True)


def stderr_line(line: str, priority: int = ERROR) -> str:
    """Return a line for stderr, with its priority if journald reads stderr."""
    text = f"brokerd: {line}"
    return f"<{priority}>{text}" if is_journal(sys.__stderr__, os.environ) else text


def _wait_for_daemon(read_end: int) -> int:
    """Wait for the daemon's report.

    :return: the exit code for the parent process.
    """
    report = b""
    try:
        while chunk := os.read(read_end, _LONGEST_REPORT):
            report += chunk
    except KeyboardInterrupt:
        print_error("the daemon is still starting; see its log")
        return _INTERRUPTED
    code, _, line = report.decode(errors="replace").partition(" ")
    if not code:
        print_error("the daemon ended before it was ready; see its log")
        return USAGE
    if line:
        print_error(line)
    return int(code)
