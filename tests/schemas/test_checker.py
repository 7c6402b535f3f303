"""Schemas and messages are looked at in processes that end when they take too much."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import (
    BrokerdError,
    InvalidSchema,
    LimitExceeded,
    SchemaCheckFailed,
    ShuttingDown,
)
from brokerd.schemas import checks
from brokerd.schemas.checker import (
    OWN_WAITING_BYTES_MAX,
    OWN_WAITING_MAX,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    Checker,
    CheckProcesses,
    Requester,
)
from brokerd.schemas.values import Definition, Mode, SchemaType
from simulator.machine.inline import InlinePool


def definition(schema: Any, kind: SchemaType = SchemaType.JSON) -> Definition:
    return Definition(1, kind, json.dumps(schema).encode())


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckProcesses]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = CheckProcesses(check_seconds=30)
    yield found
    found.end()
    assert list(tmp_path.iterdir()) == []


def faults(processes: CheckProcesses, one: Definition, message: bytes) -> list[str]:
    return checks.texts_of(processes.check(checks.validation(one, message)))


def test_a_process_answers_again_and_again(processes: CheckProcesses) -> None:
    """And is the same one."""
    one = definition({"required": ["id"]})
    assert faults(processes, one, b"{}") == ["missing required field: id"]
    assert faults(processes, one, b'{"id": 1}') == []
    with pytest.raises(InvalidSchema):
        checks.texts_of(processes.check(checks.registration(definition([]), [], Mode.NONE)))
    assert len(processes._idle) == 1


ASKER = Requester("ann")

BOMBS: dict[str, tuple[Definition, bytes]] = {
    "a regular expression": (definition({"pattern": "^(a+)+$"}), b'"' + b"a" * 60 + b'!"'),
    "references that double": (
        definition(
            {
                "$ref": "#/$defs/a0",
                "$defs": {
                    **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)},
                    "a40": {},
                },
            }
        ),
        b"1",
    ),
    "an array of nothing": (
        definition({"type": "array", "items": "null"}, SchemaType.AVRO),
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "a regular expression",
        *(pytest.param(name, marks=pytest.mark.slow) for name in list(BOMBS)[1:]),
    ],
)
def test_a_bomb_ends_its_process_and_nothing_else(processes: CheckProcesses, name: str) -> None:
    """By the processor time that it takes, and the next question is answered.

    A fast machine fills the memory with the array before that time is over. The process then
    tells so, and stays.
    """
    one, message = BOMBS[name]
    with pytest.raises(SchemaCheckFailed) as refused:
        faults(processes, one, message)
    if name == "an array of nothing" and "more memory than it may" in str(refused.value):
        assert len(processes._idle) == 1
    else:
        assert "given up: it takes more than 2 seconds of processor time" in str(refused.value)
        assert processes._idle == []
    assert faults(processes, definition({}), b"1") == []


def test_a_message_without_a_bottom_harms_nothing_else(processes: CheckProcesses) -> None:
    """It ends its process, or is told as a fault, as the package has it."""
    node = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]}
    try:
        told = faults(processes, definition(node, SchemaType.AVRO), b"\x02" * 10_000_000)
    except SchemaCheckFailed as refusal:
        told = [str(refusal)]
    assert len(told) == 1
    assert faults(processes, definition({}), b"1") == []


def test_a_message_that_takes_too_much_memory_is_given_up(processes: CheckProcesses) -> None:
    """Letters of which each takes four bytes because of one among them."""
    message = '"\N{GRINNING FACE}'.encode() + b"a" * 150_000_000 + b'"'
    with pytest.raises(SchemaCheckFailed, match="it takes more memory than it may"):
        faults(processes, definition({}), message)


def test_a_process_that_nobody_asks_any_more_leaves_no_files(processes: CheckProcesses) -> None:
    """It ends with its stream, as after a SIGKILL of the broker."""
    assert faults(processes, definition({}), b"1") == []
    (process,) = processes._idle
    process._stream.close()
    assert process._process.wait(60) == 0
    assert not Path(process._directory).exists()


def test_a_process_that_takes_too_long_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock, on a machine that gives it no time."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes = CheckProcesses(check_seconds=0.001)
    one, message = BOMBS["a regular expression"]
    with pytest.raises(SchemaCheckFailed, match=r"it takes more than 0\.001 seconds"):
        faults(processes, one, message)
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_the_brokers_settings_reaches_a_process(
    processes: CheckProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERD_SECURITY_ADMIN_PASSWORD", "secret")
    assert faults(processes, definition({}), b"1") == []
    (process,) = processes._idle
    assert b"secret" not in Path(f"/proc/{process._process.pid}/environ").read_bytes()


def test_a_stop_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look under way is given up, and there are no others."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes = CheckProcesses(check_seconds=3600)
    one, message = BOMBS["a regular expression"]
    assert faults(processes, definition({}), b"1") == []
    refusals: list[Exception] = []

    def check() -> None:
        with pytest.raises(SchemaCheckFailed) as refused:
            faults(processes, one, message)
        refusals.append(refused.value)

    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    while not processes._busy:
        time.sleep(0.001)
    (process,) = processes._busy
    os.kill(process._process.pid, signal.SIGSTOP)  # no limit of its own ends it
    processes.end()
    thread.join(60)
    assert len(refusals) == 1
    with pytest.raises(ShuttingDown):
        faults(processes, one, message)
    assert list(tmp_path.iterdir()) == []


def test_a_stop_leaves_nothing_of_a_process_that_has_just_answered(
    processes: CheckProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faults(processes, definition({}), b"1") == []
    (process,) = processes._idle
    check = process.check

    def answered_at_the_end(*arguments: Any) -> bytes:
        answer = check(*arguments)
        processes.end()
        return answer

    monkeypatch.setattr(process, "check", answered_at_the_end)
    assert faults(processes, definition({}), b"1") == []
    assert process._process.returncode is not None
    assert not Path(process._directory).exists()


def test_a_kept_process_that_was_killed_is_passed_over(processes: CheckProcesses) -> None:
    """Whoever asks next is answered by another one."""
    assert faults(processes, definition({}), b"1") == []
    (process,) = processes._idle
    process._process.kill()
    process._process.wait()
    assert faults(processes, definition({}), b"1") == []
    assert not Path(process._directory).exists()


def test_what_a_broker_left_that_was_killed_is_removed(processes: CheckProcesses) -> None:
    """And nothing of one that lives, nor of anybody else."""
    temporary = Path(tempfile.gettempdir())
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale = temporary / f"brokerd-schemas-{gone.pid}-abc"
    (stale / "below").mkdir(parents=True)
    others = [temporary / name for name in (f"brokerd-schemas-{os.getppid()}-abc", "brokerd-x-1-2")]
    for other in others:
        other.mkdir()
    assert faults(processes, definition({}), b"1") == []
    assert not stale.exists()
    for other in others:
        other.rmdir()


def test_a_question_to_a_kept_process_that_is_killed_is_asked_once_more(
    processes: CheckProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faults(processes, definition({}), b"1") == []
    (process,) = processes._idle
    monkeypatch.setattr(process, "is_usable", lambda: True)
    process._process.kill()
    assert faults(processes, definition({}), b"1") == []
    assert processes._idle != [process]


@pytest.mark.slow
def test_a_bomb_is_asked_once(processes: CheckProcesses) -> None:
    """And not again of another process when it has ended a kept one."""
    assert faults(processes, definition({}), b"1") == []
    one, message = BOMBS["a regular expression"]
    with pytest.raises(SchemaCheckFailed, match="2 seconds of processor time"):
        faults(processes, one, message)
    assert processes._idle == []


PROTOBUF = Definition(1, SchemaType.PROTOBUF, b'syntax = "proto3"; message A { int32 a = 1; }')


def test_a_process_whose_directory_is_gone_is_made_anew(processes: CheckProcesses) -> None:
    """So that it can compile again."""
    assert faults(processes, definition({}), b"1") == []
    (process,) = processes._idle
    Path(process._directory).rmdir()
    assert faults(processes, PROTOBUF, b"\x08\x01") == []


@pytest.mark.parametrize("what", ["tempfile.mkdtemp", "socket.socketpair", "subprocess.Popen"])
def test_a_process_that_cannot_be_started_is_told(
    processes: CheckProcesses, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing of it is left, and the next question is answered when there is room again."""

    def full(*arguments: Any, **more: Any) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(what, full)
        with pytest.raises(SchemaCheckFailed, match=r"cannot be started now: .*Too many"):
            faults(processes, definition({}), b"1")
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    assert faults(processes, definition({}), b"1") == []


def test_who_asked_is_told_of_what_nobody_expected() -> None:
    """And it is raised, for the log."""

    def broken(question: bytes) -> bytes:
        raise ZeroDivisionError

    threads = InlinePool()
    told: list[Any] = []
    checker = Checker(threads.submit, broken)
    checker.validation(definition({}), b"1", lambda *answer: told.append(answer), ASKER)
    with pytest.raises(ZeroDivisionError):
        threads.run()
    ((texts, error),) = told
    assert texts is None
    assert isinstance(error, SchemaCheckFailed)


class Waiting:
    """A checker whose looks wait until they are run, and what was told of them."""

    def __init__(self) -> None:
        self.threads = InlinePool()
        self.checker = Checker(self.threads.submit, checks.Checks().answer)
        self.told: list[tuple[list[str] | None, BrokerdError | None]] = []

    def ask(self, message: bytes, requester: Requester = ASKER) -> None:
        self.checker.validation(
            definition({}),
            message,
            lambda texts, error: self.told.append((texts, error)),
            requester,
        )


def test_so_many_wait_and_no_more() -> None:
    """What is too much is refused at once, and may be sent again."""
    waiting = Waiting()
    for number in range(WAITING_MAX):
        waiting.ask(b"1", Requester(str(number)))
    with pytest.raises(LimitExceeded, match="try again"):
        waiting.ask(b"1")
    waiting.threads.run()
    assert waiting.told == [([], None)] * WAITING_MAX
    waiting.ask(b"1")


@pytest.mark.parametrize(
    ("requester", "other"),
    [
        (Requester("ann", "10.0.0.1"), Requester("ben", "10.0.0.1")),
        (Requester("", "10.0.0.1"), Requester("", "10.0.0.2")),
        (Requester("10.0.0.1"), Requester("", "10.0.0.1")),
    ],
)
def test_some_places_are_left_for_others(requester: Requester, other: Requester) -> None:
    """One principal, or one address of those without a name, does not take all."""
    waiting = Waiting()
    for _ in range(OWN_WAITING_MAX):
        waiting.ask(b"1", requester)
    with pytest.raises(LimitExceeded, match=r"16 of your schemas .* try again"):
        waiting.ask(b"1", requester)
    waiting.ask(b"1", other)
    waiting.threads.step()
    waiting.ask(b"1", requester)
    waiting.threads.run()
    assert waiting.told == [([], None)] * (OWN_WAITING_MAX + 2)


def test_some_bytes_are_left_for_others() -> None:
    """One has so many waiting, or one that is larger."""
    waiting = Waiting()
    ann, ben, eve = Requester("ann"), Requester("ben"), Requester("eve")
    waiting.ask(b" " * (OWN_WAITING_BYTES_MAX // 2), ann)
    with pytest.raises(LimitExceeded, match=r"16777216 bytes of your schemas .* try again"):
        waiting.ask(b" " * (OWN_WAITING_BYTES_MAX // 2), ann)
    waiting.ask(b"1", ann)
    waiting.ask(b" " * OWN_WAITING_BYTES_MAX, ben)
    with pytest.raises(LimitExceeded, match="of your"):
        waiting.ask(b"1", ben)
    waiting.ask(b"1", eve)
    waiting.threads.run()
    waiting.ask(b"1", ben)


def test_what_nobody_waits_for_is_not_looked_at() -> None:
    """And its place is free at once; what was asked is let go of."""
    waiting = Waiting()
    looked: list[bytes] = []
    is_gone = False
    waiting.checker._run_check = lambda question: looked.append(question) or b""  # type: ignore[func-returns-value]
    for _ in range(OWN_WAITING_MAX):
        waiting.ask(b"1", Requester("ann", is_gone=lambda: is_gone))
    checks_left = list(waiting.checker._pending)
    is_gone = True
    waiting.ask(b"1", Requester("ann"))
    assert {check.request for check in checks_left} == {b""}
    assert len(waiting.told) == OWN_WAITING_MAX
    assert all(isinstance(error, SchemaCheckFailed) for _, error in waiting.told)
    while len(waiting.threads) > 1:
        waiting.threads.step()
    assert looked == []
    assert len(waiting.told) == OWN_WAITING_MAX


def test_so_many_bytes_wait_and_no_more() -> None:
    """One that is alone may have more."""
    waiting = Waiting()
    waiting.ask(b" " * WAITING_BYTES_MAX)
    with pytest.raises(LimitExceeded, match="too many"):
        waiting.ask(b"1", Requester("ben"))
