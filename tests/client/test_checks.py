"""What is wrong with an argument is said by its name, and before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.client import calls
from brokerd.client.calls import batch_message
from brokerd.client.checks import check_number
from brokerd.client.mamamia import MamamiaClient, split_message_id
from brokerd.codecs.mamamia import MAX_LENGTH, BatchSettle, message_id_of
from brokerd.errors import RecordTooLarge

ON = ("orders", "billing", "worker")
MIB = 1 << 20

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: calls.produce(7, 1), TypeError, "log_id must be a str, not a int"),
    (lambda: calls.produce("a", 1, key=7), TypeError, "key must be bytes or str, not a int"),
    (lambda: calls.produce("a", 1, key="\ud800"), ValueError, "key cannot be said in UTF-8"),
    (lambda: calls.produce("a", 1, [1]), TypeError, "metadata must be a dict, not a list"),
    (lambda: calls.produce("a", 1, {"n": object()}), TypeError, "metadata cannot be said"),
    (lambda: calls.produce("a", 2**70), ValueError, "payload cannot be said in MessagePack"),
    (lambda: calls.produce("a", {1, 2}), TypeError, "payload cannot be said in MessagePack"),
    (lambda: calls.produce("a", 1, partition="0"), TypeError, "partition must be an int"),
    (lambda: calls.produce("a", 1, ttl="1"), TypeError, "ttl must be a number of seconds"),
    (lambda: calls.produce("a", 1, delay=float("nan")), ValueError, "delay must be a number"),
    (lambda: calls.acquire(*ON, wait="x"), TypeError, "wait must be a number of seconds"),
    (lambda: calls.acquire("a", None, "c"), TypeError, "group_id must be a str, not None"),
    (lambda: calls.acquire_batch(*ON, "9"), TypeError, "max_messages must be an int"),
    (lambda: calls.settle("a", "g", None, "c"), TypeError, "message_id must be an int, not None"),
    (lambda: calls.settle("a", "g", 2**70, "c"), ValueError, "message_id must be from 0 to"),
    (lambda: calls.settle("a", "g", 1, "c", reason=7), TypeError, "reason must be a str"),
    (lambda: calls.extend(*ON, True), TypeError, "message_id must be an int, not a bool"),
    (lambda: calls.release(*ON, ["1"]), TypeError, r"message_ids\[0\] must be an int"),
    (lambda: calls.cancel("a", -1), ValueError, "schedule_id must be from 0"),
    (
        lambda: calls.produce_batch("a", [batch_message(1), {"n": 1}]),
        TypeError,
        r"messages\[1\] must be made by batch_message, and is a dict",
    ),
    (lambda: calls.produce_batch("a", [], "p"), ValueError, "sequence is missing"),
    (lambda: calls.produce_batch("a", [], None, 1), ValueError, "producer_id is missing"),
    (lambda: calls.produce_batch("a", [], "p", 2**70), ValueError, "sequence must be from 0"),
    (
        lambda: calls.settle_batch(*ON, [5]),
        TypeError,
        r"settles\[0\] must be made by BatchSettle, and is a int",
    ),
    (
        lambda: calls.settle_batch(*ON, [BatchSettle(1, True), BatchSettle(2, True, "t")]),
        TypeError,
        r"settles\[1\]\.token must be an int",
    ),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG)
def test_a_wrong_argument_is_named(
    call: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: calls.produce("a", b"x" * MAX_LENGTH),
        lambda: calls.produce("a", b"", key=b"x" * MAX_LENGTH),
        lambda: calls.produce("a", b"", {"x": b"x" * MAX_LENGTH}),
        lambda: calls.produce("a", b"x" * (MAX_LENGTH - 50)),
        lambda: calls.produce_batch("a", [batch_message(b"x" * MIB)] * 10),
        lambda: calls.produce_batch("a", [batch_message(b"x" * (MAX_LENGTH - 50))]),
    ],
)
def test_what_no_frame_takes_is_refused_before_it_is_sent(call: Callable[[], Any]) -> None:
    """With the size it has and the size it may have."""
    with pytest.raises(RecordTooLarge, match="may have 10485760"):
        call()


def test_what_just_fits_is_sent() -> None:
    calls.produce("a", b"x" * (MAX_LENGTH - 100))
    calls.produce_batch("a", [batch_message(b"x" * MIB)] * 9)


def test_nobody_is_connected_to_for_a_wrong_argument() -> None:
    def connect(*_: Any) -> Any:
        raise AssertionError("nothing is to be sent")

    with pytest.raises(TypeError, match="key must be"):
        MamamiaClient("127.0.0.1:9000", connect=connect).produce("a", 1, key=7)  # type: ignore[arg-type]


def test_an_id_tells_partition_and_offset() -> None:
    assert split_message_id(message_id_of(3, 17)) == (3, 17)


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (0, 1, "from 0 to 1, not 70000000000000000000000"),
        (1, (1 << 64) - 1, "from 1 to 2\\^64 - 1, not 7"),
        (-(1 << 31), (1 << 31) - 1, "from -2\\^31 to 2\\^31 - 1, not 7"),
        (0, 100_000, "from 0 to 100000, not 7"),
    ],
)
def test_the_limits_of_a_number_are_said(least: int, most: int, text: str) -> None:
    check_number("n", least, least, most)
    check_number("n", most, least, most)
    with pytest.raises(ValueError, match=f"^n must be {text}"):
        check_number("n", 7 * 10**22, least, most)
    with pytest.raises(ValueError, match=r"^n must be"):
        check_number("n", least - 1, least, most)


@pytest.mark.parametrize("name", ["flymq", "mega", "rustlog", "blipmq"])
def test_a_client_needs_no_other_formats_codec(name: str) -> None:
    code = f"import sys, brokerd.client.{name}; assert 'brokerd.codecs.mamamia' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
