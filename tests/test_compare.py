"""The comparison with other brokers: their loads by bytes, and the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import compare
from benchmarks.compare import OURS, Row, Sample, rows, svg, table
from benchmarks.rivals import RIVALS, add_rivals
from benchmarks.rivals.base import PAIRS, PRODUCE
from benchmarks.rivals.rabbitmq import amqp_frame
from benchmarks.rivals.redis import resp
from brokerd.cli.bench.formats import FORMATS
from brokerd.cli.bench.formats.base import LoadSpec
from brokerd.cli.bench.machine import describe
from brokerd.cli.bench.scenarios import Role
from tests.compiled import COMPILED


@pytest.fixture(autouse=True)
def formats_of_brokerd_alone() -> Iterator[None]:
    """Remove the rivals from the load generator of this process after a test."""
    yield
    for name in RIVALS:
        FORMATS.pop(name, None)


def role(name: str, scenario: str, window: int = 1, size: int = 3) -> Role:
    spec = LoadSpec(scenario, "", 1, window, size, 1.0, "t", "bench", "w")
    return RIVALS[name].load.role(spec, 0)


def taken(message_id: bytes) -> bytes:
    message = b"$%d\r\n%b\r\n*2\r\n$1\r\nv\r\n$3\r\nxxx\r\n" % (len(message_id), message_id)
    return b"*1\r\n*2\r\n$1\r\nt\r\n*1\r\n*2\r\n" + message


def ack(tag: int, multiple: bool = False) -> bytes:
    arguments = tag.to_bytes(8, "big") + bytes([multiple])
    return amqp_frame(1, 1, b"\x00\x3c\x00\x50" + arguments)


PRODUCED = {
    "redis": (b"$15\r\n1795848602254-0\r\n", b"-OOM command not allowed\r\n"),
    "beanstalkd": (b"INSERTED 12\r\n", b"OUT_OF_MEMORY\r\n"),
    "nats": (b'MSG inbox.t.w.0 1  22\r\n{"stream":"t","seq":1}\r\n', b"-ERR 'Slow Consumer'\r\n"),
    "rabbitmq": (ack(1), amqp_frame(1, 1, b"\x00\x3c\x00\x78" + bytes(9))),
}
"""A confirmation of a message, and a refusal."""


@pytest.mark.parametrize("name", PRODUCED)
def test_a_producer_counts_confirmations_and_keeps_its_window_full(name: str) -> None:
    confirmed, _ = PRODUCED[name]
    producer = role(name, PRODUCE, window=2)
    first, requests = producer.first()
    assert requests == 2 and bytes(first).count(b"xxx") == 2
    for cut in range(len(confirmed)):  # an answer in two reads
        step = role(name, PRODUCE).answers(confirmed[:cut])
        assert (step.answers, step.consumed) == (0, 0)
    step = producer.answers(confirmed + confirmed[:3])
    assert (step.answers, step.consumed, step.replies) == (1, len(confirmed), 1)
    assert bytes(step.reply).count(b"xxx") == 1
    assert (producer.tally.produced, producer.tally.errors) == (1, 0)
    producer.stop()
    step = producer.answers(confirmed if name != "rabbitmq" else ack(2))
    assert (step.answers, step.replies, bytes(step.reply)) == (1, 0, b"")


@pytest.mark.parametrize("name", PRODUCED)
def test_a_refusal_is_an_error(name: str) -> None:
    producer = role(name, PRODUCE)
    producer.answers(PRODUCED[name][1])
    assert (producer.tally.produced, producer.tally.errors) == (0, 1)


def test_a_confirm_of_rabbitmq_may_answer_several_and_come_early() -> None:
    producer = role("rabbitmq", PRODUCE, window=5)
    assert producer.answers(ack(2)).answers == 1
    assert producer.answers(ack(3, multiple=True)).answers == 2
    assert producer.answers(ack(5) + ack(4)).answers == 2
    assert producer.tally.produced == 5


PAIR_ANSWERS = {
    "redis": (
        taken(b"17-0"),
        resp(b"XACK", b"t", b"bench", b"17-0"),
        b":1\r\n",
        b"*-1\r\n",
    ),
    "beanstalkd": (b"RESERVED 7 3\r\nxxx\r\n", b"delete 7\r\n", b"DELETED\r\n", b"TIMED_OUT\r\n"),
    "nats": (
        b"MSG t 1 $JS.ACK.t.bench.1.2.2.17.0 3\r\nxxx\r\n",
        b"PUB $JS.ACK.t.bench.1.2.2.17.0 inbox.t.w.0 4\r\n+ACK\r\n",
        b"MSG inbox.t.w.0 1  0\r\n\r\n",
        b"HMSG inbox.t.w.0 1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n",
    ),
}
"""A message, the request that settles it, its answer, and the answer when there is no message."""


@pytest.mark.parametrize("name", PAIR_ANSWERS)
def test_a_consumer_settles_each_message_and_asks_for_the_next(name: str) -> None:
    message, settle, done, nothing = PAIR_ANSWERS[name]
    consumer = role(name, PAIRS)
    first, requests = consumer.first()
    assert requests == 1
    for cut in range(len(message)):
        assert role(name, PAIRS).answers(message[:cut]).answers == 0
    assert bytes(consumer.answers(message).reply) == settle
    step = consumer.answers(done)
    assert bytes(first).endswith(bytes(step.reply)) and step.replies == 1
    assert (consumer.tally.settled, consumer.tally.errors) == (1, 0)
    assert consumer.answers(nothing).replies == 0
    assert (consumer.tally.empty, consumer.tally.errors) == (1, 0)


def test_a_ping_of_nats_is_no_answer() -> None:
    producer = role("nats", PRODUCE)
    step = producer.answers(b"PING\r\n" + PRODUCED["nats"][0])
    assert (step.answers, step.replies) == (1, 1)
    assert bytes(step.reply).startswith(b"PONG\r\n")


def samples() -> list[Sample]:
    return [
        Sample(OURS, PRODUCE, 1, 1, 100.0, 10.0, 1.0),
        Sample("redis", PRODUCE, 1, 1, 50.0, 4.0, 1.0),
        Sample(OURS, PRODUCE, 1, 1, 300.0, 30.0, 1.0),
        Sample("redis", PRODUCE, 1, 1, 300.0, 6.0, 1.0),
        Sample(OURS, PRODUCE, 1, 1, 200.0, 20.0, 1.0),
        Sample("redis", PRODUCE, 1, 1, 400.0, 5.0, 1.0),
    ]


def test_ratios_are_those_of_the_runs() -> None:
    """The ratio is not that of the medians: the machine's speed drifts between runs."""
    assert rows(samples()) == [
        Row("redis", PRODUCE, 1, 1, 200.0, 300.0, 1.0, 0.5, 2.0, 20.0, 5.0),
    ]
    assert "1.00    0.50-2.00" in table(rows(samples()))


def test_the_chart_is_an_image() -> None:
    drawn = ElementTree.fromstring(svg(rows(samples())))
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "redis produce 1 x 1" in texts and "1.00" in texts


def test_nothing_to_compare_with_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.rivals.base._PATH", "/nowhere")
    assert compare.main(["--only", "redis"]) == 2
    said = capsys.readouterr()
    assert said.out == "redis: not installed; Debian's package is redis-server\n"
    assert said.err == "compare: no other broker is installed\n"


def test_the_output_begins_with_the_machine_and_whether_brokerd_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_rivals()
    monkeypatch.setattr(type(RIVALS["redis"]), "find", lambda _: "/bin/true")
    monkeypatch.setattr(type(RIVALS["redis"]), "version", lambda _: "7.0.15")
    monkeypatch.setattr(compare, "run", lambda *_: samples())
    file = tmp_path / "figures.json"
    arguments = ["--only", "redis", "--json", str(file), "--directory", str(tmp_path)]
    assert compare.main(arguments) == 0
    machine = describe(tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == machine.text()
    assert json.loads(file.read_text())["machine"] == asdict(machine)
    assert machine.compiled is COMPILED


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("redis", marks=pytest.mark.slow),
        pytest.param("beanstalkd", marks=pytest.mark.soak),
        pytest.param("nats", marks=pytest.mark.soak),
        pytest.param("rabbitmq", marks=pytest.mark.soak),
    ],
)
def test_the_server_of_a_rival_is_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if RIVALS[name].find() is None:
        pytest.skip(f"{name} is not installed")
    add_rivals()
    shapes = ((PRODUCE, 1, 1), (PAIRS, 2, 4))
    monkeypatch.chdir(tmp_path)
    found = compare.run(Path(), [RIVALS[name]], 1, 0.3, print, shapes)
    assert {one.broker for one in found} == {OURS, name}
    assert all(one.rate > 0 for one in found)
    assert list(tmp_path.iterdir()) == []
    json.dumps([vars(one) for one in rows(found)])
