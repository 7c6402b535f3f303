"""``brokerctl bench``: it counts what was answered, exactly, and costs little beside a broker."""

from __future__ import annotations

import itertools
import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import brokerd
from benchmarks import holes, key_order, neighbours, schedule, size, stalls, targets
from benchmarks.__main__ import Share, shares
from benchmarks.__main__ import main as bench_main
from benchmarks.process import BrokerFailed, BrokerProcess
from benchmarks.responder import Responder
from benchmarks.suite import SHAPES
from brokerd.cli.bench import load, machine
from brokerd.cli.bench.command import bench_command, commit_bytes, find_listeners
from brokerd.cli.bench.formats import FORMATS, BenchFailed, LoadSpec, LoadTarget, base
from brokerd.cli.bench.formats.mamamia import fill, probe, produce_frame
from brokerd.cli.bench.measure import Plan, default_backlog, measure, new_topic, worker_specs
from brokerd.cli.bench.scenarios import (
    ACQUIRE,
    ACQUIRE_BATCH,
    PRODUCE,
    PRODUCE_BATCH,
    SETTLE,
    SETTLE_BATCH,
    BatchConsumer,
    Consumer,
    Repeater,
    Role,
    encode_settles,
    request,
)
from brokerd.codecs import mamamia
from brokerd.wal import RealDisk
from tests.compiled import COMPILED

JSON_KEYS = {
    "scenario",
    "format",
    "connections",
    "window",
    "msgs_per_s",
    "mb_per_s",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "errors",
    "durability",
    "raw_fdatasync_per_s",
}


def answers_to(role: Role, stream: bytes, cuts: list[int]) -> tuple[int, bytes]:
    """Feed a stream cut into pieces; return how many answers were found and what was sent."""
    found, sent, rest = 0, b"", b""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for begin, end in itertools.pairwise(edges):
        rest += stream[begin:end]
        step = role.answers(rest)
        rest = rest[step.consumed :]
        found += step.answers
        sent += bytes(step.reply)
    assert rest == b""
    return found, sent


def frames_in(stream: bytes) -> list[tuple[int, dict[str, object]]]:
    """Split a stream into (command, body)."""
    found = []
    while stream:
        size = 4 + int.from_bytes(stream[:4], "big")
        found.append((stream[5], msgpack.unpackb(stream[6:size])))
        stream = stream[size:]
    return found


class TestRoles:
    @given(
        ids=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200),
        cuts=st.lists(st.integers(0, 1 << 16), max_size=5),
    )
    def test_a_producer_counts_every_answer_whatever_its_size_and_the_cuts(
        self, ids: list[int], cuts: list[int]
    ) -> None:
        """As many requests go out again as answers came in, and no answer counts twice."""
        template = produce_frame("log", 3)
        role = Repeater(template, window=200)
        stream = b"".join(mamamia.produced(number) for number in ids)
        found, sent = answers_to(role, stream, cuts)
        assert (found, role.tally.produced, role.tally.errors) == (len(ids), len(ids), 0)
        assert sent == template * len(ids)

    def test_a_refused_produce_counts_as_an_error_and_keeps_its_text(self) -> None:
        """Errors are never taken for messages."""
        role = Repeater(produce_frame("log", 3), window=8)
        stream = mamamia.produced(1) + mamamia.error(PRODUCE, "no room")
        assert answers_to(role, stream, [])[0] == 2
        assert (role.tally.produced, role.tally.errors) == (1, 1)
        assert "no room" in role.tally.example

    def test_a_batch_counts_its_messages(self) -> None:
        """One answer to PRODUCE_BATCH stands for as many messages as were sent."""
        role = Repeater(produce_frame("log", 3, batch=5), window=2, messages=5)
        assert answers_to(role, mamamia.produced_batch([1, 2, 3, 4, 5]), [])[0] == 1
        assert role.tally.produced == 5

    @given(
        ids=st.lists(st.integers(0, 1 << 62), min_size=1, max_size=50),
        cuts=st.lists(st.integers(0, 1 << 16), max_size=5),
    )
    def test_a_consumer_settles_exactly_the_ids_it_was_given(
        self, ids: list[int], cuts: list[int]
    ) -> None:
        """Every acquired message is answered by its own SETTLE, of any id size."""
        role = Consumer("log", "group", "client", 50, 30.0, wait_seconds=0)
        stream = b"".join(mamamia.acquired(n, "log", b"value", 0, None) for n in ids)
        found, sent = answers_to(role, stream, cuts)
        assert found == len(ids)
        wanted = {"log_id": "log", "group_id": "group", "client_id": "client", "success": True}
        assert frames_in(sent) == [(SETTLE, {**wanted, "message_id": n}) for n in ids]

    def test_a_consumer_goes_on_after_a_settle_and_ends_with_the_backlog(self) -> None:
        """A settled message is counted and the next asked for; nothing there ends it."""
        role = Consumer("log", "group", "client", 1, 30.0, wait_seconds=0)
        _, sent = answers_to(role, mamamia.settled(), [])
        assert [command for command, _ in frames_in(sent)] == [ACQUIRE]
        assert answers_to(role, mamamia.acquired_nothing(), []) == (1, b"")
        assert (role.tally.settled, role.tally.empty) == (1, 1)

    def test_a_polling_consumer_asks_again_and_lets_the_broker_wait(self) -> None:
        """In the mixed scenario an empty answer is followed by another ACQUIRE with ``wait``."""
        role = Consumer("log", "group", "client", 1, 30.0, wait_seconds=1.0)
        _, sent = answers_to(role, mamamia.acquired_nothing(), [])
        assert frames_in(sent)[0][1]["wait"] == 1.0

    def test_a_refused_settle_is_an_error(self) -> None:
        """What the broker refuses is no settled message."""
        role = Consumer("log", "group", "client", 1, 30.0, wait_seconds=0)
        answers_to(role, mamamia.error(SETTLE, "not yours"), [])
        assert (role.tally.settled, role.tally.errors) == (0, 1)

    def test_a_batch_consumer_settles_with_tokens_and_counts_results(self) -> None:
        """ACQUIRE_BATCH is answered by one SETTLE_BATCH that names every grant."""
        role = BatchConsumer("log", "group", "client", 1, 30.0, batch=10)
        messages = [{"id": 7, "token": 3, "payload": b""}, {"id": 9, "token": 4, "payload": b""}]
        _, sent = answers_to(role, request(ACQUIRE_BATCH, {"messages": messages}), [])
        ((command, body),) = frames_in(sent)
        assert command == SETTLE_BATCH
        assert body["settles"] == [
            {"message_id": 7, "token": 3, "success": True},
            {"message_id": 9, "token": 4, "success": True},
        ]
        answers_to(role, request(SETTLE_BATCH, {"results": ["settled", "lease lost"]}), [])
        assert (role.tally.settled, role.tally.errors) == (1, 1)
        assert answers_to(role, request(ACQUIRE_BATCH, {"messages": []}), []) == (1, b"")

    @pytest.mark.parametrize("count", [1, 15, 16, 100])
    @pytest.mark.parametrize(
        ("first_id", "first_token"),
        [(0, 1), (120, 1000), (1000, 120), (250, 65_500), (70_000, (1 << 32) - 7)],
    )
    @pytest.mark.parametrize("values", ["alike", "lengths", "equal sums", "names", "other maps"])
    def test_a_batch_consumer_settles_messages_of_one_layout_in_one_step(
        self, count: int, first_id: int, first_token: int, values: str
    ) -> None:
        """The request equals the one for the decoded messages, for all widths and values."""
        widths = [
            len(msgpack.packb(first_id + number)) + len(msgpack.packb(first_token + number))
            for number in range(count)
        ]
        payloads = {
            "equal sums": [b"x" * (100 - width) for width in widths],
            "alike": [b"x" * 100] * count,
            "lengths": [b"x" * (100 + number % 3) for number in range(count)],
            "names": [b"\x87\xa2id\x01\xa5token\x02" * (1 + number % 2) for number in range(count)],
            "other maps": [b"x"] * count,
        }[values]
        columns = (
            list(range(first_id, first_id + count)),
            payloads,
            [None] * count,
            list(range(first_token, first_token + count)),
            [1] * count,
            [29.5] * count,
        )
        answer = mamamia.acquired_bytes(*columns)
        if values == "other maps":
            items = [{"payload": b"x", "id": one, "token": 5} for one in columns[0]]
            answer = request(ACQUIRE_BATCH, {"messages": items})
        role = BatchConsumer("log", "group", "client", 1, 30.0, batch=count)
        _, sent = answers_to(role, answer, [])
        ((_, acquired),) = frames_in(answer)
        settles = [
            {"message_id": message["id"], "token": message["token"], "success": True}
            for message in acquired["messages"]
        ]
        who = {"log_id": "log", "group_id": "group", "client_id": "client"}
        assert sent == request(SETTLE_BATCH, {**who, "settles": settles})
        answers_to(role, mamamia.settled_batch(["settled"] * count), [])
        assert (role.tally.settled, role.tally.errors) == (count, 0)

    def test_tokens_at_different_places_are_decoded(self) -> None:
        """Messages of one size may have their tokens at different places."""
        token = 0xCECECECE
        fields = ([7, 8], [b"x" * 102, b"x" * 100], [None, None], [token, token], [1, 300])
        answer = mamamia.acquired_bytes(*fields, [29.5, 29.5])
        _, sent = answers_to(BatchConsumer("log", "g", "c", 1, 30.0, batch=2), answer, [])
        ((_, body),) = frames_in(sent)
        assert [settle["token"] for settle in body["settles"]] == [token, token]

    def test_messages_of_equal_values_need_no_decoder(self) -> None:
        """The generator would otherwise take as much processor time as the broker."""
        columns = range(300, 400), [b"x" * 100] * 100, [None] * 100, range(900, 1000)
        answer = mamamia.acquired_bytes(*columns, [1] * 100, [29.5] * 100)
        ((_, acquired),) = frames_in(answer)
        settles = [
            {"message_id": message["id"], "token": message["token"], "success": True}
            for message in acquired["messages"]
        ]
        assert encode_settles(answer[6:]) == msgpack.packb(settles)

    def test_nothing_is_sent_after_stop(self) -> None:
        """The answers that are due when the time is up are read, not followed by requests."""
        role = Repeater(produce_frame("log", 3), window=2)
        role.stop()
        assert answers_to(role, mamamia.produced(1), []) == (1, b"")

    @pytest.mark.parametrize(
        ("command", "frame"),
        [
            (PRODUCE, produce_frame("log", 100)),
            (PRODUCE_BATCH, produce_frame("log", 100, batch=3)),
            (ACQUIRE, bytes(Consumer("log", "g", "c", 1, 9.0, 0).first()[0])),
            (ACQUIRE_BATCH, bytes(BatchConsumer("log", "g", "c", 1, 9.0, 5).first()[0])),
        ],
    )
    def test_its_requests_are_what_the_codec_reads(self, command: int, frame: bytes) -> None:
        """The generator speaks the format that the broker decodes."""
        decoded = mamamia.Decoder().decode(command, frame[6:])
        assert decoded.log_id == "log"


class TestRun:
    def test_it_counts_exactly_what_a_peer_answered(self) -> None:
        """The totals of a run over a real socket are those of the peer at the other end."""
        ours, theirs = socket.socketpair()
        served = Counter[str]()
        frame_bytes = len(produce_frame("log", 10))

        def serve() -> None:
            """Answer five at a time, so that answers do not come in the blocks of the requests."""
            asked = 0
            while data := theirs.recv(1 << 16):
                asked += len(data)
                if asked // frame_bytes - served["answers"] >= 5:
                    served["answers"] += 5
                    theirs.sendall(mamamia.produced(7) * 5)

        peer = threading.Thread(target=serve)
        peer.start()
        ours.setblocking(False)
        spec = LoadSpec("produce", "unused", 1, 16, 10, 0.1, "log", "group", "0")
        result = load.run(spec, [ours], begin=time.monotonic(), drain_seconds=0.1)
        ours.close()
        peer.join()
        theirs.close()
        # Those in flight when the time was up were answered and are not counted.
        assert 0 < result.produced <= served["answers"] <= result.produced + 16
        assert result.requests == result.produced == result.latency_us.total()
        assert (result.errors, result.settled) == (0, 0)

    def test_a_rate_bounds_the_requests_however_fast_the_answers_come(self) -> None:
        """Each connection has one request in flight, and all of them share the rate."""
        pairs = [socket.socketpair() for _ in range(2)]
        frame_bytes = len(produce_frame("log", 10))

        def serve(theirs: socket.socket) -> None:
            while data := theirs.recv(1 << 16):
                assert len(data) == frame_bytes
                theirs.sendall(mamamia.produced(7))

        peers = [threading.Thread(target=serve, args=(theirs,)) for _, theirs in pairs]
        for (ours, _), peer in zip(pairs, peers, strict=True):
            ours.setblocking(False)
            peer.start()
        spec = LoadSpec("produce", "unused", 2, 1, 10, 0.2, "log", "group", "0", rate=100.0)
        result = load.run(spec, [ours for ours, _ in pairs], begin=time.monotonic())
        for ours, _ in pairs:
            ours.close()
        for peer in peers:
            peer.join()
        for _, theirs in pairs:
            theirs.close()
        assert 0 < result.produced <= 21
        assert result.errors == 0

    def test_latency_counts_from_the_time_at_which_a_request_is_due(self) -> None:
        """Here all are due at the beginning, so the last one took as long as the whole run."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        def serve() -> None:
            """Answer some requests, and close the connection upon the next one: the run ends."""
            for _ in range(20):
                assert theirs.recv(1 << 16)
                theirs.sendall(mamamia.produced(7))
            assert theirs.recv(1 << 16)
            theirs.close()

        peer = threading.Thread(target=serve)
        peer.start()
        spec = LoadSpec("produce", "unused", 1, 1, 10, 600.0, "log", "group", "0", rate=1e9)
        result = load.run(spec, [ours], begin=time.monotonic())
        ours.close()
        peer.join()
        assert result.produced == 20
        assert max(result.latency_us) >= result.seconds * 1e6

    def test_counting_goes_on_until_the_first_message(self) -> None:
        """The disk of a broker may stall for longer than the measurement."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        def serve() -> None:
            while theirs.recv(1 << 16):
                theirs.sendall(mamamia.produced(7))

        peer = threading.Thread(target=serve)
        peer.start()
        spec = LoadSpec("produce", "unused", 1, 1, 10, 0.0, "log", "group", "0")
        result = load.run(spec, [ours], begin=time.monotonic())
        ours.close()
        peer.join()
        theirs.close()
        assert (result.produced, result.requests, result.errors) == (1, 1, 0)
        assert result.seconds > 0

    def test_an_empty_answer_is_no_message(self) -> None:
        """Counting goes on until the producer beside the consumer has its answer."""
        pairs = [socket.socketpair() for _ in range(2)]
        for ours, _ in pairs:
            ours.setblocking(False)
        spec = LoadSpec("mixed", "unused", 2, 1, 10, 0.0, "log", "group", "0")
        acquire = FORMATS["mamamia"].role(spec, 1).first()[0]
        empty = threading.Event()

        def consume(theirs: socket.socket) -> None:
            for _ in range(3):
                assert theirs.recv(1 << 16) == bytes(acquire)
                theirs.sendall(mamamia.acquired_nothing())
            empty.set()
            while theirs.recv(1 << 16):
                pass

        def produce(theirs: socket.socket) -> None:
            assert theirs.recv(1 << 16) and empty.wait(60)
            theirs.sendall(mamamia.produced(7))
            while theirs.recv(1 << 16):
                pass

        peers = [
            threading.Thread(target=serve, args=(theirs,))
            for serve, (_, theirs) in zip((produce, consume), pairs, strict=True)
        ]
        for peer in peers:
            peer.start()
        begin = time.monotonic()
        result = load.run(spec, [ours for ours, _ in pairs], begin, drain_seconds=0.0)
        for ours, _ in pairs:
            ours.close()
        for peer in peers:
            peer.join()
        for _, theirs in pairs:
            theirs.close()
        assert (result.produced, result.empty, result.errors) == (1, 3, 0)

    def test_counting_ends_without_a_message_from_a_broker_that_is_silent(self) -> None:
        """The figures are zero then."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        spec = LoadSpec("produce", "unused", 1, 1, 10, 0.0, "log", "group", "0")
        begin = time.monotonic()
        result = load.run(spec, [ours], begin, drain_seconds=0.0, first_seconds=0.01)
        ours.close()
        theirs.close()
        assert (result.produced, result.requests, result.errors) == (0, 0, 0)

    def test_a_broken_connection_is_an_error_and_not_a_hang(self) -> None:
        """A broker that goes away ends the run at once, with the reason."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.close()
        spec = LoadSpec("produce", "unused", 1, 1, 10, 30.0, "log", "group", "0")
        result = load.run(spec, [ours], begin=time.monotonic())
        assert (result.produced, result.errors) == (0, 1)
        assert result.example

    def test_results_travel_between_processes_and_add_up(self) -> None:
        """A result read back from JSON is the same, and the sum of two is their sum."""
        one = load.LoadResult(produced=2, requests=3, seconds=1.0, latency_us=Counter({10: 3}))
        two = load.LoadResult(settled=1, errors=1, example="why", seconds=2.0)
        again = load.result_from_json(load.result_to_json(one))
        assert again == one
        total = load.merge([again, two])
        assert (total.produced, total.settled, total.requests, total.errors) == (2, 1, 3, 1)
        assert (total.example, total.seconds) == ("why", 2.0)
        assert total.latency_us == Counter({10: 3})

    def test_percentiles_are_those_of_the_requests(self) -> None:
        """The share of requests asked for did not take longer."""
        latency_us = Counter({100: 98, 2000: 1, 50_000: 1})
        assert load.percentile_ms(latency_us, 0.5) == 0.1
        assert load.percentile_ms(latency_us, 0.99) == 2.0
        assert load.percentile_ms(latency_us, 0.999) == 50.0
        assert load.percentile_ms(Counter(), 0.5) == 0.0

    @pytest.mark.parametrize(
        ("address", "wanted"),
        [
            ("127.0.0.1:9000", (socket.AF_INET, ("127.0.0.1", 9000))),
            ("[::1]:9000", (socket.AF_INET6, ("::1", 9000))),
            ("unix:/run/b.sock", (socket.AF_UNIX, "/run/b.sock")),
        ],
    )
    def test_addresses_are_read_as_listeners_json_writes_them(
        self, address: str, wanted: object
    ) -> None:
        """host:port, [v6]:port and unix:PATH."""
        assert base.parse_address(address) == wanted

    @pytest.mark.parametrize("address", ["", "nine", "host:", ":1", "host:x"])
    def test_a_bad_address_is_named_with_the_forms_that_are_understood(self, address: str) -> None:
        """The message says what was given and what to give."""
        with pytest.raises(ValueError, match="write host:port"):
            base.parse_address(address)


class TestPlan:
    @given(connections=st.integers(1, 200), workers=st.integers(0, 8))
    def test_connections_are_shared_among_the_workers(self, connections: int, workers: int) -> None:
        """No connection is lost or made twice, and no worker is idle."""
        specs = worker_specs(
            Plan("produce", "x:1", connections, workers=workers), LoadTarget("log")
        )
        assert sum(spec.connections for spec in specs) == connections
        assert all(spec.connections for spec in specs)

    @given(connections=st.integers(1, 200))
    def test_mixed_workers_have_producers_and_consumers(self, connections: int) -> None:
        """Half of the connections of every worker produce."""
        specs = worker_specs(Plan("mixed", "x:1", connections), LoadTarget("log"))
        assert all(spec.connections % 2 == 0 and spec.connections for spec in specs)

    @pytest.mark.parametrize("scenario", FORMATS["mamamia"].scenarios)
    def test_the_backlog_is_bounded(self, scenario: str) -> None:
        """An hour's measurement does not fill the disk first."""
        assert 0 < default_backlog(Plan(scenario, "x:1", 64, 64, seconds=3600)) <= 1_000_000


class TestMachine:
    def test_the_disk_is_measured_and_nothing_is_left(self, tmp_path: Path) -> None:
        """A rate comes out, however slow the disk is, and the file is gone."""
        assert machine.sync_rate(tmp_path, 4096, 0.0) > 0
        assert list(tmp_path.iterdir()) == []

    def test_the_machine_is_described(self, tmp_path: Path) -> None:
        """Cores are known; the file system is named as the broker names it, or said to be unknown.

        In a chroot the mount below it cannot be seen.
        """
        found = machine.describe(tmp_path)
        assert found.cores > 0
        assert found.file_system == (RealDisk().file_system(str(tmp_path)) or "unknown")

    @pytest.mark.parametrize(
        ("compiled", "text"), [(True, "brokerd: compiled"), (False, "brokerd: pure Python")]
    )
    def test_its_text_tells_whether_brokerd_is_compiled(
        self, tmp_path: Path, compiled: bool, text: str
    ) -> None:
        """Figures of the two differ by a third."""
        found = machine.describe(tmp_path)
        assert found.compiled is COMPILED
        assert replace(found, compiled=compiled).text().endswith(f", {text}")

    @pytest.mark.parametrize(
        ("module", "part", "found"),
        [
            (holes, "measure", lambda *_: iter(())),
            (key_order, "measure", lambda *_: {"runs": {name: [] for name in key_order.RUNS}}),
            (neighbours, "CASES", {}),
            (schedule, "measure", lambda *_: iter(())),
            (size, "measure", lambda *_: iter(())),
            (stalls, "measure", lambda *_: []),
            (targets, "PARTS", {}),
        ],
        ids=lambda value: value.__name__ if isinstance(value, ModuleType) else "",
    )
    def test_each_benchmark_begins_with_the_machine(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        module: Any,
        part: str,
        found: object,
    ) -> None:
        """Figures without it, or of an unknown core, cannot be compared."""
        monkeypatch.setattr(module, part, found)
        assert module.main(["--json", f"--directory={tmp_path}"]) == 0
        text, lines = capsys.readouterr()
        described = machine.describe(tmp_path)
        assert json.loads(text)["machine"] == asdict(described)
        assert described.text() in lines.splitlines()[0]


class TestCommand:
    def test_it_prints_one_json_object_with_the_promised_keys(self) -> None:
        """``--json`` is what scripts read."""
        with Responder() as dummy:
            options = ["produce", "--address", dummy.address, "--connections", "4", "--window"]
            options += ["8", "--seconds", "0.2", "--json"]
            result = CliRunner().invoke(bench_command, options)
        assert result.exit_code == 0, result.output
        report = json.loads(result.output)
        assert report.keys() >= JSON_KEYS
        assert report["msgs_per_s"] > 0
        assert report["errors"] == 0
        assert report["durability"] == "unknown"
        assert report["compiled"] is None

    def test_it_prints_the_same_for_people(self) -> None:
        """Without ``--json`` the figures come with their units."""
        with Responder() as dummy:
            options = ["acquire-settle", "--address", dummy.address, "--seconds", "0.2"]
            result = CliRunner().invoke(bench_command, [*options, "--backlog", "1"])
        assert result.exit_code == 0, result.output
        assert "messages/s" in result.output
        assert "write+fdatasync" in result.output
        assert "\n  core: unknown\n" in result.output
        assert re.search(r"^  topic bench-[0-9a-f]{12} stays in the broker\n$", result.output, re.M)

    def test_its_help_tells_what_it_leaves_behind(self) -> None:
        """Nobody fills a broker in use with records that cannot be deleted unawares."""
        assert "makes a topic bench-" in CliRunner().invoke(bench_command, ["--help"]).output

    def test_nobody_at_the_address_is_one_line(self) -> None:
        """The address and the reason, exit code 1, no traceback."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(bench_command, ["produce", "--address", address])
        assert result.exit_code == 1
        assert address in result.output
        assert "refused" in result.output
        assert result.stderr.startswith("brokerctl: ")
        assert result.output.count("\n") == 1

    @pytest.mark.parametrize(
        ("said", "told"),
        [(b"", "closed the connection"), (b"HTTP/1.1 400 Bad Request\r\n", "not Mamamia")],
    )
    def test_a_port_that_does_not_speak_the_format_is_one_line(
        self, said: bytes, told: str
    ) -> None:
        """Another kind of server gives an error, not figures of zero."""

        def serve(listener: socket.socket) -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(100)
                accepted.sendall(said)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            result = CliRunner().invoke(bench_command, ["produce", "--address", address])
            thread.join()
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert told in result.output

    def test_a_port_that_never_answers_is_told_soon(self) -> None:
        """The wait for the first answer is bounded."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(BenchFailed, match=r"no answer within 0\.1 s"):
                probe(address, seconds=0.1)

    def test_a_server_that_was_named_and_does_not_answer_is_one_line(self) -> None:
        """Figures without the durability that was asked for would be worth nothing."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = f"127.0.0.1:{taken.getsockname()[1]}"
        with Responder() as dummy:
            options = ["produce", "--address", dummy.address, "--seconds", "0.1"]
            result = CliRunner().invoke(bench_command, options, obj={"server": server})
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert f"no broker answers at {server} (from --server)" in result.output

    def test_a_directory_for_the_disks_rate_is_needed_before_the_load(self) -> None:
        """The figures of a whole run were lost, and the name of the topic that it left."""
        with Responder() as dummy:
            options = ["produce", "--address", dummy.address, "--seconds", "0.1", "--disk", "/proc"]
            result = CliRunner().invoke(bench_command, options)
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert "/proc: no file can be made there" in result.output
        assert "--disk" in result.output

    def test_an_address_that_cannot_be_read_is_one_line(self) -> None:
        """What was given and the forms that are understood."""
        result = CliRunner().invoke(bench_command, ["produce", "--address", "foo"])
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert "'foo' is not an address; write host:port" in result.output

    def test_the_admin_address_is_taken_only_from_the_same_broker(self, tmp_path: Path) -> None:
        """Another broker's durability is never shown."""
        (tmp_path / "run").mkdir()
        listeners = {"mamamia": "127.0.0.1:9000", "admin": "127.0.0.1:9644"}
        (tmp_path / "run" / "listeners.json").write_text(json.dumps(listeners))
        assert find_listeners(tmp_path, "mamamia", "localhost:9000") == listeners
        assert find_listeners(tmp_path, "mamamia", "127.0.0.1:9001") == {}
        assert find_listeners(tmp_path / "none", "mamamia", "127.0.0.1:9000") == {}
        listeners["mamamia"] = "0.0.0.0:9000"
        (tmp_path / "run" / "listeners.json").write_text(json.dumps(listeners))
        assert find_listeners(tmp_path, "mamamia", "localhost:9000") == listeners


class TestCommits:
    def test_the_disk_is_measured_with_blocks_as_large_as_the_commits(self) -> None:
        """Bytes by commits between the two looks."""
        before = {"wal": {"commits": 10, "durable_lsn": 1000}}
        after = {"wal": {"commits": 14, "durable_lsn": 9000}}
        assert commit_bytes(before, after) == 2000

    @pytest.mark.parametrize("status", [{}, {"wal": None}, {"wal": {"commits": 5}}])
    def test_a_broker_that_does_not_tell_is_measured_with_pages(
        self, status: dict[str, object]
    ) -> None:
        """4096 bytes, when there is nothing better to go by."""
        assert commit_bytes(status, status) == 4096


class TestBroker:
    def test_a_broker_imports_the_brokerd_of_the_benchmark(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """twistd alone takes the installed one; ``python -m`` took the working copy."""
        working_copy = tmp_path / "clone" / "brokerd" / "__init__.py"
        working_copy.parent.mkdir(parents=True)
        working_copy.touch()
        script = "import brokerd; print(brokerd.__file__)"
        monkeypatch.setattr(brokerd, "__file__", str(working_copy))
        monkeypatch.setattr(BrokerProcess, "command", lambda _: [sys.executable, "-Pc", script])
        broker = BrokerProcess(tmp_path / "data", tmp_path / "log")
        with pytest.raises(BrokerFailed):  # it prints, and serves nothing
            broker.start()
        assert broker.log_tail() == str(working_copy)

    @pytest.mark.slow
    def test_a_real_broker_answers_every_scenario_without_an_error(self, tmp_path: Path) -> None:
        """Each scenario moves messages through a broker of its own."""
        with BrokerProcess(tmp_path / "data", tmp_path / "log") as broker:
            broker.start()
            for scenario in FORMATS["mamamia"].scenarios:
                plan = Plan(
                    scenario,
                    broker.address,
                    connections=4,
                    window=4,
                    seconds=0.2,
                    warm_up_seconds=0.1,
                    batch=10,
                    backlog=20_000,
                )
                found = measure(plan)
                assert found.messages > 0, scenario
                assert (found.errors, found.first_error) == (0, ""), scenario
            assert broker.stop() == 0

    @pytest.mark.slow
    def test_a_backlog_is_consumed_to_the_last_message(self, tmp_path: Path) -> None:
        """What was filled in is what comes out, once."""
        with BrokerProcess(tmp_path / "data", tmp_path / "log") as broker:
            broker.start()
            log = new_topic()
            fill(broker.address, log, 1000, 10)
            fill(broker.address, log, 1000, 10, batch=100)
            plan = Plan("acquire-settle", broker.address, 3, 7, seconds=30, warm_up_seconds=0)
            found = measure(plan, LoadTarget(log))
            assert (found.settled, found.errors) == (2000, 0)
            broker.stop()

    def test_a_broker_that_is_not_there_fails_the_fill(self) -> None:
        """The backlog says which address it could not reach."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BenchFailed, match=address):
            fill(address, "log", 10, 10)


class TestMakeBench:
    @pytest.mark.slow
    def test_it_measures_every_scenario_and_the_memory_and_leaves_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The whole of ``make bench``, made short, as one JSON object."""
        options = ["--json", "--seconds=0.4", "--records=1000", "--idle=10", "--no-size"]
        options += ["--format=mamamia", "--format=mega"]
        code = bench_main([*options, f"--directory={tmp_path}"])
        out = capsys.readouterr()
        assert code == 0, out.err
        report = json.loads(out.out)
        lines = report["scenarios"]
        shapes = [
            (line["figures"]["scenario"], line["figures"]["connections"], line["figures"]["window"])
            for line in lines
        ]
        assert shapes[:3] == [("produce", 1, 1), ("produce", 64, 1), ("produce", 16, 64)]
        measured = {(line["figures"]["format"], line["figures"]["scenario"]) for line in lines}
        assert measured == {(one[0], one[1]) for one in SHAPES if one[0] in ("mamamia", "mega")}
        assert all(line["raw_fdatasync_per_s"] > 0 for line in report["scenarios"])
        assert all(line["figures"]["messages"] > 0 for line in report["scenarios"])
        assert report["durability"] == "fsync"
        assert report["peak_rss_bytes"] > 0
        assert report["idle"]["connections"] == 10
        assert len(report["memory"]) == 5
        assert report["configured_caches_bytes"] > 0
        assert list(tmp_path.iterdir()) == []

    def test_a_profile_becomes_shares_of_the_time_without_waits(self) -> None:
        """The loop waits itself, so it has no share. A function counts with all that it calls."""
        stats = {
            ("~", 0, "<method 'poll' of 'select.epoll' objects>"): (9, 9, 6.0, 6.0, {}),
            ("/lib/twisted/base.py", 1, "run"): (1, 1, 0.2, 10.0, {}),
            ("/lib/twisted/tcp.py", 7, "read"): (5, 5, 1.8, 3.8, {}),
            ("~", 0, "<method 'send' of '_socket.socket' objects>"): (8, 8, 1.9, 1.9, {}),
            ("/lib/twisted/tcp.py", 9, "small"): (2, 2, 0.1, 0.1, {}),
        }
        assert shares(stats) == [
            Share(45.0, 95.0, 5, "twisted/tcp.py:7 read"),
            Share(47.5, 47.5, 8, "<method 'send' of '_socket.socket' objects>"),
        ]

    @pytest.mark.slow
    def test_a_profile_shows_shares_of_each_scenario(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["--profile", "--seconds=0.2", "--format=rustlog", f"--directory={tmp_path}"]
        assert bench_main(options) == 0
        lines = capsys.readouterr().out.splitlines()
        heads = [line.partition(":")[0] for line in lines if line.endswith("while being profiled")]
        assert heads == ["rustlog-produce-batch-8x4", "rustlog-fetch-8x1"]
        assert any("'send' of '_socket.socket'" in line for line in lines)
        assert list(tmp_path.iterdir()) == []

    def test_every_format_has_its_scenarios_in_it(self) -> None:
        """Unless some are asked for; test_bench_formats.py runs them."""
        assert {form for form, _, _, _ in SHAPES} == FORMATS.keys()
        assert all(scenario in FORMATS[form].scenarios for form, scenario, _, _ in SHAPES)

    def test_the_parts_at_size_belong_to_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each with the scale that was asked for; test_size.py and test_stalls.py run them."""
        for part in (holes, schedule, size):
            monkeypatch.setattr(
                part, "measure", lambda _, names, scale, *rest: iter([[len(names), scale]])
            )
        for part in (stalls, key_order):
            monkeypatch.setattr(part, "measure", lambda _, scale, *rest: scale)
        options = ["--json", "--no-rates", "--no-memory", "--scale=0.25", "--seconds=2"]
        code = bench_main([*options, f"--directory={tmp_path}"])
        report = json.loads(capsys.readouterr().out)
        assert code == 0
        assert report["machine"]["compiled"] is COMPILED
        assert report["holes"] == [[3, 0.25]]
        assert report["schedule"] == [[2, 0.25]]
        assert report["states"] == [[6, 0.25]]
        assert (report["stalls"], report["key_order"]) == (0.25, 0.25)

    def test_a_setting_the_broker_refuses_is_told_and_nothing_is_left(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Exit code 2 and the broker's own words."""
        code = bench_main([f"--directory={tmp_path}", "--set=wal.durability=maybe", "--no-rates"])
        assert code == 2
        assert "durability" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
