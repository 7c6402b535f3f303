"""The service in memory: what is up when, what is left behind, and what a failure says."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import Logger, capturedLogs

from brokerd.admin.health import Health, Phase
from brokerd.errors import (
    DamagedData,
    DirectoryLocked,
    NewerFormat,
    StorageFailed,
    UnsafeFileSystem,
)
from brokerd.server import host, service
from brokerd.server.config import load
from brokerd.server.endpoints import parse
from brokerd.server.handshakes import TlsEndpoint
from brokerd.server.process_exit import ProcessExit
from brokerd.server.service import DRAIN_SECONDS, BrokerdService, Listener, write_json
from brokerd.server.tls import Credentials, TlsFiles
from brokerd.wal import RealDisk
from tests import certificates
from tests.fakecore import FakeCore


class RecordedExit(ProcessExit):
    """An outcome that keeps what it would say, instead of ending a process."""

    def __init__(self) -> None:
        super().__init__(at_exit=lambda leave: None)
        self.said: list[tuple[int, str]] = []
        self.is_ready = False

    def fail(self, code: int, line: str) -> None:
        self.said.append((code, line))

    def ready(self) -> None:
        self.is_ready = True


class ToldNotifier:
    watchdog_seconds = 0.0

    def __init__(self) -> None:
        self.lines: list[str] = []

    def send(self, *lines: str) -> None:
        self.lines += lines


class TakenEndpoint:
    def __init__(self, cause: Any) -> None:
        self.cause = cause

    def listen(self, factory: Any) -> Deferred[Any]:
        return fail(CannotListenError("127.0.0.1", 9000, self.cause))


class House:
    """A service and everything around it, in memory."""

    def __init__(self, tmp_path: Path, trouble: dict[str, Any], endpoint: Any = None) -> None:
        self.reactor = MemoryReactorClock()
        self.reactor.running = True
        self.data_dir = tmp_path / "data"
        self.core = FakeCore(None, self.data_dir, self.reactor, trouble)  # type: ignore[arg-type]
        self.health = Health()
        self.process_exit = RecordedExit()
        self.notifier = ToldNotifier()
        endpoint = endpoint or parse(self.reactor, "mamamia", "tcp:9000")
        listener = Listener("mamamia", "tcp:9000", endpoint, lambda: self.core.factory("mamamia"))
        self.service = BrokerdService(
            self.reactor,
            self.data_dir,
            self.core,
            [listener],
            self.health,
            self.process_exit,
            self.notifier,  # type: ignore[arg-type]
            Logger(),
            {"durability": "fsync"},
        )
        admin = parse(self.reactor, "admin", "tcp:9644")
        self.service.attach_admin(Listener("admin", "tcp:9644", admin, Factory))

    @property
    def listening(self) -> list[int]:
        return [server[0] for server in self.reactor.tcpServers]

    @property
    def listeners_file(self) -> Path:
        return self.data_dir / "run" / "listeners.json"

    def stop(self) -> bool:
        """Stop as the reactor would; say whether all is closed."""
        done: list[None] = []
        self.service.stopService().addCallback(done.append)
        return bool(done)


Build = Callable[..., House]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def make(endpoint: Any = None, **trouble: Any) -> House:
        return House(tmp_path, trouble, endpoint)

    return make


def test_a_start_and_a_stop_take_their_steps_in_order(build: Build) -> None:
    """Lock, replay, listen; then drain and close."""
    house = build()
    house.service.startService()
    assert house.core.calls == ["lock", "open", "factory mamamia"]
    assert house.health.phase is Phase.READY
    assert house.process_exit.is_ready
    assert house.stop()
    assert house.core.calls[3:] == ["drain", "close"]
    assert house.process_exit.said == []


def test_listeners_json_shows_addresses_while_clients_are_served(build: Build) -> None:
    """The file is there once all listen, and gone after a clean stop."""
    house = build()
    house.service.startService()
    addresses = json.loads(house.listeners_file.read_text())
    assert list(addresses) == ["mamamia", "admin"]
    assert addresses["mamamia"].endswith(":9000")
    assert house.stop()
    assert not house.listeners_file.exists()


def test_health_can_be_asked_for_during_the_replay_but_nobody_is_served(build: Build) -> None:
    """While the journal is replayed only the admin site listens, and it is not ready."""
    replay: Deferred[None] = Deferred()
    house = build(open=replay)
    house.service.startService()
    assert house.listening == [9644]
    assert (house.health.phase, house.health.ready) == (Phase.REPLAYING, False)
    assert not house.listeners_file.exists()
    assert not house.process_exit.is_ready
    replay.callback(None)
    assert house.listening == [9644, 9000]
    assert house.health.ready


def test_listeners_json_of_a_crash_is_removed_before_the_replay(build: Build) -> None:
    """Nobody reads addresses of a broker that is gone."""
    house = build(open=Deferred())
    house.listeners_file.parent.mkdir(parents=True)
    house.listeners_file.write_text('{"mamamia": "127.0.0.1:1"}')
    house.service.startService()
    assert not house.listeners_file.exists()


def test_listeners_json_that_finds_no_room_is_written_when_there_is_some(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not stop a start: what is there is served."""
    house = build()
    is_full = [True]

    def write(path: Path, value: Any) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_json(path, value)

    monkeypatch.setattr(service, "write_json", write)
    with capturedLogs() as captured:
        house.service.startService()
        for _ in range(3):
            house.reactor.advance(1)
    assert house.process_exit.is_ready and house.process_exit.said == []
    assert [e.get("event_id") for e in captured].count("listeners-failed") == 1
    is_full[0] = False
    house.reactor.advance(1)
    assert "mamamia" in json.loads(house.listeners_file.read_text())
    assert house.stop()
    assert house.reactor.getDelayedCalls() == []


def test_a_stop_ends_the_tries_to_write_listeners_json(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build()
    monkeypatch.setattr(service, "write_json", _no_room)
    house.service.startService()
    assert house.stop()
    assert house.reactor.getDelayedCalls() == []


def _no_room(path: Path, value: Any) -> None:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_a_hung_disk_does_not_block_the_stop_at_listeners_json(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop continues after a limit, and the log names the file."""
    monkeypatch.setattr(service, "REMOVE_SECONDS", 0.05)
    house = build()
    house.service.startService()
    back = threading.Event()
    unlink = Path.unlink

    def hang(path: Path, missing_ok: bool = False) -> None:
        back.wait(60)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", hang)
    with capturedLogs() as captured:
        assert house.stop()
    assert not back.is_set()
    back.set()
    (event,) = [event for event in captured if event.get("event_id") == "listeners-kept"]
    assert event["path"] == str(house.listeners_file)
    assert house.core.calls[-1] == "close"


def test_a_disk_that_fails_at_listeners_json_does_not_break_the_stop(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build()
    house.service.startService()

    def broken(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", broken)
    with capturedLogs() as captured:
        assert house.stop()
    (event,) = [event for event in captured if event.get("event_id") == "listeners-kept"]
    assert event["reason"] == "Input/output error"
    assert house.core.calls[-1] == "close"


def test_a_hung_disk_does_not_block_the_release_of_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release returns after a limit; once the disk answers, the lock is free."""
    monkeypatch.setattr(host, "RELEASE_SECONDS", 0.05)
    lock = host.BoundedLock(str(tmp_path))
    lock.acquire()
    back, closed = threading.Event(), threading.Event()
    close = os.close

    def hang(descriptor: int) -> None:
        back.wait(60)
        close(descriptor)
        closed.set()

    monkeypatch.setattr("os.close", hang)
    lock.release()
    assert not closed.is_set()
    back.set()
    assert closed.wait(60)
    lock.release()


def test_listeners_json_of_another_broker_is_left_alone(build: Build) -> None:
    """A broker that does not get the lock touches nothing in the directory."""
    house = build(lock=DirectoryLocked("taken"))
    house.listeners_file.parent.mkdir(parents=True)
    house.listeners_file.write_text("{}")
    house.service.startService()
    assert house.stop()
    assert house.listeners_file.exists()
    assert house.core.calls == ["lock"]


def test_the_supervisor_hears_of_every_step(build: Build) -> None:
    """READY comes after the replay, STOPPING when the stop begins."""
    replay: Deferred[None] = Deferred()
    house = build(open=replay)
    house.service.startService()
    assert house.notifier.lines == ["STATUS=replaying the journal"]
    replay.callback(None)
    assert house.notifier.lines[1] == "READY=1"
    house.stop()
    assert "STOPPING=1" in house.notifier.lines[3:]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EACCES, "let the user that runs brokerd read and write it"),
        (errno.EROFS, "mount the file system for writing"),
        (errno.EISDIR, "move it away"),
        (errno.ENOSPC, "free some space"),
    ],
)
def test_an_error_of_the_disk_names_the_file_and_what_to_do(
    build: Build, code: int, advice: str
) -> None:
    house = build(open=OSError(code, "so it is", "/data/wal/0.wal"))
    house.service.startService()
    ((_, line),) = house.process_exit.said
    assert line.startswith("/data/wal/0.wal: so it is; ")
    assert advice in line


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ({"lock": DirectoryLocked("pid 12 owns /data")}, 75),
        ({"lock": UnsafeFileSystem("/data is on nfs")}, 1),
        ({"lock": OSError(errno.EACCES, "Permission denied", "/data/lock")}, 74),
        ({"open": NewerFormat("0.wal has version 9")}, 1),
        ({"open": StorageFailed("sync of 0.wal failed")}, 74),
        ({"open": DamagedData("snapshot is damaged")}, 1),
    ],
)
def test_a_failed_start_is_one_line_and_its_code(
    build: Build, trouble: dict[str, Exception], code: int
) -> None:
    """Each reason has its exit code and its own words, and nobody is served."""
    house = build(**trouble)
    house.service.startService()
    (error,) = trouble.values()
    ((said_code, line),) = house.process_exit.said
    assert said_code == code
    assert str(error.args[0] if not isinstance(error, OSError) else error.strerror) in line
    assert house.reactor.hasStopped
    assert house.health.phase is Phase.FAILED
    assert house.stop()
    assert 9000 not in house.listening
    assert "close" not in house.core.calls


@pytest.mark.parametrize(
    ("cause", "code", "said"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), 75, "it is in use"),
        ("Cannot acquire lock", 75, "it is in use"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign address"), 1, "Cannot assign address"),
    ],
)
def test_an_address_that_is_taken_is_named(build: Build, cause: Any, code: int, said: str) -> None:
    """The line names the format, the endpoint and the reason."""
    house = build(TakenEndpoint(cause))
    house.service.startService()
    assert house.process_exit.said == [(code, f"mamamia cannot listen on tcp:9000: {said}")]


def test_a_data_directory_that_cannot_be_made_is_named(build: Build, tmp_path: Path) -> None:
    """A file in the way of the directory is told by its path."""
    (tmp_path / "data").write_text("")
    house = build()
    house.service.startService()
    ((code, line),) = house.process_exit.said
    assert code == 1
    assert line.startswith(f"cannot make the data directory: {tmp_path / 'data'}: ")


def test_the_name_of_the_data_directory_is_durable_before_the_log_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss would take all that was acknowledged. A killed start may have made it before."""
    synced: list[Path] = []

    def sync(self: RealDisk, directory: str) -> None:
        assert house.core.calls == []
        synced.append(Path(directory))
        if Path(directory) == tmp_path:
            raise PermissionError(errno.EACCES, "another user's", directory)

    monkeypatch.setattr(RealDisk, "sync_directory", sync)
    for made in ({tmp_path, tmp_path / "a"}, set()):
        synced.clear()
        house = House(tmp_path / "a" / "b", {})
        house.service.startService()
        assert house.process_exit.said == []
        assert {tmp_path / "a" / "b", house.data_dir, *made} == set(synced)
        house.stop()


def test_a_start_without_memory_is_74(build: Build) -> None:
    """A supervisor tries it again, unlike a wrong configuration."""
    house = build(open=MemoryError())
    house.service.startService()
    assert house.process_exit.said == [(74, "memory ran out during the start")]


def test_a_body_that_cannot_be_read_has_its_traceback_in_the_log(build: Build) -> None:
    """It tells a fault of this version from a newer format."""
    error = NewerFormat("the frame at 7 cannot be read")
    error.__cause__ = KeyError("op")
    house = build(open=error)
    with capturedLogs() as captured:
        house.service.startService()
    assert house.process_exit.said == [(1, "the frame at 7 cannot be read")]
    (failure,) = [event["log_failure"] for event in captured if "log_failure" in event]
    assert "KeyError" in failure.getTraceback()


def test_a_bug_in_the_start_is_in_the_log_and_not_on_the_terminal(build: Build) -> None:
    """The traceback goes to the log; stderr gets one line."""
    house = build(open=RuntimeError("oops"))
    with capturedLogs() as captured:
        house.service.startService()
    assert house.process_exit.said == [(1, "unexpected RuntimeError; see the log")]
    (event,) = [event for event in captured if event.get("event_id") == "start-failed"]
    assert "oops" in event["log_failure"].getTraceback()


def test_a_failed_write_ends_the_broker_without_closing_the_journal(build: Build) -> None:
    """After a failed sync nothing more is written: the next start replays."""
    house = build()
    house.service.startService()
    house.core.on_fatal(StorageFailed("sync failed"))
    assert house.process_exit.said == [(74, "sync failed")]
    assert house.reactor.hasStopped
    assert (house.health.phase, house.health.reason) == (Phase.FAILED, "sync failed")
    assert house.stop()
    assert house.core.calls[3:] == ["abandon"]
    house.core.on_fatal(StorageFailed("and again"))
    assert len(house.process_exit.said) == 1


def test_a_stop_during_the_replay_gives_it_up(build: Build) -> None:
    """SIGTERM does not wait for a long replay."""
    given_up: list[bool] = []
    replay: Deferred[None] = Deferred(lambda _: given_up.append(True))
    house = build(open=replay)
    house.service.startService()
    assert house.stop()
    assert given_up == [True]
    assert house.core.calls == ["lock", "open", "abandon"]
    assert house.process_exit.said == []


def test_a_stop_waits_for_answers_but_not_for_ever(build: Build) -> None:
    """Clients that do not read their answers delay a stop by at most DRAIN_SECONDS."""
    house = build(drain=Deferred())
    house.service.startService()
    done: list[None] = []
    house.service.stopService().addCallback(done.append)
    house.reactor.advance(DRAIN_SECONDS - 0.1)
    assert not done
    assert house.core.calls[-1] == "drain"
    house.reactor.advance(0.2)
    assert done
    assert house.core.calls[-1] == "close"
    assert house.process_exit.said == []


def test_a_bug_in_the_drain_does_not_keep_the_journal_open(build: Build) -> None:
    """Whatever happens to the answers, the snapshot and the mark are written."""
    house = build(drain=RuntimeError("oops"))
    house.service.startService()
    with capturedLogs() as captured:
        assert house.stop()
    assert house.core.calls[-1] == "close"
    assert "drain-failed" in [event.get("event_id") for event in captured]


def test_a_close_that_fails_is_not_a_clean_stop(build: Build) -> None:
    """The last write counts as much as any other."""
    house = build(close=StorageFailed("no snapshot"))
    house.service.startService()
    assert house.stop()
    assert house.process_exit.said == [(74, "closing failed: no snapshot")]
    assert house.core.calls[-1] == "abandon"


def test_status_joins_the_service_and_the_core(build: Build) -> None:
    """The page sees phase, addresses and what the core counts."""
    house = build()
    house.service.startService()
    house.reactor.advance(2.5)
    status = house.service.status()
    assert (status["phase"], status["ready"], status["topics"]) == ("ready", 1, 2)
    assert status["durability"] == "fsync"
    assert status["uptime_seconds"] == 2.5
    assert status["listeners"]["mamamia"].endswith(":9000")
    json.dumps(status)


def test_a_degraded_core_shows_in_health_and_stays_ready(build: Build) -> None:
    """Damage is for people to look at, not for a supervisor to restart on."""
    house = build(degraded="the log is damaged")
    house.service.startService()
    assert house.health.ready
    assert house.health.describe()["degraded"] == "the log is damaged"


def test_a_reload_changes_the_time_for_a_handshake(build: Build, tmp_path: Path) -> None:
    certificate, key = certificates.certificate(tmp_path)
    credentials = Credentials(TlsFiles(str(certificate), str(key)), lambda: 0.0)
    clock = Clock()
    reactor = MemoryReactorClock()
    plain = parse(reactor, "mamamia", "tcp:9000")
    house = build(TlsEndpoint("mamamia", plain, credentials, 0, clock))
    house.service.startService()
    factory = reactor.tcpServers[0][1]

    def open_seconds() -> int:
        """How long a client that says nothing is let in, up to a minute."""
        transport = StringTransport()
        factory.buildProtocol(None).makeConnection(transport)
        for second in range(60):
            if transport.disconnected or transport.disconnecting:
                return second
            clock.advance(1)
        return 60

    assert open_seconds() == 60
    house.service.reconfigure(load(assignments=["limits.unfinished_frame_seconds=5"]).config)
    assert open_seconds() == 5
