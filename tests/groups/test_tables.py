# Tests: brokerd/groups/tables.py
"""A large table is a dict to whoever uses it, and its frozen copies stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups import tables
from brokerd.groups.tables import LARGE, Shards, frozen, grown

keys = st.integers(0, 5).map(lambda n: n * 37) | st.integers(0, 1 << 40)
steps = st.lists(st.tuples(st.sampled_from(["put", "del", "pop", "freeze"]), keys), max_size=60)


@given(st.dictionaries(keys, st.integers()), steps)
def test_shards_do_what_a_dict_does(entries: dict[int, int], steps: list[tuple[str, int]]) -> None:
    table, model = Shards(entries), dict(entries)
    copies = []
    for number, (what, key) in enumerate(steps):
        if what == "put":
            table[key] = model[key] = number
        elif what == "pop":
            assert table.pop(key, None) == model.pop(key, None)
        elif what == "freeze":
            copies.append((frozen(table), dict(model)))
        elif key in model:
            del table[key]
            del model[key]
        else:
            with pytest.raises(KeyError):
                del table[key]
        assert len(table) == len(model)
        assert (key in table, table.get(key)) == (key in model, model.get(key))
    for found, expected in [(table, model), *copies]:
        assert dict(found.items()) == expected
        assert sorted(found) == sorted(expected)
        assert len(found) == len(expected)


def test_a_small_table_is_a_dict_and_a_large_one_is_in_shards() -> None:
    small, large = dict.fromkeys(range(LARGE - 1), 0), dict.fromkeys(range(LARGE), 0)
    assert grown(small) is small
    table = grown(large)
    assert isinstance(table, Shards)
    assert grown(table) is table


def test_freezing_copies_no_entry() -> None:
    """And a write copies the entries of one shard, once."""
    table = Shards(dict.fromkeys(range(200_000), 0))
    copy = table.frozen()
    assert isinstance(copy, Shards)
    shared = [one is other for one, other in zip(copy._shards, table._shards, strict=True)]
    assert shared == [True] * tables.SHARD_COUNT
    table[0] = table[1] = 1
    shared = [one is other for one, other in zip(copy._shards, table._shards, strict=True)]
    assert shared.count(False) == 1
    shard = table._shards[0]
    table[2] = 1
    assert table._shards[0] is shard
    assert (copy[0], copy[2]) == (0, 0)
