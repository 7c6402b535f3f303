# Tests: tests/spark/test_typed_queries.py
"""The registered schemas of a topic, for ``payload=schema`` (docs/typed-tables.rst). No pyspark.

They come from three places: ``state/schemas`` as of the bounds, the journal since the bounds, and
the copy in the archive, in which deleted versions stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from brokerd.archive.contract.schemas import (
    FILE_BYTES_MAX,
    FILE_NAME,
    StoredSchema,
    StoredSchemas,
    decode_schemas,
    merge_schemas,
)
from brokerd.archive.journal.topics import TopicChange
from brokerd.archive.storage.address import place_of
from brokerd.archive.storage.regular_file import read_regular
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError, DamagedData, escaped
from brokerd.spark.location import STATE, Location
from brokerd.spark.plan.log_snapshot import readable, take_snapshot


class NoSchema(BrokerdError):
    """A topic has no schema."""


def read_topic_schemas(location: Location, topic: str) -> list[StoredSchema]:
    """Return the versions of a topic's schema, in the order of registration.

    They include all versions that were registered before the call.

    :raises NoSchema: it has none.
    :raises BrokerdError: the log or the schemas cannot be read.
    """
    snapshot = take_snapshot(location)
    found = StoredSchemas(snapshot.log_id)
    if location.data_dir is not None:
        found = merge_schemas(found, _of_broker(Path(location.data_dir), snapshot.log_id))
        found = merge_schemas(found, _of_journal(snapshot.journal.schema_changes))
    found = merge_schemas(found, _of_archive(location.archive, snapshot.log_id))
    versions = found.of_topic(topic)
    if not versions:
        raise NoSchema(
            f"the topic {escaped(topic)!r} has no schema: register one with its name "
            "(`brokerctl schema register`), or use payload=json"
        )
    return versions


def _of_broker(root: Path, log_id: str) -> list[StoredSchema]:
    path = root / STATE / FILE_NAME
    with readable(root):
        try:
            data = read_regular(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return []  # no schema was registered before the bounds
    return _decode(data, str(path), log_id, "start the broker, which writes it again")


def _of_archive(address: str, log_id: str) -> list[StoredSchema]:
    place = place_of(address)
    try:
        data = open_store(place).read(FILE_NAME, FILE_BYTES_MAX)
    except FileNotFoundError:
        return []
    return _decode(data, str(place / FILE_NAME), log_id, "delete it, and run brokerd-rollup")


def _decode(data: bytes, where: str, log_id: str, remedy: str) -> list[StoredSchema]:
    try:
        found = decode_schemas(data)
    except DamagedData as error:
        raise DamagedData(f"{where} is damaged: {error}; {remedy}") from None
    return found.versions if found.log_id == log_id else []


def _of_journal(changes: Iterable[TopicChange]) -> list[StoredSchema]:
    return [
        StoredSchema(
            one.fields["name"],
            one.fields["version"],
            one.fields["type"],
            one.fields["definition"],
            one.fields["created_us"],
        )
        for one in changes
        if one.fields.get("op") == "registered"
    ]
