# Tests: tests/powerloss
"""Power loss of a real broker, on a file system in user space that records each operation.

`filesystem` passes operations through to a directory and records them, `replay` builds from the
recording what a power loss leaves, `workload` works on a broker there, `check` judges what a broker
finds on such a directory. ``python -m benchmarks.powerloss`` does it all.
"""
