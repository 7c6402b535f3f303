# Tests: tests/powerloss/test_check.py
"""Judge a broker on the directory that a power loss left, by the acknowledgements of its clients.

Each acknowledged record is there once, with its bytes, at its offset, and every record there was
sent. A transaction is there whole or not at all. The group leases every unsettled record and no
settled one. A trim, a deletion and a rollback stay. The archive has each record once. A new record
gets an offset that no client has seen before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks.crowd import KEYED, SHARED, key_of
from benchmarks.held_rollup import HeldRollup
from benchmarks.ledger import Ledger, Seen
from benchmarks.process import BrokerProcess
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.storage.address import Place
from brokerd.cli.server import Server, find
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient

from .facts import DELAYED, GROUP, LEFT, RIGHT, SHORT, TRIMMED, Facts

_FETCH = 500
_LEASE = 1000
_LEASE_SECONDS = 60.0
_DELAYED_SECONDS = 30.0
_LAPSE_SECONDS = 30.0
_POLL_SECONDS = 0.1
_AFTER = b"after the power loss"


class Check:
    """The judgement of one power loss; `findings` has a line for each broken promise."""

    def __init__(self, facts: Facts, point: int) -> None:
        self._facts = facts
        self._point = point
        self._ledger = facts.ledger(point)
        self.findings = self._ledger.findings

    def judge_records(self, topics: dict[str, list[Seen]]) -> None:
        """Judge all records of all topics."""
        ledger = self._ledger
        for topic, seen in topics.items():
            self._judge_sent(topic, seen)
        for topic in (SHARED, LEFT, RIGHT, DELAYED):
            ledger.audit(topic, "reader", topics.get(topic, []))
        ledger.audit_order(KEYED, "reader", topics.get(KEYED, []))
        ledger.audit_latest(KEYED, "reader", topics.get(KEYED, []), key_of)
        self._judge_trims(topics.get(TRIMMED, []))
        self._judge_tail(SHORT, topics.get(SHORT, []))
        self._judge_transactions(topics)
        self._judge_deletions(topics)

    def _judge_sent(self, topic: str, seen: Sequence[Seen]) -> None:
        for offset, value in seen:
            origin = self._ledger.origin(value)
            if origin is None:
                self._ledger.report(f"{topic} offset {offset} was never sent: {value[:40]!r}")
            elif self._facts.sent.get(origin, self._point) >= self._point:
                self._ledger.report(f"{topic} offset {offset} is {origin}, sent later")

    def _judge_trims(self, seen: list[Seen]) -> None:
        trims = self._facts.trims
        certain = max((one.offset for one in trims if one.is_told(self._point)), default=0)
        possible = max((one.offset for one in trims if one.is_possible(self._point)), default=0)
        if seen and _offset(seen[0]) < certain:
            self._ledger.report(f"{TRIMMED} begins at {seen[0].offset}, trimmed at {certain}")
        self._judge_tail(TRIMMED, seen, possible)

    def _judge_tail(self, topic: str, seen: list[Seen], floor: int | None = None) -> None:
        """Judge a topic whose records below ``floor`` (None: the first record) may be gone."""
        self._ledger.audit_order(topic, "reader", seen)
        told = self._ledger.of(topic)
        if told and not seen:
            self._ledger.report(f"{topic}: all {len(told)} acknowledged records are gone")
        if floor is None:
            floor = _offset(seen[0]) if seen else 0
        there = {offset for offset, _ in seen}
        gone = sorted(at for at in told.values() if at is not None and at >= floor)
        gone = [at for at in gone if at not in there]
        if gone:
            self._ledger.report(f"{topic}: {len(gone)} acknowledged records are gone: {gone[:5]}")

    def _judge_transactions(self, topics: dict[str, list[Seen]]) -> None:
        there = {
            self._ledger.origin(value)
            for topic in (LEFT, RIGHT)
            for _, value in topics.get(topic, [])
        }
        for transaction in self._facts.transactions:
            origins = [origin for some in transaction.origins.values() for origin in some]
            found = sum(origin in there for origin in origins)
            may_be = transaction.is_commit and transaction.is_possible(self._point)
            if found not in (0, len(origins)) or (found and not may_be):
                what = "committed" if transaction.is_commit else "rolled back"
                self._ledger.report(
                    f"{found} of {len(origins)} records of a transaction are there that was {what} "
                    f"at {transaction.before}: {origins[0]}"
                )

    def _judge_deletions(self, topics: dict[str, list[Seen]]) -> None:
        for topic in self._facts.told:
            if not topic.startswith("brief-"):
                continue
            deletion = self._facts.deletions.get(topic)
            if deletion is None or not deletion.is_possible(self._point):
                self._ledger.audit(topic, "reader", topics.get(topic, []))
            elif deletion.is_told(self._point) and topic in topics:
                self._ledger.report(f"{topic} is there, deleted at {deletion.after}")

    def judge_leases(self, leased: Sequence[int], seen: Sequence[Seen]) -> None:
        """Judge the offsets of `SHARED` that the group leased, given all records there."""
        settles = self._facts.settles
        again = [at for at in leased if at in settles and settles[at].is_told(self._point)]
        if again:
            self._ledger.report(f"{len(again)} settled records are leased again: {again[:5]}")
        for offset, count in Counter(leased).items():
            if count > 1:
                self._ledger.report(f"{SHARED} offset {offset} is leased {count} times")
        missing = sorted(self.unsettled(seen) - set(leased))
        if missing:
            self._ledger.report(f"{len(missing)} records are not leased: {missing[:5]}")

    def unsettled(self, seen: Sequence[Seen]) -> set[int]:
        """Return the offsets for which no settle was sent before the power loss."""
        settles = self._facts.settles
        return {
            _offset(one)
            for one in seen
            if _offset(one) not in settles or not settles[_offset(one)].is_possible(self._point)
        }

    def judge_archive(self, rows: Sequence[tuple[str, int, int, bytes]]) -> None:
        """Judge the rows of the table of records: topic, partition, offset, value."""
        places = Counter(row[:3] for row in rows)
        twice = [place for place, count in places.items() if count > 1]
        if twice:
            self._ledger.report(f"{len(twice)} records are in the archive twice: {twice[:5]}")
        topics: dict[str, list[Seen]] = {}
        for topic, _, offset, value in rows:
            if topic in self._facts.told and value != _AFTER:
                topics.setdefault(topic, []).append(Seen(offset, value))
        for topic, seen in topics.items():
            self._judge_sent(f"archived {topic}", seen)
            self._ledger.audit_order(topic, "the table", sorted(set(seen)))

    def judge_whole_archive(self, rows: Sequence[tuple[str, int, int, bytes]]) -> None:
        """Judge the rows after a rollup that archived the whole log."""
        self.judge_archive(rows)
        shared = [
            Seen(offset, value)
            for topic, _, offset, value in rows
            if topic == SHARED and value != _AFTER
        ]
        self._ledger.audit(SHARED, "the table, rolled up", sorted(shared))

    def judge_new(self, topic: str, offset: int, seen: Sequence[Seen]) -> None:
        """Judge the offset of a record that was produced after the power loss."""
        told = [at for at in self._ledger.of(topic).values() if at is not None]
        last = max([*told, *(_offset(one) for one in seen)], default=-1)
        if offset <= last:
            self._ledger.report(f"{topic}: a new record got offset {offset}, {last} was told")


def check(
    broker: BrokerProcess, facts: Facts, point: int, archive: Place, is_rolled_up: bool = False
) -> list[str]:
    """Start a broker on a directory, judge its records, and return the findings.

    With ``is_rolled_up`` a rollup has to succeed there, too, and to archive all records.

    :raises BrokerFailed: the broker does not start or stop.
    """
    found = Check(facts, point)
    broker.start()
    with FlymqClient(broker.address_of("flymq")) as client:
        topics = read_topics(client)
        _await_delayed(client, topics, facts.ledger(point))
        found.judge_records(topics)
        if SHARED in topics:
            with MamamiaClient(broker.address_of("mamamia")) as leasing:
                shared = topics[SHARED]
                found.judge_leases(_lease(leasing, found.unsettled(shared)), shared)
        for topic, seen in topics.items():
            found.judge_new(topic, client.produce(topic, _AFTER).offset, seen)
    if code := broker.stop():
        found.findings.append(f"the broker stopped with exit code {code}")
    found.judge_archive(read_archive(archive))
    found.findings += verify(broker.data_dir)
    if is_rolled_up:
        found.findings += _roll_up(broker, archive)
        found.judge_whole_archive(read_archive(archive))
    return found.findings


def _roll_up(broker: BrokerProcess, archive: Place) -> list[str]:
    """Archive the whole log of a stopped broker; return the findings."""
    broker.start()
    Server(find(broker.admin, "")).post("wal", "seal")
    log = broker.data_dir.with_name("rollup.log")
    with HeldRollup(broker.data_dir, log, archive=archive, vacuum_hours=0) as job:
        while job.next_point() is not None:
            job.go_on()
        problems = job.outcome().problems
    if code := broker.stop():
        problems = [*problems, f"the broker stopped with exit code {code} after a rollup"]
    return [f"the rollup after the power loss: {problem}" for problem in problems]


def read_topics(client: FlymqClient) -> dict[str, list[Seen]]:
    """Return all records of all topics."""
    return {topic: _read(client, topic) for topic in client.list_topics()}


def _read(client: FlymqClient, topic: str, offset: int = 0) -> list[Seen]:
    seen: list[Seen] = []
    while True:
        fetched = client.fetch(topic, 0, offset, _FETCH)
        seen += [Seen(one.offset, one.value) for one in fetched.records]
        if fetched.next_offset <= offset:
            return seen
        offset = fetched.next_offset


def _await_delayed(client: FlymqClient, topics: dict[str, list[Seen]], ledger: Ledger) -> None:
    """Wait, with a limit, until acknowledged delayed records have appeared."""
    deadline = time.monotonic() + _DELAYED_SECONDS
    while len(topics.get(DELAYED, [])) < len(ledger.of(DELAYED)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        topics[DELAYED] = _read(client, DELAYED)


def _lease(client: MamamiaClient, wanted: set[int]) -> list[int]:
    """Lease all records of the group and return their offsets.

    Wait for ``wanted``, but only as long as leases from before the power loss can live.
    """
    leased: list[int] = []
    deadline = time.monotonic() + _LAPSE_SECONDS
    while True:
        some = client.acquire_batch(SHARED, GROUP, "checker", _LEASE, _LEASE_SECONDS)
        leased += [one.id for one in some]
        if not some:
            if wanted <= set(leased) or time.monotonic() > deadline:
                return leased
            time.sleep(_POLL_SECONDS)


def read_archive(archive: Place) -> list[tuple[str, int, int, bytes]]:
    """Return the rows of the table of records; empty if the table does not exist."""
    columns = ["topic", "partition", "offset", "value"]
    try:
        table = DeltaTable(str(archive / RECORDS.name)).to_pyarrow_table(columns=columns)
    except TableNotFoundError:
        return []
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def verify(data_dir: Path) -> list[str]:
    """Run ``brokerctl wal verify`` on every byte of the log; return its findings."""
    brokerctl = Path(sys.executable).with_name("brokerctl")
    command = [str(brokerctl), "--data-dir", str(data_dir), "wal", "verify"]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    if not verified.returncode:
        return []
    return [f"wal verify: {(verified.stdout + verified.stderr).strip()}"]


def _offset(seen: Seen) -> int:
    assert seen.offset is not None
    return seen.offset
