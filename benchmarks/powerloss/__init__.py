# Tests: tests/powerloss
"""Cause power losses of a real broker, on a user-space file system that records each operation.

`filesystem` passes operations through to a directory and records them. `replay` builds from the
recording the directory after a power loss. `workload` runs clients against a broker there. `check`
judges a broker that starts on such a directory. ``python -m benchmarks.powerloss`` runs all of
them.
"""
