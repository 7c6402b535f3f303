"""The wheel as a stranger meets it: built, installed, found by twistd, gone afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from brokerd import __version__

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "brokerd" / "admin" / "static"
SECONDS = 300
BACKEND = "scripts/build_backend.py"


def run(*command: object, **options: object) -> str:
    """Run a command that must succeed; return its output."""
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={
            **os.environ,
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PYTHONPATH": "",
            "BROKERD_COMPILE": "0",
        },
        **options,  # type: ignore[call-overload]
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return str(result.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel, built from a copy so that nothing is left in the tree."""
    source = tmp_path_factory.mktemp("source")
    for name in ("brokerd", "twisted"):
        shutil.copytree(
            ROOT / name,
            source / name,
            ignore=shutil.ignore_patterns("__pycache__", "dropin.cache"),
        )
    (source / "scripts").mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.rst", "LICENSE", BACKEND):
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", source, "--outdir", source / "dist")
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with nothing but the wheel and what it asks for."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", directory)
    run(directory / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    return directory


def test_the_version_is_one() -> None:
    """setup.cfg and the package say the same."""
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == __version__


def test_the_plugin_directory_has_no_init() -> None:
    """With an __init__.py our twisted/plugins would hide Twisted's own."""
    assert not (ROOT / "twisted" / "__init__.py").exists()
    assert not (ROOT / "twisted" / "plugins" / "__init__.py").exists()


def test_a_broker_reads_an_archive_with_what_its_extra_brings(tmp_path: Path) -> None:
    """Neither Spark nor deltalake: those are the job's."""
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    extras = metadata["options.extras_require"]
    brought = {re.match(r"[\w.-]+", line)[0] for line in extras["archive"].split()}  # type: ignore[index]
    assert brought == {"pyarrow", "numpy", "obstore"}
    code = (
        "import sys; sys.modules |= dict.fromkeys(['pyspark', 'py4j', 'deltalake', 'pandas'])\n"
        "from pathlib import Path\n"
        "from brokerd.archive.serve.delta_archive import DeltaArchive\n"
        f"print(DeltaArchive(Path({str(tmp_path)!r}), '0' * 32).refresh())"
    )
    assert run(sys.executable, "-c", code, cwd=ROOT) == "None\n"


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module, the plugin, the page and the type marker; no tests, no demo, no simulator."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "brokerd").rglob("*.py")}
    modules = {name for name in modules if not name.startswith("simulator/")}
    static = {f"brokerd/admin/static/{path.name}" for path in STATIC.iterdir()}
    assert "brokerd/admin/static/index.html" in static
    assert names - modules - static == {"twisted/plugins/brokerd_plugin.py", "brokerd/py.typed"}
    assert static - names == set()
    assert modules - names == set()


@pytest.mark.slow
def test_twistd_lists_brokerd_once_installed(environment: Path) -> None:
    """The plugin is registered by the wheel itself."""
    assert "  brokerd " in run(environment / "bin" / "twistd", "--help", cwd=environment)
    run(environment / "bin" / "brokerctl", "config", "check", ROOT / "etc" / "brokerd.toml")


@pytest.mark.slow
def test_the_job_says_what_is_not_installed(environment: Path) -> None:
    """The wheel alone brings no Spark; the command is there and names what does."""
    asked = subprocess.run(
        [environment / "bin" / "brokerd-rollup", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": ""},
        cwd=environment,
    )
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr.startswith("brokerd-rollup: ")
    assert "run `make spark` in a clone" in asked.stderr and "'brokerd[spark]'" in asked.stderr
    assert len(asked.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_wheel_brings_no_package_of_an_extra(environment: Path) -> None:
    """Spark, the archive's packages, schemas and the tools of tests stay away."""
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    lines = " ".join(metadata["options.extras_require"].values()).split()
    of_extras = {re.split(r"[<>=[]", line)[0].lower() for line in lines} - {"brokerd"}
    assert {"pyspark", "pyarrow", "fastavro", "pytest", "mypy", "sphinx"} <= of_extras
    listed = run(environment / "bin" / "python", "-m", "pip", "list", "--format=json")
    installed = {package["name"].lower() for package in json.loads(listed)}
    assert {"brokerd", "twisted", "msgpack"} <= installed
    assert not installed & of_extras


@pytest.mark.slow
def test_an_installed_broker_serves_a_record(environment: Path, tmp_path: Path) -> None:
    """From the wheel alone it takes a record and returns it, and SIGTERM ends it cleanly."""
    arguments = ["-n", "--pidfile=", "brokerd", "--admin", "tcp:0", "--listen", "mamamia=tcp:0"]
    listeners = tmp_path / "brokerd-data" / "run" / "listeners.json"
    with (tmp_path / "output").open("w") as output:
        broker = subprocess.Popen(
            [environment / "bin" / "twistd", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ""},
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while not listeners.exists() and broker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert listeners.exists(), (tmp_path / "output").read_text()
        addresses = json.loads(listeners.read_text())
        assert set(addresses) == {"mamamia", "admin"}
        brokerctl = [environment / "bin" / "brokerctl", "--server", f"http://{addresses['admin']}"]
        run(*brokerctl, "produce", "orders", "by brokerctl", cwd=tmp_path)
        client = (
            "from brokerd.client.mamamia import MamamiaClient\n"
            f"with MamamiaClient({addresses['mamamia']!r}) as client:\n"
            "    client.produce('orders', 'by the client')\n"
            "    print(client.acquire('orders', 'billing', 'worker').payload)"
        )
        said = run(environment / "bin" / "python", "-c", client, cwd=tmp_path)
        assert "by brokerctl" in said
        said = run(*brokerctl, "tail", "orders", "--from", "0", "--max", "2", cwd=tmp_path)
        assert "by the client" in said
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=SECONDS) == 0, (tmp_path / "output").read_text()
        assert not listeners.exists()
    finally:
        if broker.poll() is None:
            broker.kill()
            broker.wait()


@pytest.mark.slow
def test_uninstalling_leaves_nothing(environment: Path) -> None:
    """No file of ours stays, and twistd forgets us. (Last here: it takes the wheel away.)"""
    run(environment / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "brokerd")
    left = [path for path in environment.rglob("*broker*") if "site-packages" in path.parts]
    assert left == []
    assert not (environment / "bin" / "brokerctl").exists()
    assert "brokerd" not in run(environment / "bin" / "twistd", "--help", cwd=environment)
