"""Dockerfile, compose.yaml and their files agree with the broker: ports, paths, options, users."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import yaml

from brokerd.errors import ConfigError
from brokerd.server.config import load
from brokerd.server.listeners import endpoints_of
from brokerd.server.sections import DEFAULT_LISTENERS, Config
from brokerd.tap import Options, load_options

ROOT = Path(__file__).resolve().parent.parent
PROMTOOL = shutil.which("promtool")
PORTS = {
    int(endpoint.removeprefix("tcp:"))
    for endpoint in (*DEFAULT_LISTENERS.values(), Config().admin.endpoint)
}
DATA = "/var/lib/brokerd"
STOP_SECONDS = 100
"""The longest stop that docs/operations.rst names."""


class Stage(NamedTuple):
    """One stage of the Dockerfile."""

    base: str
    instructions: list[tuple[str, str]]
    """Its instructions in order, and those of no other stage."""

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.instructions if name == instruction]


def stages() -> dict[str, Stage]:
    """Return the stages of the Dockerfile by name."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    found: dict[str, Stage] = {}
    stage = Stage("", [])
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, value = line.partition(" ")
        if name == "FROM":
            base, _, stage_name = value.partition(" AS ")
            stage = found[stage_name] = Stage(base, [])
        else:
            stage.instructions.append((name, value.strip()))
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The configuration of the images, made by the command of the Dockerfile."""
    path = tmp_path / "brokerd.toml"
    shutil.copy(ROOT / "etc" / "brokerd.toml", path)
    (command,) = [run for run in stages()["build"].values("RUN") if run.startswith("sed ")]
    subprocess.run(
        ["sh", "-c", command.replace("/etc/brokerd/brokerd.toml", str(path))], check=True
    )
    return path


class TestDockerfile:
    def test_the_last_stage_is_the_broker(self) -> None:
        assert list(stages())[-1] == "broker"

    def test_the_broker_starts_with_options_that_it_takes(self, configuration: Path) -> None:
        """In the foreground as the first process, so that it gets the signal of a stop."""
        broker = stages()["broker"]
        (entry_point,) = broker.values("ENTRYPOINT")
        program, *arguments = json.loads(entry_point)
        assert [program, *arguments[:3]] == ["twistd", "-n", "--pidfile=", "brokerd"]
        assert broker.values("CMD") == []
        options = Options()
        options.parseOptions(arguments[3:])
        assert options["config"] == "/etc/brokerd/brokerd.toml"
        options["config"] = str(configuration)
        assert load_options(options, {}).config.data_dir == DATA

    def test_the_rollup_starts_with_options_that_it_takes(self) -> None:
        from brokerd.rollup import command

        rollup = stages()["rollup"]
        (entry_point,) = rollup.values("ENTRYPOINT")
        (extra,) = rollup.values("CMD")
        program, *arguments = json.loads(entry_point) + json.loads(extra)
        assert program == "brokerd-rollup"
        taken = {name for option in command.params for name in option.opts}
        assert {one for one in arguments if one.startswith("--")} <= taken

    def test_it_exposes_the_default_ports(self) -> None:
        (exposed,) = stages()["broker"].values("EXPOSE")
        assert {int(port) for port in exposed.split()} == PORTS

    def test_every_listener_is_open_and_refused_unless_allowed(self, configuration: Path) -> None:
        """The same ports as without a container, and no less safe."""
        config = load(configuration).config
        endpoints = [*config.listen.values(), config.admin.endpoint]
        assert set(endpoints) == {f"tcp:{port}:interface=0.0.0.0" for port in PORTS}
        with pytest.raises(ConfigError, match="open to other machines"):
            endpoints_of(None, config)

    def test_its_health_is_that_of_the_admin_site(self) -> None:
        (check,) = stages()["broker"].values("HEALTHCHECK")
        program, _, code = json.loads(check.partition(" CMD ")[2])
        assert program == "python"
        compile(code, "health", "exec")
        port = Config().admin.endpoint.removeprefix("tcp:")
        assert f"http://127.0.0.1:{port}/health/ready" in code

    def test_its_health_needs_no_proxy(self) -> None:
        """Docker sets the variables of its own proxy in each container that it starts."""
        (check,) = stages()["broker"].values("HEALTHCHECK")
        _, _, code = json.loads(check.partition(" CMD ")[2])
        with socket.create_server(("127.0.0.1", 0)) as site:
            ready = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            answer = Thread(target=lambda: site.accept()[0].sendall(ready), daemon=True)
            answer.start()
            here = code.replace(":9644/", f":{site.getsockname()[1]}/")
            environment = {"http_proxy": "http://127.0.0.1:9"}
            subprocess.run([sys.executable, "-c", here], env=environment, check=True, timeout=60)

    def test_nothing_runs_as_root(self) -> None:
        """A number, so that Kubernetes can tell; the data directory belongs to it."""
        base = stages()["base"]
        (user,) = base.values("USER")
        number = int(user.partition(":")[0])
        assert number > 0
        (command,) = [run for run in base.values("RUN") if "useradd" in run]
        assert f"useradd --uid {number} " in command
        assert f"install -d -o brokerd -g brokerd -m 700 {DATA}" in command
        assert base.values("VOLUME") == [DATA]
        for name in ("broker", "rollup"):
            assert stages()[name].base == "base"
            assert stages()[name].values("USER") == []

    def test_a_stop_is_the_signal_that_stops(self) -> None:
        assert stages()["base"].values("STOPSIGNAL") == ["SIGTERM"]

    def test_the_files_that_it_copies_are_sent_to_the_build(self) -> None:
        """They exist, and .dockerignore lets them through."""
        lines = (ROOT / ".dockerignore").read_text().splitlines()
        sent = {line[1:] for line in lines if line.startswith("!")}
        copied = {
            path
            for stage in stages().values()
            for value in stage.values("COPY")
            if not value.startswith("--from")
            for path in value.split()[:-1]
        }
        assert copied == sent
        for path in copied:
            assert (ROOT / path).exists(), path

    def test_the_extras_exist(self) -> None:
        metadata = ConfigParser()
        metadata.read(ROOT / "setup.cfg")
        named = set()
        for stage in stages().values():
            for command in stage.values("RUN"):
                for extras in re.findall(r"\*\.whl\)\[([\w,]+)\]", command):
                    named |= set(extras.split(","))
        assert named == {"archive", "schemas", "spark"}
        assert named <= set(metadata["options.extras_require"])


class TestCompose:
    def test_the_targets_are_stages(self, compose: dict[str, Any]) -> None:
        built = {name: one["build"] for name, one in compose["services"].items() if "build" in one}
        assert {name: one["target"] for name, one in built.items()} == {
            "broker": "broker",
            "rollup": "rollup",
        }
        assert set(stages()) >= {one["target"] for one in built.values()}

    def test_every_port_is_published_on_loopback(self, compose: dict[str, Any]) -> None:
        """Under its own number, and for the broker all that it listens on."""
        for name, service in compose["services"].items():
            published = [port.split(":") for port in service.get("ports", ())]
            assert all(address == "127.0.0.1" for address, _, _ in published), name
            assert all(outside == inside for _, outside, inside in published), name
        broker = compose["services"]["broker"]["ports"]
        assert {int(port.split(":")[2]) for port in broker} == PORTS

    def test_its_environment_lets_the_broker_start(
        self, compose: dict[str, Any], configuration: Path
    ) -> None:
        """The variables are options of the broker, and they are needed."""
        environment = compose["services"]["broker"]["environment"]
        endpoints_of(None, load(configuration, environment).config)

    def test_broker_and_rollup_share_the_data(self, compose: dict[str, Any]) -> None:
        broker, rollup = (compose["services"][name] for name in ("broker", "rollup"))
        assert broker["volumes"] == rollup["volumes"] == [f"data:{DATA}"]
        assert "data" in compose["volumes"]

    def test_a_stop_may_take_as_long_as_the_broker_needs(self, compose: dict[str, Any]) -> None:
        grace = compose["services"]["broker"]["stop_grace_period"]
        assert int(grace.removesuffix("s")) > STOP_SECONDS

    def test_the_mounted_files_exist(self, compose: dict[str, Any]) -> None:
        mounts = [
            mount.split(":")[0]
            for service in compose["services"].values()
            for mount in service["volumes"]
        ]
        for source in mounts:
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
            else:
                assert source in compose["volumes"]

    def test_prometheus_scrapes_the_broker(self, compose: dict[str, Any]) -> None:
        """By the name of its service, under the job name of the rules, which it loads."""
        document = yaml.safe_load((ROOT / "etc/compose/prometheus.yml").read_text())
        (job,) = document["scrape_configs"]
        (target,) = job["static_configs"][0]["targets"]
        name, port = target.split(":")
        assert name in compose["services"]
        assert f"tcp:{port}" == Config().admin.endpoint
        rules = (ROOT / "etc/prometheus/brokerd.rules.yml").read_text()
        assert f'job="{job["job_name"]}"' in rules
        inside = [mount.split(":")[1] for mount in compose["services"]["prometheus"]["volumes"]]
        assert set(document["rule_files"]) < set(inside)

    def test_grafana_finds_prometheus_and_the_dashboard(self, compose: dict[str, Any]) -> None:
        inside = [mount.split(":")[1] for mount in compose["services"]["grafana"]["volumes"]]
        provider = yaml.safe_load(
            (ROOT / "etc/grafana/provisioning/dashboards/brokerd.yaml").read_text()
        )
        assert provider["providers"][0]["options"]["path"] in inside
        source = yaml.safe_load((ROOT / "etc/compose/datasource.yaml").read_text())
        shipped = yaml.safe_load(
            (ROOT / "etc/grafana/provisioning/datasources/brokerd.yaml").read_text()
        )
        url = source["datasources"][0].pop("url")
        shipped["datasources"][0].pop("url")
        assert source == shipped
        (published,) = compose["services"]["prometheus"]["ports"]
        assert url == f"http://prometheus:{published.split(':')[2]}"

    @pytest.mark.skipif(
        PROMTOOL is None, reason="there is no promtool here (Debian: apt-get install prometheus)"
    )
    def test_promtool_accepts_its_configuration(self, tmp_path: Path) -> None:
        text = (ROOT / "etc/compose/prometheus.yml").read_text()
        path = tmp_path / "prometheus.yml"
        path.write_text(text.replace("/etc/prometheus", str(ROOT / "etc/prometheus")))
        checked = subprocess.run(
            [str(PROMTOOL), "check", "config", path], capture_output=True, text=True, timeout=60
        )
        assert checked.returncode == 0, checked.stderr
