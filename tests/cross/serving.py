"""A broker core in this process that serves every wire format on real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from brokerd.server.assembly import BrokerCore
from brokerd.server.config import Config
from brokerd.server.sections import Archive, Blipmq
from tests.cross.peers import PEERS
from tests.cross.rolling import roll_up_all
from tests.protocols.serving import listening, opened, until

LISTENERS = sorted({peer.listener for peer in PEERS.values()})


ARCHIVED = Config(archive=Archive(keep_wal_bytes=0), blipmq=Blipmq(retry_base_ms=60_000))
"""The log keeps no archived records, and slow consumers get no message again."""


async def serve_all(stack: AsyncExitStack, directory: Path) -> dict[str, str]:
    """Serve until the stack is left; return the address of each wire format."""
    return await listen_all(stack, await stack.enter_async_context(opened(directory, Config())))


async def listen_all(stack: AsyncExitStack, core: BrokerCore) -> dict[str, str]:
    """Listen until the stack is left; return the address of each wire format."""
    return {
        form: await stack.enter_async_context(listening(form, "tcp:0", core.factory(form)))
        for form in LISTENERS
    }


async def archive_all(directory: Path) -> None:
    """Seal and archive the whole log of a broker that does not run."""
    for _ in range(2):  # each stop writes a snapshot; segments are deletable after two
        async with opened(directory, ARCHIVED) as core:
            topic = core.broker.topics.create("filler")
            core.broker.appender.produce(topic.partition(0), b"so that there is something new")
    assert roll_up_all(directory).records > 0


async def serve_archived(
    stack: AsyncExitStack, directory: Path
) -> tuple[BrokerCore, dict[str, str]]:
    """Serve what `archive_all` archived, once the log has deleted it; return core and addresses."""
    core = await stack.enter_async_context(opened(directory, ARCHIVED))

    def has_let_go() -> bool:
        lsn = core.broker.archive_admin.status()["records_lsn"]
        left = (directory / "wal").glob("*.wal")
        return lsn > 0 and all(int(path.stem) >= lsn for path in left)

    await until(has_let_go)
    return core, await listen_all(stack, core)
