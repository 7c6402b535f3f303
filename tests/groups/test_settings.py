# Tests: brokerd/groups/settings.py
"""Group settings: what is refused, and that they survive the journal."""

from __future__ import annotations

import pytest
from hypothesis import given

from brokerd.errors import InvalidRequest
from brokerd.groups import GroupSettings
from tests.strategies.groups import group_settings


@given(group_settings())
def test_settings_come_back_from_json_as_they_were(settings: GroupSettings) -> None:
    assert GroupSettings.from_json(settings.to_json()) == settings


def test_what_json_leaves_out_takes_its_default() -> None:
    assert GroupSettings.from_json('{"max_attempts":7}') == GroupSettings(max_attempts=7)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_attempts": 0}, "max_attempts is 0; use an integer from 1"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"max_attempts": 2.0}, "max_attempts is 2.0"),
        ({"attempts": "leases"}, "attempts is 'leases'; use 'failures' or 'grants'"),
        ({"backoff_base_us": -1}, "backoff_base_us is -1"),
        ({"backoff_max_us": 1 << 70}, "backoff_max_us"),
        ({"key_ordered": 1}, "key_ordered is 1; use true or false"),
        ({"lease_doubling": "yes"}, "lease_doubling is 'yes'; use true or false"),
        ({"default_duration_us": "30"}, "default_duration_us is '30'"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(values: dict, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        GroupSettings(**values)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"max_atempts": 3}', "unknown group setting 'max_atempts'"),
    ],
)
def test_text_that_is_no_settings_is_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        GroupSettings.from_json(text)


def test_back_off_doubles_is_bounded_and_never_overflows() -> None:
    settings = GroupSettings(backoff_base_us=10, backoff_max_us=50)
    assert [settings.backoff_us(n) for n in (0, 1, 2, 3, 4, 1_000_000)] == [0, 10, 20, 40, 50, 50]


def test_a_back_off_above_its_maximum_is_refused_and_read_from_an_old_journal() -> None:
    """Earlier versions accepted it, so that journals and snapshots may have it."""
    settings = GroupSettings.from_json('{"backoff_base_us":20000000,"backoff_max_us":500000}')
    assert settings.backoff_us(1) == 500_000
    with pytest.raises(InvalidRequest, match=r"\(20 s\) is longer than .* \(0.5 s\); lower"):
        settings.check_backoff()
    GroupSettings(backoff_base_us=5, backoff_max_us=5).check_backoff()


def test_leases_double_are_bounded_and_never_shorter_than_asked_for() -> None:
    settings = GroupSettings(lease_doubling=True, backoff_max_us=50)
    assert [settings.lease_us(10, n) for n in (1, 2, 3, 4, 1_000_000)] == [10, 20, 40, 50, 50]
    assert [settings.lease_us(70, n) for n in (1, 2, 3)] == [70, 70, 70]
    assert [GroupSettings().lease_us(10, n) for n in (1, 2, 3)] == [10, 10, 10]


def test_settings_without_doubling_are_written_as_before_there_was_any() -> None:
    """So that an earlier version reads them."""
    assert "lease_doubling" not in GroupSettings().to_json()
    assert "lease_doubling" in GroupSettings(lease_doubling=True).to_json()
