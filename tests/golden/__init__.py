"""The golden bytes of every wire format, which the codecs and the broker read and write alike."""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent


def golden(form: str) -> dict[tuple[str, str], bytes]:
    """What (name, ``>`` or ``<``) is on the wire, in the order of the file."""
    lines = (line.split(" ", 2) for line in (DIRECTORY / f"{form}.txt").read_text().splitlines())
    return {(name, way): bytes.fromhex(text) for name, way, text in lines}
