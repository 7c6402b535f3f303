"""Shrink a case to the parts that its failure needs: connections first, then chunks, then bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.fuzz.case import Case, Delivery

T = TypeVar("T", bound=Sequence[object])


def shrink(case: Case, fails: Callable[[Case], bool], is_over: Callable[[], bool]) -> Case:
    """Return the smallest case found that still fails; ``case`` itself must fail."""
    best = case

    def better(candidate: Case) -> bool:
        nonlocal best
        if is_over() or not fails(candidate):
            return False
        best = candidate
        return True

    _shorten(
        best.deliveries, lambda left: bool(left) and better(best._replace(deliveries=tuple(left)))
    )
    for index in range(len(best.deliveries)):
        better(_with(best, index, best.deliveries[index]._replace(reads=True)))
        better(_with(best, index, best.deliveries[index]._replace(ending="eof")))
        better(_with(best, index, best.deliveries[index]._replace(beside=False)))
        delivery = best.deliveries[index]
        joined = delivery._replace(chunks=(b"".join(delivery.chunks),))
        if len(delivery.chunks) > 1 and not better(_with(best, index, joined)):
            _shorten(
                delivery.chunks,
                lambda left, at=index, like=delivery: better(  # type: ignore[misc]
                    _with(best, at, like._replace(chunks=tuple(left)))
                ),
            )
        for at in range(len(best.deliveries[index].chunks)):
            _shorten(
                best.deliveries[index].chunks[at],
                lambda left, index=index, at=at: better(  # type: ignore[misc]
                    _with_chunk(best, index, at, left)
                ),
            )
    return best


def _shorten(whole: T, keeps: Callable[[T], bool]) -> None:
    """Remove halves, quarters and so on down to single items, as long as ``keeps`` allows it."""
    size = max(1, len(whole) // 2)
    while True:
        at = 0
        while at < len(whole):
            left: T = whole[:at] + whole[at + size :]  # type: ignore[operator]
            if keeps(left):
                whole = left
            else:
                at += size
        if size == 1:
            return
        size //= 2


def _with(case: Case, index: int, delivery: Delivery) -> Case:
    before, after = case.deliveries[:index], case.deliveries[index + 1 :]
    return case._replace(deliveries=(*before, delivery, *after))


def _with_chunk(case: Case, index: int, at: int, chunk: bytes) -> Case:
    delivery = case.deliveries[index]
    pieces = (*delivery.chunks[:at], chunk, *delivery.chunks[at + 1 :])
    return _with(case, index, delivery._replace(chunks=tuple(filter(None, pieces))))
