# Tests: tests/client
"""Small clients on the broker's own codecs, for tools, tests and users.

`brokerd.client.mamamia` blocks and needs no Twisted; `brokerd.client.mamamia_async` gives
Deferreds.
"""
