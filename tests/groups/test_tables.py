# Tests: brokerd/groups/tables.py
"""A large table is a dict to whoever uses it, and its frozen copies stay as they are."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups import tables
from brokerd.groups.tables import LARGE, Shards, freeze_table, grow

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
            copies.append((freeze_table(table), dict(model)))
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
    assert grow(small) is small
    table = grow(large)
    assert isinstance(table, Shards)
    assert grow(table) is table


def test_freezing_copies_no_entry() -> None:
    """And a write copies the entries of one shard, once."""
    table = Shards(dict.fromkeys(range(200_000), 0))
    copy = table.freeze()
    assert isinstance(copy, Shards)
    assert table.pop(-1, None) is None
    again = table.freeze()
    assert isinstance(again, Shards)
    shared = [one is other for one, other in zip(copy.shards, again.shards, strict=True)]
    assert shared == [True] * tables.SHARD_COUNT
    table[0] = table[1] = 1
    own = [type(shard) is dict for shard in table.shards]
    assert own.count(True) == 1
    shard = table.shards[0]
    table[2] = 1
    assert table.shards[0] is shard
    assert (copy[0], copy[2], table[2]) == (0, 0, 1)


def test_a_shard_that_was_looked_up_before_its_first_write_stays_the_same_table() -> None:
    table = Shards({5: 1})
    copy = table.freeze()
    shard = table.shards[0]
    shard[5] = 2
    shard[6] = 3
    assert dict(table.items()) == {5: 2, 6: 3}
    assert shard.get(5) == 2
    assert dict(copy.items()) == {5: 1}


def test_a_table_that_nobody_uses_any_more_is_gone_at_once() -> None:
    """Without the garbage collector, frozen or not."""
    table: Shards[int] = Shards({1: 1})
    copy = table.freeze()
    alive = weakref.ref(table)
    del table
    assert alive() is None
    assert dict(copy.items()) == {1: 1}
