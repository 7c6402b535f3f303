"""``brokerctl bench --format F``: a format counts what its answers say, however they arrive.

The answers are those of the codecs; the last test speaks to a real broker.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.process import BrokerProcess
from brokerd.cli.bench.command import bench_command
from brokerd.cli.bench.formats import (
    FORMATS,
    SCENARIOS,
    BenchFailed,
    LoadSpec,
    LoadTarget,
    TargetSpec,
)
from brokerd.cli.bench.formats.blipmq import PollRole, PublishRole
from brokerd.cli.bench.formats.roles import count_equal_answers, spread
from brokerd.cli.bench.measure import Plan, measure, prepare
from brokerd.cli.bench.scenarios import Role
from brokerd.codecs import blipmq, flymq, mega, rustlog
from brokerd.values import Record
from tests.codecs.flymq_answers import fetched_sdk

BINARY = rustlog.CODECS[rustlog.Dialect.BINARY]
RECORDS = 1000
VALUE = b"value"

OTHERS = [form for form in FORMATS if form != "mamamia"]
PRODUCES = [
    ("mega", "produce", mega.produced(1, 5, 7), 1),
    ("rustlog", "produce", BINARY.encode_answer(rustlog.Produced(7, 1)), 1),
    ("rustlog", "produce-batch", BINARY.encode_answer(rustlog.Produced(7, 10)), 10),
    ("flymq", "produce", flymq.produced("t", 0, 7, 5, -1, 5), 1),
    ("blipmq", "produce", blipmq.encode(blipmq.Pong(1 << 63)), 1),
    ("blipmq", "produce-batch", blipmq.encode(blipmq.Pong(1 << 63)), 10),
]
REFUSALS = {
    "mega": mega.refused(1, mega.Code.RESOURCE_EXHAUSTED),
    "rustlog": BINARY.encode_answer(rustlog.Failed(500, "the disk is full")),
    "flymq": flymq.error("the disk is full", sdk=True),
}


def fetched(form: str, offset: int, count: int) -> bytes:
    """An answer that delivers so many records."""
    end = offset + count
    if form == "mega":
        return mega.consumed(1, 5, offset, VALUE)
    if form == "rustlog":
        return BINARY.encode_answer(rustlog.Fetched(range(offset, end), [VALUE] * count, end))
    records = [Record(one, VALUE) for one in range(offset, end)]
    return fetched_sdk(records, end)


def asked_offsets(form: str, data: bytes) -> list[int]:
    """Where requests read."""
    if form == "mega":
        return [one.offset for one in mega.RequestReader().feed(data)]  # type: ignore[union-attr]
    if form == "rustlog":
        payloads = rustlog.FrameReader().feed(data)
        return [BINARY.decode_request(bytes(one)).offset for one in payloads]  # type: ignore[union-attr]
    frames = flymq.FrameReader().feed(data)
    return [flymq.decode_request(*one).offset for one in frames]  # type: ignore[union-attr]


FETCHES = [("mega", "consume", 1), ("rustlog", "fetch", 7), ("flymq", "fetch", 7)]


def test_every_scenario_without_leases_is_looked_at() -> None:
    scenarios = {(form, scenario) for form in OTHERS for scenario in FORMATS[form].scenarios}
    tested = {(form, scenario) for form, scenario, *_ in (*PRODUCES, *FETCHES)}
    assert tested == scenarios - {("blipmq", "acquire-settle")}
    assert {form for form, *_ in FETCHES} <= REFUSALS.keys()


def role_of(form: str, scenario: str, window: int = 4) -> Role:
    spec = LoadSpec(
        scenario, "", 1, window, len(VALUE), 1.0, "t", "7", "0", 10, format=form, records=RECORDS
    )
    return FORMATS[form].role(spec, 0)


def feed(role: Role, stream: bytes, cuts: list[int]) -> tuple[int, bytes]:
    """Feed a stream cut into pieces; how many answers were found and what was sent."""
    found, sent, rest = 0, b"", b""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for begin, end in pairwise(edges):
        rest += stream[begin:end]
        step = role.answers(rest)
        rest = rest[step.consumed :]
        found += step.answers
        sent += bytes(step.reply)
    assert rest == b""
    return found, sent


CUTS = st.lists(st.integers(0, 1 << 12), max_size=8)


@pytest.mark.parametrize("number", range(len(PRODUCES)))
def test_a_producer_counts_what_was_acknowledged(number: int) -> None:
    """As many requests go out again as answers came in, byte for byte the first ones."""
    form, scenario, answer, messages = PRODUCES[number]
    role = role_of(form, scenario)
    first, requests = role.first()
    assert requests == 4
    for cuts in ([], [*range(0, 3 * len(answer), 5)], [1, len(answer), len(answer) + 1]):
        before = role.tally.produced
        found, sent = feed(role, answer * 3, cuts)
        assert (found, role.tally.produced - before) == (3, 3 * messages)
        assert sent == bytes(first)[: 3 * len(first) // 4]
    assert role.tally.errors == 0
    role.stop()
    assert feed(role, answer, []) == (1, b"")


@pytest.mark.parametrize("form", REFUSALS)
@pytest.mark.parametrize("kind", ["produces", "consumes"])
def test_a_refusal_is_an_error_and_no_message(form: str, kind: str) -> None:
    """Its bytes are kept for the report, and the load goes on."""
    consumes = kind == "consumes"
    which = FORMATS[form]
    scenario = next(one for one in which.scenarios if which.consumes(one) is consumes)
    role = role_of(form, scenario)
    for size in range(1, len(REFUSALS[form])):
        assert role.answers(REFUSALS[form][:size]).answers == 0
    found, sent = feed(role, REFUSALS[form] * 2, [])
    assert (found, role.tally.errors, role.tally.produced, role.tally.consumed) == (2, 2, 0, 0)
    assert role.tally.example
    assert sent


@given(
    st.sampled_from([one for one in PRODUCES if one[0] in REFUSALS]),
    st.lists(st.booleans(), max_size=20),
    CUTS,
)
def test_a_refusal_among_answers_is_counted_alone(
    produces: tuple[str, str, bytes, int], accepted: list[bool], cuts: list[int]
) -> None:
    """Equal answers of a read are counted in one step, and only those."""
    form, scenario, answer, messages = produces
    role = role_of(form, scenario)
    stream = b"".join(answer if one else REFUSALS[form] for one in accepted)
    found, _ = feed(role, stream, cuts)
    done = accepted.count(True)
    assert (found, role.tally.errors) == (len(accepted), len(accepted) - done)
    assert role.tally.produced == done * messages


def test_answers_are_alike_if_their_heads_are() -> None:
    """The rest of an answer, as its offset, may differ. Incomplete answers are left."""
    answers = b"".join(mega.produced(1, 5, offset) for offset in (257, 7, 65536))
    size = len(answers) // 3
    assert count_equal_answers(answers, size, 5) == 3
    assert count_equal_answers(answers + answers[: size - 1], size, 5) == 3
    assert count_equal_answers(answers + mega.refused(1, 1) * 8, size, 5) == 1


@given(
    st.sampled_from(FETCHES),
    st.lists(st.integers(0, RECORDS - 10), min_size=1, max_size=20),
    CUTS,
)
def test_a_consumer_reads_along_the_next_offsets(
    fetch: tuple[str, str, int], offsets: list[int], cuts: list[int]
) -> None:
    """Each answer is followed by a request for what comes behind it, and its records count."""
    form, scenario, count = fetch
    role = role_of(form, scenario)
    stream = b"".join(fetched(form, offset, count) for offset in offsets)
    found, sent = feed(role, stream, cuts)
    assert (found, role.tally.consumed) == (len(offsets), count * len(offsets))
    assert asked_offsets(form, sent) == [offset + count for offset in offsets]


@pytest.mark.parametrize("number", range(len(FETCHES)))
def test_a_consumer_begins_again_behind_the_last_record(number: int) -> None:
    form, scenario, count = FETCHES[number]
    role = role_of(form, scenario)
    data, requests = role.first()
    assert requests == 4
    assert asked_offsets(form, bytes(data)) == [0, 250, 500, 750]
    _, sent = feed(role, fetched(form, RECORDS - count, count), [])
    assert asked_offsets(form, sent) == [0]


def test_connections_begin_at_places_of_their_own() -> None:
    starts = [place for number in range(4) for place in spread(number, 4, 5, RECORDS)]
    assert starts == [50 * slot for slot in range(20)]


# -- BlipMQ, whose success is silent ----------------------------------------------------------


PONG = blipmq.encode(blipmq.Pong(1 << 63))


def frames(data: bytes) -> list[blipmq.Message]:
    return [blipmq.decode(one) for one in blipmq.frame_reader().feed(data)]


def test_a_publish_that_was_refused_does_not_count() -> None:
    """Its NACK comes before the PONG of its request."""
    role = PublishRole("t", 5, 10, 1)
    nack = blipmq.encode(blipmq.Nack(1, 500, "no room"))
    assert feed(role, nack * 3 + PONG + PONG, [])[0] == 2
    assert (role.tally.produced, role.tally.errors) == (17, 3)
    assert feed(role, nack + PONG * 3, [len(nack)])[0] == 3
    assert (role.tally.produced, role.tally.errors) == (46, 4)
    assert feed(role, PONG * 3, [5])[0] == 3
    assert role.tally.produced == 76


def test_a_message_counts_when_the_pong_behind_its_ack_is_there() -> None:
    """Which says that the ACK is durable."""
    role = PollRole(7, 1)
    delivery = blipmq.encode(blipmq.Publish(42, 1, "t", VALUE))
    found, sent = feed(role, delivery + PONG, [3, 20])
    assert (found, role.tally.settled) == (1, 0)
    assert frames(sent) == [
        blipmq.Ack(42, 7),
        blipmq.Poll(1 << 63, 7),
        blipmq.Ping(1 << 63),
    ]
    assert feed(role, PONG, []) == (1, b""), "and when there is nothing more it ends"
    assert (role.tally.settled, role.tally.empty) == (1, 1)


# -- the command and a broker -----------------------------------------------------------------


def test_a_scenario_that_a_format_does_not_have_is_wrong_usage() -> None:
    """With those that it has, exit code 2."""
    result = CliRunner().invoke(bench_command, ["mixed", "--format", "mega"])
    assert result.exit_code == 2
    assert "produce, consume" in result.output


def test_the_help_names_every_scenario() -> None:
    text = " ".join(CliRunner().invoke(bench_command, ["--help"]).output.split())
    assert all(scenario in text for scenario in SCENARIOS)


@pytest.mark.parametrize("form", OTHERS)
def test_nobody_at_the_address_is_told(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(BenchFailed, match=address):
        FORMATS[form].prepare(TargetSpec("produce", address, "t", 5, 1, 0))


@pytest.mark.slow
def test_a_real_broker_answers_every_scenario_of_every_format(tmp_path: Path) -> None:
    """Messages move, and no answer is an error."""
    with BrokerProcess(tmp_path / "data", tmp_path / "log", formats=OTHERS) as broker:
        broker.start()
        for form in OTHERS:
            for scenario in FORMATS[form].scenarios:
                plan = Plan(
                    scenario,
                    broker.address_of(form),
                    connections=4,
                    window=4,
                    seconds=0.2,
                    warm_up_seconds=0.1,
                    batch=10,
                    backlog=2_000,
                    format=form,
                )
                found = measure(plan)
                assert found.messages > 0, (form, scenario)
                assert (found.errors, found.first_error) == (0, ""), (form, scenario)
        assert broker.stop() == 0


@pytest.mark.slow
def test_a_log_is_read_again_and_again(tmp_path: Path) -> None:
    """A consumer counts more messages than there are."""
    with BrokerProcess(tmp_path / "data", tmp_path / "log", formats=OTHERS) as broker:
        broker.start()
        for form, scenario, _ in FETCHES:
            address = broker.address_of(form)
            plan = Plan(scenario, address, 2, 3, seconds=0.3, backlog=300, format=form)
            place = prepare(plan)
            assert 300 <= place.records < 10_000
            assert isinstance(place, LoadTarget)
            consumed = measure(plan, place).consumed
            for seconds in (3.0, 30.0, 300.0):
                if consumed > place.records:
                    break
                # The machine was too busy to read all records once.
                consumed = measure(replace(plan, seconds=seconds), place).consumed
            assert consumed > place.records
        broker.stop()
