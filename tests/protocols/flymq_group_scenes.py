"""The broker's state before the golden requests about groups, dead letters and the cluster."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.codecs import flymq
from tests.protocols.flymq_desk import FlymqHouse

BOOM = b'{"id":"m-1","payload":"aGk=","error_message":"boom","retry_count":3}'
SIX = BOOM.replace(b"m-1", b"m-1234")


def nothing(house: FlymqHouse) -> None:
    """Do nothing."""


def committed(house: FlymqHouse) -> None:
    house.produce(*[b"x"] * 43, topic="orders")
    house.ask(flymq.Commit("orders", "g1", 0, 43))


def joined(house: FlymqHouse) -> None:
    """Add a member to the group."""
    committed(house)
    house.ask(flymq.Subscribe("orders", "g1", 0, "latest"))


def dead(house: FlymqHouse) -> None:
    """Make the sixth record a dead letter of the group."""
    committed(house)
    house.broker.leases.dead_letter(
        house.broker.leases.group_partition("orders", "g1", 0, 5), 5, "boom"
    )
    house.run()


def produced(*values: bytes) -> Callable[[FlymqHouse], None]:
    """Return a scene with dead letters that programs have produced."""
    return lambda house: house.produce(*values, topic="orders.dlq")


SCENES: dict[str, Callable[[FlymqHouse], None]] = {
    "seed-12-list-groups": joined,
    "seed-20-fetch-dlq": produced(BOOM),
    "seed-21a-replay-dlq": produced(BOOM),
    "seed-21b-replay-dlq-offset": produced(*[BOOM] * 6),
    "ours-replay-dlq-group": dead,
    "ours-replay-dlq-six-letters": produced(SIX),
    "ours-purge-dlq": dead,
    "ours-cluster-join": nothing,
    "ours-cluster-leave": nothing,
    "ours-cluster-status": nothing,
    "ours-describe-group": joined,
    "ours-describe-group-go": joined,
    "ours-describe-group-java": committed,
    "ours-delete-group": committed,
    "ours-delete-group-go": committed,
    "ours-delete-group-java": committed,
    "ours-seek-to-timestamp": committed,
    "ours-seek-to-timestamp-group": committed,
}
