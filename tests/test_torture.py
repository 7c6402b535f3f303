"""The torture finds every broken promise it can know of, and a short run of it finds none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.oracle import Hold, Oracle, Origin, make_payload, read_payload
from benchmarks.process import BrokerFailed, BrokerProcess
from benchmarks.torture import torture
from benchmarks.wire import ACQUIRE, PRODUCE, Interrupted, Wire, WireError, dial, request
from brokerd.codecs import mamamia

SEED, LEASE = 7, 2.0
ORIGINS = st.builds(Origin, st.integers(0, 99), st.integers(0, 1 << 40))


class Story:
    """Says what clients see, in short sentences, to an oracle of its own."""

    def __init__(self) -> None:
        self.oracle = Oracle(SEED, LEASE)

    def produced(self, offset: int, number: int | None = None) -> None:
        """The acknowledgement of a record, number ``offset`` of its producer unless said."""
        self.oracle.acknowledge(offset, Origin(0, offset if number is None else number))

    def delivered(
        self,
        offset: int,
        client: str,
        at: float,
        grants: int | None = None,
        payload: bytes | None = None,
        read_after: float = 0.01,
    ) -> Hold:
        """A message that a client asked for at a moment and read a little later."""
        if payload is None:
            payload = make_payload(SEED, Origin(0, offset))
        return self.oracle.deliver(client, offset, payload, grants, at, at + read_after)

    def settled(
        self,
        hold: Hold,
        at: float,
        success: bool = True,
        error: str | None = None,
        is_resent: bool = False,
    ) -> None:
        """The answer to a settle."""
        self.oracle.settling([hold])
        self.oracle.settle(hold, success, error, is_resent, at)

    def failed_to_death(self, offset: int) -> None:
        """Three deliveries, three failures, within a tenth of a lease."""
        for number in range(3):
            hold = self.delivered(offset, "a", number * 0.1)
            self.settled(hold, number * 0.1 + 0.05, success=False)


@pytest.fixture
def story() -> Story:
    """A fresh oracle to tell things to."""
    return Story()


class TestPayload:
    @given(seed=st.integers(0, 1 << 32), origin=ORIGINS)
    def test_a_payload_says_which_record_it_is(self, seed: int, origin: Origin) -> None:
        """Any record is recognised from its bytes alone."""
        assert read_payload(seed, make_payload(seed, origin)) == origin

    @given(origin=ORIGINS, data=st.data())
    def test_a_changed_payload_is_not_recognised(self, origin: Origin, data: st.DataObject) -> None:
        """One flipped bit, a lost tail or a longer one is another payload."""
        payload = make_payload(SEED, origin)
        at = data.draw(st.integers(0, len(payload) - 1))
        flipped = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
        assert read_payload(SEED, flipped) != origin
        assert read_payload(SEED, payload[:-1]) != origin
        assert read_payload(SEED, payload + b"x") is None

    @pytest.mark.parametrize("payload", [None, "text", b"", b"1:2", b"a:b:c", {"a": 1}])
    def test_anything_else_is_not_recognised(self, payload: object) -> None:
        """Whatever a broker makes up raises nothing."""
        assert read_payload(SEED, payload) is None


class TestHonestBroker:
    def test_an_ordinary_life_raises_nothing(self, story: Story) -> None:
        """Produced, delivered, failed, delivered again, settled."""
        story.produced(0)
        story.settled(story.delivered(0, "a", 1.0, grants=1), 1.1, success=False)
        story.settled(story.delivered(0, "b", 1.2, grants=2), 1.3)
        story.oracle.audit(1, {0: make_payload(SEED, Origin(0, 0))}, {})
        assert story.oracle.findings == []

    def test_a_lapsed_lease_may_go_to_somebody_else(self, story: Story) -> None:
        """After its whole duration, and it is counted."""
        late = story.delivered(0, "a", 1.0)
        story.delivered(0, "b", 1.0 + LEASE)
        story.settled(late, 1.2 + LEASE, error="not yours any more")
        assert story.oracle.findings == []
        assert story.oracle.lapsed == 1

    def test_a_message_may_come_again_while_its_settle_is_under_way(self, story: Story) -> None:
        """The answer to a failed settle may be read after the next delivery."""
        hold = story.delivered(0, "a", 1.0)
        story.oracle.settling([hold])
        story.delivered(0, "b", 1.1)
        story.oracle.settle(hold, False, None, False, 1.2)
        assert story.oracle.findings == []

    def test_an_answer_unread_for_a_whole_lease_accuses_nobody(self, story: Story) -> None:
        """It may be older than everything that was read before it."""
        story.settled(story.delivered(0, "b", 4.0), 4.1)
        story.delivered(0, "a", 1.0, read_after=LEASE + 2)
        assert story.oracle.findings == []

    def test_a_resent_failure_may_be_refused(self, story: Story) -> None:
        """The first one may have been carried out, and the message leased to another."""
        hold = story.delivered(0, "a", 1.0)
        story.settled(hold, 1.1, success=False, error="not yours", is_resent=True)
        assert story.oracle.findings == []

    def test_a_failure_whose_resending_was_refused_may_have_counted(self, story: Story) -> None:
        """The message is then dead after two failures that were answered and one that was not."""
        lost = story.delivered(0, "a", 0.0)
        story.settled(lost, 0.5, success=False, error="not yours", is_resent=True)
        for at in (0.1, 0.2):
            story.settled(story.delivered(0, "b", at), at + 0.05, success=False)
        story.oracle.audit(1, {0: make_payload(SEED, Origin(0, 0))}, {0: 3})
        assert story.oracle.findings == []

    def test_a_dead_message_is_a_dead_letter(self, story: Story) -> None:
        """Three failures, and the list has it."""
        story.failed_to_death(0)
        story.oracle.audit(1, {0: make_payload(SEED, Origin(0, 0))}, {0: 3})
        assert story.oracle.findings == []


def _lease_twice(story: Story) -> None:
    story.delivered(0, "a", 1.0)
    story.delivered(0, "b", 1.0 + LEASE / 2)


def _cut_a_lease_short_by_a_restart(story: Story) -> None:
    story.delivered(0, "a", 1.0)
    story.oracle.restarted(gone_at=2.0, launched_at=2.5)
    story.delivered(0, "b", 2.4 + LEASE)


def _deliver_after_settle(story: Story) -> None:
    story.settled(story.delivered(0, "a", 1.0), 1.1)
    story.delivered(0, "b", 9.0)


def _refuse_the_holder(story: Story) -> None:
    story.settled(story.delivered(0, "a", 1.0), 1.1, error="not yours")


def _refuse_the_holder_after_a_restart(story: Story) -> None:
    hold = story.delivered(0, "a", 1.0)
    story.oracle.restarted(gone_at=2.0, launched_at=9.0)
    story.settled(hold, 9.5, error="not yours", is_resent=True)


def _deliver_the_dead(story: Story) -> None:
    story.failed_to_death(0)
    story.delivered(0, "b", 9.0)


def _forget_grants(story: Story) -> None:
    story.settled(story.delivered(0, "a", 1.0, grants=2), 1.1, success=False)
    story.delivered(0, "b", 1.2, grants=2)


def _forget_grants_nobody_told(story: Story) -> None:
    story.settled(story.delivered(0, "a", 1.0), 1.1, success=False)
    story.delivered(0, "b", 1.2, grants=1)


def _reuse_an_offset(story: Story) -> None:
    story.produced(0)
    story.produced(0, number=1)


def _store_once_sent_twice(story: Story) -> None:
    story.produced(0)
    story.produced(1, number=0)


def _garble(story: Story) -> None:
    story.delivered(0, "a", 1.0, payload=b"0:0:garbled")


def _deliver_another_record(story: Story) -> None:
    story.produced(0)
    story.delivered(0, "a", 1.0, payload=make_payload(SEED, Origin(0, 5)))


class TestDishonestBroker:
    @pytest.mark.parametrize(
        ("tell", "finding"),
        [
            (_lease_twice, "went to b while a held it"),
            (_cut_a_lease_short_by_a_restart, "went to b while a held it"),
            (_deliver_after_settle, "after its settle was acknowledged"),
            (_refuse_the_holder, "the live holder of offset 0 was refused"),
            (_refuse_the_holder_after_a_restart, "the live holder of offset 0 was refused"),
            (_deliver_the_dead, "was delivered after 3 failures"),
            (_forget_grants, "came with 2 grants, it must have had 3"),
            (_forget_grants_nobody_told, "came with 1 grants, it must have had 2"),
            (_reuse_an_offset, "offset 0 was acknowledged twice"),
            (_store_once_sent_twice, "was sent once and stands at 0 and 1"),
            (_garble, "holds bytes that nobody sent"),
            (_deliver_another_record, "it was used twice"),
        ],
    )
    def test_each_broken_promise_is_found(
        self, story: Story, tell: Callable[[Story], None], finding: str
    ) -> None:
        """The finding names the offset and what happened to it."""
        tell(story)
        assert any(finding in line for line in story.oracle.findings), story.oracle.findings

    @pytest.mark.parametrize(
        ("next_offset", "present", "dead", "finding"),
        [
            (2, [0], {}, "1 acknowledged records are gone: 1"),
            (3, [0, 1], {}, "1 offsets hold nothing: 2"),
            (1, [0, 1], {}, "1 records lie beyond the end: 1"),
            (2, [0, 1], {1: 3}, "offset 1: dead, 3 failures, 0 were sent"),
            (2, [0, 1], {0: 3}, "settled messages are dead letters: 0"),
        ],
    )
    def test_the_audit_compares_the_whole_log(
        self, story: Story, next_offset: int, present: list[int], dead: dict[int, int], finding: str
    ) -> None:
        """What is gone, made up, or dead without cause is found in the end."""
        for offset in (0, 1):
            story.produced(offset)
            story.settled(story.delivered(offset, "a", 1.0), 1.1)
        records = {offset: make_payload(SEED, Origin(0, offset)) for offset in present}
        story.oracle.audit(next_offset, records, dead)
        assert any(finding in line for line in story.oracle.findings), story.oracle.findings

    def test_a_message_that_must_be_dead_and_is_not_is_found(self, story: Story) -> None:
        """Three certain failures make a dead letter."""
        story.failed_to_death(0)
        story.oracle.audit(1, {0: make_payload(SEED, Origin(0, 0))}, {})
        assert any("are no dead letters: 0" in line for line in story.oracle.findings)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[[bytes], str]]:
    """A function that starts a peer: it reads one request or more, says some bytes, and closes."""
    threads: list[threading.Thread] = []

    def start(reply: bytes) -> str:
        path = str(tmp_path / f"peer{len(threads)}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as accepted:
                accepted.recv(1 << 16)
                accepted.sendall(reply)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"unix:{path}"

    yield start
    for thread in threads:
        thread.join(60)


class TestWire:
    REQUEST = request(PRODUCE, {"log_id": "l", "payload": b"x", "metadata": None})

    def test_answers_come_in_the_order_of_the_requests(self, peer: Callable[[bytes], str]) -> None:
        """As many as were asked for, decoded."""
        with Wire(peer(mamamia.produced(4) + mamamia.produced(5))) as wire:
            answers = wire.exchange([self.REQUEST] * 2)
        assert answers == [{"message_id": 4}, {"message_id": 5}]

    def test_a_broken_connection_hands_over_the_answers_before_it(
        self, peer: Callable[[bytes], str]
    ) -> None:
        """Nobody has to guess what was acknowledged; half an answer is none."""
        address = peer(mamamia.produced(4) + mamamia.produced(5)[:-1])
        with Wire(address) as wire, pytest.raises(Interrupted) as caught:
            wire.exchange([self.REQUEST] * 3)
        assert caught.value.answers == [{"message_id": 4}]

    def test_an_answer_to_something_else_is_refused(self, peer: Callable[[bytes], str]) -> None:
        """Order is the only pairing, so a wrong command means that all is lost."""
        with Wire(peer(mamamia.settled())) as wire, pytest.raises(WireError, match="0x03"):
            wire.exchange([self.REQUEST])

    def test_an_error_answer_is_raised_by_ask(self, peer: Callable[[bytes], str]) -> None:
        """A single question has one answer, and an error is none."""
        with (
            Wire(peer(mamamia.error(ACQUIRE, "no"))) as wire,
            pytest.raises(WireError, match="0x02: no"),
        ):
            wire.ask(ACQUIRE, {})

    def test_dialling_ends_when_it_is_told_to(self, tmp_path: Path) -> None:
        """Nobody waits for ever for a broker that does not come back."""
        tries = [True, True, False]
        assert dial(f"unix:{tmp_path / 'nobody'}", lambda: tries.pop(0)) is None
        assert tries == []


class TestBroker:
    @pytest.mark.slow
    def test_a_short_torture_finds_every_promise_kept(self, tmp_path: Path) -> None:
        """Three SIGKILLs under load on one directory; the documented command does fifty."""
        settings = ("wal.segment_bytes=4MiB", "wal.snapshot_interval_bytes=8MiB")
        with BrokerProcess(tmp_path / "data", tmp_path / "log", settings) as broker:
            summary = torture(
                broker, kills=3, seed=11, producers=2, consumers=4, say=lambda line: None
            )
        assert summary.findings == [], summary.text()
        assert summary.acknowledged > 0
        assert summary.settled > 0

    def test_a_broker_that_cannot_start_is_reported_with_its_log(self, tmp_path: Path) -> None:
        """The last lines of its output say why."""
        settings = ("wal.durability=sometimes",)
        with (
            BrokerProcess(tmp_path / "data", tmp_path / "log", settings) as broker,
            pytest.raises(BrokerFailed, match="durability"),
        ):
            broker.start()
