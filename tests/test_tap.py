"""``twistd brokerd`` before the fork: options become a service, and nothing is opened yet."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import IServiceMaker
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.plugin import getPlugins
from twisted.web.resource import Resource

from brokerd.admin.site import AdminSite
from brokerd.errors import ConfigError, InvalidRequest
from brokerd.server.process_exit import ProcessExit
from brokerd.tap import (
    Options,
    assemble,
    load_options,
    make_operator_log,
    makeService,
    use_monotonic_clock,
)
from tests.fakecore import FakeCore


def options(*arguments: str) -> Options:
    parsed = Options()
    parsed.parseOptions(list(arguments))
    return parsed


def assembled(reactor: Any, *arguments: str) -> Any:
    config = load_options(options(*arguments), {}).config
    process_exit = ProcessExit(at_exit=lambda leave: None)
    return assemble(config, {}, reactor, FakeCore, lambda registry: Resource(), process_exit)


def test_twistd_knows_brokerd() -> None:
    """The plugin is found under its name, with our options."""
    (plugin,) = [plugin for plugin in getPlugins(IServiceMaker) if plugin.tapname == "brokerd"]
    assert plugin.options is Options


def test_named_options_win_over_everything(tmp_path: Path) -> None:
    """--data-dir, --admin and --listen beat --set, the environment and the file."""
    file = tmp_path / "brokerd.toml"
    file.write_text("data_dir = '/one'\n[admin]\nendpoint = 'tcp:1'\n[listen]\nmamamia = 'tcp:1'\n")
    given = options(
        *("--config", str(file), "--set", "data_dir=/two", "--set", "admin.endpoint=tcp:2"),
        *("--data-dir", "/three", "--admin", "none", "--listen", "mamamia=tcp:3"),
    )
    loaded = load_options(given, {"BROKERD_DATA_DIR": "/zero"})
    assert loaded.config.data_dir == "/three"
    assert loaded.config.admin.endpoint == "none"
    assert loaded.config.listen == {"mamamia": "tcp:3"}
    assert loaded.sources["data_dir"] == "--data-dir"


def test_admin_stays_on_when_listeners_are_named() -> None:
    """--listen says nothing about the admin site."""
    config = load_options(options("--listen", "mamamia=tcp:0"), {}).config
    assert config.admin.endpoint == "tcp:9644"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nope"], "option --nope not recognized"),
        (["--listen"], "option --listen requires argument"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_usage_mistakes_leave_with_one_line(arguments: list[str], said: str) -> None:
    """The process would print this line on stderr and exit with 1."""
    with pytest.raises(SystemExit) as caught:
        options(*arguments)
    assert caught.value.code == f"brokerd: {said}; see twistd brokerd --help"


def test_making_the_service_opens_nothing(tmp_path: Path) -> None:
    """No file, no port, no lock before the fork."""
    reactor = MemoryReactorClock()
    assembled(reactor, "--data-dir", str(tmp_path / "data"))
    assert reactor.tcpServers == []
    assert list(tmp_path.iterdir()) == []


def test_paths_are_absolute_before_the_daemon_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative data directory stays where the command was typed."""
    monkeypatch.chdir(tmp_path)
    service = assembled(MemoryReactorClock(), "--data-dir", "here")
    assert service.status()["data_dir"] == str(tmp_path / "here")


@pytest.mark.parametrize("argument", ["--listen=mamamia=tcp:x", "--admin=nowhere"])
def test_wrong_endpoints_are_found_before_the_fork(argument: str) -> None:
    """An endpoint that cannot be is a configuration mistake."""
    with pytest.raises(ConfigError, match="is not a server endpoint"):
        assembled(MemoryReactorClock(), argument)


def test_what_a_part_refuses_before_the_fork_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a value that the configuration let through by mistake ends without a traceback."""

    def refuse(*_: object) -> None:
        raise InvalidRequest("group setting max_attempts is 0")

    monkeypatch.setattr("brokerd.server.assembly.make_core", refuse)
    monkeypatch.setattr("brokerd.tap.use_monotonic_clock", lambda reactor: None)
    with pytest.raises(SystemExit) as caught:
        makeService(options("--admin", "none"))
    assert caught.value.code == "brokerd: group setting max_attempts is 0"


def test_defaults_serve_loopback_only(tmp_path: Path) -> None:
    """Without options brokerd listens on each format's port, of this machine alone."""
    reactor = MemoryReactorClock()
    reactor.running = True
    service = assembled(reactor, "--data-dir", str(tmp_path))
    service.startService()
    served = {(port, interface) for port, _, _, interface in reactor.tcpServers}
    assert served == {(port, "127.0.0.1") for port in (9000, 9092, 5555, 8080, 9644)}


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        ([], (b"403", b"403")),
        (["--admin", "unix:admin.sock"], (b"403", b"403")),
        (["--set", "admin.hosts=box.example.org,log.example.org"], (b"200", b"404")),
        (["--set", "security.auth=on"], (b"200", b"403")),
        (
            ["--admin", "tcp:1:interface=0.0.0.0", "--set", "security.allow_insecure=true"],
            (b"200", b"403"),
        ),
    ],
)
def test_an_admin_site_that_trusts_this_machine_looks_at_the_name_it_is_reached_by(
    tmp_path: Path, arguments: list[str], codes: tuple[bytes, bytes]
) -> None:
    """A web page could have its own name lead here, read everything, and write.

    The codes are of a read, and of a write by a page (404: this core has no topics).
    """
    reactor = MemoryReactorClock()
    reactor.running = True
    service = assembled(reactor, "--data-dir", str(tmp_path), *arguments)
    service.startService()
    factories = [one[1] for one in (*reactor.tcpServers, *reactor.unixServers)]
    (site,) = [factory for factory in factories if isinstance(factory, AdminSite)]
    page = b"origin: http://log.example.org\r\ncontent-type: application/json\r\n"
    write = b"POST /api/v1/topics HTTP/1.1\r\ncontent-length: 0\r\n" + page
    for lines, code in zip([b"GET /health/live HTTP/1.1\r\n", write], codes, strict=True):
        channel: Any = site.buildProtocol(None)
        wire = StringTransport()
        channel.makeConnection(wire)
        channel.dataReceived(lines + b"host: log.example.org\r\n\r\n")
        assert wire.value().split()[1] == code


def test_timers_follow_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the wall clock neither fires nor delays a timer of Twisted's own."""
    from twisted.internet.selectreactor import SelectReactor

    reactor = SelectReactor()
    monkeypatch.setattr("time.monotonic", lambda: 500.0)
    use_monotonic_clock(reactor)
    call = reactor.callLater(10, lambda: None)
    assert call.getTime() == 510.0
    call.reset(20)
    assert call.getTime() == 520.0
    assert reactor.timeout() == 20.0
    call.cancel()


def test_foreground_logs_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """``twistd -n`` and ``--logfile -`` write to stdout, in the configured format."""
    config = load_options(options("--set", "log.format=json"), {}).config
    for parent in ({"nodaemon": 1, "logfile": None}, {"nodaemon": 1, "logfile": "-"}):
        out = io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        make_operator_log(config.log, parent).observer(_event())
        assert out.getvalue().startswith('{"time": "1970-01-01T00:00:00.000Z"')


def _event() -> dict[str, Any]:
    from twisted.logger import LogLevel

    return {"log_time": 0, "log_level": LogLevel.info, "log_namespace": "x", "log_format": "hello"}
