"""A broker that speaks TLS to all, as a real ``openssl s_client`` and our own clients see it.

It wants a certificate of every client, and its accounts are those that certificates name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient
from tests.certificates import DAY, Authority, Issued

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60.0
TWISTD = [sys.executable, "-c", "from twisted.scripts.twistd import run; run()", "-n"]
LISTENERS = ["mamamia", "flymq", "rustlog", "blipmq", "mega", "admin"]
CONFIG = """
data_dir = "data"
[listen]
mamamia = "tcp:0"
"flymq+rustlog" = "tcp:0"
blipmq = "tcp:0"
mega = "{mega}"
[admin]
endpoint = "tcp:0"
[log]
format = "json"
[tls]
certificate_file = "cert.pem"
key_file = "key.pem"
client_ca_file = "{clients}"
client_auth = "required"
principals = ["CN=root,O=Acme => admin"]
[security]
auth = "on"
admin_password = ["not used here"]
"""


class Broker:
    """A broker in a process of its own, and those who come to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours = Authority(directory, "clients")
        self.servers = Authority(directory, "servers")
        others = Authority(directory, "others")
        self.root = self.ours.issue("root", "Acme")
        self.nobody = self.ours.issue("admin", "Somewhere")
        self.refused: dict[str, Issued | None] = {
            "no certificate was shown": None,
            "the certificate of CN=late has expired": self.ours.issue(
                "late", valid=(-2 * DAY, -DAY)
            ),
            "the certificate of CN=mallory is not signed by a CA that this listener trusts": (
                others.issue("mallory")
            ),
        }
        self.renew("broker")
        mega = f"ssl:0:clientCA={self.ours.certificate}:clientAuth=required"
        config = CONFIG.format(clients=self.ours.certificate, mega=mega)
        (directory / "brokerd.toml").write_text(config)
        self._log = (directory / "log").open("wb+")
        command = [*TWISTD, "--pidfile=", "brokerd", "--config", "brokerd.toml"]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=self._log,
        )
        listeners = directory / "data" / "run" / "listeners.json"
        try:
            wait_for(lambda: listeners.exists() or self.process.poll() is not None)
        except AssertionError:
            self.process.kill()
            raise
        self.listeners: dict[str, Any] = json.loads(listeners.read_text())

    def renew(self, name: str) -> None:
        """Put a certificate and its key where the configuration says that they are."""
        issued = self.servers.issue(name)
        shutil.copy(issued.certificate, self.directory / "cert.pem")
        shutil.copy(issued.key, self.directory / "key.pem")

    def events(self, event_id: str, **facts: object) -> list[dict[str, Any]]:
        """What the log has of one kind, with these facts."""
        lines = (self.directory / "log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [
            event
            for event in events
            if event["event"] == event_id and facts.items() <= event.items()
        ]

    def s_client(
        self, listener: str, shown: Issued | None, *options: str, say: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Look at a listener with openssl; it stays until it is sent away if it says something."""
        command = [
            *("openssl", "s_client", "-connect", self.listeners[listener]),
            *("-servername", "localhost", "-verify_return_error"),
            *("-CAfile", str(self.servers.certificate), *options),
        ]
        if shown is not None:
            command += ["-cert", str(shown.certificate), "-key", str(shown.key)]
        if say is not None:
            command.append("-ign_eof")
        return subprocess.run(
            command, input=say or "", capture_output=True, text=True, timeout=SECONDS
        )

    def client(self, make: Callable[..., Any], listener: str, shown: Issued | None) -> Any:
        """One of our clients, connected with TLS."""
        context = self.servers.client_context(shown)
        return make(self.listeners[listener], ssl_context=context)

    def brokerctl(self, shown: Issued, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Look at the broker that serves the directory."""
        command = [
            *(sys.executable, "-c", "from brokerd.cli.main import main; main()"),
            *("--json", "--data-dir", str(self.directory / "data")),
            *("--ca-file", str(self.servers.certificate)),
            *("--certificate-file", str(shown.certificate)),
            *("--certificate-key-file", str(shown.key), *arguments),
        ]
        return subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self._log.close()
        return self.process.wait(SECONDS)


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("broker"))
    idle = started.client(MamamiaClient, "mamamia", started.root)
    idle.produce("orders", 0)
    try:
        yield started
    finally:
        assert started.stop() == 0
    # Who is connected and silent, as a blocking client is, does not hold a stop up.
    assert started.events("drain-timeout") == []


# openssl s_client


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@pytest.mark.parametrize("listener", LISTENERS)
def test_openssl_comes_in_with_a_certificate(broker: Broker, listener: str, version: str) -> None:
    done = broker.s_client(listener, broker.root, version)
    assert done.returncode == 0, done.stderr
    assert "Verify return code: 0 (ok)" in done.stdout
    assert "New, TLSv1." in done.stdout


@pytest.mark.parametrize("listener", LISTENERS)
def test_openssl_is_refused_with_another_or_none(broker: Broker, listener: str) -> None:
    """Each time with one line of the log, which names the peer and says why."""
    name = "flymq+rustlog" if listener in ("flymq", "rustlog") else listener
    for reason, shown in broker.refused.items():
        count = len(broker.events("tls-refused", listener=name, reason=reason))
        done = broker.s_client(listener, shown, "-tls1_2")
        assert done.returncode != 0
        assert "alert" in done.stderr
        if listener == "rustlog":  # it shares the lines of a minute with flymq
            continue
        wait_for(
            lambda count=count, reason=reason: (
                len(broker.events("tls-refused", listener=name, reason=reason)) == count + 1
            )
        )
        (event,) = broker.events("tls-refused", listener=name, reason=reason)
        assert (event["peer"], event["level"]) == ("127.0.0.1", "warn")


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_openssl_is_refused_with_tls_before_1_2(broker: Broker, version: str) -> None:
    done = broker.s_client("mamamia", broker.root, version, "-cipher", "ALL:@SECLEVEL=0")
    assert done.returncode != 0
    assert "alert protocol version" in done.stderr


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_cannot_take_a_session_up_again(broker: Broker, version: str) -> None:
    """So that its certificate is looked at each time."""
    session = broker.directory / f"session{version}"
    keep = ("-sess_out", str(session))
    broker.s_client("admin", broker.root, version, *keep, say="GET / HTTP/1.0\r\n\r\n")
    if session.exists():
        done = broker.s_client("admin", broker.root, version, "-sess_in", str(session))
        assert "New, TLSv1." in done.stdout
        assert "Reused" not in done.stdout


def test_openssl_is_answered(broker: Broker) -> None:
    done = broker.s_client("admin", broker.root, say="GET /health/ready HTTP/1.0\r\n\r\n")
    assert "HTTP/1.1 200 OK" in done.stdout or "HTTP/1.0 200 OK" in done.stdout


# Whom certificates name.


CLIENTS: dict[str, Callable[[Broker, Issued | None], None]] = {
    "mamamia": lambda broker, shown: broker.client(MamamiaClient, "mamamia", shown).produce(
        "orders", 1
    ),
    "flymq": lambda broker, shown: broker.client(FlymqClient, "flymq", shown).produce(
        "orders", b"1"
    ),
    "rustlog": lambda broker, shown: broker.client(RustlogClient, "rustlog", shown).produce(
        "orders", [b"1"]
    ),
    "blipmq": lambda broker, shown: broker.client(BlipmqClient, "blipmq", shown).publish(
        "orders", b"1"
    ),
    "mega": lambda broker, shown: broker.client(MegaClient, "mega", shown).produce("orders", b"1"),
}


REFUSALS = "authentication required|unauthorized|INVALID_REQUEST|401: invalid API key"
"""How the formats refuse."""


@pytest.mark.parametrize("form", CLIENTS)
def test_who_shows_the_certificate_of_an_account_may_do_what_it_may(
    broker: Broker, form: str
) -> None:
    CLIENTS[form](broker, broker.root)


@pytest.mark.parametrize("form", CLIENTS)
def test_who_shows_a_certificate_of_no_account_may_do_nothing(broker: Broker, form: str) -> None:
    """Even with a common name that is the account of somebody else's."""
    with pytest.raises(Exception, match=REFUSALS):
        CLIENTS[form](broker, broker.nobody)


def test_brokerctl_is_whom_its_certificate_names(broker: Broker) -> None:
    """It finds the site by the data directory, and that it speaks TLS."""
    assert broker.listeners["tls"] == LISTENERS
    done = broker.brokerctl(broker.root, "whoami")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "admin"
    refused = broker.brokerctl(broker.nobody, "user", "list")
    assert refused.returncode == 1


def test_who_was_refused_is_counted_and_who_is_nobody_is_told_of(broker: Broker) -> None:
    """An operator sees both in the status, and in the log why somebody is anonymous."""

    def counts() -> tuple[dict[str, int], int]:
        asked = "GET /api/v1/status HTTP/1.0\r\n\r\n"
        answer = broker.s_client("admin", broker.root, "-quiet", say=asked).stdout
        status = json.loads(answer[answer.index("{") :])
        return status["tls_refused"], status["certificates_refused"]

    handshakes, certificates = counts()
    assert set(handshakes) == {"mamamia", "flymq+rustlog", "blipmq", "mega", "admin"}
    broker.s_client("mega", None)
    broker.brokerctl(broker.nobody, "user", "list")
    wait_for(lambda: counts()[0]["mega"] > handshakes["mega"])
    assert counts()[1] > certificates
    (event,) = broker.events("certificate-refused", listener="admin")[:1]
    assert (event["peer"], event["subject"]) == ("127.0.0.1", "CN=admin,O=Somewhere")
    assert event["reason"] == "tls.principals does not name it"


# Files that change.


def test_a_new_certificate_is_used_without_a_restart(broker: Broker) -> None:
    """Who is connected stays so."""
    connected = broker.client(MamamiaClient, "mamamia", broker.root)
    connected.produce("orders", 1)
    (broker.directory / "cert.pem").write_text("no certificate")
    wait_for(lambda: broker.events("tls-files-unusable"))
    assert "CN = broker" in broker.s_client("mega", broker.root, "-tls1_2").stdout
    broker.renew("renewed")
    wait_for(lambda: broker.events("tls-files-read"))
    for listener in LISTENERS:
        shown = broker.s_client(listener, broker.root, "-tls1_2", "-nameopt", "RFC2253").stdout
        assert "subject=CN=renewed" in shown
    connected.produce("orders", 2)


# Open listeners.


def start_open(directory: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(*TWISTD, "--pidfile=", "brokerd", "--admin", "none", *options),
            *("--listen", "mega=tcp:0:interface=0.0.0.0", "--set", "log.format=json"),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_broker_that_others_could_use_does_not_start(tmp_path: Path) -> None:
    """It says so in one line, which names the setting that allows it, and leaves nothing behind."""
    said, told = start_open(tmp_path).communicate(timeout=SECONDS)
    assert told == (
        "brokerd: open to other machines: mega (without TLS and without auth); set up [tls] and "
        "security.auth, or listen on loopback, or allow it with security.allow_insecure = true\n"
    )
    assert (said, list(tmp_path.iterdir())) == ("", [])


def test_its_exit_code_is_1(tmp_path: Path) -> None:
    assert start_open(tmp_path).wait(SECONDS) == 1


def test_unless_that_is_allowed_and_then_each_start_warns(tmp_path: Path) -> None:
    for _ in range(2):
        process = start_open(tmp_path, "--set", "security.allow_insecure=true")
        wait_for((tmp_path / "brokerd-data" / "run" / "listeners.json").exists)
        process.send_signal(signal.SIGTERM)
        events = [json.loads(line) for line in process.communicate(timeout=SECONDS)[0].splitlines()]
        assert process.returncode == 0
        (event,) = [event for event in events if event["event"] == "listener-insecure"]
        assert event["level"] == "warn"
        assert event["message"] == (
            "mega is open to other machines without TLS and without auth; "
            "security.allow_insecure allows it"
        )
