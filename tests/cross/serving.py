"""A broker core in this process that serves every wire format on real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from brokerd.config import Config
from tests.cross.peers import PEERS
from tests.protocols.serving import listening, opened

LISTENERS = sorted({peer.listener for peer in PEERS.values()})


async def serve_all(stack: AsyncExitStack, directory: Path) -> dict[str, str]:
    """Serve until the stack is left; where each wire format listens."""
    core = await stack.enter_async_context(opened(directory, Config()))
    return {
        form: await stack.enter_async_context(listening(form, "tcp:0", core.factory(form)))
        for form in LISTENERS
    }
