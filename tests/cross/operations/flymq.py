"""FlyMQ's requests that name a topic (docs/protocols/flymq.rst).

tests/protocols/test_flymq_accounts.py has the others.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.codecs import flymq as fly
from tests.cross.operations.form import VALUE, Form, Operation, Request


def frame(make: Callable[[str], fly.Request]) -> Request:
    return lambda topic: fly.encode_request(make(topic))


PRODUCE = frame(lambda topic: fly.Produce(topic, None, VALUE))
COMMIT = frame(lambda topic: fly.Commit(topic, "team", 0, 1))
ZERO_COPY, BINARY = fly.Opcode.CONSUME_ZERO_COPY, fly.Opcode.FETCH_BINARY
GROUP = ("team", 0)
ONE, COMMITTED = (PRODUCE,), (PRODUCE, COMMIT)

READS: list[tuple[str, Callable[[str], fly.Request], tuple[Request, ...]]] = [
    ("CONSUME", lambda topic: fly.Consume(topic, 0, 0), ONE),
    ("CONSUME_ZERO_COPY", lambda topic: fly.Consume(topic, 0, 0, ZERO_COPY), ONE),
    ("FETCH", lambda topic: fly.Fetch(topic, 0, 0, 10), ONE),
    ("FETCH_BINARY", lambda topic: fly.Fetch(topic, 0, 0, 10, opcode=BINARY), ONE),
    ("METADATA", fly.Metadata, ONE),
    ("CLUSTER_METADATA", fly.ClusterMetadata, ONE),
    ("SUBSCRIBE", lambda topic: fly.Subscribe(topic, *GROUP, "earliest"), ONE),
    ("GET_OFFSET", lambda topic: fly.GetOffset(topic, *GROUP), COMMITTED),
    ("GET_LAG", lambda topic: fly.GetLag(topic, *GROUP), COMMITTED),
]

FORM = Form(
    "FlyMQ",
    "flymq",
    "flymq.rst",
    [
        *[Operation(name, "READ", frame(make), before) for name, make, before in READS],
        Operation("COMMIT", "READ", COMMIT, ONE),
        Operation("PRODUCE", "WRITE", PRODUCE),
        Operation("CREATE_TOPIC", "ADMIN", frame(lambda topic: fly.CreateTopic(topic, 1))),
        Operation("DELETE_TOPIC", "ADMIN", frame(fly.DeleteTopic)),
        Operation(
            "RESET_OFFSET",
            "ADMIN",
            frame(lambda topic: fly.ResetOffset(topic, *GROUP, "earliest")),
            ONE,
        ),
    ],
    lambda request, words: fly.error(words, sdk=False),
)
