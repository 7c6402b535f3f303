# Tests: brokerd/groups/dead_letters.py
"""Dead letters are chosen by range, reason and time as if each were looked at."""

from __future__ import annotations

from sys import getsizeof

from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups.dead_letters import DeadLetters

letters = st.dictionaries(
    st.integers(0, 600), st.tuples(st.integers(0, 300), st.integers(-3, 3)), max_size=300
) | st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), min_size=256, max_size=520).map(
    lambda rows: dict(enumerate(rows))
)
bounds = st.integers(0, 601)
reasons = st.none() | st.integers(0, 2)
times = st.none() | st.integers(-3, 4)


@given(letters, bounds, bounds, reasons, times)
def test_choosing_and_taking_out_is_what_a_look_at_each_letter_gives(
    rows: dict[int, tuple[int, int]],
    first: int,
    end: int,
    reason: int | None,
    before_us: int | None,
) -> None:
    table = DeadLetters()
    for offset, (its_reason, last_us) in rows.items():
        table.add(offset, 1, 2, f"reason {its_reason}", -9, last_us)
    asked = {
        offset: before_us is None or last_us < before_us
        for offset, (its_reason, last_us) in rows.items()
        if first <= offset < end and reason in (None, its_reason)
    }
    wanted = "" if reason is None else f"reason {reason}"
    chosen = list(table.select(first, end, wanted, before_us))
    found = {}
    for block, bits, others in chosen:
        for position in range(256):
            if bits >> position & 1:
                found[block * 256 + position] = True
            if others >> position & 1:
                found[block * 256 + position] = False
    assert found == asked
    assert {offset >> 8 for offset in asked} <= {one.block for one in chosen}
    assert [one.block for one in chosen] == sorted({one.block for one in chosen})
    table.remove([(block, bits) for block, bits, _ in chosen if bits])
    left = {offset: row for offset, row in rows.items() if not asked.get(offset)}
    texts = table.reasons.texts
    found_left = [(offset, (texts[row[2]], row[4])) for offset, row in table.items()]
    assert found_left == [(o, (f"reason {left[o][0]}", left[o][1])) for o in sorted(left)]
    assert sorted(texts.values()) == sorted({f"reason {one}" for one, _ in left.values()})
    assert table.count == len(left)
    assert table.reasons.text_bytes == sum(map(getsizeof, texts.values()))
