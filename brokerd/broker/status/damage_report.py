# Tests: tests/broker/test_recovery.py, tests/broker/test_repair.py
"""Reports damage of the log by names of topics and by places in files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

from brokerd.archive.contract.bounds import DamagedPlace
from brokerd.broker.model.state import State
from brokerd.broker.status.damage import DamagedBytes, DamageRegistry, OffsetRange
from brokerd.wal import Damage, RecoveryReport


class DamageReport:
    """Puts the damage that the replay found into the registry, and lists all damaged places."""

    def __init__(self, state: State, registry: DamageRegistry) -> None:
        self._state = state
        self._registry = registry

    def add_replayed(self, report: RecoveryReport) -> None:
        """Report the damage that a replay found, the damage that a repair recorded, and gaps."""
        for damage in self._state.recorded.values():
            self._registry.on_record(_place(damage), self._ranges(damage))
        for damage in report.damages:
            self._registry.found(_place(damage), self._ranges(damage))
        for partition, gaps in self._state.new_gaps.items():
            for first, end in gaps:
                self._registry.left_out(
                    OffsetRange(partition.topic.name, partition.index, first, end)
                )

    def places(self) -> set[DamagedPlace]:
        """Return the places of the log that are damaged or were damaged before a repair."""
        known = {(place.file, place.position, place.end) for place in self._state.known_damage}
        return set(
            starmap(DamagedPlace, known.union(self._state.recorded, self._registry.known_places()))
        )

    def _ranges(self, damage: Damage) -> Iterator[OffsetRange]:
        for topic_id, partition, first, end in damage.lost:
            topic = self._state.by_id.get(topic_id)
            name = f"(id {topic_id})" if topic is None else topic.name
            yield OffsetRange(name, partition, first, end)


def _place(damage: Damage) -> DamagedBytes:
    return DamagedBytes(damage.name, damage.position, damage.end, damage.problem)
