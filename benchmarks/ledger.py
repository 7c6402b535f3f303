# Tests: tests/test_archive_torture.py
"""Compare the acknowledgements of all producers with the records that readers find.

A producer books each acknowledgement once, in sending order. It never repeats a record whose fate
is unknown. So four rules hold for each partition: every record was sent, no record is there twice,
records of one producer are in order, and every acknowledged record is at its offset. Each violation
is a line in :attr:`Ledger.findings`; nothing is raised.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from .oracle import Origin, make_payload, read_payload

VALUE_BYTES_MAX = 8_000
_FINDINGS_MAX = 40


class Seen(NamedTuple):
    """A record as a reader received it."""

    offset: int | None
    """None if the wire format does not give it."""
    value: bytes


class Ledger:
    """The acknowledgements of one run. Several threads may use it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.findings: list[str] = []
        self._lock = threading.Lock()
        self._acknowledged: dict[str, dict[Origin, int | None]] = {}
        self._count = 0
        self._bytes = 0

    def report(self, finding: str) -> None:
        """Add a broken promise to the findings."""
        with self._lock:
            if len(self.findings) < _FINDINGS_MAX:
                self.findings.append(finding)

    def value(self, origin: Origin) -> bytes:
        """Return the bytes of a record."""
        return make_payload(self.seed, origin, VALUE_BYTES_MAX)

    def origin(self, value: bytes) -> Origin | None:
        """Return the record with exactly these bytes, or None."""
        return read_payload(self.seed, value, VALUE_BYTES_MAX)

    def acknowledge(self, topic: str, origins: Sequence[Origin], offsets: Sequence[int]) -> None:
        """Book durable records and their offsets; ``offsets`` is empty if the format gives none."""
        with self._lock:
            known = self._acknowledged.setdefault(topic, {})
            for at, origin in enumerate(origins):
                known[origin] = offsets[at] if offsets else None
            self._count += len(origins)

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return self._count

    def of(self, topic: str) -> Mapping[Origin, int | None]:
        """Return the acknowledged records of a topic with their offsets, None where unknown."""
        with self._lock:
            return dict(self._acknowledged.get(topic, {}))

    # -- Judging the records of readers ------------------------------------------------------------

    def digest(self, topic: str) -> str:
        """Return the digest of a topic's acknowledged values, by producer, in sending order."""
        return _digest((origin, self.value(origin)) for origin in self.of(topic))

    def audit(self, topic: str, who: str, records: Sequence[Seen]) -> None:
        """Judge a whole topic that a reader read from 0 to the tail: each record once."""
        acknowledged = self.of(topic)
        last: dict[int, int] = {}
        found: list[tuple[Origin, bytes]] = []
        before = -1
        for place, (offset, value) in enumerate(records):
            origin = self.origin(value)
            where = f"{who}: {topic} record {place} (offset {offset})"
            if offset is not None:
                if offset <= before:
                    self.report(f"{where} comes after offset {before}")
                before = offset
            if origin is None:
                self.report(f"{where} is no record that was sent: {value[:40]!r}")
                continue
            if origin.number <= last.get(origin.producer, -1):
                self.report(f"{where} is {origin}, after number {last[origin.producer]}")
                continue
            last[origin.producer] = origin.number
            if origin not in acknowledged:
                continue  # It was sent, and its answer was lost.
            found.append((origin, value))
            told = acknowledged[origin]
            if None not in (told, offset) and told != offset:
                self.report(f"{where} was acknowledged as offset {told}")
        missing = acknowledged.keys() - {origin for origin, _ in found}
        if missing:
            some = ", ".join(str(tuple(origin)) for origin in sorted(missing)[:5])
            self.report(f"{who}: {topic}: {len(missing)} acknowledged records are gone: {some}")
        elif _digest(found) != self.digest(topic):
            self.report(f"{who}: {topic}: the digest is not that of what was acknowledged")

    def audit_order(self, topic: str, who: str, records: Sequence[Seen]) -> None:
        """Judge the records of a reader: in order, each once, with its bytes, at its offset."""
        told = {offset: origin for origin, offset in self.of(topic).items()}
        before = -1
        for offset, value in records:
            origin = self.origin(value)
            if offset is None or offset <= before or origin is None:
                self.report(f"{who}: {topic}: {origin} at {offset}, after offset {before}")
            elif told.get(offset, origin) != origin:
                self.report(f"{who}: {topic}: {origin} at {offset}, which is of {told[offset]}")
            else:
                before = offset

    def audit_latest(
        self, topic: str, who: str, records: Sequence[Seen], key_of: Callable[[Origin], bytes]
    ) -> int:
        """Judge a compacted topic: the latest acknowledged record of each key has to be there.

        :return: how many acknowledged records are gone.
        """
        there: set[Origin] = set()
        latest: dict[bytes, int] = {}
        for offset, value in records:
            origin = self.origin(value)
            if origin is not None and offset is not None:
                there.add(origin)
                latest[key_of(origin)] = offset
        gone = [one for one in self.of(topic).items() if one[0] not in there]
        for origin, offset in gone:
            if offset is None or offset >= latest.get(key_of(origin), -1):
                self.report(f"{who}: {topic}: {origin} at {offset}, latest of its key, is gone")
                break
        return len(gone)


def _digest(found: Iterable[tuple[Origin, bytes]]) -> str:
    """Return the digest of the values, by producer; the order between producers does not count."""
    hashes: dict[int, hashlib.blake2b] = {}
    for origin, value in found:
        hashes.setdefault(origin.producer, hashlib.blake2b()).update(
            len(value).to_bytes(4, "big") + value
        )
    whole = hashlib.blake2b()
    for producer, one in sorted(hashes.items()):
        whole.update(b"%d:%s" % (producer, one.digest()))
    return whole.hexdigest()
