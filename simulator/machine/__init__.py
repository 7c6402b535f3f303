"""The simulated computer: disk, page cache, power loss, threads, network, time."""
