"""The file descriptors that are left to a process, in a child with a low limit."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, resource
from brokerd.server.descriptors import descriptors_left
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
before = descriptors_left()
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
after = descriptors_left()
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
print(before - after, descriptors_left())
os.close(taken.pop())
print(descriptors_left())
"""


def test_what_is_left_is_counted_from_the_lowest_free_descriptor() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["10", "0", "1"]
