"""``brokerctl config``: sound or refused, and where each value comes from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerd.cli.main import cli
from brokerd.errors import ConfigError
from brokerd.server.config import Config
from tests.certificates import Authority

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "etc" / "brokerd.toml"


def brokerctl(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, arguments, env=environment)


def test_a_sound_file_is_0() -> None:
    """The annotated example is sound, and says so for people and for programs."""
    result = brokerctl("config", "check", str(EXAMPLE))
    assert (result.exit_code, result.output) == (0, "the configuration is sound\n")
    assert json.loads(brokerctl("--json", "config", "check").output) == {"ok": True}


@pytest.mark.parametrize("line", ["[wal]\nx=1", "[listen]\nmamamia='tcp:x'"])
def test_a_wrong_file_is_refused_with_its_reason(tmp_path: Path, line: str) -> None:
    """Also endpoints are looked at, without opening them."""
    file = tmp_path / "brokerd.toml"
    file.write_text(line)
    assert isinstance(brokerctl("config", "check", str(file)).exception, ConfigError)
    result = brokerctl("--json", "config", "check", str(file))
    answer = json.loads(result.output)
    assert (result.exit_code, answer["ok"]) == (1, False)
    assert answer["error"]


def test_check_warns_as_a_start_does(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("hunter2\n")
    keys.chmod(0o644)
    result = brokerctl("config", "check", BROKERD_BLIPMQ_API_KEYS_FILE=str(keys))
    assert (result.exit_code, result.stdout) == (0, "the configuration is sound\n")
    assert result.stderr.startswith("brokerctl: WARNING: blipmq.api_keys_file: ")
    keys.chmod(0o600)
    result = brokerctl("config", "check", BROKERD_BLIPMQ_API_KEYS_FILE=str(keys))
    assert result.stderr == ""


def test_check_refuses_and_warns_of_open_listeners_as_a_start_does(tmp_path: Path) -> None:
    file = tmp_path / "brokerd.toml"
    file.write_text("[listen]\nmega = 'tcp:8080:interface=0.0.0.0'\n")
    refused = brokerctl("config", "check", str(file)).exception
    assert isinstance(refused, ConfigError)
    assert "security.allow_insecure = true" in str(refused)
    allowed = brokerctl("config", "check", str(file), BROKERD_SECURITY_ALLOW_INSECURE="true")
    assert (allowed.exit_code, allowed.stderr) == (
        0,
        "brokerctl: WARNING: mega is open to other machines without TLS and without auth\n",
    )


def test_check_warns_of_what_means_nothing(tmp_path: Path) -> None:
    file = tmp_path / "brokerd.toml"
    file.write_text("[mamamia]\nprincipal = 'robots'\n")
    said = 'mamamia.principal has no effect while security.auth is "off"'
    checked = brokerctl("config", "check", str(file))
    assert (checked.exit_code, checked.stderr) == (0, f"brokerctl: WARNING: {said}\n")


def test_check_refuses_two_listeners_at_one_port(tmp_path: Path) -> None:
    file = tmp_path / "brokerd.toml"
    file.write_text("[listen]\nflymq = 'tcp:9092'\nrustlog = 'tcp:9092'\n")
    refused = str(brokerctl("config", "check", str(file)).exception)
    assert '"flymq+rustlog" = "tcp:9092"' in refused


def test_check_warns_of_transactions_that_memory_does_not_leave_room(tmp_path: Path) -> None:
    file = tmp_path / "brokerd.toml"
    file.write_text("[limits]\nmemory = '512MiB'\ntransaction_bytes = '192MiB'\n")
    checked = brokerctl("config", "check", str(file))
    used = "a quarter of limits.memory, 134217728, is used"
    assert checked.exit_code == 0
    assert f"limits.transaction_bytes is 201326592: {used}" in checked.stderr
    shown = brokerctl("config", "show", str(file)).output
    assert f"[limits] transaction_bytes; {used}\n" in shown
    assert tomllib.loads(shown)["limits"]["transaction_bytes"] == 192 << 20
    file.write_text("[limits]\nmemory = '512MiB'\n")
    assert brokerctl("config", "check", str(file)).stderr == "", "nobody set the option"
    assert f"transaction_bytes = 201326592  # default; {used}\n" in (
        brokerctl("config", "show", str(file)).output
    )
    file.write_text("[limits]\nmemory = '1GiB'\ntransaction_bytes = '192MiB'\n")
    assert brokerctl("config", "check", str(file)).stderr == ""
    assert "is used" not in brokerctl("config", "show", str(file)).output
    assert "default; at most a quarter" in brokerctl("config", "show").output


def test_check_names_the_directory_of_a_relative_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for option in ("SECURITY_ADMIN_PASSWORD_FILE", "BLIPMQ_API_KEYS_FILE"):
        refused = brokerctl("config", "check", **{f"BROKERD_{option}": "secrets/one"}).exception
        assert f"cannot read secrets/one in {tmp_path}: No such file" in str(refused)
        named = brokerctl("config", "check", **{f"BROKERD_{option}": "/nowhere/one"}).exception
        assert "cannot read /nowhere/one: No such file" in str(named)


def test_check_reads_the_files_of_tls(tmp_path: Path) -> None:
    """And warns of a key that others may read."""
    issued = Authority(tmp_path).issue("broker")
    file = tmp_path / "brokerd.toml"
    tls = f"[tls]\ncertificate_file = '{issued.certificate}'\nkey_file = '{issued.key}'\n"
    file.write_text(tls)
    assert brokerctl("config", "check", str(file)).stderr == ""
    issued.key.chmod(0o640)
    assert "WARNING: tls.key_file: " in brokerctl("config", "check", str(file)).stderr
    issued.key.unlink()
    assert isinstance(brokerctl("config", "check", str(file)).exception, ConfigError)


def test_show_names_the_source_of_every_value(tmp_path: Path) -> None:
    """What show prints is TOML again, and comments tell where a value was set."""
    file = tmp_path / "brokerd.toml"
    file.write_text("[groups]\nmax_attempts = 5\n")
    output = brokerctl("config", "show", str(file), BROKERD_WAL_DURABILITY="os").output
    assert f"max_attempts = 5  # {file}: [groups] max_attempts\n" in output
    assert 'durability = "os"  # environment variable BROKERD_WAL_DURABILITY\n' in output
    assert 'data_dir = "./brokerd-data"  # default\n' in output
    assert tomllib.loads(output)["groups"]["max_attempts"] == 5


def test_show_as_json() -> None:
    """Programs get values and sources apart."""
    shown = json.loads(brokerctl("--json", "config", "show", BROKERD_DATA_DIR="/x").output)
    assert shown["config"]["data_dir"] == "/x"
    assert shown["config"]["wal"]["segment_bytes"] == Config().wal.segment_bytes
    assert shown["sources"] == {"data_dir": "environment variable BROKERD_DATA_DIR"}


def test_show_hides_keys(tmp_path: Path) -> None:
    """How many there are is no secret."""
    file = tmp_path / "brokerd.toml"
    file.write_text("[blipmq]\napi_keys = ['hunter2', 'hunter3']\n")
    for arguments in (("config", "show", str(file)), ("--json", "config", "show", str(file))):
        output = brokerctl(*arguments).output
        assert "hunter" not in output
        assert output.count("***") == 2
