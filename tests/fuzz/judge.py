"""Check that the bytes received on a connection are answers, and as many as due."""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz.found import Found
from tests.fuzz.wire import FuzzedFormat


class Judged(NamedTuple):
    """The judgement of a connection."""

    requests: int
    answers: int


def judge(
    wire: FuzzedFormat, frame_bytes: int, taken: bytes, received: bytes, ending: str
) -> Judged:
    """Judge the answers to the bytes that the broker took.

    :param frame_bytes: the broker's limit on a frame.
    :raises Found: of kind ``answers``.
    """
    requests, is_wrong = wire.split(taken, min(frame_bytes, wire.frame_bytes_max))
    try:
        answers = wire.read_answers(received, requests)
    except Exception as error:
        raise Found("answers", f"{error!r} in {received[-200:].hex(' ')}") from error
    if answers > len(requests) + (is_wrong or ending == "silence"):
        raise Found("answers", f"{answers} answers to {len(requests)} requests")
    if ending in ("eof", "haste"):
        _judge_missing(wire, answers, requests)
    return Judged(len(requests), answers)


def _judge_missing(wire: FuzzedFormat, answers: int, requests: list[bytes]) -> None:
    """Check that all requests before the first one that may end the connection are answered."""
    owed = 0
    for request in requests:
        if wire.closes_upon(request):
            break
        owed += wire.owes(request)
    if answers < owed:
        last = requests[answers : answers + 1] or [b""]
        raise Found(
            "answers",
            f"{answers} answers where {owed} are owed, perhaps to {last[0][:200].hex(' ')}",
        )
