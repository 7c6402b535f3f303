"""Peers that are told nothing of why the connection ends still read the answers before its end.

Those of the formats that answer what they cannot follow are in the tests of these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from brokerd.broker import Broker
from brokerd.codecs import blipmq as bm
from brokerd.codecs import mamamia as mm
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from brokerd.protocols.mamamia.connection import MamamiaFactory
from tests.protocols.serving import Served, no_faults, reactor, served, until

__all__ = ["no_faults"]

MIB = 1 << 20
NO_MESSAGEPACK = b"\0\0\0\2\1\xc1"
UNKNOWN_TYPE = b"\0\0\0\x09\x77" + bytes(8)


def mamamia(broker: Broker) -> ConnectionFactory:
    return MamamiaFactory(broker, reactor, Limits())


def blipmq(broker: Broker) -> ConnectionFactory:
    return BlipmqFactory(broker, reactor, Limits(), BlipmqSettings())


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("make", "sent", "answers"),
    [
        (
            mamamia,
            mm.encode_request(mm.Produce("t", b"x")) + NO_MESSAGEPACK,
            lambda at: mm.produced(at),
        ),
        (mamamia, mm.encode_request(mm.Produce("t", b"x")) + bytes(4), lambda at: mm.produced(at)),
        (blipmq, bm.encode(bm.Hello(1)) + UNKNOWN_TYPE, lambda at: bm.encode(bm.Ack(1))),
    ],
    ids=["mamamia, no MessagePack", "mamamia, no length", "blipmq, unknown type"],
)
async def test_the_answers_before_the_end_survive_what_the_peer_goes_on_sending(
    tmp_path: Path,
    no_faults: None,
    make: Callable[[Broker], ConnectionFactory],
    sent: bytes,
    answers: Callable[[int], bytes],
) -> None:
    """A connection closed on unread bytes would be reset, and they with it."""

    def work(running: Served[ConnectionFactory]) -> None:
        for at in range(5):
            with running.plain() as peer:
                peer.sendall(sent + bytes(8 * MIB))
                assert b"".join(iter(lambda: peer.recv(65_536), b"")) == answers(at)
                peer.sendall(bytes(MIB))

    async with served(tmp_path, make.__name__, "tcp:0", make) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)
