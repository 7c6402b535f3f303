"""The report of the configuration: values, origins, secrets, and what waits for a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.admin.shapes.configuration import OptionShape
from brokerd.errors import ConfigError
from brokerd.server.config import SECTIONS, Config, LoadedConfig, load, with_secrets
from brokerd.server.configuration_report import ConfigurationReport
from brokerd.server.reload import RELOADABLE, differences, merged


def report_of(loaded: LoadedConfig) -> ConfigurationReport:
    return ConfigurationReport(loaded, with_secrets(loaded.config))


def shown(report: ConfigurationReport) -> dict[str, OptionShape]:
    return {option.name: option for option in report.options()}


def reload(report: ConfigurationReport, before: Config, loaded: LoadedConfig) -> Config:
    """Apply a configuration as a reload does; return the one in use."""
    wanted = report.reading(loaded)
    names = [name for name in differences(before, wanted) if name in RELOADABLE]
    config = merged(before, wanted, names)
    report.apply(config)
    return config


def test_every_option_has_its_default_without_a_configuration() -> None:
    options = shown(report_of(load()))
    assert {option.origin for option in options.values()} == {"default"}
    assert all(option.value == option.default for option in options.values())
    names = {
        f"{section}.{key}" for section in SECTIONS for key in SECTIONS[section].__struct_fields__
    }
    assert {name for name in options if not name.startswith("listen.")} == {"data_dir"} | names
    assert options["listen.flymq+rustlog"].value == "tcp:9092"
    assert {name for name, option in options.items() if option.reloadable} == {*RELOADABLE}
    msgspec.json.encode(report_of(load()).options())


def test_each_layer_is_named(tmp_path: Path) -> None:
    """The last one wins."""
    file = tmp_path / "brokerd.toml"
    file.write_text('[wal]\ndurability = "os"\nfree_bytes = 1\n[log]\nlevel = "warn"\n')
    environment = {"BROKERD_LOG_LEVEL": "error", "BROKERD_WAL_FREE_BYTES": "2"}
    options = shown(report_of(load(file, environment, ["wal.free_bytes=3"])))
    found = [
        (options[name].value, options[name].origin, options[name].source)
        for name in ("wal.durability", "log.level", "wal.free_bytes")
    ]
    assert found == [
        ("os", "file", f"{file}: [wal] durability"),
        ("error", "environment", "environment variable BROKERD_LOG_LEVEL"),
        (3, "option", "--set wal.free_bytes"),
    ]


@pytest.mark.parametrize("by_file", [False, True])
def test_no_secret_is_reported(tmp_path: Path, by_file: bool) -> None:
    """How many there are, and where they come from."""
    (tmp_path / "keys").write_text("hidden-1\nhidden-2\n")
    given = {
        "BROKERD_BLIPMQ_API_KEYS_FILE" if by_file else "BROKERD_BLIPMQ_API_KEYS": (
            str(tmp_path / "keys") if by_file else "hidden-1,hidden-2"
        )
    }
    options = report_of(load(environment=given)).options()
    assert b"hidden" not in msgspec.json.encode(options)
    (keys,) = [option for option in options if option.name == "blipmq.api_keys"]
    assert (keys.value, keys.origin) == (["***", "***"], "environment")
    assert not any(option.restart_needed for option in options)


def test_after_a_reload_the_values_in_use_are_reported(tmp_path: Path) -> None:
    """An option that waits for a restart keeps value and source, and says so."""
    file = tmp_path / "brokerd.toml"
    file.write_text('[log]\nlevel = "warn"\n[wal]\ndurability = "os"\n')
    loaded = load(file)
    report = report_of(loaded)
    changes: dict[str, Any] = {"assignments": ["log.level=error", "wal.durability=fsync"]}
    config = reload(report, loaded.config, load(**changes))
    level, durability = shown(report)["log.level"], shown(report)["wal.durability"]
    assert (level.value, level.origin, level.restart_needed) == ("error", "option", False)
    assert (durability.value, durability.origin, durability.restart_needed) == ("os", "file", True)
    reload(report, config, loaded)
    assert not any(option.restart_needed for option in report.options())
    assert shown(report)["log.level"].source == f"{file}: [log] level"


def test_a_configuration_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    report = report_of(load())
    before = report.options()
    with pytest.raises(ConfigError):
        report.reading(load(assignments=[f"blipmq.api_keys_file={tmp_path / 'missing'}"]))
    assert report.options() == before
