"""A broker core in this process that serves every wire format on real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from twisted.internet import reactor as installed_reactor

from brokerd.assembly import make_core
from brokerd.config import Config
from brokerd.endpoints import address_text, parse
from tests.cross.peers import PEERS

reactor: Any = installed_reactor

LISTENERS = sorted({peer.listener for peer in PEERS.values()})


async def serve_all(stack: AsyncExitStack, directory: Path) -> dict[str, str]:
    """Serve until the stack is left; where each wire format listens."""
    core = make_core(Config(), directory, reactor)
    core.lock()
    await core.open()

    async def stop() -> None:
        await core.drain()
        await core.close()

    stack.push_async_callback(stop)
    addresses = {}
    for form in LISTENERS:
        port = await parse(reactor, form, "tcp:0").listen(core.factory(form))
        stack.push_async_callback(port.stopListening)
        addresses[form] = address_text(port.getHost())
    return addresses
