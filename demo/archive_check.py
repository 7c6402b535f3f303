# Tests: tests/test_demo.py
"""Checks of the archive against the ledger of the demo.

`check_tables` compares the tables with the ledger. `check_first_records` compares the record that
each wire format reads once the journal is deleted. Both return one line for each difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgpack

from brokerd.archive.contract.layout import DELIVERIES, RECORDS
from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient

from .consumers import GROUP
from .ledger import first_few, is_to_fail, reason_of
from .workers import TOPIC, SharedState

_WAIT_SECONDS = 30.0
_READER = "archive reader"


class ArchiveContents(NamedTuple):
    """The flights in the tables of the archive."""

    values: dict[int, bytes]
    """Offset -> value."""
    copies: int
    """Duplicate rows: rows of the table minus distinct offsets. It must be 0."""
    lsn_of_last: int
    """Largest LSN of a record."""
    reasons: dict[int, str | None]
    """Offset of a dead letter of the group -> its reason."""
    outcomes: Counter[int]
    """Offset -> outcomes in the group."""


def read_tables(files: Mapping[str, Sequence[str]]) -> ArchiveContents:
    """Read the columns to compare from the files of each table."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    records = pq.read_table(
        files[RECORDS.name],
        columns=["offset", "value", "lsn"],
        filters=pc.field("topic") == TOPIC,
        partitioning=None,
    )
    deliveries = pq.read_table(
        files[DELIVERIES.name],
        columns=["offset", "outcome", "reason"],
        filters=(pc.field("topic") == TOPIC) & (pc.field("group_name") == GROUP),
        partitioning=None,
    ).to_pylist()
    offsets = records["offset"].to_pylist()
    values = dict(zip(offsets, records["value"].to_pylist(), strict=True))
    return ArchiveContents(
        values,
        len(offsets) - len(values),
        pc.max(records["lsn"]).as_py(),
        {one["offset"]: one["reason"] for one in deliveries if one["outcome"] == "dead"},
        Counter(one["offset"] for one in deliveries),
    )


def check_tables(state: SharedState, stored: ArchiveContents) -> list[str]:
    """Compare the tables with the ledger; return one line for each difference."""
    log, wrong = state.ledger.delivered, []
    if stored.copies:
        wrong.append(f"the archive has {stored.copies} records more than once")
    missing = log.keys() - stored.values.keys()
    if missing:
        wrong.append(f"the archive does not have {len(missing)} records: {first_few(missing)}")
    beyond = stored.values.keys() - log.keys()
    if beyond:
        wrong.append(
            f"the archive has {len(beyond)} records that the log never had: {first_few(beyond)}"
        )
    same = stored.values.keys() & log.keys()
    other = {o for o in same if state.number_of(stored.values[o]) != log[o]}
    if other:
        wrong.append(f"the archive has {len(other)} records as other rows: {first_few(other)}")
    several = {o for o in log if stored.outcomes[o] != 1}
    if several:
        wrong.append(f"not one outcome each in the table deliveries: {first_few(several)}")
    expected = {o: reason_of(row) for o, row in log.items() if is_to_fail(row)}
    if stored.reasons != expected:
        mixed = {o for o, _ in stored.reasons.items() ^ expected.items()}
        wrong.append(f"dead letters with other reasons in the archive: {first_few(mixed)}")
    return wrong


def read_first_records(state: SharedState) -> dict[str, object]:
    """Read offset 0 through each wire format; return format -> value."""
    return {form: read(state.addresses[form], state) for form, read in _FIRST.items()}


def _by_mamamia(address: str, state: SharedState) -> object:
    """Lease the record in a new group."""
    with MamamiaClient(address) as client:
        message = client.acquire(TOPIC, _READER, _READER, wait=_WAIT_SECONDS)
        if message is None or message.id != 0:
            return None
        client.settle(TOPIC, _READER, message.id, _READER, success=True)
        return message.payload


def _by_flymq(address: str, state: SharedState) -> object:
    with FlymqClient(address) as client:
        return client.fetch(TOPIC, 0, 0, 1).records[0].value


def _by_blipmq(address: str, state: SharedState) -> object:
    """Poll the subscription that was made before the first row and never polled."""
    with BlipmqClient(address) as client:
        delivery = client.receive(state.idle_subscription_id, timeout=_WAIT_SECONDS)
        return None if delivery is None else delivery.message


def _by_rustlog(address: str, state: SharedState) -> object:
    with RustlogClient(address) as client:
        return next(value for _, value in client.read(TOPIC, 0))


def _by_mega(address: str, state: SharedState) -> object:
    with MegaClient(address) as client:
        return client.consume(TOPIC, 0).payload


_FIRST: dict[str, Callable[[str, SharedState], object]] = {
    "mamamia": _by_mamamia,
    "flymq": _by_flymq,
    "blipmq": _by_blipmq,
    "rustlog": _by_rustlog,
    "mega": _by_mega,
}


def check_first_records(state: SharedState, read: Mapping[str, object]) -> list[str]:
    """Check that each format read the row at offset 0; return one line for each difference.

    Mamamia returns the map that it was given, the other formats bytes.
    """
    row = state.ledger.delivered[0]
    wrong = []
    for form, value in read.items():
        packed = msgpack.packb(value) if isinstance(value, dict) else value
        if state.number_of(packed) != row:
            wrong.append(f"{form} did not get row {row} as offset 0: {value!r:.80}")
    return wrong
