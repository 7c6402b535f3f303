# Tests: tests/archive/test_master_url.py
"""Where Spark runs: what the names of masters mean for how it is started.

- ``local[4]``: in Java beside this process.
- ``local-cluster[2,1,1024]``: in executors of their own on this machine, each with so many cores
  and MiB. It is Spark's own way to try what a cluster does.
- ``spark://127.0.0.1:7077``: in a cluster that this machine is alone.
- all others: in a cluster. Its executors have to be able to call the driver, which then has to
  listen on more than the loopback interface.

https://spark.apache.org/docs/latest/submitting-applications.html, "Master URLs".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from brokerd.errors import ConfigError

TASK_ATTEMPTS = 4
"""How often a task is tried before the job fails. By itself a local Spark gives up at once."""
LOOPBACK = "127.0.0.1"

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(, *\d+)?\])?", re.ASCII)
_LOCAL_CLUSTER = re.compile(r"local-cluster\[ *\d+ *, *\d+ *, *(\d+) *\]", re.ASCII)
_ALONE = re.compile(r"spark://(127\.0\.0\.1|localhost|\[::1\]):\d+", re.ASCII)
_ELSEWHERE = re.compile(r"(spark|k8s)://.+|yarn", re.ASCII)
_WORK = "work"
"""Where Spark's own worker gives each executor a directory, below ``SPARK_HOME``."""
_SOCKET_PATH_BYTES = 107
"""How long the path of a socket may be on Linux: unix(7), ``sun_path``, without the last NUL."""
_SOCKET_NAME = "/.00000000-0000-0000-0000-000000000000.sock"
"""What Spark's names of sockets look like, after their directory."""


def check_master(master: str) -> str:
    """A name of where Spark runs, as it is. Raises ConfigError for what Spark takes for none."""
    if not any(one.fullmatch(master) for one in (_LOCAL, _LOCAL_CLUSTER, _ELSEWHERE)):
        raise ConfigError(
            f"archive.master: {master!r} is nothing that Spark runs on: name local[*], local[4], "
            "local-cluster[2,1,1024], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    return master


def is_local(master: str) -> bool:
    """Whether tasks run beside this process, with what it has."""
    return _LOCAL.fullmatch(master) is not None


def is_local_cluster(master: str) -> bool:
    """Whether executors run on this machine, which this process starts and ends."""
    return _LOCAL_CLUSTER.fullmatch(master) is not None


def is_on_loopback(master: str) -> bool:
    """Whether nobody on another machine has to be listened to."""
    return is_local(master) or is_local_cluster(master) or _ALONE.fullmatch(master) is not None


def with_attempts(master: str) -> str:
    """A local master that tries a task more than once, as all others do."""
    local = _LOCAL.fullmatch(master)
    if local is None or local[2]:
        return master
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]"


def settings_of(master: str, java_options: str, directory: Path) -> dict[str, str]:
    """Settings of Spark that are so because of where it runs.

    :param java_options: of Java on this machine.
    :param directory: Spark's own, where something may be made.
    """
    found: dict[str, str] = {}
    if is_on_loopback(master):
        found |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_local(master):
        found["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        found |= _sockets(directory / "sockets")
    executors = _LOCAL_CLUSTER.fullmatch(master)
    if executors is not None:
        found["spark.executor.memory"] = f"{executors[1]}m"
        found["spark.executor.defaultJavaOptions"] = java_options
    return found


def environment_of(master: str, home: Path, directory: Path) -> Mapping[str, str]:
    """What Java is to have in its environment because of where Spark runs.

    :param home: where Spark is installed.
    """
    found = {"SPARK_LOCAL_IP": LOOPBACK} if is_on_loopback(master) else {}
    if is_local_cluster(master):
        found["SPARK_HOME"] = str(_own_home(home, directory / "home"))
    return found


def executor_logs(directory: Path) -> list[Path]:
    """What executors said that this process started, a file each."""
    return sorted((directory / "home" / _WORK).glob("*/*/stderr"))


def _own_home(home: Path, directory: Path) -> Path:
    """Spark as it is installed, in a directory where it may write to ``work``."""
    directory.mkdir(exist_ok=True)
    for entry in home.iterdir():
        if entry.name != _WORK:
            (directory / entry.name).symlink_to(entry)
    return directory


def _sockets(directory: Path) -> dict[str, str]:
    """Have a local Spark talk to its workers by sockets in a directory, which is made.

    By TCP each task would wait 40 ms, for an acknowledgement that is delayed as there is nothing to
    answer yet (RFC 1122, 4.2.3.2). That is left where the directory's path is too long.
    """
    if len(os.fsencode(f"{directory}{_SOCKET_NAME}")) > _SOCKET_PATH_BYTES:
        return {}
    directory.mkdir(mode=0o700, exist_ok=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }
