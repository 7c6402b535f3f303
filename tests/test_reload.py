"""A configuration that is read again: what changes, what waits; mistakes change nothing."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from twisted.internet.endpoints import AdoptedStreamServerEndpoint
from twisted.logger import ILogObserver, Logger, LogLevel, capturedLogs
from zope.interface import implementer

from brokerd.codecs.mamamia import Produce, Produced
from brokerd.errors import ConfigError, LoginFailed
from brokerd.security import OPEN
from brokerd.server.config import Config, load
from brokerd.server.endpoints import inherited_interface
from brokerd.server.listeners import is_open
from brokerd.server.logs import OperatorLog, OperatorLogFile, file_observer
from brokerd.server.reload import RELOADABLE, Reload, differences, merged
from brokerd.server.sections import Log
from tests.corehouse import CoreHouse
from tests.house import Client


def config(*assignments: str) -> Config:
    return load(assignments=assignments).config


@implementer(ILogObserver)
class Kept:
    """Keeps the events that it gets."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)


class Desk:
    """A reload whose next configuration the test gives."""

    def __init__(self, *assignments: str) -> None:
        self.wanted: Config | Exception = config(*assignments)
        self.applied: list[Config] = []
        self.refreshed = 0
        self.operator_log = OperatorLog(Kept(), Log())
        self.reload = Reload(
            config(*assignments), self._load, self.applied.append, self.operator_log, [self]
        )

    def _load(self) -> Config:
        if isinstance(self.wanted, Exception):
            raise self.wanted
        return self.wanted

    def refresh(self) -> None:
        self.refreshed += 1

    def run(self, wanted: Config | Exception) -> dict[str, Any]:
        """Reload, and return the events by id."""
        self.wanted = wanted
        with capturedLogs() as events:
            self.reload.run()
        return {event["event_id"]: event for event in events}


def test_options_that_differ_are_named() -> None:
    wanted = config("limits.connections=5", "wal.durability=os", "data_dir=/x")
    assert set(differences(Config(), wanted)) == {
        "data_dir",
        "wal.durability",
        "limits.connections",
    }
    assert list(differences(wanted, wanted)) == []


def test_every_reloadable_option_exists() -> None:
    """And a change of each of them is applied alone."""
    changed = {
        "log.level": "debug",
        "blipmq.api_keys": ("a",),
        "blipmq.api_keys_file": "file",
    }
    for name in RELOADABLE:
        section, _, key = name.partition(".")
        value = changed.get(name, 1)
        part = structs.replace(getattr(Config(), section), **{key: value})
        wanted = structs.replace(Config(), **{section: part})
        assert list(differences(Config(), wanted)) == [name]
        assert merged(Config(), wanted, [name]) == wanted


def test_changed_options_are_applied_and_the_others_are_named() -> None:
    """The second reload tells again what still waits for a restart."""
    desk = Desk()
    wanted = config("limits.connections=5", "wal.durability=os", "listen.mega=none")
    events = desk.run(wanted)
    assert events["reloaded"]["changed"] == "limits.connections"
    assert events["restart-needed"]["options"] == "listen, wal.durability"
    assert desk.applied == [config("limits.connections=5")]
    assert desk.refreshed == 1
    events = desk.run(wanted)
    assert events["reloaded"]["changed"] == "nothing"
    assert events["restart-needed"]["options"] == "listen, wal.durability"


def test_a_mistake_changes_nothing() -> None:
    desk = Desk()
    events = desk.run(ConfigError("limits.connections: expected a whole number"))
    assert events["reload-failed"]["log_level"] is LogLevel.error
    assert "expected a whole number" in events["reload-failed"]["reason"]
    assert (desk.applied, desk.refreshed) == ([], 0)


def test_the_level_of_the_log_follows() -> None:
    kept = Kept()
    operator_log = OperatorLog(kept, Log())
    log = Logger(namespace="brokerd", observer=operator_log.observer)
    log.debug("hidden")
    operator_log.configure(Log(level="debug"))
    log.debug("shown")
    operator_log.configure(Log(level="error"))
    log.info("hidden")
    assert [event["log_format"] for event in kept.events] == ["shown"]


class TestLogFile:
    """The file of the log, moved by another program."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "brokerd.log"

    def opened(self, path: Path, rotate_bytes: int = 0) -> tuple[OperatorLog, Logger]:
        file: Any = OperatorLogFile.fromFullPath(str(path))
        operator_log = OperatorLog(
            file_observer(file, "text"), Log(rotate_bytes=rotate_bytes), file
        )
        return operator_log, Logger(namespace="x", observer=operator_log.observer)

    def test_a_moved_file_is_opened_anew(self, path: Path) -> None:
        operator_log, log = self.opened(path)
        log.info("one")
        moved = path.rename(path.with_suffix(".1"))
        log.info("two")
        operator_log.reopen()
        log.info("three")
        assert [line.split()[-1] for line in moved.read_text().splitlines()] == ["one", "two"]
        assert path.read_text().split()[-1] == "three"

    def test_a_file_that_cannot_be_opened_leaves_the_old_one(self, path: Path) -> None:
        operator_log, log = self.opened(path)
        moved = path.rename(path.with_suffix(".1"))
        path.mkdir()
        with capturedLogs() as events:
            operator_log.reopen()
        assert [event["event_id"] for event in events] == ["log-not-reopened"]
        log.info("still here")
        assert "still here" in moved.read_text()

    @pytest.mark.parametrize(("rotate_bytes", "files"), [(0, 1), (100, 3)])
    def test_it_is_rotated_by_size_as_configured(
        self, path: Path, rotate_bytes: int, files: int
    ) -> None:
        _, log = self.opened(path, rotate_bytes)
        for _ in range(3):
            log.info("x" * 200)
        assert len(list(path.parent.iterdir())) == files

    def test_a_rotation_on_request_begins_a_new_file(self, path: Path) -> None:
        operator_log, log = self.opened(path)
        log.info("one")
        operator_log.rotate()
        log.info("two")
        assert "one" in Path(f"{path}.1").read_text()
        assert "two" in path.read_text()

    def test_a_rotation_without_permission_is_logged_and_tried_again_after_as_many_bytes(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Twisted's own did nothing, without a word, and tried again with each line."""
        operator_log, log = self.opened(path, 300)
        tries: list[str] = []

        def refuse(name: str, mode: int) -> bool:
            tries.append(name)
            return False

        with monkeypatch.context() as patched, capturedLogs() as events:
            patched.setattr("os.access", refuse)
            for number in range(12):
                log.info(f"line {number} " + "x" * 100)
            assert len(tries) < 6
            operator_log.rotate()
        (event,) = events
        assert event["event_id"] == "log-not-rotated"
        assert event["reason"] == f"{path.parent}: Permission denied"
        assert all(f"line {number} " in path.read_text() for number in range(12))

    @pytest.mark.parametrize("fails", ["rename", "open"])
    def test_a_rotation_that_fails_leaves_the_old_file_in_use(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
    ) -> None:
        """As on a disk without room for another name, at the size or on request."""
        operator_log, log = self.opened(path, 300)

        def refuse(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def open_existing(name: str, *arguments: Any) -> Any:
            return open(name, *arguments) if os.path.exists(name) else refuse()

        with monkeypatch.context() as patched, capturedLogs() as events:
            if fails == "rename":
                patched.setattr("twisted.python.logfile.os.rename", refuse)
            else:
                patched.setattr("twisted.python.logfile.open", open_existing, raising=False)
            for number in range(4):
                log.info(f"line {number} " + "x" * 100)
            operator_log.rotate()
            log.info("line 4")
        assert [event["event_id"] for event in events] == ["log-not-rotated"]
        log.info("line 5 " + "x" * 300)
        log.info("line 6")
        written = "".join(one.read_text() for one in path.parent.iterdir())
        assert all(f"line {number}" in written for number in range(7))
        assert "line 6" in path.read_text()
        assert "line 5" not in path.read_text()


def test_limits_reach_connections_and_services_at_once() -> None:
    """Open connections get the new limits, too; nothing that exists is removed."""
    house = CoreHouse()
    factory = house.factory("mamamia")
    client = Client(factory, house.clock)
    client.send(Produce("one", b"x"))
    house.run()
    house.core.reconfigure(config("limits.max_topics=1", "limits.connections=1"))
    client.send(Produce("one", b"x"), Produce("two", b"x"))
    house.run()
    first, second, refused = client.answers()
    assert (first, second) == (Produced(0), Produced(1))
    assert "limits.max_topics is 1" in str(refused)
    assert factory.buildProtocol(None) is None
    assert factory.limits.connections == 1
    house.core.reconfigure(config())
    client.send(Produce("two", b"x"))
    house.run()
    assert client.answers() == [Produced(0)]


def test_the_memory_that_clients_may_claim_follows() -> None:
    """Transactions have their part of it, at most a quarter."""
    house = CoreHouse()
    core = house.core
    core.reconfigure(config("limits.memory=128MiB"))
    assert core.broker.transactions.held_bytes_max == 32 << 20
    assert core.memory.total_bytes == 96 << 20
    core.reconfigure(config("limits.memory=1GiB", "limits.transaction_bytes=16MiB"))
    assert core.broker.transactions.held_bytes_max == 16 << 20
    assert core.memory.total_bytes == (1024 - 16) << 20
    memory = core.status()["memory"]
    assert memory["budget_bytes"] == 1 << 30
    assert memory["kind_limit_bytes"]["transactions"] == 16 << 20


def test_a_lower_limit_of_groups_counts_from_the_next_group_on() -> None:
    house = CoreHouse()
    house.broker.topics.create("t")
    topic = house.broker.topics.find("t")
    assert topic is not None
    house.broker.leases.new_group(topic, "a")
    house.core.reconfigure(config("limits.groups=1"))
    assert house.broker.leases._groups_left == 0
    house.broker.leases.new_group(topic, "b")


def test_blipmq_s_keys_follow() -> None:
    house = CoreHouse(config("blipmq.api_keys=old"))
    factory: Any = house.factory("blipmq")
    assert factory.log_in(OPEN, "peer", "old") is OPEN
    house.core.reconfigure(config("blipmq.api_keys=new"))
    assert factory.log_in(OPEN, "peer", "new") is OPEN
    with pytest.raises(LoginFailed):
        factory.log_in(OPEN, "peer", "old")


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_inherited_socket_has_an_interface(is_wrapped: bool) -> None:
    """With TLS or without; other endpoints and closed sockets have none."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        endpoint: Any = AdoptedStreamServerEndpoint(None, opened.fileno(), socket.AF_INET)
        if is_wrapped:
            endpoint = SimpleNamespace(plain=endpoint)
        assert inherited_interface(endpoint) == "127.0.0.1"
        assert not is_open("systemd:domain=INET:index=0", endpoint)
    assert inherited_interface(endpoint) == ""
    assert inherited_interface(object()) == ""
    assert is_open("systemd:domain=INET:index=0", object())
