"""Write a small history through every wire format, the admin API and two runs of brokerd-rollup.

`write` leaves the data directory of a stopped broker. Its oldest records are only in the archive.
The next ones are in a sealed file that no run has taken, the newest ones in the last file of the
journal. Every time limit is years away, delayed messages ten years. One message becomes due after
the broker has stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from brokerd.client.flymq import FlymqError
from brokerd.client.mamamia import MamamiaClient, batch_message
from brokerd.client.rustlog import Dialect
from tests.releases.clients import ADMIN, PASSWORD, SECONDS, SERVICE, Clients, serving, topic_path

ROOT = Path(__file__).resolve().parents[2]
YEARS = 365 * 86_400.0
TTL = 90 * YEARS
DELAY = 10 * YEARS
"""The longest allowed delay of a message."""
LEASE = 3_600.0
OVERDUE_SECONDS = 60.0
"""A busy machine needs some of it for the last stop."""
PAYLOADS: list[Any] = [
    None,
    True,
    -7,
    1 << 63,
    1.5,
    "text",
    "",
    b"bytes \xff",
    b"",
    [1, "two", b"3"],
    {"n": 1, "list": []},
    msgpack.Timestamp(1, 2),
]
METADATA: list[dict[str, Any] | None] = [None, {}, {"trace": 7, "by": "history"}]
KEYS: list[bytes | None] = [None, b"", b"key", b"\xff"]
BATCH = ["again 0", "again 1", "again 2"]
JSON_SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["n"],
}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "sensor", "type": "string"}, {"name": "value", "type": "long"}],
}
PROTOBUF_SCHEMA = 'syntax = "proto3";\nmessage Point { int32 x = 1; int32 y = 2; }\n'
VALIDATED = {
    "order": [b'{"n": 1, "note": "yes"}', b'{"note": "no number"}'],
    "reading": [b"\x04ab\x02", b"\x04a"],
    "point": [b"\x08\x01\x10\x02", b"\x08"],
}
"""Messages by schema; the first one fits."""


def write(data_dir: Path, password_file: Path) -> dict[str, Any]:
    """Write the history and return the facts for a reader: ids, credentials, subscriptions.

    :param data_dir: a path without a data directory.
    :param password_file: created for the first administrator.
    """
    password_file.write_text(PASSWORD)
    first = [f"security.admin_password_file={password_file}"]
    with serving(data_dir, first) as clients:
        facts = _write_accounts(clients)
        _write_schemas(clients)
        facts |= _write_topics(clients, facts["api_key"])
        _write_group_states(clients)
        roll_up(data_dir, facts["admin_key"])
    for number in range(2):  # each stop writes a snapshot; segments are deletable after two
        with serving(data_dir) as clients, clients.mamamia() as mamamia:
            mamamia.produce("filler", f"restart {number}")
    with serving(data_dir) as clients:
        _wait_until(lambda: _first_lsn(clients) > 0)
        facts["archive_only_lsn"] = _first_lsn(clients)
        _append(clients, "second part")
        _write_later_states(clients)
        roll_up(data_dir, facts["admin_key"])
        _append(clients, "third part")
        clients.admin("/wal/seal", {})
        _append(clients, "fourth part")
        with clients.mamamia() as mamamia:
            began = time.monotonic()
            mamamia.produce("later", "due after the stop", delay=OVERDUE_SECONDS)
    assert time.monotonic() < began + OVERDUE_SECONDS, "the broker stopped too late"
    time.sleep(OVERDUE_SECONDS)
    return facts


def _write_accounts(clients: Clients) -> dict[str, Any]:
    """Make accounts, access lists and keys, and cause denials for the audit trail."""
    ann = ("ann", "a password of ann")
    for name, more in {
        SERVICE: {"roles": ["admin"]},
        ann[0]: {"roles": ["guest", "readers"], "password": ann[1]},
        "bob": {"roles": ["producer"], "enabled": False},
        "gone": {"roles": ["monitor"]},
    }.items():
        clients.admin("/users", {"name": name, **more})
    clients.admin("/users/gone", {}, "DELETE")
    lists = {
        "/acls/topics/orders": {"users": {"ann": ["read"]}},
        "/acls/topics/revoked": {"users": {"ann": ["read"]}},
        "/acls/prefixes/ev": {"roles": {"readers": ["read", "write"]}},
        "/acls/topics/ticks": {"public": True},
    }
    for path, body in lists.items():
        clients.admin(path, {"public": False, "users": {}, "roles": {}, **body}, "PUT")
    clients.admin("/acls/topics/revoked", {}, "DELETE")
    keys = [
        clients.admin("/keys", {"user": user, "label": label})
        for user, label in [(SERVICE, "history"), (ADMIN, "rollup"), (SERVICE, "revoked")]
    ]
    clients.admin(f"/keys/{keys[2]['key_id']}", {}, "DELETE")
    try:
        clients.admin("/users", login="ann:a wrong password")
    except urllib.error.HTTPError as refusal:
        assert refusal.code == 401
    with clients.flymq(*ann) as flymq:
        try:
            flymq.produce("orders", b"ann may only read")
        except FlymqError as refusal:
            assert "unauthorized" in str(refusal)
    return {"ann": ann, "api_key": keys[0]["key"], "admin_key": keys[1]["key"]}


def _write_schemas(clients: Clients) -> None:
    with clients.flymq() as flymq:
        flymq.register_schema("order", "json", json.dumps(JSON_SCHEMA))
        more = JSON_SCHEMA | {"required": []}
        flymq.register_schema("order", "json", json.dumps(more))
        flymq.register_schema("order", "json", json.dumps(JSON_SCHEMA))
        flymq.register_schema("reading", "avro", json.dumps(AVRO_SCHEMA))
        flymq.register_schema("point", "protobuf", PROTOBUF_SCHEMA)
        flymq.register_schema("forgotten", "json", "{}")
        flymq.delete_schema("forgotten")
    clients.admin("/schemas/point", {"compatibility": "full_transitive"}, "PATCH")
    clients.admin("/schemas/order/versions/2", {}, "DELETE")


def _write_topics(clients: Clients, api_key: str) -> dict[str, Any]:
    """Append through every format, trim, delete, compact and delay."""
    facts: dict[str, Any] = {
        "mega": ["ticks", "again", "events"],
        "batch": {"sequence": 2, "values": BATCH},
        "validated": {name: [one.hex() for one in texts] for name, texts in VALIDATED.items()},
    }
    kept = {"retention_seconds": TTL, "retention_bytes": 1 << 30, "ttl_seconds": TTL}
    clients.admin("/topics", {"name": "kept", "partitions": 2, "settings": kept})
    clients.admin("/topics", {"name": "latest", "partitions": 2, "settings": {"compact": True}})
    with clients.flymq() as flymq:
        flymq.create_topic("orders", 3)
        for number in range(24):
            key = None if number % 4 == 0 else b"customer %d" % (number % 5)
            flymq.produce("orders", b"" if number == 7 else b"order %d" % number, key)
        flymq.produce("orders", b"in partition 2", b"k", 2)
        with flymq.transaction() as transaction:
            for number in range(4):
                transaction.produce("orders", b"together %d" % number)
            transaction.produce("kept", b"with orders")
        undone = flymq.transaction()
        undone.produce("orders", b"never")
        undone.rollback()
        flymq.produce_with_ttl("orders", b"for 90 years", int(TTL) * 1_000)
        flymq.produce_with_schema("orders", VALIDATED["order"][0], "order")
        flymq.produce_delayed("later", b"in ten years, by FlyMQ", int(DELAY) * 1_000)
        flymq.produce("again", b"of the first topic")
        flymq.delete_topic("again")
        flymq.produce("again", b"of the second topic")
        for number in range(20):
            flymq.produce("latest", b"change %d" % number, b"k%d" % (number % 5))
        flymq.produce("latest", b"", b"k0")
        for number in range(12):
            flymq.produce("trimmed", b"record %d" % number)
        for partition in range(3):
            flymq.commit("orders", "committed", partition, partition + 1)
        flymq.commit("trimmed", "committed", 0, 7)
        flymq.reset_offset("trimmed", "reset", 0, "offset", 9)
    clients.admin(topic_path("trimmed") + "/trim", {"offset": 5})
    with clients.mamamia() as mamamia:
        for number, payload in enumerate(PAYLOADS):
            key, metadata = KEYS[number % len(KEYS)], METADATA[number % len(METADATA)]
            mamamia.produce("events", payload, metadata, key=key)
        mamamia.produce("events", "for 90 years", ttl=TTL)
        messages = [batch_message({"n": n}, {"n": n}, key=f"k{n}", ttl=TTL) for n in range(5)]
        mamamia.produce_batch("events", messages, "producer-1", 1)
        mamamia.produce_batch("events", map(batch_message, BATCH), "producer-1", 2)
        mamamia.produce("later", "in a moment", delay=0.2)
        mamamia.produce("later", "in ten years", {"due": "far"}, key=b"k", delay=DELAY)
        cancelled = mamamia.produce("later", "never", delay=DELAY)
        assert mamamia.cancel("later", cancelled)
        assert mamamia.acquire("later", "workers", "worker", LEASE, wait=SECONDS)
        for number in range(14):
            mamamia.produce("work", f"job {number}", key=f"key {number % 3}")
    with clients.rustlog() as rustlog:
        rustlog.create_topic("bytes", 2)
        for partition in range(2):
            rustlog.produce("bytes", [b"\x00\xff %d" % n for n in range(6)], partition)
        rustlog.commit("bytes", "committed", 4, 1)
    with clients.rustlog(Dialect.JSON) as rustlog:
        rustlog.produce("bytes", [b"by JSON"], 0)
        rustlog.commit("bytes", "committed", 2, 0)
    with clients.mega() as mega:
        mega.create_topic("ticks")
        for number in range(8):
            mega.produce("ticks", b"tick %d" % number, -(1 << 40) + number)
    with clients.blipmq(api_key) as blipmq:
        facts["subscriptions"] = {f"qos {qos}": blipmq.subscribe("feed", qos) for qos in (0, 1)}
        for number in range(8):
            blipmq.publish("feed", b"message %d" % number, number % 2)
            blipmq.flush()
        for number in facts["subscriptions"].values():
            for _ in range(3):
                delivery = blipmq.receive(number, SECONDS)
                assert delivery is not None
                blipmq.ack(delivery)
        blipmq.ping()
    return facts


def _write_group_states(clients: Clients) -> None:
    """Lease, settle, fail, bury and replay records; pause, configure and seek groups."""
    groups = topic_path("work") + "/groups/"
    settings = {"max_attempts": 2, "default_duration_seconds": LEASE, "create": True}
    clients.admin(groups + "billing/settings", settings, "PATCH")
    with clients.mamamia() as mamamia:
        leased = mamamia.acquire_batch("work", "billing", "worker-1", 9)
        ids = [message.id for message in leased]
        assert ids == list(range(9))
        _settle(mamamia, ids[1], True)
        _settle(mamamia, ids[2], False, reason="fails once")
        _settle(mamamia, ids[3], False, reason="cannot be read", dead=True)
        _settle(mamamia, ids[4], False, reason="to be replayed", dead=True)
        _settle(mamamia, ids[5], False, reason="to be purged", dead=True)
        _settle(mamamia, ids[6], False, DELAY, reason="comes again in ten years")
        _settle(mamamia, ids[7], False, reason="first failure")
        again = mamamia.acquire_batch("work", "billing", "worker-1", 2)
        assert [message.id for message in again] == [ids[2], ids[7]]
        _settle(mamamia, ids[7], False, reason="second failure")
        assert mamamia.release("work", "billing", "worker-1", [ids[2]]) == 1
        assert mamamia.acquire("work", "paused", "worker-1", LEASE)
    dead = groups + "billing/dead-letters/"
    clients.admin(dead + "replay", {"partition": 0, "first": 4, "end": 5})
    clients.admin(dead + "purge", {"partition": 0, "first": 5, "end": 6})
    clients.admin(groups + "paused/pause", {})
    careful = {
        "max_attempts": 7,
        "attempts": "grants",
        "key_ordered": True,
        "backoff_base_seconds": 2.5,
        "backoff_max_seconds": 3_600.0,
        "default_duration_seconds": 90.0,
        "create": True,
    }
    clients.admin(groups + "careful/settings", careful, "PATCH")
    clients.admin(groups + "sought/seek", {"to": 6, "create": True})
    clients.admin(groups + "forgotten/seek", {"to": "end", "create": True})
    clients.admin(groups + "forgotten", {}, "DELETE")


def _settle(
    mamamia: MamamiaClient,
    message_id: int,
    success: bool,
    delay: float | None = None,
    **more: Any,
) -> None:
    mamamia.settle("work", "billing", message_id, "worker-1", success, delay, **more)


def _write_later_states(clients: Clients) -> None:
    """Change groups whose first events are in the archive."""
    with clients.mamamia() as mamamia:
        (message,) = mamamia.acquire_batch("work", "other", "worker-3", 1, LEASE)
        mamamia.settle("work", "other", message.id, "worker-3", False, reason="late", dead=True)
        assert mamamia.acquire("work", "careful", "worker-3", LEASE)
    with clients.flymq() as flymq:
        flymq.commit("orders", "committed", 0, 5)


def _append(clients: Clients, value: str) -> None:
    """Append to every topic that still gets records."""
    with clients.flymq() as flymq:
        for partition in range(3):
            flymq.produce("orders", value.encode(), b"key", partition)
        for key in (b"k0", b"k1", b"k9"):
            flymq.produce("latest", value.encode(), key)
        for topic in ("trimmed", "again", "feed", "ticks"):
            flymq.produce(topic, value.encode())
    with clients.mamamia() as mamamia:
        mamamia.produce("events", {"part": value}, {"part": value}, key=value)
        mamamia.produce("work", value)
    with clients.rustlog() as rustlog:
        rustlog.produce("bytes", [value.encode()], 1)


def roll_up(data_dir: Path, key: str) -> None:
    """Seal the journal of a running broker and run brokerd-rollup.

    :param key: an API key of an administrator.
    """
    command = [sys.executable, "-m", "brokerd.rollup", "--data-dir", str(data_dir), "--seal"]
    done = subprocess.run(
        [*command, "--master", "local[2]", "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "BROKERCTL_KEY": key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert json.loads(done.stdout)["records"] > 0


def _first_lsn(clients: Clients) -> int:
    lsn: int = clients.admin("/archive/refresh", {})["first_lsn"]
    return lsn


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
