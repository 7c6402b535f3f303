"""Schemas of FlyMQ's clients against a real broker, which has them looked at in processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.process import BrokerProcess
from tests.reference.flymq import ServerError
from tests.reference.flymq_go import GoClient
from tests.reference.pyflymq import FlyMQClient
from tests.reference.pyflymq_schemas import (
    SchemaInfo,
    delete_schema,
    get_schema,
    go_delete_schema,
    go_produce_with_schema,
    go_validate_schema,
    list_schemas,
    produce_with_schema,
    register_schema,
    validate_schema,
)

ORDER = b'{"type":"object","required":["id"],"properties":{"id":{"type":"integer"}}}'
PROTO = b'syntax = "proto3"; message Order { int32 id = 1; }'
BOMB = b'{"pattern": "^(a+)+$"}'

_names = itertools.count()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[FlyMQClient]:
    client = FlyMQClient([broker.address_of("flymq")])
    yield client
    client.close()


@pytest.fixture
def go(broker: BrokerProcess) -> Iterator[GoClient]:
    client = GoClient([broker.address_of("flymq")])
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    """Of a schema and a topic that nobody has used."""
    return f"schema-{next(_names)}"


def values(client: FlyMQClient, topic: str) -> list[bytes]:
    records, _ = client.fetch(topic, 0, 0, 100)
    return [record.value for record in records]


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        ("json", ORDER, b'{"id": 1}', b"{}"),
        ("avro", b'"long"', b"\x02", b"\x80"),
        ("protobuf", PROTO, b"\x08\x01", b"\x08"),
    ],
)
def test_a_record_is_stored_if_it_fits(
    client: FlyMQClient,
    go: GoClient,
    name: str,
    kind: str,
    definition: bytes,
    good: bytes,
    bad: bytes,
) -> None:
    """Whichever client sends it, in its own order of fields."""
    register_schema(client, name, kind, definition)
    stored = produce_with_schema(client, name, good, name)
    assert (stored.topic, stored.offset, stored.key_size) == (name, 0, -1)
    assert go_produce_with_schema(go, name, good, name).offset == 1
    with pytest.raises(ServerError, match=r"schema validation failed: \[.+\]$"):
        produce_with_schema(client, name, bad, name)
    with pytest.raises(ServerError, match=r"schema validation failed: \[.+\]$"):
        go_produce_with_schema(go, name, bad, name)
    assert values(client, name) == [good, good]
    assert validate_schema(client, name, good)
    assert not validate_schema(client, name, bad)
    assert go_validate_schema(go, name, good) == (True, [])
    assert go_validate_schema(go, name, bad)[1] != []


def test_versions_are_read_and_deleted(client: FlyMQClient, go: GoClient, name: str) -> None:
    for _ in range(3):
        register_schema(client, name, "json", ORDER)
    assert [one.version for one in list_schemas(client, name)] == [1, 2, 3]
    assert get_schema(client, name) == SchemaInfo(name, "json", 3)
    delete_schema(client, name, 3)
    assert get_schema(client, name).version == 2
    assert get_schema(client, name, 1).version == 1
    go_delete_schema(go, name)
    assert list_schemas(client, name) == []
    with pytest.raises(ServerError, match=f"no schema found for topic: {name}$"):
        get_schema(client, name)


def test_what_is_refused_is_told_whole(client: FlyMQClient, name: str) -> None:
    register_schema(client, name, "json", ORDER)
    for kind, definition, text in (
        ("xml", b"<a/>", "unsupported schema type: xml"),
        ("json", b"{", "failed to register schema: invalid schema definition: invalid JSON schema"),
        (
            "json",
            b'{"required":["x"]}',
            "failed to register schema: schema compatibility check failed: new required field 'x' "
            "not in old schema",
        ),
    ):
        with pytest.raises(ServerError) as refused:
            register_schema(client, name, kind, definition)
        assert str(refused.value).startswith(text)


@pytest.mark.slow
def test_a_bomb_takes_seconds_of_its_sender_and_nothing_of_others(
    client: FlyMQClient, go: GoClient, name: str
) -> None:
    """Its client hears so before it gives up; then others are served as before."""
    register_schema(client, name, "json", BOMB)
    register_schema(client, f"{name}-plain", "json", b"{}")
    with pytest.raises(ServerError, match="the schema check was given up"):
        validate_schema(client, name, b'"' + b"a" * 60 + b'!"')
    assert go_produce_with_schema(go, name, b"1", f"{name}-plain").offset == 0


def test_schemas_outlast_a_sigkill(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path / "log", (), formats=("flymq",)) as process:
        process.start()
        client = FlyMQClient([process.address_of("flymq")])
        for _ in range(2):
            register_schema(client, name, "json", ORDER)
        delete_schema(client, name, 2)
        process.kill()
        process.start()
        client = FlyMQClient([process.address_of("flymq")])
        assert list_schemas(client) == [SchemaInfo(name, "json", 1)]
        assert not validate_schema(client, name, b"{}")
        client.close()
