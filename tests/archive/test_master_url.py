"""The name of a master says how Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.archive.cluster import master_url
from brokerd.errors import ConfigError

CLUSTER = "local-cluster[2,1,1024]"


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3]", "local[3,4]"),
        ("local[3,1]", "local[3,1]"),
        (CLUSTER, CLUSTER),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_spark_tries_tasks_again(master: str, expected: str) -> None:
    """As any other does; who said how often is obeyed."""
    assert master_url.with_attempts(master) == expected


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[4]", "local[4, 2]", "local-cluster[ 2, 1, 1024 ]"),
        *("spark://a:7077,b:7077", "yarn", "k8s://https://host:6443"),
    ],
)
def test_what_spark_runs_on_is_a_master(master: str) -> None:
    """As it is written."""
    assert master_url.check_master(master) == master


@pytest.mark.parametrize(
    "master", ["", "nonsense", "local[]", "local[x]", "local-cluster[2]", "local-cluster[2,1]"]
)
def test_what_spark_does_not_run_on_is_told(master: str) -> None:
    """With what there is."""
    with pytest.raises(ConfigError, match=r"is not a master URL of Spark: give local\[\*\], "):
        master_url.check_master(master)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local[2]", True),
        (CLUSTER, True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.1.example.org:7077", False),
        ("spark://127.0.0.1:7077,other:7077", False),
        ("yarn", False),
    ],
)
def test_only_executors_of_other_machines_are_listened_to(
    tmp_path: Path, master: str, expected: bool
) -> None:
    """Where all run on this one, the driver listens on the loopback interface alone."""
    settings = master_url.settings_of(master, "", tmp_path)
    (tmp_path / "installed").mkdir()
    environment = master_url.environment_of(master, tmp_path / "installed", tmp_path)
    assert (settings.get("spark.driver.bindAddress") == "127.0.0.1") is expected
    assert (settings.get("spark.driver.host") == "127.0.0.1") is expected
    assert (environment.get("SPARK_LOCAL_IP") == "127.0.0.1") is expected


def test_executors_of_ones_own_have_the_memory_that_the_master_names(tmp_path: Path) -> None:
    """Spark's own default would be refused where it is more."""
    settings = master_url.settings_of("local-cluster[2,1,700]", "-Dx=y", tmp_path)
    assert settings["spark.executor.memory"] == "700m"
    assert settings["spark.executor.defaultJavaOptions"] == "-Dx=y"


def test_a_cluster_of_ones_own_writes_nothing_where_spark_is_installed(tmp_path: Path) -> None:
    """It finds all of it elsewhere, and there alone is room for its work."""
    installed, own = tmp_path / "installed", tmp_path / "own"
    for directory in (installed / "jars", installed / "work" / "old", own):
        directory.mkdir(parents=True)
    (installed / "jars" / "one.jar").write_bytes(b"jar")
    environment = master_url.environment_of(CLUSTER, installed, own)
    home = Path(environment["SPARK_HOME"])
    assert home.parent == own
    assert (home / "jars" / "one.jar").read_bytes() == b"jar"
    assert not (home / "work").exists()
    assert master_url.executor_logs(own) == []
    (home / "work" / "app" / "0").mkdir(parents=True)
    (home / "work" / "app" / "0" / "stderr").touch()
    assert [path.parent.name for path in master_url.executor_logs(own)] == ["0"]
