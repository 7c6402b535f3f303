"""Delta tables: log files, checkpoints, commits, vacuum."""
