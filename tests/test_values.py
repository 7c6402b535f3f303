"""What everybody shares: numbers that stand in journals and on wires, and named errors."""

from __future__ import annotations

import inspect

import pytest

from brokerd import errors
from brokerd.errors import BrokerdError
from brokerd.values import (
    MAX_PARTITIONS,
    Encoding,
    Format,
    Record,
    message_id_of,
    split_message_id,
)

ERRORS = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, BrokerdError)
]


def test_numbers_in_journals_never_change() -> None:
    """A journal of any age is read with the same meaning; new ones are added at the end."""
    assert [(form.name, form.value) for form in Format] == [
        ("UNKNOWN", 0),
        ("MAMAMIA", 1),
        ("FLYMQ", 2),
        ("BLIPMQ", 3),
        ("RUSTLOG", 4),
        ("MEGA", 5),
    ]
    assert [(form.name, form.value) for form in Encoding] == [
        ("BYTES", 0),
        ("TEXT", 1),
        ("MSGPACK", 2),
    ]


def test_values_cannot_be_changed() -> None:
    """What one room hands to another stays as it was."""
    with pytest.raises(AttributeError):
        Record(1, b"x").offset = 2  # type: ignore[misc]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_says_what_it_means(error: type[BrokerdError]) -> None:
    """By its docstring for us, by its text for users."""
    assert error.__doc__
    assert str(error("what, where, what to do")) == "what, where, what to do"


def test_only_what_may_pass_by_itself_is_worth_trying_again() -> None:
    """Clients repeat a request unchanged only after these."""
    retryable = {error.__name__ for error in ERRORS if error.retryable}
    logins = {"LoginThrottled", "TooManyLogins"}
    assert retryable == {"NoSpace", "LimitExceeded", "ShuttingDown", *logins}


@pytest.mark.parametrize(
    ("partition", "offset", "message_id"),
    [
        (0, 0, 0),
        (0, 41, 41),
        (1, 5, 0x0001_0000_0000_0005),
        (MAX_PARTITIONS - 1, (1 << 48) - 1, 0x7FFE_FFFF_FFFF_FFFF),
    ],
)
def test_a_message_id_says_partition_and_offset(
    partition: int, offset: int, message_id: int
) -> None:
    """Clients keep ids, and so do journals; the largest is a signed 64-bit number."""
    assert message_id_of(partition, offset) == message_id
    assert split_message_id(message_id) == (partition, offset)


def test_control_characters_in_texts_become_escapes_and_nothing_else_changes() -> None:
    assert errors.escaped("héllo \u2028 \U0001f600\\") == "héllo \u2028 \U0001f600\\"
    assert errors.escaped("\x00a\t\x1f\x7f\x9f\xa0") == r"\x00a\x09\x1f\x7f\x9f" + "\xa0"
