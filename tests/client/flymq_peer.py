"""The other end of a FlyMQ client: a scripted peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from brokerd.client.flymq import FlymqClient
from brokerd.codecs import flymq as fm
from tests.client.peer import Peer

Call = tuple[Callable[[FlymqClient], object], fm.Request, bytes, object]
"""A call of the client, its request, the answer to that, and the result of the call."""


class FlymqPeer(Peer):
    def frames(self, connection: int = 0) -> list[fm.Frame]:
        return fm.FrameReader().feed(self.received(connection))

    def requests(self, connection: int = 0) -> list[fm.Request]:
        return [fm.decode_request(*one) for one in self.frames(connection)]


@pytest.fixture
def peer() -> Iterator[FlymqPeer]:
    with FlymqPeer.open() as one:
        yield one


def client_of(peer: FlymqPeer, **options: object) -> FlymqClient:
    given = {"timeout": 5.0, "sleep": peer.slept.append, **options}
    return FlymqClient("broker:9092", connect=peer.connect, **given)
