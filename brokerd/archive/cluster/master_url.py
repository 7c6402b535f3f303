# Tests: tests/archive/test_master_url.py
"""Master URLs: they say where Spark runs, and imply settings of Spark.

- ``local[4]``: in Java beside this process.
- ``local-cluster[2,1,1024]``: in executors on this machine, each with 1 core and 1024 MiB. Spark
  offers it for tests.
- ``spark://127.0.0.1:7077``: in a cluster on this machine only.
- Other URLs: in a cluster. Its executors connect to the driver, so the driver also listens on
  other interfaces than loopback.

https://spark.apache.org/docs/latest/submitting-applications.html, "Master URLs".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from brokerd.errors import ConfigError

TASK_ATTEMPTS = 4
"""Attempts of a task before the job fails. The default of a local Spark is 1."""
LOOPBACK = "127.0.0.1"

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(, *\d+)?\])?", re.ASCII)
_LOCAL_CLUSTER = re.compile(r"local-cluster\[ *\d+ *, *\d+ *, *(\d+) *\]", re.ASCII)
_ALONE = re.compile(r"spark://(127\.0\.0\.1|localhost|\[::1\]):\d+", re.ASCII)
_ELSEWHERE = re.compile(r"(spark|k8s)://.+|yarn", re.ASCII)
_WORK = "work"
"""The directory below ``SPARK_HOME`` in which Spark's worker makes a directory per executor."""
_SOCKET_PATH_BYTES = 107
"""The longest path of a socket on Linux: unix(7), ``sun_path``, without the last NUL."""
_SOCKET_NAME = "/.00000000-0000-0000-0000-000000000000.sock"
"""The form of Spark's socket names, after the directory."""


def check_master(master: str) -> str:
    """Return a master URL unchanged. Raises ConfigError if Spark does not accept it."""
    if not any(one.fullmatch(master) for one in (_LOCAL, _LOCAL_CLUSTER, _ELSEWHERE)):
        raise ConfigError(
            f"archive.master: {master!r} is not a master URL of Spark: give local[*], local[4], "
            "local-cluster[2,1,1024], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    return master


def is_local(master: str) -> bool:
    """Return whether tasks run beside this process, with its files."""
    return _LOCAL.fullmatch(master) is not None


def is_local_cluster(master: str) -> bool:
    """Return whether this process starts executors on this machine."""
    return _LOCAL_CLUSTER.fullmatch(master) is not None


def is_on_loopback(master: str) -> bool:
    """Return whether all of Spark runs on this machine."""
    return is_local(master) or is_local_cluster(master) or _ALONE.fullmatch(master) is not None


def with_attempts(master: str) -> str:
    """Return a master URL that tries a task several times. Only local masters need a change."""
    local = _LOCAL.fullmatch(master)
    if local is None or local[2]:
        return master
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]"


def attempts_of(master: str, limit: str | None) -> int:
    """Return the number of attempts of a task of a master.

    :param limit: ``spark.task.maxFailures``, or None for Spark's default. Local masters ignore it.
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return int(limit or TASK_ATTEMPTS)
    return int(local[2].strip(", ")) if local[2] else 1


def settings_of(master: str, java_options: str, directory: Path) -> dict[str, str]:
    """Return the settings of Spark for a master.

    :param java_options: options of Java on this machine.
    :param directory: Spark's own directory.
    """
    settings: dict[str, str] = {}
    if is_on_loopback(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_local(master):
        settings["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        settings |= _sockets(directory / "sockets")
    executors = _LOCAL_CLUSTER.fullmatch(master)
    if executors is not None:
        settings["spark.executor.memory"] = f"{executors[1]}m"
        settings["spark.executor.defaultJavaOptions"] = java_options
    return settings


def environment_of(master: str, home: Path, directory: Path) -> Mapping[str, str]:
    """Return environment variables of Java for a master.

    :param home: the directory where Spark is installed.
    """
    variables = {"SPARK_LOCAL_IP": LOOPBACK} if is_on_loopback(master) else {}
    if is_local_cluster(master):
        variables["SPARK_HOME"] = str(_writable_home(home, directory / "home"))
    return variables


def executor_logs(directory: Path) -> list[Path]:
    """Return the log files of the executors that this process started."""
    return sorted((directory / "home" / _WORK).glob("*/*/stderr"))


def _writable_home(home: Path, directory: Path) -> Path:
    """Make a directory of links to the installed Spark, with a writable ``work``. Return it."""
    directory.mkdir(exist_ok=True)
    for entry in home.iterdir():
        if entry.name != _WORK:
            (directory / entry.name).symlink_to(entry)
    return directory


def _sockets(directory: Path) -> dict[str, str]:
    """Return settings for Unix sockets between a local Spark and its workers. Make their directory.

    Over TCP each task would wait 40 ms for a delayed acknowledgement (RFC 1122, 4.2.3.2). Return no
    settings if the path is too long for a socket: Spark then uses TCP.
    """
    if len(os.fsencode(f"{directory}{_SOCKET_NAME}")) > _SOCKET_PATH_BYTES:
        return {}
    directory.mkdir(mode=0o700, exist_ok=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }
