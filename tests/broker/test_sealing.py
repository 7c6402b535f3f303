"""A segment sealed on request: it is on the disk, index and all, when that is answered."""

from __future__ import annotations

import errno

import pytest

from brokerd.broker.retention.sealing import WAIT_SECONDS
from brokerd.errors import NoSpace
from simulator.machine.bare import WAL_DIR
from tests.broker.desk import produce
from tests.house import House

Answers = list[tuple[int, Exception | None]]


@pytest.fixture
def house() -> House:
    return House()


def seal(house: House) -> Answers:
    """Ask, and do not wait."""
    answers: Answers = []
    house.broker.archive_admin.seal(lambda *answer: answers.append(answer))
    return answers


def indexes(house: House) -> list[str]:
    return [name for name in house.disk.list(WAL_DIR) if name.endswith(".idx")]


def test_all_that_is_written_can_be_archived_then(house: House) -> None:
    """What gathers in the same turn, too."""
    produce(house, "t", b"x")
    answers = seal(house)
    assert not answers
    end_lsn = 0
    while not answers:
        house.turn()
        assert house._step()
        end_lsn = max(end_lsn, house.wal.durable_lsn)
    assert answers == [(end_lsn, None)]
    assert len(indexes(house)) == 1


def test_a_sealed_log_is_not_sealed_again(house: House) -> None:
    """Who asks every minute makes no file a minute."""
    house.append("t", b"x")
    house.pass_time(1)
    first = seal(house)
    house.run()
    files = house.disk.list(WAL_DIR)
    again = seal(house)
    house.run()
    assert again == first
    assert house.disk.list(WAL_DIR) == files


def test_an_empty_log_is_sealed(house: House) -> None:
    answers = seal(house)
    house.run()
    assert answers == [(0, None)]


def test_those_who_ask_at_once_are_all_told(house: House) -> None:
    produce(house, "t", b"x")
    first, second = seal(house), seal(house)
    house.run()
    assert first == second != []


def test_a_full_disk_is_said_at_once(house: House) -> None:
    """There is no room for the file that would come after."""
    house.append("t", b"x")
    house.disk.capacity = house.disk.used_bytes
    house.wal.seal()
    house.append("t", b"y")
    house.run()
    answers = seal(house)
    house.run()
    [(_, error)] = answers
    assert isinstance(error, NoSpace)
    assert "free some space" in str(error)


def test_a_full_disk_is_nothing_to_a_log_that_is_sealed(house: House) -> None:
    """There is nothing to do."""
    house.append("t", b"x")
    house.pass_time(1)
    first = seal(house)
    house.run()
    house.pass_time(1)
    seal(house)
    house.run()
    house.disk.capacity = house.disk.used_bytes
    house.wal.request_room(1 << 30)
    house.run()
    assert house.wal.allocation_error is not None
    answers = seal(house)
    house.run()
    assert answers == [(house.wal.durable_lsn, None)]
    assert first[0][1] is None


def test_who_was_answered_is_not_waited_for(house: House) -> None:
    """The time of one that is sealed ends nobody else's."""
    house.append("t", b"x")
    seal(house)
    house.pass_time(WAIT_SECONDS - 1)
    house.append("t", b"y")
    house.disk.fail("create", 2, errno.ENOSPC)
    answers = seal(house)
    house.pass_time(2)
    assert not answers
    house.pass_time(WAIT_SECONDS)
    assert len(answers) == 1


def test_an_index_that_is_not_written_is_said_after_a_while(house: House) -> None:
    """And written when there is room again."""
    house.append("t", b"x")
    house.run()
    house.disk.fail("create", 2, errno.ENOSPC)  # after the next spare
    answers = seal(house)
    house.pass_time(WAIT_SECONDS / 2)
    assert not answers
    house.pass_time(WAIT_SECONDS)
    [(_, error)] = answers
    assert isinstance(error, NoSpace)
    house.wal.retry_allocation()
    answers = seal(house)
    house.run()
    assert answers == [(house.wal.durable_lsn, None)]


def test_a_request_fails_at_its_own_time(house: House) -> None:
    """The timer of an earlier request does not end a later one."""
    house.append("t", b"x")
    house.run()
    house.disk.fail("create", 2, errno.ENOSPC)  # after the next spare
    first = seal(house)
    house.pass_time(WAIT_SECONDS / 2)
    house.disk.fail("create", 2, errno.ENOSPC)
    second = seal(house)
    house.pass_time(WAIT_SECONDS / 2 + 1)
    assert isinstance(first[0][1], NoSpace)
    assert not second
    house.pass_time(WAIT_SECONDS / 2)
    assert isinstance(second[0][1], NoSpace)


def test_a_stop_answers_nobody(house: House) -> None:
    """Nor does it leave a timer behind."""
    house.append("t", b"x")
    house.disk.fail("create", 2, errno.ENOSPC)
    answers = seal(house)
    house.run()
    house.stop()
    assert house.clock.getDelayedCalls() == []
    assert not answers
