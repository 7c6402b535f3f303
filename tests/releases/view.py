"""Read the state that a broker shows of its data directory, as JSON independent of the clock.

`admin_view` changes nothing. `formats_view` leases the records that are ready for the group
``billing`` of the history, and polls the subscriptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from brokerd.client.mamamia import batch_message
from brokerd.client.mega import MegaError
from brokerd.client.rustlog import Dialect
from tests.releases.clients import SECONDS, Clients, group_path, topic_path

GROUP = "view"
"""The group that leases every record of every topic; it is deleted afterwards."""
View = dict[str, Any]
"""The shown state, by section."""


def now() -> str:
    """Return the time in the admin API's form."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def admin_view(clients: Clients, started: str) -> View:
    """Return the admin API's view of topics, groups, records, accounts and archive.

    :param started: a time before the broker started. Later append times and audit events are
        omitted.
    """
    topics = clients.admin("/topics")["topics"]
    names = [topic["name"] for topic in topics]
    _wait_until(lambda: not any(_overdue(clients, name, started) for name in names))
    topics = clients.admin("/topics")["topics"]
    view: View = {"topics": topics}
    view["records"] = {
        f"{topic['name']}/{partition}": list(_records(clients, topic, partition, started))
        for topic in topics
        for partition in range(len(topic["next_offsets"]))
    }
    view["groups"], view["leases"], view["dead_letters"] = {}, {}, {}
    for name in names:
        for group in clients.admin(topic_path(name) + "/groups")["groups"]:
            path = group_path(name, group["group"])
            key = f"{name}/{group['group']}"
            view["groups"][key] = _without(clients.admin(path), "oldest_age_seconds")
            leases = clients.admin(path + "/leases")["leases"]
            assert all(0 < one["remaining_seconds"] <= one["duration_seconds"] for one in leases)
            view["leases"][key] = [_without(one, "remaining_seconds") for one in leases]
            letters = clients.admin(path + "/dead-letters")["dead_letters"]
            times = ("first_attempt", "last_attempt")
            view["dead_letters"][key] = [_to_the_minute(one, *times) for one in letters]
    view["scheduled"] = {
        name: [_to_the_minute(one, "due") for one in _scheduled(clients, name)] for name in names
    }
    view["users"] = clients.admin("/users")["users"]
    view["access_lists"] = clients.admin("/acls")
    view["keys"] = clients.admin("/keys")["keys"]
    view["schemas"] = {
        f"{schema['name']}/{version['version']}": clients.admin(
            f"/schemas/{schema['name']}/versions/{version['version']}"
        )
        for schema in clients.admin("/schemas")["schemas"]
        for version in clients.admin(f"/schemas/{schema['name']}")["versions"]
    }
    view["compatibility"] = {
        schema["name"]: schema["compatibility"] for schema in clients.admin("/schemas")["schemas"]
    }
    events = clients.admin("/audit?limit=1000")["events"]
    view["audit"] = [event for event in events if event["time"] < started]
    archive = clients.admin("/archive/refresh", {})
    kept = ("log_id", "version", "files", "records_lsn", "events_lsn", "usable", "error")
    view["archive"] = {name: archive[name] for name in (*kept, "degraded")}
    return view


def formats_view(clients: Clients, facts: dict[str, Any]) -> View:
    """Read every record and position through each wire format.

    :param facts: ``subscriptions``, ``api_key``, ``ann``, ``batch``: see `history.write`.
    """
    view: View = {}
    with clients.flymq() as flymq:
        topics = sorted(flymq.list_topics())
        partitions = {name: flymq.metadata(name).partitions for name in topics}
        places = [(name, one.partition) for name in topics for one in partitions[name]]
        view["flymq"] = {
            f"{name}/{partition}": list(_fetched(flymq, name, partition))
            for name, partition in places
        }
        view["flymq offsets"] = {
            f"{name}/{one.partition}": [one.oldest, one.newest]
            for name in topics
            for one in partitions[name]
        }
        view["flymq commits"] = {
            f"{group.topic}/{group.group}": [list(one) for one in group.offsets]
            for group in flymq.list_groups()
        }
        view["flymq dead letters"] = {
            name: [
                [letter.message_id, letter.error, repr(letter.payload)]
                for letter in flymq.fetch_dlq(name, 100)
            ]
            for name in topics
        }
        view["flymq schemas"] = [list(schema) for schema in flymq.list_schemas()]
        view["valid"] = {
            name: [flymq.validate_schema(name, bytes.fromhex(text)).valid for text in texts]
            for name, texts in facts["validated"].items()
        }
    with clients.flymq(*facts["ann"]) as flymq:
        who = flymq.whoami()
        view["ann"] = [who.user, sorted(who.roles), sorted(flymq.list_topics())]
    view["api key"] = _without(clients.admin("/whoami", login=facts["api_key"]), "auth")
    for dialect in (Dialect.BINARY, Dialect.JSON):
        with clients.rustlog(dialect) as rustlog:
            view[f"rustlog {dialect.name.lower()}"] = {
                f"{name}/{partition}": [[offset, repr(value)] for offset, value in found]
                for name, partition in places
                if (found := list(rustlog.read(name, 0, partition)))
            }
    with clients.rustlog() as rustlog:
        view["rustlog commits"] = {
            key: rustlog.committed(*key.split("/")) for key in view["flymq commits"]
        }
    with clients.mega() as mega:
        view["mega"] = {name: list(_consumed(mega, name)) for name in facts["mega"]}
    with clients.mamamia() as mamamia:
        batch = [batch_message(value) for value in facts["batch"]["values"]]
        first = mamamia.produce_batch("events", batch, "producer-1", facts["batch"]["sequence"])
        view["batch sent again"] = list(first)
        view["mamamia"] = {
            name: [
                [one.id, repr(one.payload), repr(one.key), repr(one.metadata)]
                for one in mamamia.acquire_batch(name, GROUP, "reader", 10_000)
            ]
            for name in topics
        }
        view["leased again"] = [
            [one.id, one.grants, repr(one.payload)]
            for one in mamamia.acquire_batch("work", "billing", "worker-2", 100)
        ]
        assert mamamia.acquire("work", "paused", "worker-2") is None
    for name in topics:
        clients.admin(group_path(name, GROUP), {}, "DELETE")
    with clients.blipmq(facts["api_key"]) as blipmq:
        view["blipmq"] = {}
        for name, number in facts["subscriptions"].items():
            polled = iter(lambda number=number: blipmq.poll(number), None)
            view["blipmq"][name] = [[one.topic, one.qos, repr(one.message)] for one in polled]
    return view


def archive_rows(data_dir: Path) -> dict[str, dict[str, int]]:
    """Count the rows of each table of the archive by topic."""
    counts: dict[str, dict[str, int]] = {}
    for name in ("records", "events", "deliveries", "hourly"):
        table = DeltaTable(str(data_dir / "archive" / name)).to_pyarrow_table(columns=["topic"])
        topics = table["topic"].to_pylist()
        counts[name] = {topic: topics.count(topic) for topic in sorted(set(topics))}
    return counts


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _overdue(clients: Clients, topic: str, started: str) -> bool:
    """Return whether a message that was due before the start is still not in the log."""
    return any(one["due"] < started for one in _scheduled(clients, topic))


def _scheduled(clients: Clients, topic: str) -> list[dict[str, Any]]:
    page = clients.admin(topic_path(topic) + "/scheduled")
    scheduled: list[dict[str, Any]] = page["scheduled"]
    return scheduled


def _to_the_minute(answer: dict[str, Any], *names: str) -> dict[str, Any]:
    """Cut times that the broker keeps by its monotonic clock: each start shifts them by some us."""
    return {**answer, **{name: answer[name][: len("2026-11-21T11:38")] for name in names}}


def _without(answer: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in names}


def _records(
    clients: Clients, topic: dict[str, Any], partition: int, started: str
) -> Iterator[dict[str, Any]]:
    offset, end = 0, topic["next_offsets"][partition]
    while offset < end:
        path = f"{topic_path(topic['name'])}/records?partition={partition}&offset={offset}"
        page = clients.admin(path)
        for record in page["records"]:
            late = record["append_time"] >= started
            yield _without(record, *["append_time"] * late)
        assert page["next_offset"] > offset
        offset = page["next_offset"]


def _fetched(flymq: Any, topic: str, partition: int) -> Iterator[list[Any]]:
    offset = 0
    while (fetched := flymq.fetch(topic, partition, offset, 1_000)).records:
        for record in fetched.records:
            yield [record.offset, repr(record.key), repr(record.value)]
        offset = fetched.next_offset


def _consumed(mega: Any, topic: str) -> Iterator[list[Any]]:
    try:
        for one in mega.read(topic):
            yield [one.next_offset, one.timestamp, repr(one.payload)]
    except MegaError as error:
        yield [error.code]
