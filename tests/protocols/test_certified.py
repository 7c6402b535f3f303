"""Whom the certificate of a client makes of its connection, in every format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from OpenSSL import crypto
from twisted.logger import capturedLogs

from brokerd.errors import BrokerdError, LoginFailed, LoginThrottled
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.first_byte import FirstByteFactory
from brokerd.security import Access, Guard
from brokerd.server.assembly import FACTORIES, FactoryContext
from brokerd.server.config import Config
from brokerd.server.sections import FIRST_BYTES
from tests.certificates import Authority
from tests.house import House, Wire

BEGINNINGS = {**FIRST_BYTES, "mega": b"M"}


class Somebody(Access):
    """Who somebody is, by the way of becoming it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Asked(Guard):
    """Remembers whom it was asked about."""

    auth = True

    def __init__(self) -> None:
        self.subjects: list[tuple[str, ...]] = []
        self.refusal: BrokerdError | None = None

    def begin(self, form: str, peer: str) -> Access:
        return Somebody(f"listener of {form}")

    def by_certificate(self, form: str, peer: str, subject: str, common_name: str) -> Access:
        if self.refusal is not None:
            raise self.refusal
        self.subjects.append((form, peer, subject, common_name))
        return Somebody(common_name)


class Listening:
    """All formats, and FlyMQ and RustLog behind one endpoint."""

    def __init__(self) -> None:
        self.house = House()
        self.guard = Asked()
        parts = FactoryContext(self.house.broker, self.house.clock, self.house.limits, Config())
        self.factories: dict[str, ConnectionFactory] = {
            form: make(parts) for form, make in FACTORIES.items()
        }
        self.shared = FirstByteFactory(
            "flymq+rustlog",
            self.house.broker,
            self.house.clock,
            self.house.limits,
            [self.factories["flymq"], self.factories["rustlog"]],
            FIRST_BYTES,
        )
        for factory in (*self.factories.values(), self.shared):
            factory.guard = self.guard

    def connect(self, factory: ConnectionFactory, shown: Any) -> Wire:
        """A client that has not agreed on TLS yet, and will show a certificate or none."""
        wire = Wire(factory, self.house.clock)
        wire.transport.getPeerCertificate = lambda: shown
        return wire


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> crypto.X509:
    issued = Authority(tmp_path_factory.mktemp("certified")).issue("orders", "Acme")
    return crypto.load_certificate(crypto.FILETYPE_PEM, issued.certificate.read_bytes())


@pytest.fixture
def log() -> Iterator[Any]:
    with capturedLogs() as captured:
        yield captured


@pytest.mark.parametrize("form", FACTORIES)
def test_a_client_with_a_certificate_is_whom_it_names(form: str, shown: crypto.X509) -> None:
    listening = Listening()
    wire = listening.connect(listening.factories[form], shown)
    assert wire.protocol.access.name == f"listener of {form}"
    wire.protocol.handshakeCompleted()
    assert wire.protocol.access.name == "orders"
    ((asked, _, *names),) = listening.guard.subjects
    assert (asked, names) == (form, ["CN=orders,O=Acme", "orders"])


@pytest.mark.parametrize("form", FACTORIES)
def test_a_client_without_one_is_that_of_the_listener(form: str) -> None:
    listening = Listening()
    wire = listening.connect(listening.factories[form], None)
    wire.protocol.handshakeCompleted()
    assert wire.protocol.access.name == f"listener of {form}"
    assert listening.guard.subjects == []


@pytest.mark.parametrize("form", ["flymq", "rustlog"])
def test_behind_a_shared_endpoint_it_counts_once_for_the_format_that_is_spoken(
    form: str, shown: crypto.X509
) -> None:
    listening = Listening()
    wire = listening.connect(listening.shared, shown)
    wire.protocol.handshakeCompleted()
    assert listening.guard.subjects == []
    wire.protocol.dataReceived(BEGINNINGS[form])
    assert [subject[0] for subject in listening.guard.subjects] == [form]
    assert wire.protocol.chosen.access.name == "orders"


@pytest.mark.parametrize("refusal", [LoginFailed("it is over"), LoginThrottled("wait 3 s")])
def test_a_certificate_that_lets_nobody_in_ends_the_connection_with_one_line(
    shown: crypto.X509, log: Any, refusal: BrokerdError
) -> None:
    listening = Listening()
    listening.guard.refusal = refusal
    wire = listening.connect(listening.factories["mega"], shown)
    wire.protocol.handshakeCompleted()
    assert wire.protocol.gone
    (event,) = [event for event in log if event.get("event_id")]
    assert event["event_id"] == "certificate-refused"
    assert (event["listener"], event["reason"]) == ("mega", str(refusal))
