"""The fuzzer: a short run of each format, what it finds in brokers that are wrong, its files."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest
from twisted.logger import Logger

from benchmarks.process import BrokerProcess
from brokerd.protocols.mamamia.connection import MamamiaConnection, MamamiaFactory
from tests.fuzz import mutate, sockets
from tests.fuzz.__main__ import main, summary
from tests.fuzz.case import Case, Delivery, parse_case
from tests.fuzz.desk import SLOW_MS, Counts, run_case
from tests.fuzz.found import Found
from tests.fuzz.run import fuzz
from tests.fuzz.shrink import shrink
from tests.fuzz.sockets import fuzz_sockets
from tests.fuzz.wire import MIXED, NAMES, RUNS, Framing, Wires, wires_of

FOUND = sorted(Path(__file__).parent.joinpath("found").glob("*.txt"))
SEED = 4
BROKERS = 4
FRAMES_MIN = 1_000
MAMAMIA = wires_of("mamamia")


@pytest.mark.parametrize(
    "run",
    [
        run if run in ("mamamia", MIXED) else pytest.param(run, marks=pytest.mark.slow)
        for run in RUNS
    ],
)
def test_mutated_conversations_disturb_nobody(run: str) -> None:
    """No traceback, hang, wrong answer or memory that was only claimed, for this seed."""
    result = fuzz(run, wires_of(run), SEED, lambda number: number >= BROKERS)
    assert [failure.case.text(failure.about()) for failure in result.failures] == []
    counts = result.counts
    assert counts.restarts == BROKERS
    assert counts.frames >= FRAMES_MIN
    assert counts.answers and counts.closed and counts.witnessed
    assert f"{counts.frames:,} frames" in summary(result)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.slow
def test_nor_do_they_over_real_sockets(run: str, tmp_path: Path) -> None:
    """A process of its own: its log, its memory, its next start, and what comes back."""
    counts = Counts()
    failure = fuzz_sockets(run, SEED, lambda connections: connections > 24, tmp_path, counts)
    assert failure is None, failure.about()
    assert counts.connections > 24 and counts.answers and counts.witnessed and counts.restarts


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_stays_cured(path: Path) -> None:
    """Cases of earlier runs; the comment on top of each says what was wrong."""
    case = parse_case(path.read_text())
    found = run_case(wires_of(case.run), case)
    assert found is None, found


# -- the oracle -------------------------------------------------------------------------------


class Raises(MamamiaConnection):
    def feed(self, data: bytes) -> bool:
        if b"\xff" in data:
            raise KeyError("a byte that nobody expected")
        return super().feed(data)


class Logs(MamamiaConnection):
    def handle_requests(self) -> None:
        super().handle_requests()
        if self._reader.error is not None:
            Logger().error("this should never be")


class Hangs(MamamiaConnection):
    def readConnectionLost(self) -> None:
        """Does not care."""


class WaitsForever(MamamiaConnection):
    def overdue(self, now_us: int) -> str | None:
        return None


class Computes(MamamiaConnection):
    def handle_requests(self) -> None:
        if any(command == 0x85 for command, _ in self.frames):
            until = time.thread_time() + 0.3
            while time.thread_time() < until:
                pass
        super().handle_requests()


class Allocates(MamamiaConnection):
    def feed(self, data: bytes) -> bool:
        if len(data) >= 4:
            self._reserved = bytearray(min(int.from_bytes(data[:4], "big"), 16 << 20))
        return super().feed(data)


class Hoards(MamamiaConnection):
    def feed(self, data: bytes) -> bool:
        self._reader._max_length = 1 << 32
        return super().feed(data)


class Repeats(MamamiaConnection):
    def _enqueue(self) -> None:
        self.answers *= 2 if len(self.answers) == 2 else 1
        super()._enqueue()


class Skips(MamamiaConnection):
    def _enqueue(self) -> None:
        del self.answers[4:]
        super()._enqueue()


class Mumbles(MamamiaConnection):
    def _enqueue(self) -> None:
        self.answers = [answer.replace(b"error", b"\xc1rror") for answer in self.answers]
        super()._enqueue()


class Confuses(MamamiaConnection):
    _seen = b""

    def feed(self, data: bytes) -> bool:
        if b"demo" in data or b"orders" in data:
            Confuses._seen = b"\x00"
        if b"the witness" in data and Confuses._seen:
            data = data.replace(b"\xa2it", b"\xa2ti", 1)
            Confuses._seen = b""
        return super().feed(data)


PLANTED: dict[str, tuple[type[MamamiaConnection], str]] = {
    "an exception": (Raises, "fault"),
    "an error in the log": (Logs, "fault"),
    "a connection that never ends": (Hangs, "hang"),
    "a frame that is waited for": (WaitsForever, "hang"),
    "a long turn": (Computes, "slow"),
    "a length that is believed": (Allocates, "memory"),
    "no limit on a frame": (Hoards, "held"),
    "an answer too many": (Repeats, "answers"),
    "an answer too few": (Skips, "answers"),
    "an answer that nobody can read": (Mumbles, "answers"),
    "an effect on somebody else": (Confuses, "witness"),
}


def served_by(connection: type[MamamiaConnection]) -> Wires:
    """Mamamia, by a connection of ours."""

    class Factory(MamamiaFactory):
        def new_connection(self) -> MamamiaConnection:
            return connection(self.broker, self.limits.frame_bytes)

    (wire,) = MAMAMIA.values()
    served = replace(wire, factory=lambda broker, clock, limits, _: Factory(broker, clock, limits))
    return {wire.name: served}


BROKERS_MAX = 1_000
"""Number of brokers by which every planted fault has been found."""
LONG_HUNTS = ("a length that is believed", "no limit on a frame")


@pytest.mark.parametrize(
    "planted",
    [pytest.param(one, marks=pytest.mark.slow) if one in LONG_HUNTS else one for one in PLANTED],
)
def test_a_broker_that_is_wrong_is_found_and_the_case_cut_down(planted: str) -> None:
    """What is reported is of the right kind, small, and shows it again."""
    connection, kind = PLANTED[planted]
    wires = served_by(connection)

    def is_over(brokers: int) -> bool:
        return brokers > BROKERS_MAX

    result = fuzz(
        "mamamia", wires, 6, is_over, SLOW_MS if kind == "slow" else inf, 0.5, failures_max=1
    )
    (failure,) = result.failures
    assert failure.found.kind == kind
    assert failure.is_repeatable
    again = parse_case(failure.case.text(failure.about()))
    assert run_case(wires, again, SLOW_MS) is not None
    assert run_case(MAMAMIA, again) is None


def test_a_traceback_in_the_log_of_a_process_is_found(tmp_path: Path) -> None:
    """However right its answers are; and so is a process that has ended."""
    log = tmp_path / "log"
    with BrokerProcess(tmp_path / "data", tmp_path / "own", sockets.SETTINGS) as broker:
        broker.start()
        desk = sockets.SocketDesk(MAMAMIA, broker, log, Counts())
        log.write_text("Traceback (most recent call last):\n")
        with pytest.raises(Found, match="fault"):
            desk.finish()
        desk = sockets.SocketDesk(MAMAMIA, broker, tmp_path / "own", Counts())
        broker.kill()
        with pytest.raises(Found, match="witness"):
            desk.finish()


def test_a_server_that_does_not_close_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """On real sockets too, after a while."""
    monkeypatch.setattr(sockets, "SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Found, match="hang"):
        sockets.talk_all([(server.getsockname(), Delivery("mamamia", (b"\x00",)))])


# -- its parts --------------------------------------------------------------------------------


def test_a_case_is_read_as_it_was_written() -> None:
    case = Case(
        "mamamia",
        "tight",
        (
            Delivery("mamamia", (b"\x00", b"\x01\x02"), "cut"),
            Delivery("mamamia", (), "silence", reads=False, beside=True),
            Delivery("mamamia", (), beside=True),
        ),
    )
    assert parse_case(case.text("what it is about\n\nin two lines")) == case
    assert case.size == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "format mamamia",
        "> 00",
        "connection never",
        "nonsense",
        "connection mega eof > 00",
        "connection eof",
    ],
)
def test_a_file_that_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_case(text)


def test_shrinking_leaves_what_the_failure_needs() -> None:
    """Two bytes in order on one connection, out of three connections."""
    noise = Delivery("mamamia", (b"abc" * 30, b"d" * 50), "cut", reads=False)
    guilty = Delivery(
        "mamamia", (b"abc" * 10 + b"\x07" + b"x" * 20, b"yy\x08yy"), "silence", reads=False
    )

    def fails(case: Case) -> bool:
        return any(b"\x08" in b"".join(one.chunks).partition(b"\x07")[2] for one in case.deliveries)

    case = shrink(Case("mamamia", "roomy", (noise, guilty, noise)), fails, lambda: False)
    assert case.deliveries == (Delivery("mamamia", (b"\x07\x08",)),)


def test_shrinking_ends_when_it_is_told_to() -> None:
    case = Case("mamamia", "roomy", (Delivery("mamamia", (bytes(100),)),))
    assert shrink(case, lambda _: True, lambda: True) == case


@pytest.mark.parametrize("name", NAMES)
def test_mutations_are_a_function_of_the_seed(name: str) -> None:
    """The same conversation again, cut the same way, and no two alike."""
    wire = wires_of(name)[name]

    def drawn(seed: int) -> tuple[bytes, ...]:
        rng = Random(seed)
        return mutate.chunks(rng, mutate.conversation(rng, wire))

    assert [drawn(seed) for seed in range(50)] == [drawn(seed) for seed in range(50)]
    assert len({drawn(seed) for seed in range(50)}) > 40


def test_chunks_are_the_same_bytes() -> None:
    frames = [b"first", b"second", b"", b"third frame"]
    sizes = set()
    for seed in range(200):
        pieces = mutate.chunks(Random(seed), frames)
        assert b"".join(pieces) == b"".join(frames)
        assert all(pieces)
        sizes.add(len(pieces))
    assert {1, 3, len(b"".join(frames))} <= sizes


def test_whole_frames_and_a_wrong_length_are_told_apart() -> None:
    framing = Framing(length_at=0, uncounted=4, length_min=1)
    one, two = b"\x00\x00\x00\x01a", b"\x00\x00\x00\x02bb"
    assert framing.split(one + two, 10) == ([one, two], False)
    assert framing.split((one + two)[:-1], 10) == ([one], False)
    assert framing.split(one + two, 1) == ([one], True)
    assert framing.split(b"\x00\x00\x00\x00", 10) == ([], True)
    assert framing.fitted(b"\xff\xff\xff\xffabc") == b"\x00\x00\x00\x03abc"


def test_the_command_fuzzes_and_says_what_it_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code = main(["--seconds=0.5", "--format=mamamia", "--seed=3", "--jobs=1", f"--out={out}"])
    told = capsys.readouterr().out
    assert "seed 3" in told and " frames " in told and "0 failures" in told
    assert code == 0
    assert not out.exists()


def test_the_command_replays_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.txt"
    path.write_text(
        Case("mamamia", "roomy", (Delivery("mamamia", (b"\x00\x00\x00\x01",)),)).text("a length")
    )
    assert main([f"--replay={path}"]) == 0
    assert "nothing was found" in capsys.readouterr().out
