# Tests: tests/test_demo.py
"""What the archive gives back, held against the books of the demo.

Contract: `prove_tables` looks at what the tables hold, `prove_first` at what each wire format
answers once the journal is gone. Both return one line for each thing that is off.
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
from .course import TOPIC, Course
from .ledger import is_to_fail, reason_of, some

_WAIT_SECONDS = 30.0
_READER = "reader of old things"


class Stored(NamedTuple):
    """What the tables hold of the flights."""

    values: dict[int, bytes]
    """Offset -> value."""
    copies: int
    """Rows of the table beyond one for each offset; there must be none."""
    lsn_of_last: int
    """The largest LSN of a record."""
    reasons: dict[int, str | None]
    """Offset of a dead letter of the group -> its reason."""
    outcomes: Counter[int]
    """Offset -> outcomes in the group."""


def read_tables(files: Mapping[str, Sequence[str]]) -> Stored:
    """Read what there is to compare."""
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
    return Stored(
        values,
        len(offsets) - len(values),
        pc.max(records["lsn"]).as_py(),
        {one["offset"]: one["reason"] for one in deliveries if one["outcome"] == "dead"},
        Counter(one["offset"] for one in deliveries),
    )


def prove_tables(course: Course, stored: Stored) -> list[str]:
    """Hold the tables against the books; one line for each thing that is off."""
    log, wrong = course.ledger.delivered, []
    if stored.copies:
        wrong.append(f"the archive has {stored.copies} records more than once")
    missing = log.keys() - stored.values.keys()
    if missing:
        wrong.append(f"the archive does not have {len(missing)} records: {some(missing)}")
    beyond = stored.values.keys() - log.keys()
    if beyond:
        wrong.append(f"the archive has {len(beyond)} records that were never: {some(beyond)}")
    same = stored.values.keys() & log.keys()
    other = {o for o in same if course.number_of(stored.values[o]) != log[o]}
    if other:
        wrong.append(f"the archive has {len(other)} records as other rows: {some(other)}")
    several = {o for o in log if stored.outcomes[o] != 1}
    if several:
        wrong.append(f"not one outcome each in the table deliveries: {some(several)}")
    expected = {o: reason_of(row) for o, row in log.items() if is_to_fail(row)}
    if stored.reasons != expected:
        mixed = {o for o, _ in stored.reasons.items() ^ expected.items()}
        wrong.append(f"dead letters with other reasons in the archive: {some(mixed)}")
    return wrong


def read_first(course: Course) -> dict[str, object]:
    """Read offset 0 through each wire format, each in its own way; format -> the value."""
    return {form: read(course.addresses[form], course) for form, read in _FIRST.items()}


def _by_mamamia(address: str, course: Course) -> object:
    """A group that nobody has heard of before."""
    with MamamiaClient(address) as client:
        message = client.acquire(TOPIC, _READER, _READER, wait=_WAIT_SECONDS)
        if message is None or message.id != 0:
            return None
        client.settle(TOPIC, _READER, message.id, _READER, success=True)
        return message.payload


def _by_flymq(address: str, course: Course) -> object:
    with FlymqClient(address) as client:
        return client.fetch(TOPIC, 0, 0, 1).records[0].value


def _by_blipmq(address: str, course: Course) -> object:
    """A subscription of before the first row, that nobody has polled yet."""
    with BlipmqClient(address) as client:
        delivery = client.receive(course.idle_subscription_id, timeout=_WAIT_SECONDS)
        return None if delivery is None else delivery.message


def _by_rustlog(address: str, course: Course) -> object:
    with RustlogClient(address) as client:
        return next(value for _, value in client.read(TOPIC, 0))


def _by_mega(address: str, course: Course) -> object:
    with MegaClient(address) as client:
        return client.consume(TOPIC, 0).payload


_FIRST: dict[str, Callable[[str, Course], object]] = {
    "mamamia": _by_mamamia,
    "flymq": _by_flymq,
    "blipmq": _by_blipmq,
    "rustlog": _by_rustlog,
    "mega": _by_mega,
}


def prove_first(course: Course, read: Mapping[str, object]) -> list[str]:
    """Whether each format got the row that stands at offset 0; Mamamia's comes as it went in."""
    row = course.ledger.delivered[0]
    wrong = []
    for form, value in read.items():
        packed = msgpack.packb(value) if isinstance(value, dict) else value
        if course.number_of(packed) != row:
            wrong.append(f"{form} did not get row {row} as offset 0: {value!r:.80}")
    return wrong
