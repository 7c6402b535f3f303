"""What all listeners are together: which speak TLS, and which must not be opened like that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock, StringTransport

from brokerd.errors import ConfigError
from brokerd.server.config import Config, Limits
from brokerd.server.endpoints import interface_of
from brokerd.server.handshakes import TlsEndpoint
from brokerd.server.listeners import endpoints_of, insecure_listeners, is_open, listener_warnings
from brokerd.server.sections import Admin, Blipmq, Flymq, Mega, Security, Tls
from tests.certificates import Authority

LISTEN = {
    "mamamia": "tcp:9000",
    "flymq+rustlog": "tcp:9092",
    "blipmq": "unix:/run/blipmq.sock",
    "mega": "tcp:8080",
}
ALL = {*LISTEN, "admin"}
OPEN = "tcp:9000:interface=0.0.0.0"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config(
    listen: dict[str, str] | None = None,
    tls: Any = None,
    admin: str = "tcp:9644",
    **security: Any,
) -> Config:
    return Config(
        listen=LISTEN if listen is None else listen,
        tls=Tls(**(tls or {})),
        admin=Admin(admin),
        security=Security(**security),
    )


def refusal(wrong: Config) -> str:
    with pytest.raises(ConfigError) as caught:
        endpoints_of(MemoryReactorClock(), wrong)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("flymq", "rustlog", "where"),
    [
        ("tcp:9092", "tcp:9092", "port 9092"),
        ("tcp:9092", "tcp:port=09092:interface=127.0.0.1", "port 9092"),
        ("tcp:9092:interface=0.0.0.0", "tcp:9092", "port 9092"),
        (r"tcp:9092:interface=\:\:1", r"tcp:9092:interface=\:\:1", "port 9092"),
        ("unix:/run/one", "unix:address=/run//one", "unix /run/one"),
        ("haproxy:tcp:9092", "tcp:9092", "port 9092"),
    ],
)
def test_two_listeners_at_one_place_are_refused(flymq: str, rustlog: str, where: str) -> None:
    """The broker would stop at its start, because the place is in use."""
    listen = {"flymq": flymq, "rustlog": rustlog}
    said = refusal(config(listen, allow_insecure=True))
    assert said.startswith(f"flymq and rustlog both listen on {where}; write one listener for all:")
    assert '"flymq+rustlog" = ' in said


def test_formats_that_cannot_share_a_port_get_other_advice() -> None:
    said = refusal(config({"mamamia": "tcp:9000", "mega": "tcp:9000"}))
    assert said == "mamamia and mega both listen on port 9000; give each an endpoint of its own"
    assert "mega and admin both listen" in refusal(config({"mega": "tcp:9644"}))


@pytest.mark.parametrize(
    ("flymq", "rustlog"),
    [
        ("tcp:0", "tcp:0"),
        ("tcp:9092", "tcp:9093"),
        ("tcp:9092:interface=127.0.0.1", "tcp:9092:interface=127.0.0.2"),
        ("tcp:9092", r"tcp:9092:interface=\:\:1"),
        ("unix:/run/one", "unix:/run/two"),
        ("unix:9092", "tcp:9092"),
        ("tcp:interface=5:9092", "tcp:9092"),
    ],
)
def test_listeners_at_two_places_are_sound(flymq: str, rustlog: str) -> None:
    listen = {"flymq": flymq, "rustlog": rustlog}
    endpoints_of(MemoryReactorClock(), config(listen, allow_insecure=True))


def speaking_tls(listening: Config) -> dict[str, str]:
    """The listeners that speak TLS, and whether they ask for certificates."""
    endpoints = endpoints_of(MemoryReactorClock(), listening)
    assert list(endpoints) == [*listening.listen, "admin"]
    return {
        name: one.credentials.files.client_auth
        for name, one in endpoints.items()
        if isinstance(one, TlsEndpoint)
    }


def test_a_bad_file_of_who_signs_clients_certificates_is_called_by_its_name(
    authority: Authority, tmp_path: Path
) -> None:
    """And not by that of the broker's own certificate."""
    server, bad = authority.issue("broker"), tmp_path / "bad.pem"
    bad.write_text("nonsense")
    tls = authority.tls(server, client_ca_file=str(bad), client_auth="required")
    said = f"{bad} must be a PEM file with a certificate; "
    assert refusal(config(tls=tls)).startswith(f"tls: {said}tls.client_ca_file is a PEM file")
    own = f"ssl:9000:privateKey={server.key}:certKey={server.certificate}"
    listen = {"mega": f"{own}:clientCA={bad}:clientAuth=required"}
    assert f"{said}clientCA is a PEM file" in refusal(config(listen))


# Options without effect.


def test_an_option_without_effect_is_warned_about(authority: Authority) -> None:
    """Each warning is one line that names the option."""
    ca = str(authority.certificate)
    tls = authority.tls(authority.issue("broker"), principals=("CN=ann,O=Acme => ann",))
    asking = {**tls, "client_ca_file": ca, "client_auth": "optional"}

    def doubted(doubtful: Config) -> list[str]:
        endpoints = endpoints_of(MemoryReactorClock(), doubtful)
        return [line.split()[0].rstrip(":") for line in listener_warnings(doubtful, endpoints)]

    assert doubted(config()) == []
    assert doubted(config(tls=tls, auth="on")) == ["tls.principals"]
    assert doubted(config(tls=asking, auth="on")) == []
    assert doubted(config(tls=asking)) == ["tls.principals"]
    named = structs.replace(config(), mega=Mega("ann"), flymq=Flymq(principal="bob"))
    assert doubted(named) == ["flymq.principal", "mega.principal"]
    on = structs.replace(named, security=Security(auth="on"))
    assert doubted(on) == []
    keyless = structs.replace(on, blipmq=Blipmq(principal="ann"))
    assert doubted(keyless) == ["blipmq.principal"]
    assert doubted(structs.replace(on, blipmq=Blipmq(("key",), principal="ann"))) == []
    reversed_parts = {**asking, "principals": ("O=Acme,CN=ann => ann", "O=Acme => acme")}
    assert doubted(config(tls=reversed_parts, auth="on")) == ["tls.principals"]


# Which listeners speak TLS.


def test_without_a_certificate_none_speaks_tls() -> None:
    assert speaking_tls(config()) == {}


def test_with_a_certificate_all_do(authority: Authority) -> None:
    tls = authority.tls(authority.issue("broker"))
    assert set(speaking_tls(config(tls=tls))) == ALL


@pytest.mark.parametrize(
    ("named", "speak"),
    [
        (["admin"], {"admin"}),
        (["mamamia", "mega"], {"mamamia", "mega"}),
        (["rustlog"], {"flymq+rustlog"}),
        (["flymq+rustlog"], {"flymq+rustlog"}),
    ],
)
def test_or_those_that_are_named(authority: Authority, named: list[str], speak: set[str]) -> None:
    """Who shares an endpoint shares TLS."""
    tls = authority.tls(authority.issue("broker"), listeners=tuple(named))
    assert set(speaking_tls(config(tls=tls))) == speak


def test_a_listener_that_is_named_need_not_listen(authority: Authority) -> None:
    """So that one file serves brokers that serve different formats."""
    tls = authority.tls(authority.issue("broker"), listeners=("mamamia", "mega"))
    assert set(speaking_tls(config({"mega": "tcp:0"}, tls))) == {"mega"}


def test_clients_show_certificates_where_tls_says_so(authority: Authority) -> None:
    server = authority.issue("broker")
    ca = str(authority.certificate)
    tls = authority.tls(server, client_ca_file=ca, client_auth="optional", listeners=("mega",))
    listen = {
        "mamamia": f"ssl:9000:privateKey={server.key}:certKey={server.certificate}",
        "mega": "tcp:8080",
        "blipmq": "ssl:5555:clientAuth=none",
        "flymq": "ssl:9092:clientAuth=required",
        "rustlog": f"ssl:9093:clientCA={ca}:clientAuth=required",
    }
    assert speaking_tls(config(listen, tls)) == {
        "mamamia": "optional",
        "mega": "optional",
        "blipmq": "none",
        "flymq": "required",
        "rustlog": "required",
    }


def test_listeners_share_the_files_of_tls(authority: Authority) -> None:
    """So that a change is read, and told of, once."""
    listening = config(tls=authority.tls(authority.issue("broker")))
    endpoints: Any = endpoints_of(MemoryReactorClock(), listening)
    assert len({id(one.credentials) for one in endpoints.values()}) == 1


def test_an_endpoint_has_files_of_its_own_and_a_chain(authority: Authority) -> None:
    server, other = authority.issue("broker"), authority.issue("other")
    endpoint = f"ssl:9000:{other.key}:{other.certificate}:extraCertChain={authority.certificate}"
    listening = config({"mega": endpoint, "mamamia": "tcp:1"}, authority.tls(server))
    endpoints: Any = endpoints_of(MemoryReactorClock(), listening)
    own = endpoints["mega"].credentials.files
    assert own.paths() == [
        *(str(other.certificate), str(other.key), str(authority.certificate)),
    ]
    assert endpoints["mamamia"].credentials.files.paths() == [*map(str, server)]


def test_a_handshake_may_take_as_long_as_a_frame(authority: Authority) -> None:
    tls = authority.tls(authority.issue("broker"))
    reactor = MemoryReactorClock()
    limits = Limits(unfinished_frame_seconds=7)
    listening = structs.replace(config({"mega": "tcp:1"}, tls), limits=limits)
    endpoints_of(reactor, listening)["mega"].listen(Factory.forProtocol(Protocol))
    ((_, factory, _, _),) = reactor.tcpServers
    transport = StringTransport()
    factory.buildProtocol(None).makeConnection(transport)
    reactor.advance(6.9)
    assert not transport.disconnecting
    reactor.advance(0.1)
    assert transport.disconnecting or transport.disconnected


# What is wrong with [tls].


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"listeners": ("mamama",)}, "tls.listeners: there is no listener 'mamama', did you mean"),
        ({"listeners": ("x",)}, "tls.listeners: there is no listener 'x': name formats, or admin"),
        ({"listeners": ("mega",)}, "tls.listeners: TLS needs a certificate and its key"),
        ({"certificate_file": "a"}, "tls.key_file is missing"),
        ({"key_file": "a"}, "tls.certificate_file is missing"),
        ({"client_auth": "required"}, 'tls.client_auth is "required", and tls.client_ca_file does'),
        ({"client_auth": "optional"}, 'tls.client_auth is "optional", and tls.client_ca_file does'),
        ({"client_ca_file": "ca.pem"}, "tls.client_ca_file: no client is asked for a certificate"),
        (
            {"client_ca_file": "ca.pem", "client_auth": "required"},
            "tls.client_auth: no listener speaks TLS",
        ),
        ({"principals": ("CN=a",)}, "tls.principals: 'CN=a' is not SUBJECT => account"),
        (
            {"certificate_file": "/nowhere/c.pem", "key_file": "/nowhere/k.pem"},
            "tls: cannot read /nowhere/c.pem: No such file or directory; [tls] needs",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tls: dict[str, Any], said: str) -> None:
    """A mistake must not leave a listener without the protection that was meant."""
    assert refusal(config(tls=tls)).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("clientAuth=maybe", "clientAuth is one of none, optional, required, not 'maybe'"),
        ("clientAuth=required", "clients are asked for certificates, but no CA"),
        ("clientCA=ca.pem", "with clientCA say clientAuth=required or clientAuth=optional"),
        ("sslmethod=TLSv1_METHOD", "leave sslmethod out: TLS 1.2 and 1.3 are spoken"),
        ("dhParameters=dh.pem", "leave dhParameters out: TLS 1.2 and 1.3 are spoken"),
        ("clientca=ca.pem", "ssl has no argument 'clientca=ca.pem'"),
        ("clientCA=a.pem:clientCA=b.pem", "clientCA is given twice"),
    ],
)
def test_a_wrong_argument_of_an_ssl_endpoint_is_refused(arguments: str, said: str) -> None:
    endpoint = f"ssl:9000:{arguments}"
    message = refusal(config({"mega": endpoint}))
    assert message.startswith(f"mega: {endpoint!r}")
    assert said in message


# Which listeners others can reach.


@pytest.mark.parametrize(
    ("description", "interface"),
    [
        ("tcp:9000", "127.0.0.1"),
        (OPEN, "0.0.0.0"),
        ("tcp:9000:interface=", ""),
        ("tcp:9000:10.0.0.1", "10.0.0.1"),
        ("tcp:port=9000:interface=10.0.0.1", "10.0.0.1"),
        (r"tcp:9000:interface=\:\:1", "::1"),
        (r"ssl:9000:k.pem:c.pem:TLSv1_METHOD:\:\:", "::"),
        ("haproxy:tcp:9000:interface=0.0.0.0", "0.0.0.0"),
        ("tcp6:9000", ""),
        ("unix:/run/b.sock:mode=600", None),
        ("systemd:domain=UNIX:index=0", None),
        ("systemd:domain=INET:index=0", ""),
    ],
)
def test_the_interface_of_an_endpoint(description: str, interface: str | None) -> None:
    assert interface_of(description) == interface


@pytest.mark.parametrize(
    ("description", "reachable"),
    [
        ("tcp:9000", False),
        ("tcp:9000:interface=127.1.2.3", False),
        ("tcp:9000:interface=localhost", False),
        (r"tcp:9000:interface=\:\:1", False),
        ("unix:/run/b.sock", False),
        ("haproxy:tcp:9000", False),
        (OPEN, True),
        ("tcp:9000:interface=", True),
        ("tcp:9000:interface=192.168.1.1", True),
        (r"tcp:9000:interface=\:\:", True),
        ("tcp:9000:interface=broker.example", True),
        ("haproxy:tcp:9000:interface=10.0.0.1", True),
        ("tcp6:9000", True),
        ("systemd:domain=INET:index=0", True),
    ],
)
def test_who_can_reach_an_endpoint(description: str, reachable: bool) -> None:
    """In doubt it is others."""
    assert is_open(description) is reachable


def test_an_open_listener_without_tls_and_auth_is_refused() -> None:
    """In one line, which names the setting that allows it."""
    assert refusal(config({"mega": OPEN, "mamamia": "tcp:9001"})) == (
        "open to other machines: mega (without TLS and without auth); set up [tls] and "
        "security.auth, or listen on loopback, or allow it with security.allow_insecure = true"
    )


def test_the_admin_site_is_a_listener_too() -> None:
    message = refusal(config({"mega": OPEN}, admin="tcp:9644:interface=10.0.0.1", auth="on"))
    assert message.startswith("open to other machines: mega (without TLS), admin (without TLS);")


def test_tls_alone_is_not_enough(authority: Authority) -> None:
    """It hides what is said from others, and not from whoever connects."""
    tls = authority.tls(authority.issue("broker"))
    assert "mega (without auth);" in refusal(config({"mega": OPEN}, tls))


def test_nor_are_certificates_that_need_not_be_shown(authority: Authority) -> None:
    ca = str(authority.certificate)
    tls = authority.tls(authority.issue("broker"), client_ca_file=ca, client_auth="optional")
    assert "mega (without auth);" in refusal(config({"mega": OPEN}, tls))


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_tls_with_auth_or_certificates_is_enough(authority: Authority, client_auth: str) -> None:
    ca = "" if client_auth == "none" else str(authority.certificate)
    tls = authority.tls(authority.issue("broker"), client_ca_file=ca, client_auth=client_auth)
    auth = "on" if client_auth == "none" else "off"
    listening = config({"mega": OPEN}, tls, auth=auth)
    assert insecure_listeners(listening, endpoints_of(MemoryReactorClock(), listening)) == {}


def test_an_ssl_endpoint_may_be_enough_by_itself(authority: Authority) -> None:
    server = authority.issue("broker")
    endpoint = (
        f"ssl:9000:interface=0.0.0.0:privateKey={server.key}:certKey={server.certificate}"
        f":clientCA={authority.certificate}:clientAuth=required"
    )
    assert speaking_tls(config({"mega": endpoint})) == {"mega": "required"}


def test_an_open_listener_may_be_allowed() -> None:
    """And it is known what it lacks."""
    listening = config({"mega": OPEN}, allow_insecure=True)
    endpoints = endpoints_of(MemoryReactorClock(), listening)
    assert insecure_listeners(listening, endpoints) == {"mega": "without TLS and without auth"}


@pytest.mark.parametrize("endpoint", ["haproxy:tcp:9000", r"ha\proxy:tcp:9000", "haproxy:unix:/s"])
def test_with_auth_nobody_says_himself_where_he_comes_from(endpoint: str) -> None:
    """Throttle and audit trail go by the address."""
    for listening in (
        config({"mega": endpoint}, auth="on"),
        config({}, admin=endpoint, auth="on"),
    ):
        assert "the login throttle and the audit trail would believe it" in refusal(listening)
    endpoints_of(MemoryReactorClock(), config({"mega": endpoint}, allow_insecure=True))


def test_a_string_that_is_no_endpoint_is_not_called_open() -> None:
    assert "is not a server endpoint" in refusal(config({"mega": "nowhere"}))
