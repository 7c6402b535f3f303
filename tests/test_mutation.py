"""The command for mutation tests selects the tests of a module, and says if there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import main

SLOW = "import pytest\n\n\n@pytest.mark.slow\ndef test_slow():\n    pass\n"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module whose tests are slow."""
    (tmp_path / "test_slow.py").write_text(SLOW)
    module = tmp_path / "module.py"
    module.write_text(f"# Tests: {tmp_path / 'test_slow.py'}\n")
    return module


@pytest.fixture
def cosmic_ray(tmp_path: Path) -> Path:
    """A program in the place of cosmic-ray that prints its configuration and fails."""
    program = tmp_path / "cosmic-ray"
    program.write_text("#!/bin/sh\ncat mutation.toml\nexit 1\n")
    program.chmod(0o700)
    return program


def test_a_module_whose_tests_are_all_slow_is_named(
    module: Path, cosmic_ray: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(module), "--cosmic-ray", str(cosmic_ray)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"no test of {module} is selected by 'not slow and not soak'" in error
    assert error.endswith(f"{module.parent / 'test_slow.py'}; --slow runs the slow ones\n")


def test_slow_tests_run_if_they_are_wanted(module: Path, cosmic_ray: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)baseline failed.*-m 'not soak' .*test_slow.py"):
        main([str(module), "--slow", "--cosmic-ray", str(cosmic_ray)])


def test_a_module_that_names_no_tests_is_an_error(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text("")
    with pytest.raises(SystemExit):
        main([str(module)])
    assert f"{module} names no tests" in capsys.readouterr().err
