"""Start a broker on a data directory of a release, and open clients of it."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.process import BrokerProcess
from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import Dialect, RustlogClient

ADMIN = "admin"
PASSWORD = "correct horse battery staple"
SERVICE = "service"
"""The account of clients by Mamamia, RustLog or MEGA, which have no login."""
SECONDS = 60.0
OPTIONS = [
    "wal.segment_bytes=1MiB",
    "archive.keep_wal_bytes=0",
    "archive.poll_seconds=1",
    "blipmq.retry_base_ms=60000",
    "blipmq.subscription_grace_seconds=3000000000",
    "flymq.delay_max_seconds=315360000",
    "security.auth=on",
    "security.audit_seconds=3000000000",
    f"mamamia.principal={SERVICE}",
    f"rustlog.principal={SERVICE}",
    f"mega.principal={SERVICE}",
]
"""The configuration. It keeps records, subscriptions and the audit trail for decades."""


class Clients:
    """Opens clients of a running broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    def mamamia(self) -> MamamiaClient:
        return MamamiaClient(self.broker.address)

    def flymq(self, user: str = ADMIN, password: str = PASSWORD) -> FlymqClient:
        return FlymqClient(self.broker.address_of("flymq"), user=user, password=password)

    def rustlog(self, dialect: Dialect = Dialect.BINARY) -> RustlogClient:
        return RustlogClient(self.broker.address_of("rustlog"), dialect=dialect)

    def blipmq(self, api_key: str) -> BlipmqClient:
        return BlipmqClient(self.broker.address_of("blipmq"), api_key=api_key)

    def mega(self) -> MegaClient:
        return MegaClient(self.broker.address_of("mega"))

    def admin(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        method: str = "",
        login: str = f"{ADMIN}:{PASSWORD}",
    ) -> Any:
        """Call the admin API and return its JSON.

        :param path: below ``/api/v1``.
        :param body: sent by POST unless there is a ``method``.
        :param login: ``NAME:PASSWORD``, or an API key.
        """
        credentials = f"Bearer {login}"
        if ":" in login:
            credentials = "Basic " + base64.b64encode(login.encode()).decode()
        request = urllib.request.Request(
            f"http://{self.broker.admin}/api/v1{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": credentials, "content-type": "application/json"},
            method=method or ("GET" if body is None else "POST"),
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)


def topic_path(topic: str) -> str:
    """Return the path of a topic in the admin API."""
    return "/topics/" + quote(topic, safe="")


def group_path(topic: str, group: str) -> str:
    """Return the path of a group in the admin API."""
    return f"{topic_path(topic)}/groups/{quote(group, safe='')}"


@contextmanager
def serving(data_dir: Path, options: Sequence[str] = ()) -> Iterator[Clients]:
    """Run a broker in a process of its own until the block ends."""
    log = data_dir.with_suffix(".log")
    with BrokerProcess(data_dir, log, [*OPTIONS, *options]) as broker:
        broker.start()
        yield Clients(broker)
        assert broker.stop() == 0
    assert "Traceback" not in log.read_text()
