# Tests: tests/client
"""Small clients on the broker's own codecs, for tools, tests and users.

`brokerd.client.mamamia` blocks, `brokerd.client.mamamia_asyncio` gives Futures; both need msgpack
alone. `brokerd.client.mamamia_async` gives Deferreds of Twisted.
"""
