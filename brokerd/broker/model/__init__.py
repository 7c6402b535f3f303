"""State that survives a restart: topics, groups, snapshots, replay."""
