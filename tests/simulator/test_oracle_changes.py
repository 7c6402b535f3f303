"""What the oracle says of operators' doings, delays, expiry and resends: stories, right and wrong.

`tests.simulator.test_oracle` tells them, with all others.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.history.operations import (
    Cancel,
    ClockStep,
    Compacted,
    Configure,
    ConfigureTopic,
    DeleteGroup,
    DeleteTopic,
    Delivery,
    GroupRules,
    GroupView,
    Letter,
    Message,
    Pause,
    Place,
    Purge,
    Release,
    Replay,
    Resume,
    Seek,
    SetClock,
    TopicRules,
    TopicView,
    Trim,
)
from simulator.oracle import check
from simulator.rules import ClockRules
from tests.simulator.story import SECOND_US, Story
from tests.simulator.tales import Tales

TALES = Tales()
breaks = TALES.breaks
ORDERED = GroupRules(key_ordered=True)
DEAD = Letter(Place(0, 0), "max_attempts", 1, 1)
HOUR_US = 3_600 * SECOND_US


def keyed(payload: bytes, key: bytes = b"k") -> Message:
    return Message(payload, key=key)


# -- order by key ----------------------------------------------------------------------------------


@breaks("P3-key-order")
def a_key_given_while_an_earlier_record_is_leased(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b", b"k" if wrong else b"q"), at=(0, 1))
    story.acquire((0, b"a"), limit=1)
    story.acquire((1, b"b"), limit=1)


@breaks("P3-key-order")
def two_records_of_a_key_in_one_answer(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b", b"k" if wrong else b"q"), at=(0, 1))
    story.acquire((0, b"a"), (1, b"b"))


@breaks("P3-key-order")
def a_key_given_to_two_who_ask_at_once(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b", b"k" if wrong else b"q"), at=(0, 1))
    now_us = story.now_us
    story.acquire((0, b"a"), sent_us=now_us, arrived_us=now_us)
    story.acquire((1, b"b"), client="d", sent_us=now_us, arrived_us=now_us)


@breaks("P3-key-order")
def a_key_given_while_an_earlier_record_waits(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b"), at=(0, 1))
    story.acquire((0, b"a"), limit=1)
    story.settle(0, success=not wrong, delay_us=5 * SECOND_US if wrong else None)
    story.acquire((1, b"b"), limit=1)


@breaks("P3-key-order")
def a_key_that_a_restart_forgets(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b"), at=(0, 1))
    story.acquire((0, b"a"), limit=1)
    if not wrong:
        story.settle(0)
    story.restart("power")
    story.acquire((1, b"b"), limit=1)


@breaks("P3-key-order")
def a_key_given_in_a_group_that_is_ordered_no_more(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b"), at=(0, 1))
    story.acquire((0, b"a"), limit=1)
    if not wrong:
        story.change(Configure, rules=GroupRules())
    story.acquire((1, b"b"), limit=1)


@breaks("P3-key-order")
def a_key_whose_record_is_dead_may_go_on(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=GroupRules(max_attempts=2 if wrong else 1, key_ordered=True))
    story.produce(keyed(b"a"), keyed(b"b"), at=(0, 1))
    story.acquire((0, b"a"), limit=1)
    story.settle(0, success=False)
    story.acquire((1, b"b"), limit=1)


@breaks("P3-key-order")
def a_long_poll_that_a_seek_may_end(story: Story, wrong: bool) -> None:
    """Another acquire within the poll came before the seek, when the first record was settled."""
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a"), keyed(b"b"), at=(0, 1))
    story.acquire((0, b"a"), limit=1)
    if not wrong:
        story.settle(0)
    now_us = story.now_us
    story.acquire((1, b"b"), limit=1)
    story.settle(1, success=False)
    if not wrong:
        story.change(Seek, to="start")
    story.acquire(
        Delivery(Place(0, 0), b"a", key=b"k", token=3, grants=2 if wrong else 1),
        client="d",
        sent_us=now_us,
        arrived_us=now_us,
    )


@breaks("P3-lowest")
def a_later_record_of_a_key_comes_first(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=ORDERED)
    story.produce(keyed(b"a", b"k" if wrong else b"q"), keyed(b"b"), at=(0, 1))
    story.acquire(Delivery(Place(0, 1), b"b", key=b"k", token=1, grants=1))
    key = b"k" if wrong else b"q"
    story.acquire(Delivery(Place(0, 0), b"a", key=key, token=2, grants=1))


# -- pause, seek, delete, release, settings --------------------------------------------------------


@breaks("P3-paused")
def a_paused_group_is_given_a_record(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.change(Pause)
    if not wrong:
        story.change(Resume)
    story.acquire((0, b"a"))


@breaks("P3-paused")
def a_pause_outlives_a_restart(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.change(Pause)
    if not wrong:
        story.change(Resume, **story.no_answer())
    story.restart("power")
    story.acquire((0, b"a"))


@breaks("P1-settled")
def a_settled_record_comes_again_after_a_seek_only(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0)
    story.change(Seek, to=1 if wrong else 0)
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=1))


@breaks("P3-one-lease")
def a_seek_ends_leases(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.change(Seek, to="start", partition=1 if wrong else 0)
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=2))


@breaks("P5-eventually")
def a_seek_back_that_delivers_nothing(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0)
    story.change(Seek, to="start" if wrong else "end")
    story.audit((0, b"a"))


@breaks("P5-eventually")
def a_seek_to_the_end_skips_what_was_there(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.change(Seek, to="start" if wrong else "end")
    story.audit((0, b"a"))


@breaks("P3-grants")
def counters_begin_anew_in_a_group_that_was_deleted(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    if not wrong:
        story.change(DeleteGroup)
    story.wait(SECOND_US)
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=1))


@breaks("P3-token")
def a_token_from_before_a_deletion(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire(Delivery(Place(0, 0), b"a", token=7, grants=1))
    story.change(DeleteGroup)
    story.acquire(Delivery(Place(0, 0), b"a", token=7 if wrong else 8, grants=1))


@breaks("P3-one-lease")
def leases_of_an_owner_are_released(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.change(Release, owner="d" if wrong else "c", released=1)
    story.acquire((0, b"a"), client="d")


@breaks("P4-dead")
def a_group_may_be_given_more_attempts(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    if wrong:
        story.change(Configure, rules=GroupRules(max_attempts=1))
    story.acquire((0, b"a"))
    story.settle(0, success=False)
    story.acquire((0, b"a"))


@breaks("P3-one-lease")
def a_lease_as_long_as_the_group_says(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    rules = GroupRules(default_duration_us=(5 if wrong else 1) * SECOND_US)
    story.change(Configure, rules=rules)
    story.acquire((0, b"a"), by_default=True, duration_us=30 * SECOND_US)
    story.wait(2 * SECOND_US)
    story.acquire((0, b"a"))


# -- dead letters ----------------------------------------------------------------------------------


def die(story: Story, offset: int = 0, payload: bytes = b"a") -> None:
    """A record of a group with one attempt fails."""
    story.acquire((offset, payload), limit=1)
    story.settle(offset, success=False)


@breaks("P1-settled", max_attempts=1)
def a_dead_letter_comes_again_when_it_is_replayed(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    die(story)
    story.change(Purge if wrong else Replay, count=1)
    story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=1))


@breaks("P4-kept", max_attempts=1)
def a_dead_letter_that_was_not_purged_is_gone(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    die(story)
    story.change(Purge, first=1 if wrong else 0, count=0 if wrong else 1)
    story.letters()


@breaks("P4-dead", max_attempts=1)
def a_purged_dead_letter_is_listed(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    die(story)
    story.change(Purge, reason="too_large" if not wrong else None, count=1)
    story.letters(DEAD)


@breaks("P4-atomic", max_attempts=1)
def half_of_the_dead_letters_is_replayed(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    die(story)
    die(story, 1, b"b")
    other = DEAD._replace(place=Place(0, 1))
    story.letters(DEAD, other)
    story.change(Replay, **story.no_answer())
    story.restart("power")
    story.letters(*((DEAD,) if wrong else (DEAD, other)))


@breaks("P4-atomic", max_attempts=1)
def a_replay_that_tells_too_few(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    die(story)
    story.letters(DEAD)
    story.change(Replay, count=0 if wrong else 1)
    story.letters()


@breaks("P4-letter", max_attempts=1)
def a_dead_letter_of_a_record_that_was_tried_before_it_was_there(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    asked_us = story.now_us
    die(story)
    ago_us = story.now_us - asked_us + (2_000 if wrong else 0)
    story.letters(DEAD._replace(first_ago_us=ago_us, last_ago_us=500))


@breaks("P4-letter", max_attempts=1)
def a_dead_letter_that_died_before_it_was_tried(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    die(story)
    story.letters(DEAD._replace(first_ago_us=700, last_ago_us=900 if wrong else 500))


# -- delays, expiry, resends -----------------------------------------------------------------------


@breaks("P5-early")
def a_scheduled_message_before_it_is_due(story: Story, wrong: bool) -> None:
    story.schedule(b"a", 2 * SECOND_US)
    story.wait(SECOND_US if wrong else 2 * SECOND_US)
    story.acquire((0, b"a"))


@breaks("P5-early")
def a_scheduled_message_may_be_early_after_a_clock_step_and_a_restart(
    story: Story, wrong: bool
) -> None:
    story.schedule(b"a", 2 * SECOND_US)
    story.history.clock_steps = [ClockStep(story.now_us, 2 * SECOND_US)]
    if not wrong:
        story.restart("power")
    story.acquire((0, b"a"))


@breaks("P5-fired")
def a_scheduled_message_that_never_comes(story: Story, wrong: bool) -> None:
    story.schedule(b"a", SECOND_US)
    if not wrong:
        story.change(Cancel, schedule_id=0, cancelled=True)
    story.produce(b"b", at=(0,))
    story.restart("power")
    story.audit((0, b"b"), later=(), drain=[(0, b"b")])


@breaks("P5-fired")
def a_message_that_waits_when_all_delays_are_over(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.audit((0, b"a"), drain=[(0, b"a")])
    story.describe(view=TopicView(1, (0,), (1,), 1 if wrong else 0))


@breaks("P2-once")
def a_scheduled_message_that_comes_twice(story: Story, wrong: bool) -> None:
    story.schedule(b"a", SECOND_US)
    story.wait(SECOND_US)
    story.acquire((0, b"a"))
    story.restart("power")
    if wrong:
        story.acquire((1, b"a"))


@breaks("P5-cancelled")
def a_cancelled_message_that_comes(story: Story, wrong: bool) -> None:
    story.schedule(b"a", SECOND_US, number=4)
    story.change(Cancel, schedule_id=4, cancelled=wrong)
    story.wait(SECOND_US)
    story.acquire((0, b"a"))


@breaks("P5-expired")
def an_expired_record_is_given_out(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=SECOND_US))
    story.wait(2 * SECOND_US if wrong else SECOND_US // 2)
    story.acquire((0, b"a"))


@breaks("P5-expired")
def a_record_of_a_topic_whose_records_expire(story: Story, wrong: bool) -> None:
    story.change(ConfigureTopic, rules=TopicRules(ttl_us=SECOND_US if wrong else 0))
    story.produce(b"a")
    story.wait(2 * SECOND_US)
    story.acquire((0, b"a"))


ANEW = Letter(Place(0, 0), "given_up", 0, 1)


def give_up_after_a_seek(story: Story) -> None:
    """Seek to the start, give record 0 up without a lease, and list it with counters from zero."""
    story.change(Seek, to="start")
    story.settle(0, success=False, dead=True)
    story.letters(ANEW)


@breaks("P4-letter")
def an_expired_record_that_an_acquire_passed_over_and_a_seek_opened(
    story: Story, wrong: bool
) -> None:
    story.produce(Message(b"a", ttl_us=2 * SECOND_US))
    story.acquire((0, b"a"))
    story.wait(3 * SECOND_US)
    if not wrong:
        story.acquire()
    give_up_after_a_seek(story)


@breaks("P4-letter")
def a_record_that_a_seek_opened_before_it_expired(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=HOUR_US if wrong else 2 * SECOND_US))
    story.acquire((0, b"a"))
    story.wait(3 * SECOND_US)
    story.acquire()
    give_up_after_a_seek(story)


@breaks("P4-letter")
def an_expired_record_that_no_acquire_passed_over_because_of_its_lease(
    story: Story, wrong: bool
) -> None:
    story.produce(Message(b"a", ttl_us=2 * SECOND_US))
    story.acquire((0, b"a"), duration_us=(9 if wrong else 1) * SECOND_US)
    story.wait(3 * SECOND_US)
    story.acquire()
    give_up_after_a_seek(story)


@breaks("P4-letter")
def an_expired_record_that_no_acquire_passed_over_because_of_its_delay(
    story: Story, wrong: bool
) -> None:
    story.produce(Message(b"a", ttl_us=2 * SECOND_US))
    story.acquire((0, b"a"))
    story.settle(0, success=False, delay_us=(9 if wrong else 1) * SECOND_US)
    story.wait(3 * SECOND_US)
    story.acquire()
    give_up_after_a_seek(story)


@breaks("P3-refusal")
def a_lease_that_expiry_ended(story: Story, wrong: bool) -> None:
    """An expired record keeps its lease: its owner may extend and settle it."""
    story.produce(Message(b"a", ttl_us=2 * SECOND_US))
    story.acquire((0, b"a"), duration_us=(9 if wrong else 1) * SECOND_US)
    story.wait(3 * SECOND_US)
    story.acquire()
    story.extend(0, error="the lease is over, or another one took its place")


@breaks("P1-lag")
def no_lag_by_an_expired_record_that_no_acquire_passed_over(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=2 * SECOND_US))
    story.acquire((0, b"a"))
    story.extend(0)
    story.wait(3 * SECOND_US)
    if not wrong:
        story.acquire()
    story.look(GroupView(1, 1, 0, 0, 0, 0, 0))


@breaks("P4-letter")
def a_compacted_record_that_an_acquire_passed_over_during_its_lease(
    story: Story, wrong: bool
) -> None:
    story.produce(keyed(b"a"), keyed(b"b"), at=(0, 1))
    story.acquire((0, b"a"), limit=1, duration_us=9 * SECOND_US)
    at_us = story.now_us + (2 * SECOND_US if wrong else 0)
    story.history.compacted.append(Compacted(at_us, "t", 0, 0))
    story.wait(SECOND_US)
    story.acquire((1, b"b"))
    give_up_after_a_seek(story)


@breaks("P1-kept")
def a_record_lost_before_it_expires(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=HOUR_US if wrong else SECOND_US))
    story.produce(b"b", at=(1,))
    story.wait(2 * SECOND_US)
    story.audit((1, b"b"), drain=[(1, b"b")])


@breaks("P1-kept")
def a_record_that_expires_right_after_a_jump_of_the_clock(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=2 * HOUR_US))
    story.produce(b"b", at=(1,))
    story.history.clock_steps = [ClockStep(story.now_us, 2 * HOUR_US)]
    story.wait(HOUR_US // 2 if wrong else HOUR_US + SECOND_US)
    story.audit((1, b"b"), drain=[(1, b"b")])


@breaks("P1-kept")
def a_record_that_expires_after_an_operator_set_the_clock(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=2 * HOUR_US))
    story.produce(b"b", at=(1,))
    story.history.clock_steps = [ClockStep(story.now_us, 2 * HOUR_US)]
    if not wrong:
        asked = story._asked({})
        del asked["topic"]
        story._add(SetClock(**asked))
    story.wait(SECOND_US)
    story.audit((1, b"b"), drain=[(1, b"b")])


@breaks("P1-kept")
def a_record_that_expires_after_a_short_grace(story: Story, wrong: bool) -> None:
    story.history.clock = ClockRules(grace_us=(60 if wrong else 10) * SECOND_US)
    story.produce(Message(b"a", ttl_us=2 * HOUR_US))
    story.produce(b"b", at=(1,))
    story.history.clock_steps = [ClockStep(story.now_us, 2 * HOUR_US)]
    story.wait(20 * SECOND_US)
    story.audit((1, b"b"), drain=[(1, b"b")])


@breaks("P1-kept")
def a_record_that_expires_after_a_moment_of_a_wrong_clock(story: Story, wrong: bool) -> None:
    """Three days for eight seconds."""
    story.produce(Message(b"a", ttl_us=24 * HOUR_US if wrong else HOUR_US))
    story.produce(b"b", at=(1,))
    story.history.clock_steps = [
        ClockStep(story.now_us, 72 * HOUR_US),
        ClockStep(story.now_us + 8 * SECOND_US, -72 * HOUR_US),
    ]
    story.wait(2 * HOUR_US)
    story.audit((1, b"b"), drain=[(1, b"b")])


@breaks("P1-kept")
def a_record_that_expires_after_a_start_although_the_clock_jumped_before_it(
    story: Story, wrong: bool
) -> None:
    """A start trusts a clock that is up to an hour past the log."""
    story.produce(Message(b"a", ttl_us=HOUR_US // 2))
    story.produce(b"b", at=(1,))
    story.history.clock_steps = [ClockStep(story.now_us, HOUR_US * 2 if wrong else HOUR_US // 2)]
    story.wait(SECOND_US)
    story.restart("power")
    story.audit((1, b"b"), drain=[(1, b"b")])


@breaks("P2-resend")
def a_resend_with_other_ids(story: Story, wrong: bool) -> None:
    same = {"producer_id": "p", "sequence": 1}
    story.produce(b"a", **same)
    story.restart("power")
    story.produce(b"a", at=(1 if wrong else 0,), **same)


@breaks("P2-once")
def a_resend_that_is_stored_again(story: Story, wrong: bool) -> None:
    same = {"producer_id": "p", "sequence": 1}
    story.produce(b"a", **same, **story.no_answer())
    story.restart("power")
    story.produce(b"a", at=(1,), **same)
    story.acquire((0, b"a" if wrong else b"b"), (1, b"a")) if wrong else story.acquire((1, b"a"))


# -- in time ---------------------------------------------------------------------------------------


def a_poll_of_five_seconds(story: Story, waited_us: int = 5 * SECOND_US, **fields: Any) -> None:
    """It ends with nothing."""
    over_us = story.now_us + waited_us
    told = {"written_us": over_us + 20, "answered_us": over_us + 40}
    story.acquire(wait_us=5 * SECOND_US, client="d", **told, **fields)
    story.now_us += waited_us


@breaks("P5-served")
def a_poll_is_not_given_what_lapsed(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=(2 if wrong else 5) * SECOND_US)
    a_poll_of_five_seconds(story)
    story.wait(SECOND_US)
    story.acquire((0, b"a"), client="d")


@breaks("P5-served")
def a_poll_is_not_given_what_somebody_else_takes_later(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=SECOND_US)
    begun_us = story.now_us
    story.wait((3 if wrong else 1) * SECOND_US)
    story.acquire((0, b"a"), client="e", duration_us=9 * SECOND_US)
    story.now_us = begun_us
    a_poll_of_five_seconds(story)


@breaks("P5-served")
def a_poll_is_not_given_what_waited(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, delay_us=SECOND_US if wrong else 9 * SECOND_US)
    a_poll_of_five_seconds(story)


@breaks("P5-served")
def a_poll_of_a_group_that_goes_on(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=SECOND_US)
    story.change(Pause)
    if wrong:
        story.change(Resume)
    a_poll_of_five_seconds(story)


@breaks("P5-served")
def a_poll_of_a_group_without_order(story: Story, wrong: bool) -> None:
    story.change(Configure, rules=GroupRules() if wrong else ORDERED)
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=SECOND_US)
    a_poll_of_five_seconds(story)


@breaks("P5-served")
def a_poll_on_a_disk_without_trouble(story: Story, wrong: bool) -> None:
    story.history.is_steady = wrong
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=SECOND_US)
    a_poll_of_five_seconds(story)


@breaks("P5-served")
def a_poll_that_waited_for_all_of_its_time(story: Story, wrong: bool) -> None:
    """A stop ends polls early."""
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=SECOND_US)
    a_poll_of_five_seconds(story, (5 if wrong else 3) * SECOND_US)


@breaks("P5-served")
def a_poll_is_not_given_what_expired_until_the_clock_went_back(story: Story, wrong: bool) -> None:
    story.produce(Message(b"a", ttl_us=9 * SECOND_US if wrong else SECOND_US))
    story.wait(2 * SECOND_US)
    a_poll_of_five_seconds(story)
    story.history.clock_steps = [ClockStep(story.now_us, -HOUR_US)]
    story.restart("power")
    story.acquire((0, b"a"), client="d")


@breaks("P5-buried", max_attempts=1, counts_grants=True)
def a_dead_letter_by_grants_comes_late(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"), duration_us=SECOND_US)
    story.wait(3 * SECOND_US if wrong else SECOND_US)
    story.letters()


# -- what failed settles say -----------------------------------------------------------------------


@breaks("P4-letter", max_attempts=1)
def a_letter_without_the_reason_that_was_said(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, reason="" if wrong else "broken")
    story.letters(Letter(Place(0, 0), "broken", 1, 1))


@breaks("P4-letter")
def a_letter_of_a_record_that_was_given_up(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, dead=True)
    story.letters(Letter(Place(0, 0), "max_attempts" if wrong else "given_up", 1, 1))


@breaks("P4-dead")
def a_record_that_was_given_up_is_given_out(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, dead=wrong)
    story.acquire((0, b"a"))


@breaks("P4-letter", max_attempts=1)
def a_letter_for_a_reason_that_nobody_said(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, reason="broken")
    story.letters(Letter(Place(0, 0), "said by nobody" if wrong else "broken", 1, 1))


@breaks("P4-dead", max_attempts=1)
def a_letter_of_another_reason_is_replayed(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.acquire((0, b"a"))
    story.settle(0, success=False, reason="broken")
    story.change(Replay, reason="max_attempts" if wrong else "broken", count=1 - wrong)
    story.acquire((0, b"a"))


@breaks("P4-atomic")
def a_replay_that_takes_only_some_in_the_moment_of_the_listing(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"), (1, b"b"))
    for offset in (0, 1):
        story.settle(offset, success=False, dead=True)
    story.wait(SECOND_US)
    moment = dict.fromkeys(("sent_us", "arrived_us", "written_us", "answered_us"), story.now_us)
    listed = [Letter(Place(0, offset), "given_up", 1, 1) for offset in (0, 1)]
    story.letters(*listed, **moment)
    story.change(Replay, count=2, **moment)
    story.letters(*listed[1:] if wrong else (), **moment)


@breaks("P4-atomic")
def of_the_old_letters_some_stay(story: Story, wrong: bool) -> None:
    """Of those that are too young nothing is said."""
    story.produce(b"a", b"b", at=(0, 1))
    story.acquire((0, b"a"), (1, b"b"))
    for offset in (0, 1):
        story.settle(offset, success=False, dead=True)
    ages = (2 * SECOND_US, 2 * SECOND_US if wrong else SECOND_US // 2)
    story.wait(3 * SECOND_US)
    listed = [Letter(Place(0, n), "given_up", 1, 1, age, age) for n, age in enumerate(ages)]
    story.letters(*listed)
    story.change(Purge, aged_us=SECOND_US, count=2)
    story.letters(listed[1])


# -- topics ----------------------------------------------------------------------------------------


@breaks("P2-start")
def a_record_below_the_start_is_given_out(story: Story, wrong: bool) -> None:
    story.produce(b"a", b"b", at=(0, 1))
    story.change(Trim, partition=0, offset=1, start=1)
    story.acquire((0, b"a")) if wrong else story.acquire((1, b"b"))


@breaks("P2-start")
def a_start_offset_goes_down(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.change(Trim, partition=0, offset=1, start=1)
    story.restart("power")
    story.describe(start=0 if wrong else 1)


@breaks("P5-removed")
def a_record_is_removed_that_nobody_asked_to_remove(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    if not wrong:
        story.change(Trim, partition=0, offset=1, **story.no_answer())
    story.describe(start=1)


@breaks("P5-removed")
def a_record_is_removed_before_its_time(story: Story, wrong: bool) -> None:
    story.change(ConfigureTopic, rules=TopicRules(retention_us=SECOND_US))
    story.produce(b"a")
    story.wait(0 if wrong else 2 * SECOND_US)
    story.describe(start=1)


@breaks("P5-removed")
def a_record_is_removed_that_the_topic_has_room_for(story: Story, wrong: bool) -> None:
    size = 10_000 if wrong else 1
    story.change(ConfigureTopic, rules=TopicRules(retention_bytes=size))
    story.produce(b"a", b"b", at=(0, 1))
    story.describe(start=1)


@breaks("P2-dense")
def a_hole_above_the_start(story: Story, wrong: bool) -> None:
    story.produce(b"a", at=(2,))
    story.change(Trim, partition=0, offset=1 if wrong else 2, start=1 if wrong else 2)
    story.audit((2, b"a"), drain=[(2, b"a")])


@breaks("P2-content")
def a_record_of_a_topic_that_was_deleted(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    if wrong:
        story.change(DeleteTopic)
    story.acquire((0, b"a"))


@breaks("P2-reuse")
def offsets_begin_anew_in_another_topic_only(story: Story, wrong: bool) -> None:
    story.produce(b"a")
    story.describe(topic_id=1)
    story.change(DeleteTopic, **story.no_answer())
    story.restart("power")
    story.describe(topic_id=1 if wrong else 2)
    story.produce(b"b", at=(0,))


@breaks("P2-content")
def a_message_scheduled_in_a_topic_that_was_deleted(story: Story, wrong: bool) -> None:
    story.schedule(b"a", SECOND_US)
    if wrong:
        story.change(DeleteTopic)
    story.wait(SECOND_US)
    story.acquire((0, b"a"))


# -- where nothing can be said ---------------------------------------------------------------------


def test_a_request_that_met_either_of_two_topics_may_have_happened_to_each() -> None:
    story = Story()
    asked_us = story.now_us
    story.change(DeleteTopic)
    story.produce(b"a", sent_us=asked_us, arrived_us=asked_us)
    story.acquire((0, b"a"))
    assert check(story.history) == []


def test_a_deletion_of_which_nobody_knows_whether_it_happened_excuses_everything() -> None:
    story = Story()
    story.produce(b"a")
    story.change(DeleteTopic, **story.no_answer())
    story.restart("power")
    story.produce(b"b")
    assert check(story.history) == []


@pytest.mark.parametrize("kind", [Seek, DeleteGroup, Replay, Release])
def test_a_change_without_an_answer_may_or_may_not_have_happened(kind: type[object]) -> None:
    fields = {"to": "start"} if kind is Seek else {"owner": "c"} if kind is Release else {}
    for happened in (False, True):
        story = Story(max_attempts=1)
        story.produce(b"a")
        story.acquire((0, b"a"))
        if kind is not Release:
            story.settle(0, success=False)
        story.change(kind, **fields, **story.no_answer())
        if happened:
            grants = 2 if kind is Release else 1
            story.acquire(Delivery(Place(0, 0), b"a", token=2, grants=grants))
        assert check(story.history) == []


def test_a_resend_may_overtake_what_was_sent_before_it_on_a_stalled_connection() -> None:
    story = Story()
    same = {"producer_id": "p", "sequence": 1}
    late_us = story.now_us + 10 * SECOND_US
    stalled = {**story.no_answer(), "arrived_us": late_us, "connection": 0}
    story.produce(b"a", **stalled)
    story.produce(b"b", **same, **stalled)
    story.produce(b"b", at=(0,), connection=2, **same)
    story.wait(20 * SECOND_US)
    story.acquire((0, b"b"), (1, b"a"))
    assert check(story.history) == []


def test_a_resend_that_met_either_of_two_topics_is_one_request_in_each() -> None:
    story = Story()
    same = {"producer_id": "p", "sequence": 1}
    asked_us = story.now_us
    story.change(DeleteTopic)
    story.produce(b"a", **same, **{**story.no_answer(), "arrived_us": asked_us + 20})
    story.produce(b"a", **same)
    story.acquire((0, b"a"))
    assert check(story.history) == []


def test_a_topic_that_was_looked_at_in_the_moment_of_its_deletion_was_there_before() -> None:
    """An operator deletes what it has just been told of, in the same microsecond."""
    story = Story()
    story.change(DeleteTopic)
    story.describe(view=None)
    story.produce(b"a")
    looked = story.describe(topic_id=2)
    now = {"sent_us": looked.written_us, **story.no_answer()}
    story.change(DeleteTopic, **{**now, "arrived_us": looked.written_us})
    story.restart("power")
    story.describe(topic_id=2)
    story.acquire((0, b"a"))
    assert check(story.history) == []
