"""``make demo``: its ledgers find every broken promise; a whole run passes with a real broker."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import pytest

from brokerd.codecs import mamamia, mega
from brokerd.server.sections import FORMATS
from demo import flights
from demo.connection import Connection
from demo.flights import DemoFailed, prepare
from demo.ledger import REASONS, Delivery, Ledger, is_to_fail, reason_of
from demo.progress import Progress
from demo.read_ledger import ReadLedger, ReadRecord
from demo.readers import MegaReader
from demo.rows import Row, RowsMissing, read_rows
from demo.summary import Times, report
from demo.workers import TOPIC, SharedState, writer_of
from demo.writers import produce_request

COLUMNS = ["year", "dep_time", "carrier", "tailnum", "air_time"]
LEASE = 3.0


def write_table(path: Path, rows: int) -> Path:
    """A small table in the package's own form: flights.csv inside a zip."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for number in range(rows):
        carrier = ("UA", "AA", "B6")[number % 3]
        writer.writerow(["2013", "NA" if number % 7 == 0 else 517, carrier, f"N{number}", "227"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    return path


def kept_ledger(rows: int = 1000) -> Ledger:
    """The ledger of a broker without faults, row n at offset n."""
    ledger = Ledger(rows, LEASE)
    ledger.acknowledge({number: number for number in range(rows)})
    ledger.deliver([Delivery(number, number, True, 0.0, 0.1) for number in range(rows)])
    for number in range(rows):
        if is_to_fail(number):
            for _ in range(3):
                ledger.settle(number, False, 0.2)
        else:
            ledger.settle(number, True, 0.2)
    return ledger


class TestMegaReader:
    def test_a_record_appended_within_a_window_is_read_by_the_next_one(self) -> None:
        """Offset 1 was refused, a writer appended two records, and offset 2 was served."""
        rows = [Row(n, "UA", b"row %d" % n) for n in range(3)]
        state = SharedState({}, rows, Ledger(3, LEASE), ReadLedger(["mega"]), 1, 1, 1)
        reader = MegaReader(state)
        reader.make_feed()
        served = [mega.Consumed(n, 0, n + 1, b"row %d" % n) for n in range(3)]
        refused = mega.Refused(1, mega.Code.INVALID_OFFSET)
        assert reader.read(PreparedConnection([served[0], refused, served[2]])) == 1
        assert reader.read(PreparedConnection([served[1], served[2], refused])) == 2
        assert state.read_ledger.count("mega") == 3


class PreparedConnection(Connection):
    """A connection with prepared answers; it sends nothing."""

    def __init__(self, answers: list[mega.Answer]) -> None:
        self._answers = answers

    def exchange(self, data: bytes, is_whole: Callable[[list[Any]], bool]) -> list[Any]:
        return self._answers


class TestLedger:
    def test_a_broker_that_kept_its_promises_has_nothing_to_answer_for(self) -> None:
        """No finding without a fault."""
        assert kept_ledger().check(1000, 0, {500: 3}) == []

    def test_a_copy_of_a_resent_row_is_no_fault(self) -> None:
        """A row whose first answer was lost stands twice, and that is counted."""
        ledger = kept_ledger()
        ledger.deliver([Delivery(1000, 7, True, 0.0, 0.1)])
        assert ledger.check(1001, 0, {500: 3}) == []
        assert ledger.unacknowledged_copies() == 1

    @pytest.mark.parametrize(
        ("spoil", "finding"),
        [
            (lambda ledger: ledger.delivered.pop(3), "never delivered: 3"),
            (lambda ledger: ledger.row_of.pop(3), "1 rows were never acknowledged: 3"),
            (lambda ledger: ledger.row_of.update({3: 4}), "hold another row"),
            (lambda ledger: ledger.acknowledge({3: 3}), "offset 3 was acknowledged twice"),
            (
                lambda ledger: ledger.deliver([Delivery(1000, 3, False, 0.0, 0.1)]),
                "other content",
            ),
            (lambda ledger: ledger.deliver([Delivery(3, 4, True, 0.0, 0.1)]), "as row 3 and"),
            (
                lambda ledger: ledger.deliver([Delivery(3, 3, True, 0.3, 0.4)]),
                "offset 3 was delivered again",
            ),
            (
                lambda ledger: ledger.deliver([Delivery(3, 3, True, 0.1, 0.4)]),
                "offset 3 was delivered again",
            ),
            (lambda ledger: ledger.settle(500, False, 0.3), "more than 3 failures"),
            (lambda ledger: ledger.delivered.update({2000: 3}), "beyond the end"),
            (lambda ledger: ledger.report("consumer 1 failed"), "consumer 1 failed"),
        ],
    )
    def test_each_broken_promise_is_found(
        self, spoil: Callable[[Ledger], object], finding: str
    ) -> None:
        """Loss, mix-up, corruption and redelivery are told apart and name the offset."""
        ledger = kept_ledger()
        spoil(ledger)
        assert any(finding in line for line in ledger.check(1000, 0, {500: 3}))

    def test_an_answer_that_lay_unread_for_a_whole_lease_proves_nothing(self) -> None:
        """It may be older than the settle of the one who leased the message afterwards."""
        ledger = kept_ledger()
        ledger.deliver([Delivery(3, 3, True, 0.1, 0.1 + LEASE)])
        assert ledger.check(1000, 0, {500: 3}) == []

    def test_rows_whose_writer_is_told_no_offset_count_as_acknowledged(self) -> None:
        """They must be in the log, somewhere."""
        ledger = kept_ledger()
        ledger.acknowledge_without_offset([ledger.row_of.pop(3)])
        assert ledger.acknowledged() == 1000
        assert ledger.unacknowledged_copies() == 0
        assert ledger.check(1000, 0, {500: 3}) == []
        del ledger.delivered[3]
        assert any("never delivered: rows 3" in line for line in ledger.check(1000, 0, {500: 3}))

    @pytest.mark.parametrize(
        ("next_offset", "lag", "dead", "finding"),
        [
            (1001, 0, {500: 3}, "of the log were never delivered: 1000"),
            (1000, 2, {500: 3}, "lags 2 messages"),
            (1000, 0, {}, "missing among the dead letters: 500"),
            (1000, 0, {500: 3, 7: 3}, "should not be: 7"),
            (1000, 0, {500: 2}, "other than 3 failures: 500"),
        ],
    )
    def test_the_brokers_last_word_must_agree(
        self, next_offset: int, lag: int, dead: dict[int, int], finding: str
    ) -> None:
        """Lag, length and dead letters are compared with the ledger."""
        assert any(finding in line for line in kept_ledger().check(next_offset, lag, dead))


class TestReadLedger:
    LOG: ClassVar[dict[int, int]] = {0: 10, 1: 11, 2: 12}

    def kept(self) -> ReadLedger:
        """The ledger of readers that read the log as it is."""
        read_ledger = ReadLedger(["flymq", "mega"])
        for name in ("flymq", "mega"):
            read_ledger.add(name, [ReadRecord(offset, row) for offset, row in self.LOG.items()])
        read_ledger.commit("flymq", 3)
        read_ledger.resume("flymq", 3)
        return read_ledger

    def test_formats_that_saw_the_same_log_have_nothing_to_answer_for(self) -> None:
        """No finding without a fault; what is read twice is as it was."""
        read_ledger = self.kept()
        read_ledger.add("flymq", [ReadRecord(1, 11)])
        assert read_ledger.check(self.LOG) == []
        assert read_ledger.count("flymq") == 3

    @pytest.mark.parametrize(
        ("spoil", "finding"),
        [
            (lambda read_ledger: read_ledger.rows["mega"].pop(1), "mega did not read 1 records: 1"),
            (
                lambda read_ledger: read_ledger.add("mega", [ReadRecord(3, 13)]),
                "mega read 1 records that the log lacks",
            ),
            (
                lambda read_ledger: read_ledger.rows["mega"].update({1: 12}),
                "mega read 1 records as other rows",
            ),
            (
                lambda read_ledger: read_ledger.add("mega", [ReadRecord(1, 12)]),
                "offset 1 was row 11 and row 12",
            ),
            (
                lambda read_ledger: read_ledger.add("mega", [ReadRecord(1, None)]),
                "offset 1 has the bytes of no row",
            ),
            (
                lambda read_ledger: read_ledger.add("mega", [ReadRecord(3, None)]),
                "offset 3 has the bytes of no row",
            ),
            (lambda read_ledger: read_ledger.resume("flymq", 2), "returned committed offset 2"),
            (
                lambda read_ledger: (
                    read_ledger.acknowledge("mega", [1]),
                    read_ledger.add("mega", [ReadRecord(1, 11)]),
                ),
                "offset 1 came again after its ACK",
            ),
        ],
    )
    def test_each_difference_is_found(
        self, spoil: Callable[[ReadLedger], object], finding: str
    ) -> None:
        """It names the format and the offset."""
        read_ledger = self.kept()
        spoil(read_ledger)
        assert any(finding in line for line in read_ledger.check(self.LOG))

    def test_every_format_writes_rows_that_are_to_fail(self) -> None:
        """Dead letters come from all writers, not from one alone."""
        failing = [row for row in range(10_000) if is_to_fail(row)]
        assert {writer_of(row) for row in failing} == set(FORMATS)
        assert {reason_of(row) for row in failing} == set(REASONS)


class TestReport:
    def test_a_run_that_breaks_off_early_has_no_rate(self) -> None:
        """The rows were not all acknowledged, so the time of that is unknown."""
        state = SharedState({}, [], kept_ledger(), ReadLedger(FORMATS), 1, 1, 1)
        text = report(state, Times(began=5.0, finished=5.0), 1000, 1, "somewhere")
        assert "rows acknowledged         1,000" in text
        assert "/s" not in text

    def test_a_finished_run_has_rates(self) -> None:
        """1,000 rows written in 2 s, 1,000 records read in 4 s."""
        state = SharedState({}, [], kept_ledger(), ReadLedger(FORMATS), 1, 1, 1)
        text = report(state, Times(began=5.0, produced=7.0, finished=9.0), 1000, 1, "somewhere")
        assert "500/s, the crash included" in text
        assert "250/s, all formats" in text


class TestDirectory:
    def test_an_earlier_demos_directory_is_wiped(self, tmp_path: Path) -> None:
        """Twice in a row works."""
        directory = tmp_path / ".demo"
        prepare(directory)
        (directory / "data").mkdir()
        (directory / "data" / "old").write_text("old")
        prepare(directory)
        assert not (directory / "data").exists()

    def test_somebody_elses_directory_is_left_alone(self, tmp_path: Path) -> None:
        """What the demo did not make it does not wipe."""
        (tmp_path / "thesis.tex").write_text("three years of work")
        with pytest.raises(DemoFailed, match="was not made by the demo"):
            prepare(tmp_path)
        assert (tmp_path / "thesis.tex").read_text() == "three years of work"

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        """A link called .demo may point anywhere."""
        (tmp_path / "real").mkdir()
        (tmp_path / ".demo").symlink_to(tmp_path / "real")
        with pytest.raises(DemoFailed, match="no plain directory"):
            prepare(tmp_path / ".demo")


class TestRows:
    def test_rows_are_read_with_numbers_texts_and_nothing(self, tmp_path: Path) -> None:
        """Numbers are numbers, NA is nil, and the carrier is at hand."""
        rows = read_rows(write_table(tmp_path / "t.zip", 10), None)
        assert len(rows) == 10
        assert rows[0].carrier == "UA"
        assert msgpack.unpackb(rows[0].packed) == {
            "row": 0,
            "year": 2013,
            "dep_time": None,
            "carrier": "UA",
            "tailnum": "N0",
            "air_time": 227,
        }

    def test_only_as_many_as_asked_for(self, tmp_path: Path) -> None:
        """ROWS=n takes the first n."""
        rows = read_rows(write_table(tmp_path / "t.zip", 10), 4)
        assert [row.number for row in rows] == [0, 1, 2, 3]

    def test_another_file_is_refused_by_name(self, tmp_path: Path) -> None:
        """No traceback for a file that is no table."""
        path = tmp_path / "t.zip"
        path.write_text("no zip")
        with pytest.raises(RowsMissing, match=r"t\.zip"):
            read_rows(path, None)

    def test_a_row_travels_as_a_map_with_carrier_and_number(self) -> None:
        """The frame is what the codec reads: payload map, key and metadata."""
        row = Row(7, "UA", msgpack.packb({"carrier": "UA", "year": 2013}))
        frame = produce_request(row)
        decoded = mamamia.Decoder().decode(frame[5], frame[6:])
        assert isinstance(decoded, mamamia.Produce)
        assert (decoded.log_id, decoded.key, decoded.value) == (TOPIC, b"UA", row.packed)
        assert decoded.metadata is not None
        assert msgpack.unpackb(decoded.metadata) == {"row": 7}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def test_a_terminal_gets_one_line_drawn_over_itself(self) -> None:
        """The bar moves in place."""
        out = _Terminal()
        progress = Progress(out, 100)
        progress.show(50, {"flymq": 25}, 1000.0)
        progress.show(100, {"flymq": 100}, 1000.0)
        assert out.getvalue().count("\r") == 2
        assert "50%" in out.getvalue()
        assert "\n" not in out.getvalue()

    def test_a_pipe_gets_a_plain_line_every_tenth(self) -> None:
        """Logs stay readable."""
        out = io.StringIO()
        progress = Progress(out, 100)
        for read in range(101):
            progress.show(100, {"flymq": read, "mega": read}, 1.0)
        lines = out.getvalue().splitlines()
        assert len(lines) == 10
        assert lines[-1] == "  written 100  read: flymq 100  mega 100"
        assert not any("\r" in line for line in lines)


class TestDemo:
    @pytest.mark.slow
    def test_a_whole_run_is_proven_and_can_be_repeated(self, tmp_path: Path) -> None:
        """Write, read, SIGKILL, restart, finish, prove: exit code 0, twice in a row; then Spark."""
        table = write_table(tmp_path / "t.zip", 3000)
        directory = tmp_path / "demo"
        arguments = ["--rows=all", f"--table={table}", f"--directory={directory}"]
        for more, proofs in (["--no-archive"], 1), ([], 2):
            # A process of its own: another Spark may be running in this one.
            told = subprocess.run(
                [sys.executable, "-m", "demo.flights", *arguments, *more],
                cwd=Path(__file__).resolve().parent.parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
            assert told.returncode == 0, told.stdout
            assert "SIGKILL" in told.stdout
            assert told.stdout.count("Proven") == proofs
        assert "|fog " in told.stdout
        assert (directory / "flights.png").read_bytes().startswith(b"\x89PNG")

    def test_a_missing_table_is_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Exit code 2 and the file's name; the directory is not touched."""
        code = flights.main([f"--table={tmp_path / 'no'}", f"--directory={tmp_path / 'demo'}"])
        assert code == 2
        assert str(tmp_path / "no") in capsys.readouterr().err
        assert not (tmp_path / "demo").exists()

    @pytest.mark.parametrize("rows", ["0", "999", "many", "-5"])
    def test_an_unusable_number_of_rows_is_refused(
        self, rows: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Below a thousand no row would fail; the message says what to give."""
        with pytest.raises(SystemExit) as caught:
            flights.main([f"--rows={rows}"])
        assert caught.value.code == 2
        assert "1000" in capsys.readouterr().err
