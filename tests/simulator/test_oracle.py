"""Each check of the oracle: a history that keeps the promise, and one beside it that breaks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator import oracle
from simulator.history.operations import (
    NEVER,
    ClockStep,
    Delivery,
    GroupView,
    Letter,
    Message,
    Place,
)
from simulator.oracle import check, judge
from tests.simulator import (
    test_oracle_archive,
    test_oracle_changes,
    test_oracle_limits,
    test_oracle_offsets,
    test_oracle_subscriptions,
    test_oracle_transactions,
)
from tests.simulator.story import LEASE_LOST, NOT_OWNER, SECOND_US, UNKNOWN, Story
from tests.simulator.tales import Tale, Tales, told

TALES = Tales()
breaks = TALES.breaks
PAGE = Path(__file__).parents[2] / "docs" / "simulator.rst"

# -- records ---------------------------------------------------------------------------------------


@breaks("P2-content")
def a_payload_that_nobody_sent(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"x" if wrong else b"a"))


@breaks("P2-content")
def a_record_seen_before_it_was_sent(story: Story, wrong: bool) -> None:
    if wrong:
        story.acquire((0, b"a"))
    story.produce(b"a", **story.no_answer())
    story.acquire((0, b"a"), group="h")


@breaks("P1-content")
def metadata_that_is_lost(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", metadata=b"m"))
    metadata = None if wrong else b"m"
    story.acquire(Delivery(Place(0, 0), b"a", metadata=metadata, token=1, grants=1))


@breaks("P1-content")
def metadata_that_is_made_up(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a"))
    story.acquire(Delivery(Place(0, 0), b"a", metadata=b"m" if wrong else None))


@breaks("P1-content")
def a_key_that_changed(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", key=b"k"))
    story.acquire(Delivery(Place(0, 0), b"a", key=b"q" if wrong else b"k", token=1, grants=1))


@breaks("P2-reuse")
def an_offset_given_to_two_payloads(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.restart("power")
    story.produce(b"b", at=(0,) if wrong else (1,))


@breaks("P2-reuse")
def an_offset_whose_first_payload_was_only_seen(story: Story, wrong: bool) -> None:
    story.produce(b"a", **story.no_answer())
    if wrong:
        story.acquire((0, b"a"))
    story.restart("power")
    story.produce(b"b", at=(0,))


@breaks("P2-reuse", durability="os")
def an_offset_of_a_record_that_had_outlived_its_boot(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.restart("power", power_lost=True)
    if wrong:
        story.acquire((0, b"a"))
    story.produce(b"b", at=(0,))


@breaks("P2-reuse", durability="os")
def an_offset_reused_although_the_power_stayed(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.restart("killed", power_lost=not wrong)
    story.produce(b"b", at=(0,))


@breaks("P2-once")
def a_message_stored_twice(story: Story, wrong: bool) -> None:
    story.produce(b"a", **story.no_answer())
    story.acquire((0, b"a"))
    if wrong:
        story.acquire((1, b"a"))


@breaks("P2-once")
def an_acknowledged_message_at_another_place(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((1 if wrong else 0, b"a"))


@breaks("P8-produce")
def a_refused_message_that_is_there(story: Story, wrong: bool) -> None:
    story.produce(b"a", at=(), error="the disk is full" if wrong else "", **story.no_answer())
    if wrong:
        story.history.operations[0].answered_us = story.now_us
    story.acquire((0, b"a"))


@breaks("P2-batch")
def a_batch_with_too_few_places(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0,) if wrong else (0, 1))


@breaks("P2-batch")
def half_a_batch(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1), **story.no_answer())
    story.restart("power")
    records = [(0, b"a")] if wrong else [(0, b"a"), (1, b"b")]
    story.audit(*records, drain=records)


@breaks("P2-partition")
def a_message_in_a_partition_it_did_not_ask_for(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", partition=1 if wrong else 0))


@breaks("P2-partition")
def a_key_in_two_partitions(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", key=b"k"))
    story.produce(Message(b"b", key=b"k"), places=(Place(1, 0),) if wrong else (Place(0, 1),))


@breaks("P2-order")
def an_earlier_offset_for_a_later_message(story: Story, wrong: bool) -> None:
    story.produce(b"a", at=(1 if wrong else 0,))
    story.produce(b"b", at=(0 if wrong else 1,))


@breaks("P2-order")
def pipelined_messages_out_of_order(story: Story, wrong: bool) -> None:
    story.produce(b"a", at=(1,), connection=7, written_us=9_000, answered_us=9_000)
    story.produce(b"b", at=(0,), connection=7 if wrong else 8, written_us=9_000, answered_us=9_000)


@breaks("P2-order")
def a_batch_out_of_order(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(1, 0) if wrong else (0, 1))


# -- the audit -------------------------------------------------------------------------------------


@breaks("P1-kept")
def an_acknowledged_record_that_is_gone(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.produce(b"b", at=(1,))
    story.restart("power")
    records = [(0, b"a")] if wrong else [(0, b"a"), (1, b"b")]
    story.audit(*records, drain=records)


@breaks("P1-kept")
def a_record_that_was_seen_and_is_gone(story: Story, wrong: bool) -> None:
    story.produce(b"a", **story.no_answer())
    if wrong:
        story.acquire((0, b"a"))
    story.restart("power")
    story.audit()


@breaks("P1-kept", durability="os")
def a_record_gone_although_it_had_been_seen_after_a_power_loss(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.restart("power", power_lost=True)
    if wrong:
        story.acquire((0, b"a"))
        story.restart("killed", power_lost=False)
    story.audit()


@breaks("P1-kept")
def a_record_that_the_broker_denies(story: Story, wrong: bool) -> None:
    if wrong:
        story.produce(b"a")
    story.settle(0, result=UNKNOWN)


@breaks("P1-suffix", durability="interval:50")
def a_record_lost_from_between(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.produce(b"b", at=(1,))
    story.restart("power", power_lost=True)
    records = [(1, b"b")] if wrong else [(0, b"a")]
    story.audit(*records, drain=records)


@breaks("P2-dense")
def an_offset_left_out(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.produce(b"b", at=(2 if wrong else 1,))
    records = [(0, b"a"), (2 if wrong else 1, b"b")]
    story.audit(*records, drain=records)


@breaks("P2-next")
def a_next_offset_beyond_what_is_there(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.produce(b"b", at=(1,), **story.no_answer())
    story.restart("power")
    story.audit((0, b"a"), drain=[(0, b"a")])
    count = 2 if wrong else 1
    story.look(GroupView(count, count, 0, 0, 0, 0, 0))


@breaks("audit")
def a_topic_that_was_not_read(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    if wrong:
        story.history.audit_us = story.now_us
    else:
        story.audit((0, b"a"), drain=[(0, b"a")])


@breaks("audit")
def a_group_that_was_not_drained_to_the_end(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.audit((0, b"a"), drain=[(0, b"a")])
    if wrong:
        story.history.operations.pop()


# -- leases ----------------------------------------------------------------------------------------


@breaks("P3-one-lease")
def a_record_given_out_while_its_lease_lives(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.wait(0 if wrong else SECOND_US)
    story.acquire((0, b"a"), client="d")


@breaks("P3-one-lease")
def a_lease_that_was_extended_and_ends_early(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.extend(0, 2 * SECOND_US)
    story.wait(1 * SECOND_US if wrong else 2 * SECOND_US)
    story.acquire((0, b"a"), client="d")


@breaks("P3-one-lease")
def a_lease_that_does_not_begin_anew_after_a_restart(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.wait(SECOND_US // 2)
    story.restart("power")
    story.wait(SECOND_US // 2 if wrong else SECOND_US)
    story.acquire((0, b"a"), client="d")


@breaks("P3-one-lease")
def an_extension_that_a_restart_forgets(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.extend(0, 3 * SECOND_US)
    story.restart("killed")
    story.wait(2 * SECOND_US if wrong else 3 * SECOND_US)
    story.acquire((0, b"a"), client="d")


@breaks("P3-one-lease")
def a_long_poll_given_a_record_too_early(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    asked_us = story.now_us
    story.wait(SECOND_US // 2 if wrong else SECOND_US)
    story.acquire(
        (0, b"a"), client="d", wait_us=5 * SECOND_US, sent_us=asked_us, arrived_us=asked_us
    )


@breaks("P3-one-lease")
def a_short_lease_behind_a_long_poll_may_be_over(story: Story, wrong: bool) -> None:
    """Its answer waits for the one before it on the connection, so another's comes first."""
    story.produce(b"a")
    late = {"written_us": 9 * SECOND_US, "answered_us": 9 * SECOND_US}
    story.acquire((0, b"a"), **(late if not wrong else {}))
    story.wait(SECOND_US + (-500_000 if wrong else 0))
    story.acquire((0, b"a"), client="d")


@breaks("P3-grants")
def a_grant_that_is_told_twice(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire(Delivery(Place(0, 0), b"a", token=1, grants=1))
    story.wait(SECOND_US)
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=1 if wrong else 2))


@breaks("P3-grants")
def a_count_of_grants_that_a_restart_forgets(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.restart("killed")
    story.wait(2 * SECOND_US)
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=1 if wrong else 2))


@breaks("P3-grants")
def a_grant_too_many_that_nobody_can_have_had(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    if not wrong:
        story.acquire(duration_us=0, **story.no_answer())
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=2))


@breaks("P3-token")
def a_token_given_to_two_records(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire(Delivery(Place(0, 0), b"a", token=1, grants=1))
    story.acquire(Delivery(Place(0, 1), b"b", token=1 if wrong else 2, grants=1))


@breaks("P3-token")
def a_token_smaller_than_one_before(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire(Delivery(Place(0, 0), b"a", token=5, grants=1))
    story.restart("power")
    story.acquire(Delivery(Place(0, 1), b"b", token=4 if wrong else 6, grants=1))


@breaks("P3-token")
def a_settle_with_the_token_of_another_grant(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire(Delivery(Place(0, 0), b"a", token=3, grants=1))
    story.wait(2 * SECOND_US)
    story.settle(0, token=2 if wrong else 3)


@breaks("P3-owner")
def a_settle_by_another_while_the_lease_lives(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.wait(0 if wrong else SECOND_US)
    story.settle(0, client="d")


@breaks("P3-owner")
def a_failure_by_another_while_the_lease_lives(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, client="d" if wrong else "c")
    story.acquire((0, b"a"))


@breaks("P3-refusal")
def a_settle_refused_although_nobody_else_has_a_lease(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.wait(SECOND_US if wrong else 0)
    story.settle(0, result=NOT_OWNER, client="d")


@breaks("P3-refusal")
def an_owner_who_is_told_that_it_is_not(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, result=NOT_OWNER, client="c" if wrong else "d")


@breaks("P3-refusal")
def a_late_settle_with_the_right_token_that_is_refused(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire(Delivery(Place(0, 0), b"a", token=3, grants=1))
    story.wait(2 * SECOND_US)
    story.settle(0, token=3 if wrong else 2, result=LEASE_LOST)


@breaks("P3-refusal")
def a_holder_who_may_not_settle_after_a_restart(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire(Delivery(Place(0, 0), b"a", token=3, grants=1))
    story.restart("power")
    story.settle(0, token=3, result=LEASE_LOST if wrong else "")


@breaks("P3-refusal")
def an_extension_refused_while_the_lease_lives(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.wait(0 if wrong else SECOND_US)
    story.extend(0, error=LEASE_LOST)


@breaks("P3-extend")
def an_extension_of_a_lease_that_is_over(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.wait(SECOND_US if wrong else 0)
    story.extend(0)


@breaks("P3-extend")
def an_extension_of_another_ones_lease(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.extend(0, client="d" if wrong else "c")


@breaks("P3-extend")
def an_extension_by_less_than_was_asked(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.extend(0, remaining_us=SECOND_US // 2 if wrong else SECOND_US)


@breaks("P3-answer")
def more_records_than_were_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"), (1, b"b"), limit=1 if wrong else 2)


@breaks("P3-answer")
def one_record_twice_in_an_answer(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"), (0, b"a") if wrong else (1, b"b"), duration_us=0)


@breaks("P3-answer")
def more_time_than_was_asked_for(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    remaining_us = SECOND_US * 2 if wrong else SECOND_US
    story.acquire(Delivery(Place(0, 0), b"a", token=1, grants=1, remaining_us=remaining_us))


@breaks("P3-order")
def a_settle_accepted_before_the_record_was_sent(story: Story, wrong: bool) -> None:
    if wrong:
        story.settle(0)
    story.produce(b"a")
    story.settle(0)


@breaks("P3-lowest")
def a_record_that_was_passed_over(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    first, second = ((1, b"b"), (0, b"a")) if wrong else ((0, b"a"), (1, b"b"))
    for token, (offset, payload) in enumerate((first, second), 1):
        story.acquire(Delivery(Place(0, offset), payload, token=token, grants=1))


# -- settled and dead records ----------------------------------------------------------------------


@breaks("P1-settled")
def a_settled_record_given_out_again(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    if wrong:
        story.settle(0)
    story.restart("power")
    story.wait(2 * SECOND_US)
    story.acquire((0, b"a"))


@breaks("P1-settled")
def a_settle_that_was_refused_may_not_count(story: Story, wrong: bool) -> None:
    """The other way round: a refused one leaves the record to be given out again."""
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, result="" if wrong else "the disk is full, and not even the reserve has room")
    story.wait(SECOND_US)
    story.acquire((0, b"a"))


@breaks("P8-settled")
def a_refused_settle_that_counts(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, result="the disk is full, and not even the reserve has room")
    story.look(GroupView(1, 1, 0, 0, 0, 0, 0) if wrong else GroupView(0, 1, 1, 1, 0, 0, 0))


@breaks("P5-eventually")
def a_refused_settle_after_which_the_record_is_gone(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, result="the disk is full, and not even the reserve has room")
    story.audit((0, b"a"), drain=[] if wrong else [(0, b"a")])


@breaks("P8-unknown")
def a_settle_of_a_record_that_never_was(story: Story, wrong: bool) -> None:
    story.settle(0, result="" if wrong else UNKNOWN)


@breaks("P4-dead")
def a_dead_record_given_out_again(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3 if wrong else 2):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.restart("power")
    story.acquire((0, b"a"))


@breaks("P4-dead")
def a_record_that_dies_too_early(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(2 if wrong else 3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.letters(Letter(Place(0, 0), "max_attempts", 3, 3))


@breaks("P4-dead")
def a_failure_sent_again_that_counts(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False)
    story.settle(0, success=False)
    story.acquire((0, b"a"))
    story.settle(0, success=False)
    if wrong:
        story.letters(Letter(Place(0, 0), "max_attempts", 2, 3))
    else:
        story.letters()


@breaks("P4-dead")
def failures_that_a_restart_forgets(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
        story.restart("power")
    if wrong:
        story.acquire((0, b"a"))
    else:
        story.acquire()


@breaks("P4-dead", counts_grants=True, max_attempts=2)
def a_record_given_out_more_often_than_max_attempts(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3 if wrong else 2):
        story.acquire((0, b"a"))
        story.wait(SECOND_US)
    story.letters(Letter(Place(0, 0), "max_attempts", 2, 0))


@breaks("P4-letter")
def a_letter_with_other_counts(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.letters(Letter(Place(0, 0), "max_attempts", 2 if wrong else 3, 3))


@breaks("P4-letter")
def a_letter_for_no_reason(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.letters(Letter(Place(0, 0), "damaged" if wrong else "max_attempts", 3, 3))


@breaks("P4-letter")
def a_letter_twice(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    letter = Letter(Place(0, 0), "max_attempts", 3, 3)
    story.letters(*[letter] * (2 if wrong else 1))


@breaks("P4-letter")
def as_many_letters_as_are_counted(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.look(GroupView(1, 1, 0, 0, 0, 0, 0 if wrong else 1))
    story.letters(Letter(Place(0, 0), "max_attempts", 3, 3))


@breaks("P4-kept")
def a_dead_letter_that_is_gone(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.restart("killed")
    story.letters(*([] if wrong else [Letter(Place(0, 0), "max_attempts", 3, 3)]))


# -- time ------------------------------------------------------------------------------------------


@breaks("P5-delay")
def a_delay_that_is_not_kept(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, delay_us=3 * SECOND_US)
    story.wait(2 * SECOND_US if wrong else 3 * SECOND_US)
    story.acquire((0, b"a"))


@breaks("P5-delay", backoff_base_us=2 * SECOND_US)
def a_back_off_that_does_not_double(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    for seconds in 2, 2 if wrong else 4:
        story.acquire((0, b"a"))
        story.settle(0, success=False)
        story.wait(seconds * SECOND_US)
    story.acquire((0, b"a"))


@breaks("P5-delay")
def a_delay_that_a_restart_forgets(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, delay_us=3 * SECOND_US)
    story.restart("killed")
    story.wait(2 * SECOND_US if wrong else 3 * SECOND_US)
    story.acquire((0, b"a"))


@breaks("P5-delay")
def a_delay_over_a_restart_shortened_by_a_step_of_the_wall_clock(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, delay_us=3 * SECOND_US)
    story.history.clock_steps = [ClockStep(story.now_us, SECOND_US // (10 if wrong else 1))]
    story.restart("killed")
    story.wait(2 * SECOND_US)
    story.acquire((0, b"a"))


@breaks("P5-eventually")
def a_record_that_is_never_given_out(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire(topic="t")
    story.audit((0, b"a"), drain=[] if wrong else [(0, b"a")])


@breaks("P5-eventually")
def a_lease_that_never_ends(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.audit((0, b"a"), drain=[] if wrong else [(0, b"a")])


# -- a group's state -------------------------------------------------------------------------------


@breaks("P3-sums")
def numbers_that_do_not_add_up(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"))
    story.look(GroupView(0, 2, 2, 1, 0 if wrong else 1, 0, 0))


@breaks("P3-sums")
def no_lag_above_the_floor(story: Story, wrong: bool) -> None:
    """Which is right only of a group that may be told of by its commit."""
    story.produce(b"a")
    story.look(GroupView(0, 1, 0, 0, 0, 0, 0, committed=None if wrong else 1))
    story.audit((0, b"a"), drain=[(0, b"a")])


@breaks("P3-sums")
def a_commit_where_there_are_leases(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"))
    story.look(GroupView(1 if wrong else 0, 2, 2, 1, 1, 0, 0, committed=2))


@breaks("P8-settled")
def settled_that_nobody_tried(story: Story, wrong: bool) -> None:
    """Which is right where another partition is told of by its commits."""
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"))
    story.look(GroupView(0, 2, 1, 1, 0, 0, 0, committed=1, partitions=1 if wrong else 2))


@breaks("P2-next")
def a_record_that_is_not_counted(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    count = 1 if wrong else 2
    story.look(GroupView(0, count, count, 0, count, 0, 0))


@breaks("P2-next")
def a_record_counted_that_was_never_sent(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.produce(b"b", at=(1,), **story.no_answer())
    count = 3 if wrong else 2
    story.look(GroupView(0, count, count, 0, count, 0, 0))


@breaks("P2-next")
def a_next_offset_that_goes_down(story: Story, wrong: bool) -> None:
    story.produce(b"a", **story.no_answer())
    first, then = (1, 0) if wrong else (0, 1)
    story.look(GroupView(0, first, first, 0, first, 0, 0))
    story.restart("power")
    story.look(GroupView(0, then, then, 0, then, 0, 0))


@breaks("P1-settled")
def a_settle_that_is_not_counted(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0)
    story.restart("power")
    story.look(GroupView(0, 1, 1, 0, 1, 0, 0) if wrong else GroupView(1, 1, 0, 0, 0, 0, 0))


@breaks("P4-kept")
def a_count_of_dead_letters_that_goes_down(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    for _ in range(3):
        story.acquire((0, b"a"))
        story.settle(0, success=False)
    story.look(GroupView(1, 2, 1, 0, 1, 0, 1))
    story.restart("power")
    story.look(GroupView(1, 2, 1, 0, 1, 0, 0 if wrong else 1))


@breaks("P1-lag")
def no_lag_although_a_record_is_left(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.audit((0, b"a"))
    story.history.operations.pop()
    story.acquire((0, b"a"), client="auditor", duration_us=86_400 * SECOND_US)
    story.acquire(client="auditor")
    view = GroupView(1, 1, 0, 0, 0, 0, 0) if wrong else GroupView(0, 1, 1, 1, 0, 0, 0)
    story.look(view)


# -- the broker ------------------------------------------------------------------------------------


@breaks("P7-silence")
def an_answer_after_the_broker_failed(story: Story, wrong: bool) -> None:
    last = story.produce(b"a")
    story.restart("failed")
    last.written_us = story.now_us if wrong else last.written_us


@breaks("P1-ready")
def an_answer_before_the_broker_is_ready(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.history.boots[0].ready_us += 5_000 if wrong else 0


@breaks("P1-start")
def a_broker_that_does_not_come_up_again(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.restart("killed")
    if wrong:
        story.history.boots[-1].ready_us = -1


@breaks("P1-start")
def a_broker_that_refuses_its_own_log(story: Story, wrong: bool) -> None:
    story.restart("killed")
    text = "the log contradicts itself" if wrong else "[Errno 5] Input/output error"
    story.history.boots[-1].ready_us = -1
    story.restart("refused", reason=text)


@breaks("P6-damage")
def damage_that_nobody_did(story: Story, wrong: bool) -> None:
    story.history.rotted = not wrong
    story.restart("power")
    story.history.boots[-1].damages = ("00.wal at 4096 to 8192: checksum",)


# -- all of them -----------------------------------------------------------------------------------


def all_tales() -> list[tuple[str, Tale, dict[str, object]]]:
    others = (
        test_oracle_archive,
        test_oracle_changes,
        test_oracle_limits,
        test_oracle_offsets,
        test_oracle_subscriptions,
        test_oracle_transactions,
    )
    return [*TALES.all, *(tale for module in others for tale in module.TALES.all)]


def cases() -> list[object]:
    return [
        pytest.param(promise, tale, settings, id=f"{promise} {tale.__name__}")
        for promise, tale, settings in all_tales()
    ]


@pytest.mark.parametrize(("promise", "tale", "settings"), cases())
def test_the_right_story_breaks_no_promise(
    promise: str, tale: Tale, settings: dict[str, object]
) -> None:
    assert check(told(tale, settings, wrong=False).history) == []


@pytest.mark.parametrize(("promise", "tale", "settings"), cases())
def test_the_wrong_story_breaks_the_promise(
    promise: str, tale: Tale, settings: dict[str, object]
) -> None:
    history = told(tale, settings, wrong=True).history
    found = [violation for violation in check(history) if violation.promise == promise]
    assert found, check(history)
    numbers = {operation.number for operation in history.operations}
    assert all(set(violation.operations) <= numbers for violation in found)


def test_the_page_names_every_check_and_every_check_has_a_story() -> None:
    section = PAGE.read_text().partition("\nThe oracle\n")[2]
    named = set(re.findall(r"^(P\d-[a-z-]+|audit) {2,}\S", section, re.MULTILINE))
    sources = "".join(path.read_text() for path in Path(oracle.__file__).parent.rglob("*.py"))
    found = set(re.findall(r'"(P\d-[a-z-]+)"', sources)) | {"audit"}
    assert named == found
    # test_oracle_explanations.py, test_oracle_holds.py, test_oracle_connections.py,
    # test_oracle_audit_trail.py, test_registry.py
    in_tests_of_their_own = {"P1-audit", "P1-events", "P1-registry", "P5-hold", "P8-closed"}
    assert {promise for promise, _, _ in all_tales()} | in_tests_of_their_own == found


def test_equal_payloads_without_an_answer_have_no_order() -> None:
    """Whoever sees one of them cannot say which of the requests it came from."""
    story = Story()
    story.produce(b"", **story.no_answer())
    story.wait(SECOND_US)
    story.produce(b"a", at=(1,))
    story.wait(SECOND_US)
    story.produce(b"", **story.no_answer())
    story.wait(SECOND_US)
    story.acquire((0, b""), (1, b"a"), (2, b""), limit=3)
    story.acquire((0, b""), (1, b"a"), (2, b""), limit=3, group="h")
    assert check(story.history) == []


def test_equal_payloads_without_an_answer_may_have_changed_places() -> None:
    """One was sent to partition 0 and one to partition 1, and nobody can tell them apart."""
    story = Story()
    story.produce(Message(b"", partition=0), **story.no_answer())
    story.produce(Message(b"", partition=1), **story.no_answer())
    story.acquire(Delivery(Place(1, 0), b""))
    assert check(story.history) == []


def test_an_acquire_that_never_arrived_leased_nothing() -> None:
    """Else it could explain a count of grants that nobody can explain."""
    story = Story()
    story.produce(b"a")
    story.acquire(duration_us=0, **{**story.no_answer(), "arrived_us": NEVER})
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=2))
    assert [violation.promise for violation in check(story.history)] == ["P3-grants"]


def test_a_record_with_too_many_ways_to_go_is_left_undecided() -> None:
    """No alarm, and the judgement says that there is one."""
    story = Story()
    story.produce(b"a")
    for number in range(40):
        story.acquire(duration_us=0, client=f"c{number}", **story.no_answer())
        story.settle(0, success=False, client=f"d{number}", **story.no_answer())
    story.settle(0, result=NOT_OWNER, client="z")
    assert judge(story.history) == ([], 1)
