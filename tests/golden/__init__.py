"""The golden bytes of every wire format, for the codecs and the broker alike."""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent


def golden(form: str) -> dict[tuple[str, str], bytes]:
    """Return the bytes by (name, ``>`` or ``<``), in the order of the file."""
    lines = (line.split(" ", 2) for line in (DIRECTORY / f"{form}.txt").read_text().splitlines())
    return {(name, way): bytes.fromhex(text) for name, way, text in lines}
