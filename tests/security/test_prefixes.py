"""Which of many prefixes a name begins with."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from brokerd.security.prefixes import Prefixes

NAMES = st.text(st.sampled_from("ab.\U0001f600"), max_size=6)


@given(st.lists(st.tuples(st.booleans(), NAMES), max_size=30), NAMES)
def test_all_that_a_name_begins_with_are_found_the_longest_first(
    changes: list[tuple[bool, str]], name: str
) -> None:
    prefixes, model = Prefixes(), set()
    for is_added, prefix in changes:
        if is_added:
            prefixes.add(prefix)
            model.add(prefix)
        else:
            prefixes.remove(prefix)
            model.discard(prefix)
    found = list(prefixes.of(name))
    assert set(found) == {one for one in model if name.startswith(one)}
    assert all(len(one) > len(other) for one, other in pairwise(found))


class Counted(str):
    """A text that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: str) -> bool:
        Counted.compared += 1
        return super().__lt__(other)

    def __gt__(self, other: str) -> bool:
        Counted.compared += 1
        return super().__gt__(other)


def test_prefixes_of_many_lengths_that_do_not_fit_cost_next_to_nothing() -> None:
    """Of a name that begins with none of 255, or with one, a few are looked at."""
    prefixes = Prefixes()
    for length in range(1, 256):
        prefixes.add(Counted("z" * length))
    for name, count in (("secret", 0), ("~", 0), ("zebra", 1)):
        Counted.compared = 0
        assert len(list(prefixes.of(Counted(name)))) == count
        assert 0 < Counted.compared < 30
