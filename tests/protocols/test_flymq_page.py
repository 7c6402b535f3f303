"""The page's table of opcodes says what the broker does with each."""

from __future__ import annotations

from brokerd.codecs import flymq
from tests.cross.page import table_of
from tests.protocols.flymq_desk import FlymqHouse

TABLE = table_of("docs/protocols/flymq.rst", "Opcodes")


def answer_to(opcode: int) -> str:
    """What an empty request is refused with; empty if it is not refused."""
    client = FlymqHouse().client()
    client.send_bytes(flymq.frame(opcode, b""))
    client._house.run()
    ((answered, _, payload),) = flymq.FrameReader().feed(client.received_bytes())
    return flymq.error_text(payload) if answered == flymq.Opcode.ERROR else ""


def test_every_opcode_has_its_row() -> None:
    told = {int(number, 16): row["Name"] for number, row in TABLE.items()}
    assert told == {int(one): one.name for one in flymq.Opcode}


def test_what_is_said_to_be_served_is_known_and_nothing_else_is() -> None:
    served = {int(number, 16) for number, row in TABLE.items() if "unknown" not in row["Status"]}
    for opcode in range(256):
        assert answer_to(opcode).startswith("unknown opcode") is (opcode not in served), opcode


def test_a_status_is_one_of_three() -> None:
    """None is half done."""
    for row in TABLE.values():
        status = row["Status"]
        assert status == "served" or status.startswith("always refused: ") or "request" in status
