# Tests: tests/schemas/test_checker.py
"""Checks schemas and messages in processes of their own (docs/schemas.rst).

The broker calls `Checker` in the reactor thread. `CheckProcesses` runs the checks: each thread has
a process with limits, and kills it after `CHECK_SECONDS`. Tests run `Checks.answer` in the same
process.

Python's ``ProcessPoolExecutor`` is no substitute: it cannot kill one hung worker and keep the rest.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from brokerd.errors import (
    BrokerdError,
    LimitExceeded,
    SchemaCheckFailed,
    ShuttingDown,
    without_traceback,
)
from brokerd.schemas import checks
from brokerd.schemas.values import Definition, Mode
from brokerd.schemas.worker import CPU_SECONDS, LENGTH
from brokerd.worker_pool import Submit

WAITING_MAX = 64
WAITING_BYTES_MAX = 64 << 20
OWN_WAITING_MAX = 16
"""Most waiting checks of one requester, of `WAITING_MAX`."""
OWN_WAITING_BYTES_MAX = 16 << 20
"""Most waiting bytes of one requester, of `WAITING_BYTES_MAX`; a first check may be larger."""
OUTCOMES = ("valid", "invalid", "failed", "dropped")
"""Outcomes of checks: sound; unsound; no answer, for example out of time; its sender has gone."""
CHECK_SECONDS = 5.0
"""Longest wall clock time of a check."""

ENDED_SECONDS = 1.0
"""Longest wait for the exit of a process whose stream is closed."""

ANSWER_BYTES_MAX = 1 << 20

PREFIX = "brokerd-schemas-"
"""Prefix of a directory for temporary files; the broker's process id follows."""

RunCheck = Callable[[bytes], bytes]
"""Answers a request of `checks`; may block. Raises `SchemaCheckFailed`."""

CheckDone = Callable[[list[str] | None, BrokerdError | None], None]
"""Takes the texts of an answer, or an error."""


class Requester(NamedTuple):
    """The sender of a check."""

    name: str = ""
    """A principal, empty for anonymous."""
    peer: str = ""
    """Address of an anonymous sender."""
    is_gone: Callable[[], bool] = bool
    """Whether the sender no longer waits for the answer. Thread-safe."""


class CheckRunner(Protocol):
    """Runs checks of schemas and messages."""

    def check(self, request: bytes) -> bytes:
        """See `RunCheck`. Thread-safe."""

    def end(self) -> None:
        """Abort running checks. After that `check` raises `ShuttingDown`."""


class Checker:
    """Submits checks, as many at a time as ``submit`` runs, and calls ``done`` later.

    Its methods raise `LimitExceeded` when too many checks wait, in total or of one requester.
    Checks whose requester no longer waits are dropped.
    """

    def __init__(self, submit: Submit, check: RunCheck) -> None:
        self._submit = submit
        self._run_check = check
        self._pending: set[_PendingCheck] = set()
        self._outcomes = dict.fromkeys(OUTCOMES, 0)

    def status(self) -> dict[str, Any]:
        """Return the number of waiting checks, and the counts of ended ones by outcome."""
        return {"waiting": len(self._pending), "outcomes": dict(self._outcomes)}

    def registration(
        self,
        new: Definition,
        older: Sequence[Definition],
        mode: Mode,
        done: CheckDone,
        requester: Requester,
    ) -> None:
        """See `checks.registration`."""
        self._ask(checks.registration(new, older, mode), done, requester)

    def validation(
        self, definition: Definition, message: bytes, done: CheckDone, requester: Requester
    ) -> None:
        """See `checks.validation`."""
        self._ask(checks.validation(definition, message), done, requester)

    def _ask(self, request: bytes, done: CheckDone, requester: Requester) -> None:
        self._drop()
        check = _PendingCheck(request, done, requester)
        own = {one for one in self._pending if one.requester_key == check.requester_key}
        if len(own) >= OWN_WAITING_MAX:
            raise LimitExceeded(
                f"{OWN_WAITING_MAX} of your schemas and messages wait to be checked; try again"
            )
        if own and _bytes_of({check, *own}) > OWN_WAITING_BYTES_MAX:
            raise LimitExceeded(
                f"{OWN_WAITING_BYTES_MAX} bytes of your schemas and messages may wait to be "
                "checked; try again"
            )
        if self._pending and (
            len(self._pending) >= WAITING_MAX
            or _bytes_of({check, *self._pending}) > WAITING_BYTES_MAX
        ):
            raise LimitExceeded("too many schemas and messages wait to be checked; try again")
        self._pending.add(check)
        self._submit(partial(self._run, check), partial(self._finish, check))

    def _drop(self) -> None:
        """Drop waiting checks whose requester no longer waits."""
        for check in [one for one in self._pending if not one.is_begun and one.requester.is_gone()]:
            self._finish(check, None, None)
            check.request, check.done = b"", _ignored

    def _run(self, check: _PendingCheck) -> bytes | None:
        """Run a check in a thread; None if its requester no longer waits."""
        check.is_begun = True
        return None if check.requester.is_gone() else self._run_check(check.request)

    def _finish(self, check: _PendingCheck, answer: Any, error: Exception | None) -> None:
        is_first = check in self._pending  # a dropped check ends again in its thread
        self._pending.discard(check)
        outcome = "failed"
        if answer is None and error is None:
            outcome = "dropped"
            error = SchemaCheckFailed("the schema check was given up: its sender has gone")
        if error is not None and not isinstance(error, BrokerdError):
            self._outcomes[outcome] += is_first
            check.done(None, SchemaCheckFailed(f"the schema check was given up: {error!r}"))
            raise error
        try:
            texts = None if error is not None else checks.texts_of(answer)
        except BrokerdError as refusal:
            texts, error = None, without_traceback(refusal)
        if texts is not None:
            outcome = "invalid" if texts else "valid"
        self._outcomes[outcome] += is_first
        check.done(texts, error)


class _PendingCheck:
    """A waiting or running check."""

    def __init__(self, request: bytes, done: CheckDone, requester: Requester) -> None:
        self.request = request
        self.done = done
        self.requester = requester
        self.requester_key = requester.name, "" if requester.name else requester.peer
        self.is_begun = False


def _bytes_of(pending: set[_PendingCheck]) -> int:
    return sum(len(one.request) for one in pending)


def _ignored(texts: list[str] | None, error: BrokerdError | None) -> None:
    """A `CheckDone` that ignores its arguments."""


class InlineCheckRunner:
    """Runs checks at once, without limits; with `run_inline` for callers without threads."""

    def __init__(self) -> None:
        self.check = checks.Checks().answer

    def end(self) -> None: ...


class CheckProcesses:
    """A pool of check processes: one for each concurrent check, kept for the next.

    :param seconds: a monotonic clock.
    """

    def __init__(
        self,
        seconds: Callable[[], float] = time.monotonic,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._check_seconds = check_seconds
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._ended = False
        self._lock = threading.Lock()

    def check(self, request: bytes) -> bytes:
        """See `CheckRunner`."""
        try:
            return self._check_with(self._idle_process(), request)
        except _KilledProcess:
            return self._check_with(None, request)

    def _idle_process(self) -> _Process | None:
        """Return the newest usable process; end unusable ones."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.is_usable():
                return process
            process.end()

    def _check_with(self, kept: _Process | None, request: bytes) -> bytes:
        """Run a check. Raises `_KilledProcess` if a kept process ended for another reason than this
        check.
        """
        with self._lock:
            if self._ended:
                if kept is not None:
                    kept.end()
                raise ShuttingDown("the broker is shutting down; connect again later")
            process = kept or _Process()
            self._busy.add(process)
        try:
            answer = process.check(request, self._seconds, self._check_seconds)
        except BaseException as error:
            with self._lock:
                self._busy.remove(process)
                is_ended = self._ended
            was_killed = isinstance(error, _ProcessEnded) and process.was_killed()
            process.end()
            if kept is not None and was_killed and not is_ended:
                raise _KilledProcess from None
            raise
        self._keep(process)
        return answer

    def _keep(self, process: _Process) -> None:
        """Keep a process for the next check, unless the pool is closed."""
        with self._lock:
            self._busy.remove(process)
            if not self._ended:
                self._idle.append(process)
                return
        process.end()

    def end(self) -> None:
        """See `CheckRunner`."""
        with self._lock:
            self._ended = True
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.end()


class _ProcessEnded(SchemaCheckFailed):
    """A process ended before it answered."""


class _KilledProcess(Exception):
    """Another program killed the process before it answered: a retry may succeed."""


class _Process:
    """A process that runs `brokerd.schemas.worker`. Raises `SchemaCheckFailed`."""

    def __init__(self) -> None:
        try:
            _remove_stale(Path(tempfile.gettempdir()))
            self._directory = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
        except OSError as error:
            raise _not_started(error) from None
        try:
            self._start()
        except OSError as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise _not_started(error) from None

    def _start(self) -> None:
        self._stream, worker_end = socket.socketpair()
        # It gets no settings of the broker: they may be secrets.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("BROKERD_")
        }
        try:
            with worker_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "brokerd.schemas.worker", self._directory],
                    stdin=worker_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
        except OSError:
            self._stream.close()
            raise

    def is_usable(self) -> bool:
        """Whether it runs, and its directory for files exists."""
        return self._process.poll() is None and os.path.isdir(self._directory)

    def was_killed(self) -> bool:
        """Whether a signal of another program ended it, which closed its stream."""
        try:
            return self._process.wait(ENDED_SECONDS) in (-signal.SIGKILL, -signal.SIGTERM)
        except subprocess.TimeoutExpired:
            return False

    def check(self, request: bytes, seconds: Callable[[], float], check_seconds: float) -> bytes:
        """See `RunCheck`. After an error the process is unusable."""
        end_seconds = seconds() + check_seconds
        try:
            self._stream.settimeout(check_seconds)
            self._stream.sendall(LENGTH.pack(len(request)) + request)
            (size,) = LENGTH.unpack(self._receive(LENGTH.size, seconds, end_seconds))
            if size > ANSWER_BYTES_MAX:
                raise SchemaCheckFailed("the schema check was given up: its answer is too long")
            return self._receive(size, seconds, end_seconds)
        except TimeoutError:
            raise SchemaCheckFailed(
                f"the schema check was given up: it takes more than {check_seconds:g} seconds"
            ) from None
        except (ConnectionError, EOFError):
            raise _ProcessEnded(
                f"the schema check was given up: it takes more than {CPU_SECONDS} seconds of "
                "processor time, or more memory than it may have"
            ) from None

    def _receive(self, size: int, seconds: Callable[[], float], end_seconds: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._stream.settimeout(max(end_seconds - seconds(), 0.001))
            part = self._stream.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def kill(self) -> None:
        """Make the running check fail. Thread-safe."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait for its exit."""
        self._stream.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _remove_stale(temporary: Path) -> None:
    """Remove directories of brokers that were killed during a check.

    If such a broker runs in another PID namespace, it makes new processes.
    """
    for path in temporary.glob(f"{PREFIX}*-*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and len(pid) < 10 and _is_gone(int(pid)):
            shutil.rmtree(path, ignore_errors=True)  # other files stay


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # owned by another user
        return False
    return False


def _not_started(error: OSError) -> SchemaCheckFailed:
    return SchemaCheckFailed(f"the schema check cannot be started now: {error}")
