"""Delayed records, times to live and transactions, as a user of the FlyMQ client sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.client.flymq import ConnectionLost, FlymqClient, FlymqError, Produced
from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from brokerd.errors import RecordTooLarge
from tests.client.flymq_peer import Call, FlymqPeer, client_of, peer

__all__ = ["peer"]

STORED = Produced("t", 1, 7, 5, -1, 2)
STAGED = fm.produced("t", 0, 0, 5, -1, 2, Opcode.TXN_PRODUCE)
BEGUN = fm.transaction_answer(Opcode.TXN_BEGIN, "txn-1")
COMMITTED = fm.transaction_answer(Opcode.TXN_COMMIT, "txn-1")
ROLLED_BACK = fm.transaction_answer(Opcode.TXN_ROLLBACK, "txn-1")
BEGIN, PUT = fm.BeginTransaction(), fm.ProduceInTransaction("txn-1", "t", b"hi")
COMMIT, ROLL_BACK = fm.CommitTransaction("txn-1"), fm.RollBackTransaction("txn-1")

CALLS: list[Call] = [
    (
        lambda c: c.produce_delayed("t", b"hi", 5_000),
        fm.ProduceDelayed("t", b"hi", 5_000),
        fm.produced(*STORED, opcode=Opcode.PRODUCE_DELAYED),
        STORED,
    ),
    (
        lambda c: c.cancel_delayed("t", 7),
        fm.CancelDelayed(7, "t"),
        fm.ok(Opcode.CANCEL_DELAYED),
        None,
    ),
    (
        lambda c: c.produce_with_ttl("t", b"hi", 5_000),
        fm.ProduceWithTtl("t", b"hi", 5_000),
        fm.produced(*STORED, opcode=Opcode.PRODUCE_WITH_TTL),
        STORED,
    ),
    (lambda c: c.transaction().id, BEGIN, BEGUN, "txn-1"),
]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests() == [request_]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_every_call_may_be_refused(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(fm.error("unauthorized", sdk=True))
    with client_of(peer) as client, pytest.raises(FlymqError, match=r"^unauthorized$"):
        call(client)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.produce_delayed("t", "text", 1),
        lambda c: c.produce_with_ttl("t", b"x", -1),
        lambda c: c.produce_delayed("t", b"x", 1 << 63),
        lambda c: c.produce_delayed("t", b"x", 0.5),
        lambda c: c.produce_with_ttl("t", bytes(33_554_405), 1),
        lambda c: c.cancel_delayed("t", "7"),
        lambda c: c.cancel_delayed("t", -1),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_sent(
    peer: FlymqPeer, call: Callable[[FlymqClient], object]
) -> None:
    with client_of(peer) as client, pytest.raises((TypeError, ValueError, RecordTooLarge)):
        call(client)


def test_every_opcode_has_a_call() -> None:
    opcodes = {fm.opcode_of(request) for _, request, _, _ in CALLS}
    opcodes |= {fm.opcode_of(request) for request in (PUT, COMMIT, ROLL_BACK)}
    assert opcodes == {one for one in Opcode if 0x30 <= one <= 0x4F}


class TestTransaction:
    def test_a_block_commits_at_its_end(self, peer: FlymqPeer) -> None:
        peer.will_accept(BEGUN, STAGED, STAGED, COMMITTED, in_bytes=True)
        with client_of(peer) as client, client.transaction() as transaction:
            transaction.produce("t", b"hi")
            transaction.produce("t", b"hi")
        assert peer.requests() == [BEGIN, PUT, PUT, COMMIT]

    def test_a_block_that_commits_or_rolls_back_itself_leaves_nothing_to_do(
        self, peer: FlymqPeer
    ) -> None:
        peer.will_accept(BEGUN, COMMITTED, BEGUN, ROLLED_BACK, in_bytes=True)
        with client_of(peer) as client:
            with client.transaction() as transaction:
                transaction.commit()
            with client.transaction() as transaction:
                transaction.rollback()
        assert peer.requests() == [BEGIN, COMMIT, BEGIN, ROLL_BACK]

    @pytest.mark.parametrize("error", [KeyError("mine"), FileNotFoundError("mine")])
    def test_an_error_in_the_block_rolls_back(self, peer: FlymqPeer, error: Exception) -> None:
        peer.will_accept(BEGUN, STAGED, ROLLED_BACK, in_bytes=True)
        with (
            client_of(peer) as client,
            pytest.raises(type(error), match="mine"),
            client.transaction() as transaction,
        ):
            transaction.produce("t", b"hi")
            raise error
        assert peer.requests() == [BEGIN, PUT, ROLL_BACK]

    def test_a_lost_connection_is_told_and_nothing_is_sent_on_a_new_one(
        self, peer: FlymqPeer
    ) -> None:
        """There the transaction is not known."""
        peer.will_accept(BEGUN, then_close=True)
        with (
            client_of(peer) as client,
            pytest.raises(ConnectionLost),
            client.transaction() as transaction,
        ):
            transaction.produce("t", b"hi")

    def test_a_refused_commit_is_an_error(self, peer: FlymqPeer) -> None:
        """Also where a broker answers that it did not succeed."""
        refused = fm.transaction_answer(Opcode.TXN_COMMIT, "txn-1", False)
        unknown = fm.error("transaction not found: txn-1", sdk=True)
        peer.will_accept(BEGUN, refused, unknown, in_bytes=True)
        with client_of(peer) as client:
            transaction = client.transaction()
            with pytest.raises(FlymqError, match="was not committed"):
                transaction.commit()
            with pytest.raises(FlymqError, match="transaction not found: txn-1"):
                transaction.commit()

    @pytest.mark.parametrize("success", [True, False])
    def test_a_rollback_tells_whether_it_is_gone(self, peer: FlymqPeer, success: bool) -> None:
        answer = fm.transaction_answer(Opcode.TXN_ROLLBACK, "txn-1", success)
        peer.will_accept(BEGUN, answer, in_bytes=True)
        with client_of(peer) as client:
            assert client.transaction().rollback() is success
