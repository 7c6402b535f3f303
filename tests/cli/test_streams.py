"""``brokerctl streams``, as an operator types it."""

from __future__ import annotations

from brokerd.broker.streams import StreamReport
from brokerd.security import OPEN
from tests.cli.shell import Shell


def test_a_stream_is_listed_shown_and_dropped(shell: Shell) -> None:
    assert shell.lines("streams", "list") == ["no streams"]
    shell.caller.house.append("orders", b"x")
    orders = shell.caller.house.broker.topics.existing("orders").topic_id
    report = StreamReport("loader", "", 0, ("orders",), {orders: [0]})
    shell.caller.house.broker.streams.report(OPEN, report)
    shell.caller.house.run()
    header, line = shell.lines("streams", "list")
    assert header.split() == ["NAME", "LAG", "LAG", "BYTES", "LAST", "REPORT", "HOLDS", "TOPICS"]
    assert (line.split()[:2], line.split()[-1]) == (["loader", "1"], "orders")
    assert shell.json("streams", "list")["streams"][0]["lag_records"] == 1
    assert shell.lines("streams", "show", "loader")[-1].split() == ["orders", "0", "0", "1", "1"]
    assert shell.json("streams", "show", "loader")["positions"][0]["offsets"] == [0]
    shell.lines("streams", "drop", "loader", "--yes")
    assert shell.lines("streams", "list") == ["no streams"]
    assert "no stream 'loader'" in shell.refused("streams", "show", "loader")
