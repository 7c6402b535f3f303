# Tests: tests/client/test_flymq_groups.py
"""Methods of `brokerd.client.flymq.FlymqClient` for groups, dead letters and the cluster.

They raise as its other methods do.
"""

from __future__ import annotations

from typing import TypeVar

from brokerd.client.checks import check_number, check_numbers, check_text, kind_of
from brokerd.codecs.flymq import (
    Answer,
    ClusterNodes,
    ClusterStatus,
    DeadLetter,
    DeadLetters,
    DeleteGroup,
    DescribeGroup,
    Done,
    FetchDlq,
    Group,
    Groups,
    JoinCluster,
    LeaveCluster,
    ListGroups,
    Position,
    PurgeDlq,
    ReplayDlq,
    Request,
    SeekToTimestamp,
)

_I32_MAX = (1 << 31) - 1
_I64_MAX = (1 << 63) - 1
_U64_MAX = (1 << 64) - 1

Result = TypeVar("Result", bound=Answer)


class FlymqGroups:
    """Requests about groups, dead letters and the cluster."""

    def _call(self, request: Request, kind: type[Result]) -> Result:
        """Send a request and return its answer. Raises `FlymqError` and what the client raises."""
        raise NotImplementedError

    # -- groups -------------------------------------------------------------------------------

    def list_groups(self) -> tuple[Group, ...]:
        """All groups, with their members and committed offsets; for administrators."""
        return self._call(ListGroups(), Groups).groups

    def describe_group(self, topic: str, group: str) -> Group:
        """Return one group; with an empty `topic` that of the first topic with such a group."""
        check_text(topic=topic, group=group)
        return self._call(DescribeGroup(group, topic), Group)

    def delete_group(self, topic: str, group: str) -> None:
        """Delete a group and its commits; with an empty `topic` in all topics with such a group."""
        check_text(topic=topic, group=group)
        self._call(DeleteGroup(group, topic), Done)

    def seek_to_timestamp(
        self, topic: str, partition: int, time_ms: int, group: str | None = None
    ) -> int:
        """Return the offset of the first record since a time, and commit it for a `group`."""
        check_text(topic=topic)
        check_number("partition", partition, 0, _I32_MAX)
        check_number("time_ms", time_ms, -_I64_MAX - 1, _I64_MAX)
        if group is not None:
            check_text(group=group)
        return self._call(SeekToTimestamp(topic, partition, time_ms, group), Position).offset

    # -- dead letters -------------------------------------------------------------------------

    def fetch_dlq(self, topic: str, max_messages: int = 10) -> tuple[DeadLetter, ...]:
        """Return the first dead letters of a topic."""
        check_text(topic=topic)
        check_numbers(max_messages=max_messages)
        most = min(max_messages, _I32_MAX)
        return self._call(FetchDlq(topic, most), DeadLetters).letters

    def replay_dlq(self, topic: str, message: int | str) -> None:
        """Replay a dead letter by its id, or as a number by its offset."""
        check_text(topic=topic)
        if isinstance(message, str):
            check_text(message=message)
        elif type(message) is int:
            check_number("message", message, 0, _U64_MAX)
        else:
            raise TypeError(f"message must be a str or an int, not {kind_of(message)}")
        self._call(ReplayDlq(topic, message), Done)

    def purge_dlq(self, topic: str) -> None:
        """Purge all dead letters of a topic, if any."""
        check_text(topic=topic)
        self._call(PurgeDlq(topic), Done)

    # -- the cluster --------------------------------------------------------------------------

    def cluster_status(self) -> ClusterNodes:
        """The nodes of the cluster: brokerd is the only one."""
        return self._call(ClusterStatus(), ClusterNodes)

    def cluster_join(self, peer: str) -> None:
        """Ask to join a cluster by ``host:port``, which brokerd refuses."""
        check_text(peer=peer)
        self._call(JoinCluster(peer), Done)

    def cluster_leave(self) -> None:
        """Ask to leave the cluster, which brokerd refuses."""
        self._call(LeaveCluster(), Done)
