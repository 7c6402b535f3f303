"""Handshakes: who is let in, what the log says of the others, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs

from brokerd.protocols.base.transport import lose_at_once
from brokerd.server.handshakes import REFRESH_SECONDS, TlsConnection, TlsFactory
from brokerd.server.log_limit import LISTENER_LINES, PEER_LINES, WINDOW_SECONDS
from brokerd.server.tls import Credentials, TlsFiles
from tests.certificates import DAY, Authority, Issued, set_version

PEER = "192.0.2.7"


class Authorities:
    """Who signs what: ours, and somebody else."""

    def __init__(self, directory: Path) -> None:
        self.ours = Authority(directory, "ours")
        self.others = Authority(directory, "others")
        self.server = self.ours.issue("broker")
        expired = (-2 * DAY, -DAY)
        self.certificates: dict[str, Issued | None] = {
            "good": self.ours.issue("orders", "Acme"),
            "expired": self.ours.issue("late", valid=expired),
            "early": self.ours.issue("early", valid=(DAY, 2 * DAY)),
            "foreign": self.others.issue("mallory"),
            "forged": Authority(directory / "forged", "ours").issue("mallory"),
            "server's": self.ours.issue_for_servers_only("www"),
            "long": self.ours.issue(["x" * 64] * 5, valid=expired),
            "ugly": self.ours.issue("line\nbreak", valid=expired),
            "odd": self.others.issue("odd"),
            "missing": None,
        }
        odd = self.certificates["odd"]
        assert odd is not None
        set_version(odd.certificate, 9)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    return Authorities(tmp_path_factory.mktemp("handshakes"))


@pytest.fixture
def log() -> Iterator[Any]:
    with capturedLogs() as captured:
        yield captured


class Spoken(Protocol):
    """Answers hello to each piece that comes."""

    def dataReceived(self, data: bytes) -> None:
        self.factory.heard.append(data)
        self.transport.write(b"hello")


class Listening:
    """A listener that speaks TLS, without a port; time passes when a test says so."""

    def __init__(
        self,
        authorities: Authorities,
        client_auth: Any,
        seconds: float = 60,
        client_ca: Authority | None = None,
    ) -> None:
        self.clock = Clock()
        self.heard: list[bytes] = []
        self.inner = Factory.forProtocol(Spoken)
        self.inner.noisy = False
        self.inner.heard = self.heard
        files = TlsFiles(
            *map(str, authorities.server),
            client_ca=str((client_ca or authorities.ours).certificate),
            client_auth=client_auth,
        )
        self.credentials = Credentials(files, lambda: 0.0)
        self.factory = TlsFactory("mega", self.inner, self.credentials, seconds, self.clock)
        self.factory.doStart()

    def connect(self, peer: str = PEER) -> tuple[Any, StringTransport]:
        transport = StringTransport(peerAddress=IPv4Address("TCP", peer, 50_000))
        protocol = self.factory.buildProtocol(None)
        protocol.makeConnection(transport)
        return protocol, transport

    def handshake(self, client: SSL.Connection, say: bytes = b"hi") -> tuple[Any, bytes]:
        """What becomes of a client that says something: the connection, and what it hears."""
        protocol, transport = self.connect()
        heard = b""
        with suppress(SSL.Error):
            for _ in range(6):
                with suppress(SSL.WantReadError):
                    client.do_handshake()
                    client.send(say) if say else None
                    say = b""
                with suppress(SSL.WantReadError):
                    protocol.dataReceived(client.bio_read(1 << 16))
                self.clock.advance(0)
                client.bio_write(transport.value() or b"") if transport.value() else None
                transport.clear()
                with suppress(SSL.WantReadError):
                    heard += client.recv(1 << 16)
        if transport.disconnecting:
            protocol.connectionLost(ENDED)
        return protocol, heard


def ended() -> Any:
    from twisted.internet.error import ConnectionDone
    from twisted.python.failure import Failure

    return Failure(ConnectionDone())


ENDED = ended()


def client(authorities: Authorities, shown: Issued | None, **versions: int) -> SSL.Connection:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_verify(SSL.VERIFY_PEER)
    context.load_verify_locations(str(authorities.ours.certificate))
    if "newest" in versions:
        context.set_cipher_list(b"ALL:@SECLEVEL=0")
        context.set_min_proto_version(SSL.TLS1_VERSION)
        context.set_max_proto_version(versions["newest"])
    if shown is not None:
        context.use_certificate_chain_file(str(shown.certificate))
        context.use_privatekey_file(str(shown.key))
    connection = SSL.Connection(context, None)
    connection.set_connect_state()
    return connection


def reasons(log: Any) -> list[str]:
    told = [event for event in log if event["event_id"] == "tls-refused"]
    assert all((event["listener"], event["peer"]) == ("mega", PEER) for event in told)
    assert all(event["log_level"].name == "warn" for event in told)
    return [event["reason"] for event in told]


VERSIONS = [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION]
REFUSED = {
    "expired": "the certificate of CN=late has expired",
    "early": "the certificate of CN=early is not valid yet, or a clock is wrong",
    "foreign": "the certificate of CN=mallory is not signed by a CA that this listener trusts",
    "forged": "the certificate of CN=mallory is not signed by a CA that this listener trusts",
    "server's": "the certificate of CN=www is not meant for clients",
    "long": f"the certificate of {','.join(['CN=' + 'x' * 64] * 5)[:200]} has expired",
    "ugly": r"the certificate of CN=line\x0abreak has expired",
    "odd": "the certificate of an unreadable subject is not signed by a CA that this listener "
    "trusts",
}


# Who is let in.


@pytest.mark.parametrize("newest", VERSIONS)
@pytest.mark.parametrize(
    ("client_auth", "shown"),
    [
        ("none", "missing"),
        ("none", "expired"),
        ("optional", "missing"),
        ("optional", "good"),
        ("required", "good"),
    ],
)
def test_who_may_come_is_answered(
    authorities: Authorities, log: Any, client_auth: str, shown: str, newest: int
) -> None:
    listening = Listening(authorities, client_auth)
    connecting = client(authorities, authorities.certificates[shown], newest=newest)
    protocol, heard = listening.handshake(connecting)
    assert (heard, listening.heard, list(log)) == (b"hello", [b"hi"], [])
    names = protocol.getPeerCertificate()
    assert (names is not None) == (client_auth != "none" and shown == "good")


@pytest.mark.parametrize("newest", VERSIONS)
@pytest.mark.parametrize("client_auth", ["optional", "required"])
@pytest.mark.parametrize("shown", REFUSED)
def test_a_certificate_that_is_not_right_ends_the_connection(
    authorities: Authorities, log: Any, shown: str, client_auth: str, newest: int
) -> None:
    """With one line that names the peer and says why; nothing of what it sent is heard."""
    listening = Listening(authorities, client_auth)
    listening.handshake(client(authorities, authorities.certificates[shown], newest=newest))
    assert listening.heard == []
    assert reasons(log) == [REFUSED[shown]]


def test_who_has_a_certificate_does_not_sign_others(
    authorities: Authorities, log: Any, tmp_path: Path
) -> None:
    """With the chain up to whom the listener trusts, and a reason in words."""
    holder = Authority(tmp_path, "holder", above=authorities.ours, may_sign=False)
    forged = holder.issue("mallory")
    with forged.certificate.open("ab") as chain:
        chain.write(holder.certificate.read_bytes())
    listening = Listening(authorities, "required")
    listening.handshake(client(authorities, forged))
    assert listening.heard == []
    (reason,) = reasons(log)
    assert reason == "the certificate of CN=holder is used as a CA, but is not a CA certificate"


@pytest.mark.parametrize("newest", VERSIONS)
def test_who_must_show_a_certificate_and_has_none_is_told_of(
    authorities: Authorities, log: Any, newest: int
) -> None:
    listening = Listening(authorities, "required")
    listening.handshake(client(authorities, None, newest=newest))
    assert listening.heard == []
    assert reasons(log) == ["no certificate was shown"]


@pytest.mark.parametrize("newest", [SSL.TLS1_VERSION, SSL.TLS1_1_VERSION])
def test_tls_before_1_2_is_refused(
    authorities: Authorities, log: Any, newest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where OpenSSL would not refuse it by itself."""
    monkeypatch.setattr("brokerd.server.tls.SUITES", b"ALL:@SECLEVEL=0")
    listening = Listening(authorities, "none")
    listening.handshake(client(authorities, None, newest=newest))
    assert listening.heard == []
    assert reasons(log) == ["the client speaks no TLS newer than 1.1"]


@pytest.mark.parametrize("suite", [b"AES128-GCM-SHA256", b"ECDHE-ECDSA-AES128-SHA"])
def test_suites_without_forward_secrecy_or_authenticated_encryption_are_refused(
    authorities: Authorities, log: Any, suite: bytes
) -> None:
    listening = Listening(authorities, "none")
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(suite)
    connecting = SSL.Connection(context, None)
    connecting.set_connect_state()
    listening.handshake(connecting)
    assert reasons(log) == ["client and broker have no cipher suite in common"]


def test_whoever_signs_certificates_of_clients_is_trusted_by_itself(
    authorities: Authorities, tmp_path: Path
) -> None:
    """Without whoever signed its own certificate; and clients are told who it is."""
    between = Authority(tmp_path, "between", above=authorities.ours)
    listening = Listening(authorities, "required", client_ca=between)
    connecting = client(authorities, between.issue("orders"))
    _, heard = listening.handshake(connecting)
    assert heard == b"hello"
    assert [name.commonName for name in connecting.get_client_ca_list()] == ["between"]
    above = client(authorities, authorities.certificates["good"])
    assert listening.handshake(above)[1] == b""


def test_a_client_that_does_not_trust_the_broker_is_told_of(
    authorities: Authorities, log: Any
) -> None:
    listening = Listening(authorities, "none")
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_verify(SSL.VERIFY_PEER)
    context.load_verify_locations(str(authorities.others.certificate))
    distrusting = SSL.Connection(context, None)
    distrusting.set_connect_state()
    protocol, transport = listening.connect()
    with suppress(SSL.WantReadError):
        distrusting.do_handshake()
    protocol.dataReceived(distrusting.bio_read(1 << 16))
    distrusting.bio_write(transport.value())
    with pytest.raises(SSL.Error):
        distrusting.do_handshake()
    protocol.dataReceived(distrusting.bio_read(1 << 16))
    protocol.connectionLost(ENDED)
    assert reasons(log) == ["the client gave up: unknown ca"]


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5hello", b"\xaf\1\0\0" + bytes(20), b"x" * 100_000],
)
def test_what_is_not_tls_is_told_of(authorities: Authorities, log: Any, said: bytes) -> None:
    listening = Listening(authorities, "none")
    protocol, transport = listening.connect()
    protocol.dataReceived(said)
    assert transport.disconnecting
    protocol.connectionLost(ENDED)
    assert reasons(log) == ["what came is not TLS"]


def test_a_client_that_goes_in_the_middle_is_told_of(authorities: Authorities, log: Any) -> None:
    protocol, _ = Listening(authorities, "none").connect()
    protocol.dataReceived(b"\x16\x03\x01")
    protocol.connectionLost(ENDED)
    assert reasons(log) == ["the client ended the connection"]


def test_who_only_looks_whether_somebody_listens_is_no_matter(
    authorities: Authorities, log: Any
) -> None:
    protocol, _ = Listening(authorities, "none").connect()
    protocol.connectionLost(ENDED)
    assert log == []


def test_a_handshake_that_does_not_end_is_cut_off(authorities: Authorities, log: Any) -> None:
    """Silent or not, it does not hold its place for ever."""
    listening = Listening(authorities, "none", seconds=5)
    silent, transport = listening.connect()
    listening.clock.advance(4.9)
    assert transport.disconnected is transport.disconnecting is False
    listening.clock.advance(0.1)
    assert transport.disconnected or transport.disconnecting
    silent.connectionLost(ENDED)
    assert reasons(log) == ["it was not finished in 5 s"]


def test_a_handshake_that_is_done_has_no_deadline_any_more(
    authorities: Authorities, log: Any
) -> None:
    listening = Listening(authorities, "none", seconds=5)
    protocol, heard = listening.handshake(client(authorities, None))
    listening.clock.advance(60)
    assert (heard, protocol.transport.disconnecting, list(log)) == (b"hello", False, [])


def test_who_is_too_many_is_refused_before_tls(authorities: Authorities) -> None:
    listening = Listening(authorities, "none")
    listening.inner.buildProtocol = lambda addr: None  # type: ignore[method-assign]
    assert listening.factory.buildProtocol(None) is None


@given(data=st.data())
def test_whatever_comes_in_the_place_of_a_handshake_reaches_nobody(
    authorities: Authorities, data: st.DataObject
) -> None:
    """Bytes of any kind, and a client's first words with something in them changed."""
    connecting = client(authorities, None)
    with suppress(SSL.WantReadError):
        connecting.do_handshake()
    hello = bytearray(connecting.bio_read(1 << 16))
    start = data.draw(st.integers(0, len(hello)), label="start")
    end = data.draw(st.integers(start, len(hello)), label="end")
    hello[start:end] = data.draw(st.binary(max_size=300), label="in its place")
    listening = Listening(authorities, "none", seconds=5)
    protocol, transport = listening.connect()
    for piece in (hello, data.draw(st.binary(max_size=300), label="after it")):
        if piece and not transport.disconnecting:
            protocol.dataReceived(bytes(piece))
    listening.clock.advance(5)
    assert transport.disconnecting or transport.disconnected
    protocol.connectionLost(ENDED)
    assert listening.heard == []


# The end.


@pytest.mark.parametrize(("close", "waits"), [(lose_at_once, False), (None, True)])
def test_a_stop_says_goodbye_and_does_not_wait_for_the_clients(
    authorities: Authorities, close: Callable[[Any], None] | None, waits: bool
) -> None:
    """A client that is busy elsewhere would hold it up; other endings wait for what it sends."""
    listening = Listening(authorities, "none")
    connecting = client(authorities, None)
    protocol, _ = listening.handshake(connecting)
    (close or TlsConnection.loseConnection)(protocol)
    assert protocol.transport.disconnecting is not waits
    connecting.bio_write(protocol.transport.value())
    with pytest.raises(SSL.ZeroReturnError):
        connecting.recv(1)


# How much is told.


def flood(listening: Listening, peers: int, each: int) -> None:
    for peer in range(peers):
        for _ in range(each):
            protocol, _ = listening.connect(f"10.0.{peer >> 8}.{peer & 255}")
            protocol.dataReceived(b"GET / HTTP/1.0\r\n\r\n")
            protocol.connectionLost(ENDED)


def counted(log: Any) -> tuple[int, list[int]]:
    """How many lines of refusals there are, and how many each summary counts."""
    lines = [event for event in log if event["event_id"] == "tls-refused"]
    more = [event["count"] for event in log if event["event_id"] == "tls-refused-more"]
    return len(lines), more


@pytest.mark.parametrize(
    ("peers", "each", "lines"), [(1, 100, PEER_LINES), (500, 1, LISTENER_LINES), (1, 2, 2)]
)
def test_a_flood_is_counted_and_not_written_down(
    authorities: Authorities, log: Any, peers: int, each: int, lines: int
) -> None:
    listening = Listening(authorities, "none")
    flood(listening, peers, each)
    assert counted(log) == (lines, [])
    listening.clock.advance(WINDOW_SECONDS)
    rest = peers * each - lines
    assert counted(log) == (lines, [rest] if rest else [])
    assert listening.factory.handshake_log.count == peers * each


def test_one_that_fails_often_does_not_hide_another(authorities: Authorities, log: Any) -> None:
    listening = Listening(authorities, "none")
    flood(listening, 1, 100)
    flood(listening, 2, 1)
    assert [event["peer"] for event in log][-1] == "10.0.0.1"


def test_later_it_is_written_down_again(authorities: Authorities, log: Any) -> None:
    listening = Listening(authorities, "none")
    for _ in range(2):
        flood(listening, 1, 10)
        listening.clock.advance(WINDOW_SECONDS)
    assert counted(log) == (2 * PEER_LINES, [7, 7])


def test_what_was_counted_is_told_at_a_stop(authorities: Authorities, log: Any) -> None:
    listening = Listening(authorities, "none")
    flood(listening, 1, 10)
    listening.factory.doStop()
    assert counted(log) == (PEER_LINES, [7])
    assert [call for call in listening.clock.getDelayedCalls() if call.active()] == []


# Files that change.


def test_files_are_looked_at_while_somebody_listens(authorities: Authorities) -> None:
    """And no longer."""
    listening = Listening(authorities, "none")
    looks: list[Callable[[], None]] = []
    listening.factory.doStop()
    listening.credentials.refresh = lambda: looks.append(lambda: None)  # type: ignore[method-assign]
    again = TlsFactory("mega", listening.inner, listening.credentials, 60, listening.clock)
    again.doStart()
    listening.clock.pump([REFRESH_SECONDS] * 3)
    assert len(looks) == 4
    again.doStop()
    listening.clock.pump([REFRESH_SECONDS] * 3)
    assert len(looks) == 4


def test_a_fault_in_one_look_is_logged_and_does_not_end_the_later_ones(
    authorities: Authorities, log: Any
) -> None:
    listening = Listening(authorities, "none")
    looks: list[None] = []
    listening.factory.doStop()

    def refresh() -> None:
        looks.append(None)
        raise ValueError("a fault")

    listening.credentials.refresh = refresh  # type: ignore[method-assign]
    again = TlsFactory("mega", listening.inner, listening.credentials, 60, listening.clock)
    again.doStart()
    listening.clock.pump([REFRESH_SECONDS] * 3)
    again.doStop()
    assert len(looks) == 4
    assert [event.get("event_id") for event in log] == ["callback-fault"] * 4
