"""The Helm chart renders what tests/golden/helm.yaml has, and that agrees with the broker.

`python -m tests.test_helm_chart` renders the file again, with helm.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from brokerd import __version__
from brokerd.errors import ConfigError
from brokerd.server.config import load
from brokerd.server.listeners import endpoints_of
from brokerd.server.sections import DEFAULT_LISTENERS, Config

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "etc" / "helm" / "brokerd"
GOLDEN = ROOT / "tests" / "golden" / "helm.yaml"
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no helm here")
KUBERNETES = ("1.25", "1.37")
PASSWORD = "auth.adminPassword=change-me"
PORTS = {
    name.replace("+", "-"): int(endpoint.removeprefix("tcp:"))
    for name, endpoint in {**DEFAULT_LISTENERS, "admin": Config().admin.endpoint}.items()
}

Document = dict[str, Any]


def render(*values: str) -> str:
    """Return the manifests of a release, as helm renders them."""
    settings = [f"--set={value}" for value in values]
    command = [str(HELM), "template", "orders", CHART, *settings]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def chart_digest() -> str:
    """Return a digest of all files of the chart."""
    digest = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(CHART).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def check(manifest: Document, version: str) -> None:
    """Check a manifest by the schemas of a version of Kubernetes; raise its error."""
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[test]'")
    assert schemas.validate(manifest, version, strict=True) == version


def documents(text: str) -> dict[str, Document]:
    """Return the manifests by kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


def configuration(manifests: dict[str, Document], directory: Path) -> Path:
    """Write the configuration of the manifests into a file."""
    path = directory / "brokerd.toml"
    path.write_text(manifests["ConfigMap orders-brokerd"]["data"]["brokerd.toml"])
    return path


@pytest.fixture(scope="module")
def manifests() -> dict[str, Document]:
    return documents(GOLDEN.read_text())


@pytest.fixture
def broker(manifests: dict[str, Document]) -> Document:
    pod: Document = manifests["StatefulSet orders-brokerd"]["spec"]["template"]["spec"]
    return pod


@pytest.fixture
def rollup(manifests: dict[str, Document]) -> Document:
    job = manifests["CronJob orders-brokerd-rollup"]["spec"]["jobTemplate"]
    pod: Document = job["spec"]["template"]["spec"]
    return pod


def test_the_manifests_are_those_of_the_chart() -> None:
    """Without helm: no file of the chart has changed since they were rendered."""
    assert GOLDEN.read_text().splitlines()[0] == f"# chart {chart_digest()}"


@needs_helm
def test_helm_renders_the_manifests() -> None:
    assert render(PASSWORD) == GOLDEN.read_text().partition("\n")[2]
    checked = subprocess.run(
        [str(HELM), "lint", "--strict", CHART, f"--set={PASSWORD}"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_manifests(manifests: dict[str, Document], version: str) -> None:
    """By its schemas, of an old and a new version; no field is unknown."""
    for manifest in manifests.values():
        check(manifest, version)
    misspelt = copy.deepcopy(manifests["StatefulSet orders-brokerd"])
    misspelt["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(Exception, match="readynessProbe"):
        check(misspelt, version)


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        ("tls.secretName=cert", "auth.existingSecret=own"),
        ("auth.mode=off", "rollup.enabled=false"),
        (PASSWORD, "env[0].name=AWS_REGION", "env[0].value=x", "imagePullSecrets[0].name=pull"),
        (PASSWORD, "persistence.storageClass=fast", "service.annotations.team=orders"),
    ],
)
def test_kubernetes_accepts_the_manifests_of_other_values(values: tuple[str, ...]) -> None:
    for manifest in documents(render(*values)).values():
        check(manifest, KUBERNETES[-1])


@needs_helm
def test_a_release_without_a_password_is_refused() -> None:
    command = [str(HELM), "template", "orders", CHART]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "give auth.existingSecret, or auth.adminPassword" in refused.stderr


@needs_helm
def test_with_tls_nothing_is_insecure() -> None:
    """The password's Secret may be the user's own; probes speak HTTPS; own lines come last."""
    found = documents(
        render("tls.secretName=cert", "auth.existingSecret=own", "config=[wal]\nfree_bytes = 7")
    )
    settings = tomllib.loads(found["ConfigMap orders-brokerd"]["data"]["brokerd.toml"])
    assert "allow_insecure" not in settings["security"]
    assert settings["wal"] == {"free_bytes": 7}
    pod = found["StatefulSet orders-brokerd"]["spec"]["template"]["spec"]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert settings["tls"]["certificate_file"] == f"{mounts['tls']}/tls.crt"
    assert settings["tls"]["key_file"] == f"{mounts['tls']}/tls.key"
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == ["own", "cert"]
    assert not any(name.startswith("Secret ") for name in found)


@needs_helm
def test_security_off_needs_no_secret(tmp_path: Path) -> None:
    found = documents(render("auth.mode=off", "rollup.enabled=false"))
    assert {name.split()[0] for name in found} == {
        "ConfigMap",
        "Service",
        "StatefulSet",
        "PodDisruptionBudget",
    }
    endpoints_of(None, load(configuration(found, tmp_path)).config)


def test_the_version_of_the_chart_is_that_of_brokerd() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_broker_takes_the_configuration(manifests: dict[str, Document], tmp_path: Path) -> None:
    """It logs in clients, and starts only because the chart allows listeners without TLS."""
    path = configuration(manifests, tmp_path)
    config = load(path).config
    assert config.security.auth == "on"
    endpoints_of(None, config)
    path.write_text(path.read_text().replace("allow_insecure = true", ""))
    with pytest.raises(ConfigError, match="open to other machines"):
        endpoints_of(None, load(path).config)


def test_each_listener_has_its_named_port(
    manifests: dict[str, Document], broker: Document, tmp_path: Path
) -> None:
    config = load(configuration(manifests, tmp_path)).config
    listening = {
        name.replace("+", "-"): int(endpoint.split(":")[1])
        for name, endpoint in {**config.listen, "admin": config.admin.endpoint}.items()
    }
    assert listening == PORTS
    ports = broker["containers"][0]["ports"]
    assert {port["name"]: port["containerPort"] for port in ports} == PORTS
    for name in ("orders-brokerd", "orders-brokerd-headless"):
        service = manifests[f"Service {name}"]["spec"]
        assert {port["targetPort"]: port["port"] for port in service["ports"]} == PORTS
        assert all(len(port["name"]) <= 15 for port in service["ports"])


def test_the_probes_ask_for_health(broker: Document) -> None:
    container = broker["containers"][0]
    for probe, path in (("livenessProbe", "/health/live"), ("readinessProbe", "/health/ready")):
        assert container[probe]["httpGet"] == {"path": path, "port": "admin", "scheme": "HTTP"}


def test_there_is_one_broker_with_its_volume(
    manifests: dict[str, Document], broker: Document, rollup: Document, tmp_path: Path
) -> None:
    """The rollup mounts the volume of the only replica, and so runs on its node."""
    broker_set = manifests["StatefulSet orders-brokerd"]["spec"]
    assert broker_set["replicas"] == 1
    assert f"Service {broker_set['serviceName']}" in manifests
    (claim,) = broker_set["volumeClaimTemplates"]
    volumes = {volume["name"]: volume for volume in rollup["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == (
        f"{claim['metadata']['name']}-orders-brokerd-0"
    )
    affinity = rollup["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"] == broker_set["selector"]
    mounts = {one["name"]: one["mountPath"] for one in broker["containers"][0]["volumeMounts"]}
    data_dir = load(configuration(manifests, tmp_path)).config.data_dir
    assert data_dir.startswith(mounts["data"] + "/")
    assert mounts == {
        one["name"]: one["mountPath"] for one in rollup["containers"][0]["volumeMounts"]
    }


def test_selectors_choose_the_broker_alone(manifests: dict[str, Document]) -> None:
    """Service and disruption budget leave pods of the rollup out."""
    broker = manifests["StatefulSet orders-brokerd"]["spec"]["template"]["metadata"]["labels"]
    job = manifests["CronJob orders-brokerd-rollup"]["spec"]["jobTemplate"]
    rollup = job["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests["Service orders-brokerd"]["spec"]["selector"],
        manifests["Service orders-brokerd-headless"]["spec"]["selector"],
        manifests["PodDisruptionBudget orders-brokerd"]["spec"]["selector"]["matchLabels"],
        manifests["StatefulSet orders-brokerd"]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= broker.items()
        assert not selector.items() <= rollup.items()


def test_the_password_is_where_the_broker_reads_it(
    manifests: dict[str, Document], broker: Document, tmp_path: Path
) -> None:
    secret = manifests["Secret orders-brokerd-accounts"]
    (key,) = secret["stringData"]
    volumes = {volume["name"]: volume for volume in broker["volumes"]}
    assert volumes["accounts"]["secret"]["secretName"] == "orders-brokerd-accounts"
    mounts = {one["name"]: one["mountPath"] for one in broker["containers"][0]["volumeMounts"]}
    config = load(configuration(manifests, tmp_path)).config
    assert config.security.admin_password_file == f"{mounts['accounts']}/{key}"


def test_pods_have_no_rights_and_no_foreign_variables(broker: Document, rollup: Document) -> None:
    """Kubernetes sets BROKERD_... for a service named brokerd, which the broker would refuse."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    for pod in (broker, rollup):
        user = pod["securityContext"]["runAsUser"]
        assert f"\nUSER {user}:{user}\n" in dockerfile
        assert pod["securityContext"]["fsGroup"] == user
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_rollup_runs_once(rollup: Document) -> None:
    from brokerd.rollup import command

    arguments = rollup["containers"][0]["args"]
    assert set(arguments) <= {name for option in command.params for name in option.opts}
    assert "--follow" not in arguments


if __name__ == "__main__":
    if HELM is None:
        sys.exit("there is no helm here")
    GOLDEN.write_text(f"# chart {chart_digest()}\n{render(PASSWORD)}")
