"""The memory that a process may use, by machine and cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.server import machine_memory

MIB = 1 << 20


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """Make the files of a machine's kernel below ``root``."""
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_without_cgroups_it_is_the_machines(tmp_path: Path) -> None:
    assert machine_memory.memory_bytes(tmp_path) == physical()


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "67108864\n"}),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "67108864\n"}),
        (
            "0::/a/b\n",
            {
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "67108864\n",
                "sys/fs/cgroup/memory.max": "134217728\n",
            },
        ),
        (
            "9:cpu:/x\n5:memory:/docker/1\n",
            {"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "67108864\n"},
        ),
        (
            "5:hugetlb,memory:/docker/1\n",
            {
                "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "67108864\n",
            },
        ),
    ],
)
def test_the_lowest_limit_of_a_cgroup_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str]
) -> None:
    assert machine_memory.memory_bytes(machine(tmp_path, cgroup, files)) == 64 * MIB


def test_no_limit_is_the_machines(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/a\n", {"sys/fs/cgroup/a/memory.max": "max\n"})
    assert machine_memory.memory_bytes(root) == physical()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "_function", lambda name: None)
    assert not machine_memory.trim_heap()
