"""What was used last is kept, up to some number and some size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.storage.lru import LruCache


def test_what_was_used_last_is_kept() -> None:
    recent: LruCache[str] = LruCache(2, 100)
    recent.put("a", "A", 1)
    recent.put("b", "B", 1)
    assert recent.get("a") == "A"
    recent.put("c", "C", 1)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == ("A", None, "C")


def test_one_value_is_kept_however_large_it_is() -> None:
    recent: LruCache[str] = LruCache(9, 100)
    recent.put("a", "A", 50)
    recent.put("b", "B", 500)
    assert (recent.get("a"), recent.get("b")) == (None, "B")


def test_dropped_values_free_their_bytes() -> None:
    recent: LruCache[str] = LruCache(9, 100)
    for key in ("a", "b", "c"):
        recent.put(key, key.upper(), 30)
    recent.drop(["a", "c", "d"])
    assert (recent.all_keys(), recent.used_bytes) == (["b"], 30)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50))))
def test_neither_limit_is_passed(puts: list[tuple[int, int]]) -> None:
    recent: LruCache[int] = LruCache(5, 100)
    for key, size in puts:
        recent.put(key, size, size)
        kept = [recent.get(key) for key in range(10)]
        sizes = [size for size in kept if size is not None]
        assert recent.get(key) == size
        assert recent.used_bytes == sum(sizes) <= 100
        assert len(recent) == len(sizes) <= 5
